"""The text of a draft, and the lines of its errors."""

import json
import re
from functools import partial
from typing import Any, Final

from platform_site.developer_console.forms import invalid
from platform_site.http import exact_json

_invalid: Final = partial(invalid, summary="The document cannot be read.")


def read(text: str) -> dict[str, Any]:
    """Raises ValidationFailed, with the place in the text."""
    try:
        # Its messages say more than those of orjson, which is stricter (NaN, say).
        json.loads(text, parse_float=exact_json.read_exact_float)
        draft = exact_json.loads(text)
    except json.JSONDecodeError as error:
        raise _invalid("document", f"Line {error.lineno}, column {error.colno}: {error.msg}") from None
    except exact_json.RoundedNumber as error:
        raise _invalid("document", str(error)) from None
    except (ValueError, RecursionError):
        raise _invalid("document", "The document is nested too deep, or has a number that is too long.") from None
    if not isinstance(draft, dict):
        raise _invalid("document", "The document must be an object.")
    return draft


def line_of(path: str, text: str) -> int | None:
    at = 0
    for name in path.split(".")[1:]:
        found = re.compile(rf"{re.escape(json.dumps(name))}\s*:").search(text, at)
        if found is None:
            break
        at = found.start() + 1
    return text.count("\n", 0, at) + 1 if at else None
