"""SQL statements in files: `queue.sql` for `queue.py`. `-- name: claim` begins a statement; `{other}` is another one,
or a fragment that Python passes. Comment lines are removed."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT: Final = re.compile(r"^\s*--.*\n", re.MULTILINE)
_PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")
_PARAMETER: Final = re.compile(r"%\((\w+)\)s")

Value = str | int | bytes | None


def load(module_file: str, **fragments: str) -> dict[str, str]:
    """The statements by name. Raises KeyError for an unknown placeholder."""
    _, *parts = _NAME.split(Path(module_file).with_suffix(".sql").read_text(encoding="utf-8"))
    statements = dict(zip(parts[::2], parts[1::2], strict=True))

    def complete(name: str) -> str:
        if name in fragments:
            return fragments[name]
        text = _COMMENT.sub("", statements[name]).strip()
        return _PLACEHOLDER.sub(lambda found: complete(found[1]), text)

    return {name: complete(name) for name in statements}


class PreparedStatement:
    """A statement with named parameters, `%(run_id)s`, for `platform_site.postgres.prepared`, which numbers them."""

    def __init__(self, text: str) -> None:
        self._names = tuple(dict.fromkeys(_PARAMETER.findall(text)))
        numbers = {name: f"${number}" for number, name in enumerate(self._names, 1)}
        self._sql = _PARAMETER.sub(lambda found: numbers[found[1]], text).encode()

    def bind(self, parameters: Mapping[str, Value]) -> tuple[bytes, list[bytes | None]]:
        """The numbered statement and its values. Other parameters are ignored. Raises KeyError for a missing one."""
        values = [parameters[name] for name in self._names]
        return self._sql, [
            value if value is None or isinstance(value, bytes) else str(value).encode() for value in values
        ]
