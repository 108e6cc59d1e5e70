"""Tables of sign-in by providers, in the control database. `accounts.models` imports them for Django."""

from typing import Any, ClassVar

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from platform_site.http.models import public_id
from platform_site.security import keyring

SECRET_PURPOSE = "accounts.identity_provider"  # noqa: S105 - what the column is for
KEY_PURPOSE = "accounts.identity_provider_key"


def _sealed_text(column: str, purpose: str) -> Any:
    """The text that is encrypted in `column`, or None."""

    def read(record: models.Model) -> str | None:
        sealed = getattr(record, column)
        return None if sealed is None else keyring.unseal(bytes(sealed), purpose=purpose).decode()

    def write(record: models.Model, text: str | None) -> None:
        setattr(record, column, None if text is None else keyring.seal(text.encode(), purpose=purpose))

    return property(read, write)


class IdentityProvider(models.Model):
    """An identity provider of one pool. What identities depend on (kind, issuer, endpoints) never changes. `oidc` has
    an issuer and a discovery document; `oauth2` has endpoints and `profile_fields`."""

    class Kind(models.TextChoices):
        OIDC = "oidc"
        OAUTH2 = "oauth2"

    class ClientAuth(models.TextChoices):
        BASIC = "client_secret_basic"
        POST = "client_secret_post"
        NONE = "none"

    class ResponseMode(models.TextChoices):
        """How the browser returns: by GET or, as Apple does, POST."""

        QUERY = "query"
        FORM_POST = "form_post"

    id = public_id("idp")
    environment_id = models.CharField(max_length=30, null=True, blank=True)
    name = models.CharField(max_length=48)
    display_name = models.CharField(max_length=100)
    kind = models.CharField(max_length=8, choices=Kind.choices)
    issuer = models.CharField(max_length=500, null=True, blank=True)
    authorization_endpoint = models.CharField(max_length=500, null=True, blank=True)
    token_endpoint = models.CharField(max_length=500, null=True, blank=True)
    userinfo_endpoint = models.CharField(max_length=500, null=True, blank=True)
    emails_endpoint = models.CharField(max_length=500, null=True, blank=True)
    """Lists emails as `[{"email", "primary", "verified"}]`, if the profile has no verified one."""
    profile_fields = models.JSONField(default=dict, blank=True)
    """For `oauth2`: dotted paths of `subject`, `email`, `email_verified`, `name`."""
    scopes = ArrayField(models.CharField(max_length=200), default=list, blank=True)
    client_id = models.CharField(max_length=300)
    sealed_client_secret = models.BinaryField(null=True)
    client_auth = models.CharField(max_length=20, choices=ClientAuth.choices, null=True, blank=True)
    """Null: as the discovery document says."""
    team_id = models.CharField(max_length=50, null=True, blank=True)
    key_id = models.CharField(max_length=50, null=True, blank=True)
    sealed_private_key = models.BinaryField(null=True)
    """The P-256 key (PEM) that signs client secrets (`accounts.oauth.client_secrets`) in place of a stored one."""
    response_mode = models.CharField(max_length=10, choices=ResponseMode.choices, null=True, blank=True)
    """Null: `query`, not sent."""
    trusts_email = models.BooleanField(default=False)
    """Treat its emails as verified: only for a company's own directory."""
    sign_up = models.BooleanField(default=True)
    enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    client_secret: str | None = _sealed_text("sealed_client_secret", SECRET_PURPOSE)
    private_key: str | None = _sealed_text("sealed_private_key", KEY_PURPOSE)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                "environment_id", "name", name="provider_name_unique_in_pool", nulls_distinct=False
            ),
            models.CheckConstraint(
                condition=models.Q(kind="oidc", issuer__isnull=False)
                | models.Q(
                    kind="oauth2",
                    authorization_endpoint__isnull=False,
                    token_endpoint__isnull=False,
                    userinfo_endpoint__isnull=False,
                ),
                name="provider_says_where_it_is",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def callback_url(self) -> str:
        """The redirect URI to register at the provider. Each has its own: with a shared one, a hostile provider could
        have another provider's code sent to its token endpoint (mix-up, RFC 9700 4.4.2)."""
        return f"{settings.BASE_URL}/v1/auth/callback/{self.pk}"

    @property
    def has_client_secret(self) -> bool:
        """Whether there is a secret, or a key that signs one."""
        return self.sealed_client_secret is not None or self.sealed_private_key is not None


class Identity(models.Model):
    id = public_id("idn")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="identities")
    provider = models.ForeignKey(IdentityProvider, on_delete=models.CASCADE, related_name="identities")
    subject = models.CharField(max_length=255)
    email = models.CharField(max_length=254, null=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    last_used_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        verbose_name_plural = "identities"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["provider", "subject"], name="identity_unique_at_provider")
        ]

    def __str__(self) -> str:
        return f"{self.user_id} at {self.provider_id}"


class RedirectUri(models.Model):
    id = public_id("rdu")
    environment_id = models.CharField(max_length=30, null=True, blank=True)
    uri = models.CharField(max_length=500)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        verbose_name = "redirect URI"
        constraints: ClassVar = [
            models.UniqueConstraint("environment_id", "uri", name="redirect_uri_once", nulls_distinct=False)
        ]

    def __str__(self) -> str:
        return self.uri


class AuthorizationCode(models.Model):
    code_hash = models.BinaryField(primary_key=True, max_length=32)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    environment_id = models.CharField(max_length=30, null=True)
    """The environment to sign in to; for a branch not the user's pool."""
    method = models.CharField(max_length=60)
    redirect_uri = models.CharField(max_length=500)
    code_challenge = models.CharField(max_length=43, null=True)
    """PKCE, S256; null without PKCE."""
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)
    session = models.ForeignKey("accounts.Session", on_delete=models.SET_NULL, null=True, related_name="+")
    """The session that it started, which ends if the code is reused."""
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        indexes: ClassVar = [models.Index(fields=["expires_at"], name="code_expiry")]

    def __str__(self) -> str:
        return f"a code for {self.user_id}"
