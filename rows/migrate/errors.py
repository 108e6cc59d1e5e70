from typing import Final

from platform_site.http import errors, exception_handler
from platform_site.http.errors import ApiError, FieldError
from rows.migrate import apply
from rows.migrate import service as schema_service
from rows.schema.model import InvalidDocument

DOCUMENT: Final = "document"
"""Errors of the document are named `document.tables.…`."""


def register() -> None:
    exception_handler.register(InvalidDocument, _invalid)
    exception_handler.register(schema_service.Unconfirmed, _unconfirmed)
    exception_handler.register(schema_service.VersionConflict, _moved)
    exception_handler.register(schema_service.NoSuchVersion, lambda error: errors.NotFound())
    exception_handler.register(schema_service.TablesQuotaReached, _too_many)
    exception_handler.register(schema_service.TablesBusy, lambda error: errors.Unavailable(_BUSY))
    exception_handler.register(apply.StatementTimeout, lambda error: errors.Unavailable(_TOO_LONG))


_BUSY: Final = "The tables are in use and the change could not begin. Nothing was changed; try again."
_TOO_LONG: Final = "A step of the change took too long. Nothing was changed; split it into smaller changes."


def _invalid(error: InvalidDocument) -> ApiError:
    return errors.ValidationFailed(
        "The schema document is not valid.", fields=[of_document(found) for found in error.errors]
    )


def of_document(found: FieldError) -> FieldError:
    return FieldError(f"{DOCUMENT}.{found.field}", found.code, found.message)


def _unconfirmed(error: schema_service.Unconfirmed) -> ApiError:
    return errors.ValidationFailed(
        "The change would lose data. To confirm, repeat it with these operations in `confirm`. If something was only "
        "renamed, add `renamed_from` to it instead.",
        fields=[FieldError("confirm", "unconfirmed", name) for name in error.operations],
    )


def _too_many(error: schema_service.TablesQuotaReached) -> ApiError:
    return errors.QuotaExceeded(f"The plan allows {error.limit} tables in an environment.")


def _moved(error: schema_service.VersionConflict) -> ApiError:
    return errors.Conflict(f"The schema is now at version {error.version}. Read it again and repeat your change.")
