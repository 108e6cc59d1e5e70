"""The folder `backend/`: schema.json, functions/*.ts, functions.json (their settings), webhooks.json and auth.json.
Reading reports invalid JSON, duplicate keys, and secrets."""

import json
import os
import re
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from json.decoder import scanstring  # type: ignore[attr-defined]  # it has no type
from pathlib import Path
from typing import Any

from platform_site.developer_cli import store
from platform_site.developer_cli.failures import Exit, Failure
from platform_site.developer_cli.webhook_urls import normal_url

FUNCTION_SETTINGS = ("timeout_ms", "memory_mb", "allowed_hosts", "invoke", "attempts", "schedule", "on")
WEBHOOK_SETTINGS = ("name", "url", "events", "filter", "columns", "ordering", "description", "enabled")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SECRET = re.compile(
    r"(?:\b(?:sk|rt|whsec|ghp|gho|xox[bp]|sk_live|sk_test|rk_live)[_-][A-Za-z0-9+/_-]{16,}|\bAKIA[A-Z0-9]{16}\b"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY)"
)
_SPACE = re.compile(r"\s*")


@dataclass
class JsonFile:
    path: Path
    text: str
    value: Any

    def at(self, field_path: str) -> str:
        """`backend/schema.json:12` for a field such as `tables.tasks.columns`, or its nearest parent."""
        lines = _lines(self.text)
        while field_path and field_path not in lines:
            field_path = field_path.rpartition(".")[0]
        return f"{self.path}:{lines.get(field_path, 1)}"


@dataclass
class Backend:
    """A missing part is None and stays as it is in the environment."""

    schema: JsonFile | None = None
    settings: JsonFile | None = None
    webhooks: JsonFile | None = None
    auth: JsonFile | None = None
    sources: dict[str, tuple[Path, str]] = field(default_factory=dict)


def check_folder(folder: Path) -> None:
    if not folder.is_dir():
        hint = "Run `platform pull` to create it."
        if store.find_link() is None:
            hint = "Create a project with `platform init NAME`, or run `platform link PROJECT` and `platform pull`."
        raise Failure(Exit.USAGE, "no_folder", f"There is no folder {folder}.", hint)
    check_links(folder)


def check_links(folder: Path) -> None:
    """Refuse symbolic links out of the repository, which may be someone else's: `pull` would write there, and `push`
    send what is there."""
    beside = Path(os.path.realpath(folder.absolute().parent))
    root = next((each for each in (beside, *beside.parents) if (each / ".git").exists()), beside)
    functions = folder / "functions"
    for path in (folder, functions, *folder.glob("*.json"), *functions.glob("*.[tj]s")):
        if not Path(target := os.path.realpath(path)).is_relative_to(root):
            hint = "Use a copy, or name the folder itself with --folder."
            raise Failure(Exit.USAGE, "link_outside", f"{path} is a link out of {root}, to {target}.", hint)


def read(folder: Path) -> Backend:
    check_folder(folder)
    found = Backend(
        _read_json(folder / "schema.json", dict),
        _read_json(folder / "functions.json", dict),
        _read_json(folder / "webhooks.json", list),
        _read_json(folder / "auth.json", dict),
    )
    for path in sorted([*(folder / "functions").glob("*.ts"), *(folder / "functions").glob("*.js")]):
        if path.name.endswith(".d.ts") or path.name.startswith("."):
            continue
        if path.stem in found.sources:
            raise _invalid_file(f"{path} and {found.sources[path.stem][0]} are one function.", "Delete one of them.")
        found.sources[check_name(path.stem)] = (path, store.read_file(path))
    _check_settings(found)
    _check_webhooks(found)
    return found


def check_name(name: str) -> str:
    """A function's name is a file name: it cannot leave the folder."""
    if not _NAME.fullmatch(name):
        raise _invalid_file(f'"{name[:80]}" cannot be the name of a function.', "Use letters, digits, - and _.")
    return name


def _read_json(path: Path, kind: type) -> JsonFile | None:
    try:
        text = store.read_file(path)
    except Failure as error:
        if error.code != "no_file":
            raise
        return None
    try:
        value = json.loads(text, object_pairs_hook=_distinct, parse_constant=_no_constant, parse_float=_exact_float)
    except json.JSONDecodeError as error:
        raise _invalid_file(f"{path}:{error.lineno}: {error.msg} (column {error.colno}).") from None
    except (ValueError, RecursionError, InvalidOperation) as error:
        raise _invalid_file(f"{path}: {error}.") from None
    if not isinstance(value, kind):
        raise _invalid_file(f"{path} must contain {'an object' if kind is dict else 'a list'}.")
    if secret := _SECRET.search(text):
        line = text.count("\n", 0, secret.start()) + 1
        raise Failure(
            Exit.USAGE,
            "secret_in_file",
            f"{path}:{line} contains what looks like a secret.",
            "Remove it, create a new one, and store it with `platform secrets set`.",
        )
    return JsonFile(path, text, value)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {json.dumps(next(name for name in names if names.count(name) > 1))} appears twice")
    return found


def _exact_float(text: str) -> float:
    found = float(text)
    if Decimal(text) != Decimal(repr(found)):
        raise ValueError(f"the number {text[:40]} would be rounded: write fewer digits or, for a decimal, a string")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _check_settings(found: Backend) -> None:
    if found.settings is None:
        return
    for name, settings in found.settings.value.items():
        if name not in found.sources:
            raise _invalid_file(f"{found.settings.at(name)}: there is no functions/{name}.ts.")
        if not isinstance(settings, dict):
            raise _invalid_file(f"{found.settings.at(name)}: the settings of {name} must be an object.")
        for setting in settings:
            where = found.settings.at(f"{name}.{setting}")
            if setting == "secrets":
                raise Failure(
                    Exit.USAGE,
                    "secret_in_file",
                    f"{where}: secrets do not belong in a file.",
                    f"Set each of them with `platform secrets set {name} NAME`.",
                )
            if setting not in FUNCTION_SETTINGS:
                raise _invalid_file(
                    f'{where}: there is no setting "{setting}".', f"Use: {', '.join(FUNCTION_SETTINGS)}"
                )


def _check_webhooks(found: Backend) -> None:
    if found.webhooks is None:
        return
    keys: set[str] = set()
    for index, webhook in enumerate(found.webhooks.value):
        where = found.webhooks.at(str(index))
        if not isinstance(webhook, dict) or not isinstance(webhook.get("url"), str):
            raise _invalid_file(f"{where}: a webhook is an object with a `url`.")
        name = webhook.get("name")
        by = "name" if isinstance(name, str) else "id" if isinstance(webhook.get("id"), str) else "url"
        key = normal_url(webhook["url"]) if by == "url" else webhook[by]
        if key in keys:
            hint = "Give each of them a name." if by == "url" else ""
            raise _invalid_file(f"{where}: two webhooks have this {'URL' if by == 'url' else by}.", hint)
        keys.add(key)
        for setting in webhook:
            if setting not in ("id", *WEBHOOK_SETTINGS):
                at = found.webhooks.at(f"{index}.{setting}")
                raise _invalid_file(f'{at}: there is no setting "{setting}".', f"Use: {', '.join(WEBHOOK_SETTINGS)}")


def _invalid_file(message: str, hint: str = "") -> Failure:
    return Failure(Exit.USAGE, "invalid_file", message, hint)


def _lines(text: str) -> dict[str, int]:
    """The line of each field of valid JSON: `{"tables.tasks.unique.0": 7}`."""
    lines: dict[str, int] = {}
    _add_lines(text, _skip_space(text, 0), "", lines)
    return lines


def _add_lines(text: str, at: int, path: str, lines: dict[str, int]) -> int:
    """Add the fields in the value that begins `at`. Returns its end."""
    if text[at] not in "{[":
        return json.JSONDecoder().raw_decode(text, at)[1]
    is_object, index = text[at] == "{", 0
    at = _skip_space(text, at + 1)
    while text[at] not in "}]":
        name, begin = str(index), at
        if is_object:
            name, at = scanstring(text, at + 1)
            at = _skip_space(text, _skip_space(text, at) + 1)  # behind the colon
        below = f"{path}.{name}" if path else name
        lines[below] = text.count("\n", 0, begin) + 1
        at, index = _skip_space(text, _add_lines(text, at, below, lines)), index + 1
        if text[at] == ",":
            at = _skip_space(text, at + 1)
    return at + 1


def _skip_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
