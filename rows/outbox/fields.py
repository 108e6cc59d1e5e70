from typing import Any

from rest_framework.exceptions import ValidationError

from platform_site.http import fields
from rows.outbox import event_types


class EventsField(fields.ListField):
    child = fields.CharField(max_length=120)

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"min_length": 1, "max_length": event_types.MAX_PATTERNS, "distinct": True} | options)

    def to_internal_value(self, data: Any) -> list[str]:
        patterns: list[str] = super().to_internal_value(data)
        for pattern in patterns:
            if (problem := self.problem_with(pattern)) is not None:
                raise ValidationError(f'"{pattern[:60]}" {problem}.', "unknown_event")
        return patterns

    def problem_with(self, pattern: str) -> str | None:
        return event_types.problem_with(pattern)
