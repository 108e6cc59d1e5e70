import re
from typing import Any, ClassVar, Final, get_args

import orjson
from rest_framework.exceptions import ErrorDetail
from rest_framework.serializers import ValidationError

from accounts.models import Session
from accounts.users import emails, passwords
from accounts.users.service import RESERVED_ROLES
from accounts.users.sessions import Reason
from platform_site.http import errors, fields
from platform_site.identity.callers import PUBLISHABLE_SCOPES, SCOPES, CallerKind

MAX_USER_NAME_LENGTH: Final = 200
MAX_CLAIMS_BYTES: Final = 4096
"""Bytes of a user's claims as JSON: they travel with every cached caller."""
_ROLE: Final = re.compile(r"[a-z][a-z0-9_]{0,47}", re.ASCII)


def _required(*names: str, message: str = "This field is required.") -> ValidationError:
    return ValidationError({name: [ErrorDetail(message, "required")] for name in names})


class EmailField(fields.CharField):
    def to_internal_value(self, data: Any) -> str:
        try:
            return emails.check(str(super().to_internal_value(data)))
        except errors.ValidationFailed as error:
            raise ValidationError(error.fields[0].message, error.fields[0].code) from None


class PasswordField(fields.CharField):
    """A password as typed: `accounts.users.passwords` normalises it, and accepts a hash of the typed form."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(trim_whitespace=False, write_only=True, max_length=passwords.MAX_INPUT_LENGTH, **kwargs)


class ChosenPasswordField(PasswordField):
    """A new password. The services, which know the user, check its similarity to the user's data."""

    def to_internal_value(self, data: Any) -> str:
        value = str(super().to_internal_value(data))
        try:
            passwords.check_chosen(value)
        except errors.ValidationFailed as error:
            raise ValidationError([ErrorDetail(each.message, each.code) for each in error.fields]) from None
        return value


class RoleField(fields.CharField):
    """A role for rules: a name like a table's, and not one of RESERVED_ROLES."""

    default_error_messages: ClassVar = {
        "invalid_role": "A role is 1-48 of a-z, 0-9 and _, beginning with a letter.",
        "reserved_role": "Rules use this name for callers without a role of their own.",
    }

    def to_internal_value(self, data: Any) -> str:
        value = str(super().to_internal_value(data))
        if not _ROLE.fullmatch(value):
            self.fail("invalid_role")
        if value in RESERVED_ROLES:
            self.fail("reserved_role")
        return value


class ClaimsField(fields.ObjectField):
    default_error_messages: ClassVar = {"too_long": "Claims must have at most 4096 bytes as JSON."}

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        value = super().to_internal_value(data)
        if len(orjson.dumps(value)) > MAX_CLAIMS_BYTES:
            self.fail("too_long")
        return value


class TokenInput(fields.Serializer):
    """Contract 4.5, refreshing, and PKCE. Fields of other grants are ignored (RFC 6749 3.2)."""

    ignore_unknown = True

    grant_type = fields.ChoiceField(choices=["password", "refresh_token", "authorization_code"])
    email = fields.CharField(required=False, max_length=emails.MAX_LENGTH)
    password = PasswordField(required=False)
    refresh_token = fields.CharField(required=False, max_length=200)
    code = fields.CharField(required=False, max_length=200)
    code_verifier = fields.CharField(
        required=False, max_length=200, help_text="Required if the code was requested with a `code_challenge`."
    )
    redirect_uri = fields.CharField(
        required=False, max_length=2000, help_text="If sent, it must be the URI that the code was sent to."
    )

    NEEDED: ClassVar = {
        "password": ("email", "password"),
        "refresh_token": ("refresh_token",),
        "authorization_code": ("code",),
    }
    ALSO_READ: ClassVar = {"authorization_code": ("code_verifier", "redirect_uri")}

    def to_internal_value(self, data: Any) -> Any:
        # Only the fields of the requested grant are validated.
        if isinstance(data, dict) and isinstance(data.get("grant_type"), str):
            grant = data["grant_type"]
            read = ("grant_type", *self.NEEDED.get(grant, ()), *self.ALSO_READ.get(grant, ()))
            data = {name: value for name, value in data.items() if name in read}
        return super().to_internal_value(data)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        missing = [name for name in self.NEEDED[attrs["grant_type"]] if name not in attrs]
        if missing:
            raise _required(*missing)
        return attrs


class RevokeInput(fields.Serializer):
    scope = fields.ChoiceField(choices=["current", "others", "all"])


class MeInput(fields.Serializer):
    """Changes of the caller's own account. A new password needs the current one."""

    name = fields.NameField(required=False, allow_blank=True, max_length=MAX_USER_NAME_LENGTH)
    password = ChosenPasswordField(required=False)
    current_password = PasswordField(required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        for one, other in (("password", "current_password"), ("current_password", "password")):
            if one in attrs and other not in attrs:
                raise _required(other, message=f"Required together with {one}.")
        return attrs


class KeyName(fields.Serializer):
    name = fields.NameField(max_length=100)


class KeyInput(KeyName):
    scopes = fields.ListField(
        child=fields.ChoiceField(choices=list(SCOPES)),
        min_length=1,
        max_length=len(SCOPES),
        distinct=True,
        required=False,
        help_text="Required, except for publishable keys. Default: all scopes that such a key can hold.",
    )
    environment_id = fields.IdField("env", required=False, allow_null=True)
    expires_at = fields.DateTimeField(required=False, allow_null=True)
    publishable = fields.BooleanField(
        required=False,
        source="is_publishable",
        help_text="A public key, for web pages and apps before a user signs in. It has the role `anonymous` in rules. "
        f"Its only scopes: {', '.join(sorted(PUBLISHABLE_SCOPES))}.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "scopes" not in attrs:
            if not attrs.get("is_publishable"):
                raise _required("scopes")
            attrs["scopes"] = sorted(PUBLISHABLE_SCOPES)
        return attrs


class InvitationInput(fields.Serializer):
    email = EmailField()
    name = fields.NameField(required=False, allow_blank=True, max_length=MAX_USER_NAME_LENGTH)
    role = RoleField(required=False, allow_null=True)
    claims = ClaimsField(required=False)


class UserFields(InvitationInput):
    """The fields of a user, except the password."""

    email_verified = fields.BooleanField(
        required=False, source="is_email_verified", help_text="Whether the email is known to be the user's."
    )


class UserInput(UserFields):
    password = ChosenPasswordField(
        required=False,
        help_text="Without it, the user has no password and cannot sign in with one: a provider or a password reset "
        "lets the user in.",
    )


class UserChange(UserFields):
    email = EmailField(required=False)
    password = ChosenPasswordField(required=False)
    disabled = fields.BooleanField(required=False, source="is_disabled")


class TokenUser(fields.Serializer):
    id = fields.CharField()
    email = fields.CharField()
    name = fields.CharField()


class TokenPair(fields.Serializer):
    access_token = fields.CharField(help_text="A JWT, ES256, valid for `expires_in` seconds.")
    refresh_token = fields.CharField(help_text="`rt_…`, valid for 30 days, good for one use.")
    expires_in = fields.IntegerField()
    user = TokenUser()


class Me(fields.Serializer):
    kind = fields.ChoiceField(
        choices=list(get_args(CallerKind)), help_text="`anonymous` is a caller with a publishable key."
    )
    id = fields.CharField()
    email = fields.CharField(allow_null=True)
    email_verified = fields.BooleanField(allow_null=True, help_text="Null for a key, like the fields below.")
    pending_email = fields.CharField(allow_null=True, help_text="The new email, until it is confirmed.")
    has_password = fields.BooleanField(allow_null=True, help_text="False for users who only ever used a provider.")
    name = fields.CharField(allow_null=True)
    role = fields.CharField(
        allow_null=True, help_text="The user's role, or the account's role in the project of the request."
    )
    environment_id = fields.CharField(allow_null=True)
    scopes = fields.ListField(child=fields.ChoiceField(choices=list(SCOPES)))


class CurrentField(fields.BooleanField):
    def get_attribute(self, session: Session) -> bool:
        return bool(session.pk == self.context["view"].caller.session_id)


class SessionDetail(fields.Serializer):
    id = fields.CharField()
    current = CurrentField(help_text="Whether it is the session of this request.")
    environment_id = fields.CharField(allow_null=True)
    user_agent = fields.CharField()
    ip_address = fields.CharField(allow_null=True)
    created_at = fields.DateTimeField()
    refreshed_at = fields.DateTimeField(source="rotated_at", allow_null=True)
    expires_at = fields.DateTimeField()
    ended_at = fields.DateTimeField(source="revoked_at", allow_null=True)
    end_reason = fields.ChoiceField(choices=[*get_args(Reason), "expired"], source="revoked_reason", allow_null=True)

    def to_representation(self, session: Session) -> dict[str, Any]:
        """`has_expired` is annotated (`accounts.users.sessions.of_user`)."""
        shown: dict[str, Any] = super().to_representation(session)
        if session.revoked_at is None and getattr(session, "has_expired", False):
            shown |= {"ended_at": shown["expires_at"], "end_reason": "expired"}
        return shown


class ExposedTable(fields.Serializer):
    table = fields.CharField()
    actions = fields.ListField(child=fields.ChoiceField(choices=["read", "insert", "update", "delete"]))


class ExposedTablesField(fields.ListField):
    def to_representation(self, tables: Any) -> list[Any]:
        return super().to_representation([{"table": name, "actions": actions} for name, actions in tables.items()])


class Exposed(fields.Serializer):
    tables = ExposedTablesField(
        child=ExposedTable(), help_text="Tables whose rules name the role `anonymous`, with the actions."
    )
    users = fields.ListField(
        child=fields.CharField(), source="user_fields", help_text="Fields of users that rows may embed."
    )
    functions = fields.ListField(child=fields.CharField(), help_text="Functions with `invoke: public`.")


class KeyDetail(fields.Serializer):
    id = fields.CharField()
    name = fields.CharField()
    prefix = fields.CharField(help_text="The beginning of the secret.")
    publishable = fields.BooleanField(source="is_publishable")
    scopes = fields.ListField(child=fields.ChoiceField(choices=list(SCOPES)))
    environment_id = fields.CharField(allow_null=True)
    created_at = fields.DateTimeField()
    expires_at = fields.DateTimeField(allow_null=True)
    last_used_at = fields.DateTimeField(allow_null=True, help_text="Accurate to a minute.")
    opens = Exposed(
        allow_null=True,
        help_text="What a publishable key currently allows everyone to do, by rules and functions. "
        "Null for a server key, and in lists while the database of its region is unavailable.",
    )


class NewKey(KeyDetail):
    secret = fields.CharField(help_text="`sk_…`, or `pk_…` of a publishable key. Only this response has it.")


class UserDetail(fields.Serializer):
    id = fields.CharField()
    email = fields.CharField()
    name = fields.CharField()
    role = fields.CharField(allow_null=True)
    claims = fields.ObjectField()
    email_verified_at = fields.DateTimeField(allow_null=True)
    disabled_at = fields.DateTimeField(allow_null=True)
    created_at = fields.DateTimeField()


class PublicKey(fields.Serializer):
    kty = fields.CharField()
    crv = fields.CharField()
    x = fields.CharField()
    y = fields.CharField()
    kid = fields.CharField()
    use = fields.CharField()
    alg = fields.CharField()


class PublicKeys(fields.Serializer):
    keys = fields.ListField(child=PublicKey())
