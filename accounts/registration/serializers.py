from typing import Any

from accounts.api.serializers import (
    MAX_USER_NAME_LENGTH,
    ChosenPasswordField,
    EmailField,
    PasswordField,
)
from accounts.models.registration import SignUpMode
from accounts.registration import pool_settings
from platform_site.http.fields import (
    CharField,
    ChoiceField,
    DateTimeField,
    IntegerField,
    NameField,
    ObjectField,
    Serializer,
)


class TokenField(CharField):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_length=200, write_only=True, **kwargs)


class SignUpInput(Serializer):
    email = EmailField()
    password = ChosenPasswordField()
    name = NameField(required=False, allow_blank=True, max_length=MAX_USER_NAME_LENGTH)


class LinkInput(Serializer):
    token = TokenField()


class LinkAndPassword(LinkInput):
    """A link, and the password that was chosen before."""

    password = PasswordField()


class ResetInput(LinkInput):
    password = ChosenPasswordField()


class AcceptInput(ResetInput):
    name = NameField(required=False, allow_blank=True, max_length=MAX_USER_NAME_LENGTH)


class EmailInput(Serializer):
    email = EmailField()


class EmailChangeInput(EmailInput):
    current_password = PasswordField()


class DeleteAccountInput(Serializer):
    current_password = PasswordField(required=False, help_text="Required for an account with a password.")


class UrlField(CharField):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(required=False, max_length=pool_settings.MAX_URL_LENGTH, **kwargs)


class LinkUrls(Serializer):
    """For each kind of link the application's own page, a URL with `{token}` in it."""

    sign_up = UrlField()
    invitation = UrlField()
    verify_email = UrlField()
    reset_password = UrlField()
    change_email = UrlField()


class SettingsInput(Serializer):
    sign_up = ChoiceField(choices=SignUpMode.values, required=False)
    app_name = CharField(required=False, allow_blank=True, max_length=64)
    app_url = UrlField(allow_blank=True)
    link_urls = LinkUrls(required=False)


class Accepted(Serializer):
    """The same response whether or not the email has an account."""

    status = ChoiceField(choices=["accepted"])
    expires_in = IntegerField(help_text="Seconds for which the link of the email works, if one is sent.")


class Invitation(Serializer):
    id = CharField()
    email = CharField(source="recipient")
    name = CharField(source="details.name")
    role = CharField(source="details.role", allow_null=True)
    claims = ObjectField(source="details.claims")
    status = ChoiceField(choices=["waiting", "sent", "refused"], help_text="Status of the email.")
    created_at = DateTimeField()
    expires_at = DateTimeField()


class Settings(Serializer):
    sign_up = ChoiceField(choices=SignUpMode.values)
    app_name = CharField()
    app_url = CharField()
    link_urls = LinkUrls()
