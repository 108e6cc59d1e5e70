from collections.abc import Mapping

from django.db.models import Model


def apply(record: Model, values: Mapping[str, object]) -> list[str]:
    """Set the fields whose values differ, and return their names."""
    changed = [field for field, value in values.items() if getattr(record, field) != value]
    for field in changed:
        setattr(record, field, values[field])
    return changed
