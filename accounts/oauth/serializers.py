from rest_framework.serializers import DictField

from accounts.api.serializers import PasswordField
from accounts.models.oauth import IdentityProvider
from accounts.oauth import client_secrets, proofs, redirects
from accounts.oauth.providers import PRESETS
from platform_site.http import fields

MAX_SECRET_LENGTH = 2000
_RESPONSE_MODES = IdentityProvider.ResponseMode.values
_AUTH = IdentityProvider.ClientAuth.values


class ProviderChanges(fields.Serializer):
    display_name = fields.NameField(required=False, max_length=100)
    client_id = fields.CharField(required=False, max_length=300)
    client_secret = fields.CharField(required=False, max_length=MAX_SECRET_LENGTH, write_only=True)
    team_id = fields.CharField(
        required=False, max_length=50, help_text="With `key_id` and `private_key`: Apple's team."
    )
    key_id = fields.CharField(required=False, max_length=50)
    private_key = fields.CharField(
        required=False,
        max_length=client_secrets.MAX_KEY_LENGTH,
        write_only=True,
        help_text="A P-256 key as PEM, which signs a client secret for each request. Replaces `client_secret`.",
    )
    response_mode = fields.ChoiceField(choices=_RESPONSE_MODES, required=False)
    issuer = fields.CharField(
        required=False, max_length=500, help_text="OpenID Connect. It is checked by its discovery document."
    )
    scopes = fields.ListField(child=fields.CharField(max_length=200), required=False, max_length=30)
    trusts_email = fields.BooleanField(
        required=False,
        help_text="Treat its emails as verified even if it does not say so. Only for your own directory.",
    )
    sign_up = fields.BooleanField(
        required=False, help_text="Whether unknown identities become users, if the environment allows sign-up."
    )
    enabled = fields.BooleanField(required=False)


class NewProvider(ProviderChanges):
    """An `issuer` for OpenID Connect; endpoints and `profile_fields` for plain OAuth 2; a `preset` fills them in."""

    name = fields.CharField(max_length=48, help_text="Its name in `provider=`.")
    preset = fields.ChoiceField(choices=sorted(PRESETS), required=False)
    client_id = fields.CharField(max_length=300)
    authorization_endpoint = fields.CharField(required=False, max_length=500)
    token_endpoint = fields.CharField(required=False, max_length=500)
    userinfo_endpoint = fields.CharField(required=False, max_length=500)
    emails_endpoint = fields.CharField(
        required=False, max_length=500, help_text='Lists `{"email", "primary", "verified"}`, as GitHub does.'
    )
    profile_fields = fields.ObjectField(
        required=False, help_text="Where a profile has `subject`, `email`, `email_verified`, `name`: dotted paths."
    )
    client_auth = fields.ChoiceField(choices=_AUTH, required=False)


class CallbackForm(fields.Serializer):
    """What a provider sends the browser back with. Other fields are ignored."""

    state = fields.CharField(help_text="The state of the authorization request.")
    code = fields.CharField(required=False, help_text="The provider's code.")
    error = fields.CharField(required=False, help_text="The provider's error, if there is no code.")
    iss = fields.CharField(required=False, help_text="The issuer that answers (RFC 9207).")
    user = fields.CharField(required=False, help_text="The name as JSON, which Apple sends once.")


class RedirectUrisInput(fields.Serializer):
    redirect_uris = fields.ListField(child=fields.CharField(trim_whitespace=False), max_length=redirects.MAX_URIS)


class LinkIdentityInput(fields.Serializer):
    code = fields.CharField(
        max_length=proofs.MAX_LENGTH, write_only=True, help_text="From `/v1/auth/authorize?intent=link`."
    )
    code_verifier = fields.CharField(
        max_length=200, write_only=True, help_text="The PKCE verifier of the `code_challenge` that was sent there."
    )
    current_password = PasswordField(required=False, help_text="Required for an account with a password.")


class ProviderDetail(fields.Serializer):
    id = fields.CharField()
    name = fields.CharField()
    display_name = fields.CharField()
    kind = fields.ChoiceField(choices=IdentityProvider.Kind.values)
    issuer = fields.CharField(allow_null=True)
    authorization_endpoint = fields.CharField(allow_null=True)
    token_endpoint = fields.CharField(allow_null=True)
    userinfo_endpoint = fields.CharField(allow_null=True)
    emails_endpoint = fields.CharField(allow_null=True)
    profile_fields = DictField(child=fields.CharField())
    scopes = fields.ListField(child=fields.CharField())
    client_id = fields.CharField()
    has_client_secret = fields.BooleanField(help_text="Or a private key that signs it.")
    team_id = fields.CharField(allow_null=True)
    key_id = fields.CharField(allow_null=True)
    response_mode = fields.ChoiceField(choices=_RESPONSE_MODES, allow_null=True)
    client_auth = fields.ChoiceField(choices=_AUTH, allow_null=True)
    trusts_email = fields.BooleanField()
    sign_up = fields.BooleanField()
    enabled = fields.BooleanField()
    callback_url = fields.CharField(help_text="The redirect URI to register at the provider.")
    created_at = fields.DateTimeField()


class PublicProvider(fields.Serializer):
    name = fields.CharField()
    display_name = fields.CharField()


class RedirectUris(fields.Serializer):
    redirect_uris = fields.ListField(child=fields.CharField())


class IdentityDetail(fields.Serializer):
    id = fields.CharField()
    provider = fields.CharField(source="provider.name")
    display_name = fields.CharField(source="provider.display_name")
    email = fields.CharField(allow_null=True)
    created_at = fields.DateTimeField()
    last_used_at = fields.DateTimeField()
