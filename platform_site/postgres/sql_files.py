"""SQL statements in files: `queue.sql` for `queue.py`. `-- name: claim` begins a statement; `{other}` is another one,
or a fragment that Python passes. Comment lines are removed."""

import re
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT: Final = re.compile(r"^\s*--.*\n", re.MULTILINE)
_PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")


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
