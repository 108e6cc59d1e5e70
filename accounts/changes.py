from collections.abc import Mapping
from typing import Any

from django.db.models import Model

from platform_site.http import exact_json


def apply(record: Model, values: Mapping[str, object]) -> list[str]:
    """Set the fields whose values differ, and return their names."""
    changed = [field for field, value in values.items() if not _is_same(getattr(record, field), value)]
    for field in changed:
        setattr(record, field, values[field])
    return changed


def _is_same(old: Any, new: Any) -> bool:
    return exact_json.is_same(old, new) if isinstance(new, dict | list) else bool(old == new)
