"""The API's errors: one class per code, and the JSON envelope. Contract section 7."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

if TYPE_CHECKING:
    from django.db.models import Model, QuerySet

M = TypeVar("M", bound="Model")

NO_FIELD: Final = "(empty)"


@dataclass(frozen=True, slots=True)
class FieldError:
    """A field's name as sent (dotted inside objects), a stable code, a sentence."""

    field: str
    code: str
    message: str

    def as_dict(self) -> dict[str, str]:
        return {"field": self.field or NO_FIELD, "code": self.code, "message": self.message}


class ApiError(Exception):
    """`headers` are the response's; `extra` is merged into the error; `fields` are for invalid input."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"
    message: ClassVar[str] = "Something went wrong on our side."
    own_headers: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self,
        message: str | None = None,
        *,
        fields: Iterable[FieldError] = (),
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.text = message or self.message
        self.fields = list(fields)
        self.headers = {**self.own_headers, **(headers or {})}
        self.extra = dict(extra or {})
        super().__init__(self.text)

    def body(self, request_id: str | None) -> dict[str, Any]:
        error: dict[str, Any] = {"code": self.code, "message": self.text}
        if self.fields:
            error["fields"] = [field.as_dict() for field in self.fields]
        return {"error": error | self.extra | {"request_id": request_id}}


class InvalidRequest(ApiError):
    status, code, message = 400, "invalid_request", "The request could not be read."


class InvalidGrant(ApiError):
    status, code, message = 400, "invalid_grant", "The credentials or the code are wrong."


class Unauthorized(ApiError):
    status, code, message = 401, "unauthorized", "The token is missing, expired or revoked."
    own_headers: ClassVar = {"WWW-Authenticate": "Bearer"}


class Forbidden(ApiError):
    status, code, message = 403, "forbidden", "The token does not allow this."


class ProjectSuspended(ApiError):
    status, code = 403, "project_suspended"
    message = (
        "The project is suspended by the platform's operators. No data is lost, and everything resumes when the "
        "suspension ends. Project members can read the reason in `suspension_reason`; ask the operators to end the "
        "suspension."
    )


class NotFound(ApiError):
    status, code, message = 404, "not_found", "Not found, or you have no permission to read it."


class MethodNotAllowed(ApiError):
    status, code, message = 405, "method_not_allowed", "This endpoint does not support that method."


class Conflict(ApiError):
    status, code, message = 409, "conflict", "The resource was changed at the same time, or already exists."


class PreconditionFailed(ApiError):
    status, code, message = 412, "precondition_failed", "The resource has changed: its ETag does not match If-Match."


class PayloadTooLarge(ApiError):
    status, code, message = 413, "payload_too_large", "The request body is larger than 1 MB."


class UnsupportedMediaType(ApiError):
    status, code, message = 415, "unsupported_media_type", "The body must be application/json."


class ValidationFailed(ApiError):
    status, code, message = 422, "validation_failed", "One or more fields are invalid."

    @classmethod
    def of(cls, field: str, code: str, message: str) -> "ValidationFailed":
        return cls(fields=[FieldError(field, code, message)])


class QuotaExceeded(ApiError):
    status, code, message = 422, "quota_exceeded", "The plan's limit is reached."

    @classmethod
    def check(cls, used: int, limit: int, what: str, *, more: int = 1) -> None:
        """`what`: such as "webhooks in an environment"."""
        if more > 0 and used + more > limit:
            raise cls(f"The plan allows {limit} {what}.")


class RateLimited(ApiError):
    status, code, message = 429, "rate_limited", "Too many requests."

    def __init__(self, retry_after: int, message: str | None = None, **rest: Any) -> None:
        super().__init__(message, **rest)
        self.headers["Retry-After"] = str(max(1, retry_after))

    @property
    def page_text(self) -> str:
        return f"Too many attempts. Try again in {self.headers['Retry-After']} s."


class Internal(ApiError):
    pass


class Unavailable(ApiError):
    status, code, message = 503, "unavailable", "The service is busy or restarting. Try again shortly."
    own_headers: ClassVar = {"Retry-After": "1"}


class FunctionFailed(ApiError):
    status, code, message = 502, "function_failed", "The function failed. Its run has the reason."


class FunctionTimeout(ApiError):
    status, code, message = 504, "function_timeout", "The function ran longer than its timeout."


def first_or(found: "QuerySet[M]", error: Exception | type[Exception]) -> M:
    """The first object; without one, `error` is raised."""
    first = found.first()
    if first is None:
        raise error
    return first
