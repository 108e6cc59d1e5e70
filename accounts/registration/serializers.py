from functools import partial
from typing import Final

from accounts.api.serializers import (
    MAX_USER_NAME_LENGTH,
    ChosenPasswordField,
    EmailField,
    PasswordField,
)
from accounts.models.registration import SignUpMode
from accounts.registration import pool_settings
from platform_site.http import fields

TokenField: Final = partial(fields.CharField, max_length=200, write_only=True)
UrlField: Final = partial(fields.CharField, required=False, max_length=pool_settings.MAX_URL_LENGTH)


class SignUpInput(fields.Serializer):
    email = EmailField()
    password = ChosenPasswordField()
    name = fields.NameField(required=False, allow_blank=True, max_length=MAX_USER_NAME_LENGTH)


class LinkInput(fields.Serializer):
    token = TokenField()


class LinkAndPassword(LinkInput):
    """A link, and the password that was chosen before."""

    password = PasswordField()


class ResetInput(LinkInput):
    password = ChosenPasswordField()


class AcceptInput(ResetInput):
    name = fields.NameField(required=False, allow_blank=True, max_length=MAX_USER_NAME_LENGTH)


class EmailInput(fields.Serializer):
    email = EmailField()


class EmailChangeInput(EmailInput):
    current_password = PasswordField()


class DeleteAccountInput(fields.Serializer):
    current_password = PasswordField(required=False, help_text="Required for an account with a password.")


class LinkUrls(fields.Serializer):
    """For each kind of link the application's own page, a URL with `{token}` in it."""

    sign_up = UrlField()
    invitation = UrlField()
    verify_email = UrlField()
    reset_password = UrlField()
    change_email = UrlField()


class SettingsInput(fields.Serializer):
    sign_up = fields.ChoiceField(choices=SignUpMode.values, required=False)
    app_name = fields.CharField(required=False, allow_blank=True, max_length=64)
    app_url = UrlField(allow_blank=True)
    link_urls = LinkUrls(required=False)


class Accepted(fields.Serializer):
    """The same response whether or not the email has an account."""

    status = fields.ChoiceField(choices=["accepted"])
    expires_in = fields.IntegerField(help_text="Seconds for which the link of the email works, if one is sent.")


class Invitation(fields.Serializer):
    id = fields.CharField()
    email = fields.CharField(source="recipient")
    name = fields.CharField(source="details.name")
    role = fields.CharField(source="details.role", allow_null=True)
    claims = fields.ObjectField(source="details.claims")
    status = fields.ChoiceField(choices=["waiting", "sent", "refused"], help_text="Status of the email.")
    created_at = fields.DateTimeField()
    expires_at = fields.DateTimeField()


class Settings(fields.Serializer):
    sign_up = fields.ChoiceField(choices=SignUpMode.values)
    app_name = fields.CharField()
    app_url = fields.CharField()
    link_urls = LinkUrls()
