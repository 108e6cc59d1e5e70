from typing import Final

from platform_site.http.errors import FieldError, ValidationFailed
from rows.schema.model import InvalidDocument

DOCUMENT: Final = "document"
"""Errors of the document are named `document.tables.…`."""


def to_api_error(error: InvalidDocument) -> ValidationFailed:
    return ValidationFailed("The schema document is not valid.", fields=map(of_document, error.errors))


def of_document(found: FieldError) -> FieldError:
    return FieldError(f"{DOCUMENT}.{found.field}", found.code, found.message)
