"""Errors that end a sign-in flow without a code (RFC 6749 4.1.2.1). A provider's texts only go to the log."""

from django.db.models import TextChoices


class FlowError(Exception):
    """Base class of errors that are sent to the application's redirect URI."""

    error: str = "server_error"
    code: str = "server_error"
    text: str = "Signing in did not work."

    def __init__(self, why: str = "") -> None:
        self.why = why
        super().__init__(why or self.text)


class InvalidFlowRequest(FlowError):
    def __init__(self, text: str, error: str = "invalid_request") -> None:
        self.text, self.error, self.code = text, error, error
        super().__init__()


class ProviderUnreachable(FlowError):
    error, code = "temporarily_unavailable", "provider_unreachable"
    text = "The identity provider does not answer. Try again in a moment."


class ProviderAnswerInvalid(FlowError):
    code = "provider_answer_invalid"
    text = "The identity provider's answer could not be trusted."


class Denial(TextChoices):
    PROVIDER_REFUSED = "provider_refused", "The identity provider did not sign you in."
    EMAIL_MISSING = "email_missing", "The identity provider sent no email."
    EMAIL_UNVERIFIED = "email_unverified", "The identity provider has not verified your email."
    # The user has never verified it, so it may have been registered by another person.
    EMAIL_TAKEN = (
        "email_taken",
        "A user with this email exists, but it was never verified. Sign in as before and verify the email first.",
    )
    # A provider's email is not enough to become an account of console staff, or to be linked in a preview branch.
    LINK_REQUIRED = (
        "link_required",
        "A user with this email is not linked to this provider. Sign in as before, then link the provider.",
    )
    SIGN_UP_CLOSED = "sign_up_closed", "There is no user for this identity, and sign-up is not allowed."
    USER_DISABLED = "user_disabled", "This user may not sign in."
    QUOTA_EXCEEDED = "quota_exceeded", "The application cannot take more users at the moment."


class AccessDenied(FlowError):
    error = "access_denied"

    def __init__(self, denial: Denial, why: str = "") -> None:
        self.code, self.text = denial.value, str(denial.label)
        super().__init__(why)
