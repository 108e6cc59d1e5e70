"""Errors that end a sign-in flow without a code (RFC 6749 4.1.2.1). A provider's texts only go to the log."""

from typing import ClassVar


class FlowError(Exception):
    """Base class of errors that are sent to the application's redirect URI."""

    error: ClassVar[str] = "server_error"
    code: ClassVar[str] = "server_error"
    text: str = "Signing in did not work."

    def __init__(self, why: str = "") -> None:
        self.why = why
        super().__init__(why or self.text)


class InvalidFlowRequest(FlowError):
    error, code = "invalid_request", "invalid_request"

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class UnsupportedResponseType(FlowError):
    error, code = "unsupported_response_type", "unsupported_response_type"
    text = "response_type must be code."


class ProviderUnreachable(FlowError):
    error, code = "temporarily_unavailable", "provider_unreachable"
    text = "The identity provider does not answer. Try again in a moment."


class ProviderAnswerInvalid(FlowError):
    code = "provider_answer_invalid"
    text = "The identity provider's answer could not be trusted."


class ProviderRefused(FlowError):
    error, code = "access_denied", "provider_refused"
    text = "The identity provider did not sign you in."


class EmailMissing(FlowError):
    error, code = "access_denied", "email_missing"
    text = "The identity provider sent no email."


class EmailUnverified(FlowError):
    error, code = "access_denied", "email_unverified"
    text = "The identity provider has not verified your email."


class EmailTaken(FlowError):
    """The user with this email has never verified it, so it may have been registered by another person."""

    error, code = "access_denied", "email_taken"
    text = "A user with this email exists, but it was never verified. Sign in as before and verify the email first."


class LinkRequired(FlowError):
    """A provider's email is not enough to become an account of console staff, or to be linked in a preview branch."""

    error, code = "access_denied", "link_required"
    text = "A user with this email is not linked to this provider. Sign in as before, then link the provider."


class SignUpClosed(FlowError):
    error, code = "access_denied", "sign_up_closed"
    text = "There is no user for this identity, and sign-up is not allowed."


class UserDisabled(FlowError):
    error, code = "access_denied", "user_disabled"
    text = "This user may not sign in."


class UsersQuotaReached(FlowError):
    error, code = "access_denied", "quota_exceeded"
    text = "The application cannot take more users at the moment."
