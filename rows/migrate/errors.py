from typing import Final

from platform_site.http import exception_handler
from platform_site.http.errors import FieldError, Unavailable, ValidationFailed
from rows.migrate.apply import StatementTimeout
from rows.schema.model import InvalidDocument

DOCUMENT: Final = "document"
"""Errors of the document are named `document.tables.…`."""


def register() -> None:
    exception_handler.register(InvalidDocument, _invalid)
    exception_handler.register(StatementTimeout, lambda error: Unavailable(_TOO_LONG))


_TOO_LONG: Final = "A step of the change took too long. Nothing was changed; split it into smaller changes."


def _invalid(error: InvalidDocument) -> ValidationFailed:
    return ValidationFailed("The schema document is not valid.", fields=map(of_document, error.errors))


def of_document(found: FieldError) -> FieldError:
    return FieldError(f"{DOCUMENT}.{found.field}", found.code, found.message)
