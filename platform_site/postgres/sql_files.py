"""SQL statements in files: `queue.sql` beside `queue.py` has those that the module runs. A line `-- name: claim` begins
the statement `claim`. `{other}` in it stands for the statement `other` of the same file, or for a fragment that Python
passes. Lines that are comments are not sent to the server."""

import re
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT: Final = re.compile(r"^\s*--.*\n", re.MULTILINE)
_PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")


def load(module_file: str, **fragments: str) -> dict[str, str]:
    """The statements of the `.sql` file beside `module_file`, by name. Raises KeyError for an unknown placeholder."""
    _, *parts = _NAME.split(Path(module_file).with_suffix(".sql").read_text(encoding="utf-8"))
    statements = dict(zip(parts[::2], parts[1::2], strict=True))

    def complete(name: str) -> str:
        if name in fragments:
            return fragments[name]
        text = _COMMENT.sub("", statements[name]).strip()
        return _PLACEHOLDER.sub(lambda found: complete(found[1]), text)

    return {name: complete(name) for name in statements}
