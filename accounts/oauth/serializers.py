from rest_framework.serializers import DictField

from accounts.api.serializers import PasswordField
from accounts.models.oauth import IdentityProvider
from accounts.oauth import client_secrets, proofs, redirects
from accounts.oauth.providers import PRESETS, callback_url
from platform_site.http.fields import (
    BooleanField,
    CharField,
    ChoiceField,
    DateTimeField,
    ListField,
    NameField,
    ObjectField,
    Serializer,
)

MAX_SECRET_LENGTH = 2000
_RESPONSE_MODES = IdentityProvider.ResponseMode.values
_AUTH = IdentityProvider.ClientAuth.values


class ProviderChanges(Serializer):
    display_name = NameField(required=False, max_length=100)
    client_id = CharField(required=False, max_length=300)
    client_secret = CharField(required=False, max_length=MAX_SECRET_LENGTH, write_only=True)
    team_id = CharField(required=False, max_length=50, help_text="With `key_id` and `private_key`: Apple's team.")
    key_id = CharField(required=False, max_length=50)
    private_key = CharField(
        required=False,
        max_length=client_secrets.MAX_KEY_LENGTH,
        write_only=True,
        help_text="A P-256 key as PEM, which signs a client secret for each request. Replaces `client_secret`.",
    )
    response_mode = ChoiceField(choices=_RESPONSE_MODES, required=False)
    issuer = CharField(
        required=False, max_length=500, help_text="OpenID Connect. It is checked by its discovery document."
    )
    scopes = ListField(child=CharField(max_length=200), required=False, max_length=30)
    trusts_email = BooleanField(
        required=False,
        help_text="Treat its emails as verified even if it does not say so. Only for your own directory.",
    )
    sign_up = BooleanField(
        required=False, help_text="Whether unknown identities become users, if the environment allows sign-up."
    )
    enabled = BooleanField(required=False)


class NewProvider(ProviderChanges):
    """An `issuer` for OpenID Connect; endpoints and `profile_fields` for plain OAuth 2; a `preset` fills them in."""

    name = CharField(max_length=48, help_text="Its name in `provider=`.")
    preset = ChoiceField(choices=sorted(PRESETS), required=False)
    client_id = CharField(max_length=300)
    authorization_endpoint = CharField(required=False, max_length=500)
    token_endpoint = CharField(required=False, max_length=500)
    userinfo_endpoint = CharField(required=False, max_length=500)
    emails_endpoint = CharField(
        required=False, max_length=500, help_text='Lists `{"email", "primary", "verified"}`, as GitHub does.'
    )
    profile_fields = ObjectField(
        required=False, help_text="Where a profile has `subject`, `email`, `email_verified`, `name`: dotted paths."
    )
    client_auth = ChoiceField(choices=_AUTH, required=False)


class CallbackForm(Serializer):
    """What a provider sends the browser back with. Other fields are ignored."""

    state = CharField(help_text="The state of the authorization request.")
    code = CharField(required=False, help_text="The provider's code.")
    error = CharField(required=False, help_text="The provider's error, if there is no code.")
    iss = CharField(required=False, help_text="The issuer that answers (RFC 9207).")
    user = CharField(required=False, help_text="The name as JSON, which Apple sends once.")


class RedirectUrisInput(Serializer):
    redirect_uris = ListField(child=CharField(trim_whitespace=False), max_length=redirects.MAX_URIS)


class LinkIdentityInput(Serializer):
    code = CharField(max_length=proofs.MAX_LENGTH, write_only=True, help_text="From `/v1/auth/authorize?intent=link`.")
    code_verifier = CharField(max_length=200, write_only=True, help_text="That of the `code_challenge` sent there.")
    current_password = PasswordField(required=False, help_text="Required for an account with a password.")


class CallbackUrlField(CharField):
    def get_attribute(self, provider: IdentityProvider) -> str:
        return callback_url(provider)


class ProviderDetail(Serializer):
    id = CharField()
    name = CharField()
    display_name = CharField()
    kind = ChoiceField(choices=IdentityProvider.Kind.values)
    issuer = CharField(allow_null=True)
    authorization_endpoint = CharField(allow_null=True)
    token_endpoint = CharField(allow_null=True)
    userinfo_endpoint = CharField(allow_null=True)
    emails_endpoint = CharField(allow_null=True)
    profile_fields = DictField(child=CharField())
    scopes = ListField(child=CharField())
    client_id = CharField()
    has_client_secret = BooleanField(help_text="Or a private key that signs it.")
    team_id = CharField(allow_null=True)
    key_id = CharField(allow_null=True)
    response_mode = ChoiceField(choices=_RESPONSE_MODES, allow_null=True)
    client_auth = ChoiceField(choices=_AUTH, allow_null=True)
    trusts_email = BooleanField()
    sign_up = BooleanField()
    enabled = BooleanField()
    callback_url = CallbackUrlField(help_text="The redirect URI to register at the provider.")
    created_at = DateTimeField()


class PublicProvider(Serializer):
    name = CharField()
    display_name = CharField()


class RedirectUris(Serializer):
    redirect_uris = ListField(child=CharField())


class IdentityDetail(Serializer):
    id = CharField()
    provider = CharField(source="provider.name")
    display_name = CharField(source="provider.display_name")
    email = CharField(allow_null=True)
    created_at = DateTimeField()
    last_used_at = DateTimeField()
