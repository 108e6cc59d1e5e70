import json
import re
from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

from platform_site.http.errors import FieldError
from rows.schema import identifiers
from rows.schema.model import Errors


def _shown(name: object) -> str:
    text = str(name)
    return text if re.fullmatch(r"[\w$*-]{1,64}", text) else json.dumps(text)[:64]


class DocumentPath(str):
    __slots__ = ()

    def __truediv__(self, part: object) -> "DocumentPath":
        return DocumentPath(f"{self}.{_shown(part)}" if self else _shown(part))


class DocumentChecks:
    def __init__(self) -> None:
        self.errors = Errors()

    def fail(self, path: DocumentPath, code: str, message: str) -> None:
        self.errors.append(FieldError(path or "tables", code, message))

    def mapping(
        self, path: DocumentPath, raw: object, most: float = inf, limit: str = "", form: str = "must be an object"
    ) -> dict[str, Any]:
        """`limit` says that there may be at most `most` keys."""
        if not isinstance(raw, dict):
            self.fail(path, "invalid", form)
        elif len(raw) > most:
            self.fail(path, "too_many", f"{limit}, not {len(raw)}")
        else:
            return raw
        return {}

    def entries(self, path: DocumentPath, raw: object, most: int, form: str = "must be a list") -> list[Any]:
        if not isinstance(raw, list):
            self.fail(path, "invalid", form)
        elif len(raw) > most:
            self.fail(path, "too_many", f"must have at most {most} entries, not {len(raw)}")
        else:
            return raw
        return []

    def known_keys(self, path: DocumentPath, raw: Mapping[str, Any], allowed: Iterable[str], what: str) -> None:
        allowed = tuple(allowed)
        for key in raw:
            if key not in allowed:
                self.fail(path / key, "unknown", f"{what} has no such setting{identifiers.did_you_mean(key, allowed)}")

    def name(self, path: DocumentPath, name: object) -> bool:
        if problem := identifiers.problem(name):
            self.fail(path, "reserved" if problem == "is reserved" else "invalid", f"the name {problem}")
            return False
        return True

    def one_of(
        self, path: DocumentPath, raw: object, options: Iterable[str], *, meant: Mapping[str, str] | None = None
    ) -> str | None:
        """`meant` has the options that other words stand for, for the suggestion."""
        options, word = tuple(options), raw
        if isinstance(raw, str):
            if raw in options:
                return raw
            word = (meant or {}).get(raw.partition("(")[0].lower(), raw)
        self.fail(path, "invalid", f"must be one of {', '.join(options)}{identifiers.did_you_mean(word, options)}")
        return None

    def whole(self, path: DocumentPath, raw: object, least: int, most: int) -> int | None:
        if isinstance(raw, int) and not isinstance(raw, bool) and least <= raw <= most:
            return raw
        self.fail(path, "invalid", f"must be a whole number from {least} to {most}")
        return None

    def unique_sources(self, path: DocumentPath, sources: Mapping[str, str | None], what: str) -> None:
        taken: dict[str, str] = {}
        for name, source in sources.items():
            if source is None:
                continue
            if source in taken:
                self.fail(
                    path / name / "renamed_from", "taken", f'{what} "{taken[source]}" is renamed from "{source}" too'
                )
            taken.setdefault(source, name)

    def renamed_from(self, path: DocumentPath, raw: Mapping[str, Any], what: str) -> str | None:
        name = raw.get("renamed_from")
        if name is None:
            return None
        if isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9_]{0,50}", name):
            return name
        self.fail(path / "renamed_from", "invalid", f"must be the {what}'s name before")
        return None
