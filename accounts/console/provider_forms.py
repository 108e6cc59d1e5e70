from collections.abc import Iterable, Mapping
from typing import Any

from django import forms
from unfold.widgets import (
    UnfoldAdminPasswordWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from accounts.console.base import AsOpened
from accounts.directory import environments as environment_directory
from accounts.models.oauth import IdentityProvider
from accounts.oauth import client_secrets, providers
from accounts.oauth.client_secrets import SIGNING_KEY
from platform_site.http.errors import FieldError


def text(
    help_text: str = "",
    *,
    label: str | None = None,
    required: bool = False,
    max_length: int = 500,
    empty_value: str | None = "",
) -> forms.CharField:
    return forms.CharField(
        label=label,
        required=required,
        max_length=max_length,
        empty_value=empty_value,
        help_text=help_text,
        widget=UnfoldAdminTextInputWidget,
    )


def _switch(help_text: str, *, initial: bool = False) -> forms.BooleanField:
    return forms.BooleanField(required=False, initial=initial, help_text=help_text, widget=UnfoldBooleanSwitchWidget)


class PoolForm(forms.ModelForm):  # type: ignore[type-arg]
    environment_id = text("env_… of the environment; empty: platform accounts", max_length=30, empty_value=None)
    is_of_pool = True
    may_be_of_platform = False

    def clean_environment_id(self) -> str | None:
        environment_id: str | None = self.cleaned_data["environment_id"]
        if environment_id is None and not self.may_be_of_platform:
            raise forms.ValidationError("Only superusers leave this empty: it means platform accounts.")
        if environment_id is not None:
            environment = environment_directory.directory().environment_ref(environment_id)
            if environment is None:
                raise forms.ValidationError("There is no such environment.")
            if self.is_of_pool and environment.pool_id != environment_id:
                raise forms.ValidationError(f"Its users are those of {environment.pool_id}, from which it branched.")
        return environment_id

    def validate_constraints(self) -> None:
        pass


class _ProviderFields(forms.Form):
    display_name = text("Text of the sign-in button.", max_length=100)
    client_id = text(required=True, max_length=300)
    client_secret = forms.CharField(
        required=False,
        max_length=2000,
        strip=False,
        empty_value=None,
        widget=UnfoldAdminPasswordWidget(attrs={"autocomplete": "off"}),
        help_text="Stored encrypted and never shown.",
    )
    team_id = text("Apple: signs client secrets, together with the next two.", max_length=50, empty_value=None)
    key_id = text(max_length=50, empty_value=None)
    private_key = forms.CharField(
        required=False,
        max_length=client_secrets.MAX_KEY_LENGTH,
        empty_value=None,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3, "autocomplete": "off"}),
        help_text="A P-256 key as PEM, such as Apple's .p8 file. It replaces the client secret. Never shown.",
    )
    scopes = text("Separated by spaces; empty: the default.", max_length=2000)
    trusts_email = _switch(
        "Treat its emails as verified even if it does not say so. Only for your own directory: "
        "anyone who can choose their email there takes over the user with that email here."
    )
    sign_up = _switch("Creates users for unknown identities, if the pool allows sign-up.", initial=True)
    enabled = _switch("Off: it cannot be used to sign in; linked users stay linked.", initial=True)

    def clean_scopes(self) -> list[str]:
        return str(self.cleaned_data["scopes"]).split()

    checked_issuer: Mapping[str, Any] = {}

    def add_errors(self, wrong: Iterable[FieldError]) -> None:
        for error in wrong:
            self.add_error(error.field.partition(".")[0], error.message)

    def add_result_of_check(self) -> None:
        self.add_errors(self.checked_issuer.get("issuer_errors", ()))
        if "issuer" in self.checked_issuer:
            self.cleaned_data["issuer"] = self.checked_issuer["issuer"]


class NewProviderForm(_ProviderFields, PoolForm):
    name = text("Its name in `provider=`: 1-48 of a-z, 0-9, - and _.", required=True, max_length=48)
    preset = forms.ChoiceField(
        required=False,
        choices=[("", "none"), *((name, fields["display_name"]) for name, fields in providers.PRESETS.items())],
        widget=UnfoldAdminSelectWidget,
        help_text="Fills in the URLs.",
    )
    issuer = text("OpenID Connect: the rest comes from its discovery document.")
    authorization_endpoint = text("Plain OAuth 2.")
    token_endpoint = text("Plain OAuth 2.")
    userinfo_endpoint = text("Plain OAuth 2: where the profile is.")
    emails_endpoint = text("Plain OAuth 2: the endpoint that lists emails, as at GitHub.")
    profile_fields = forms.JSONField(
        required=False,
        initial=dict,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3}),
        help_text='Plain OAuth 2: the path of each field in the profile, such as {"subject": "data.id"}.',
    )
    client_auth = forms.ChoiceField(
        required=False,
        choices=[("", "as the provider says"), *IdentityProvider.ClientAuth.choices],
        widget=UnfoldAdminSelectWidget,
    )

    class Meta:
        model = IdentityProvider
        fields = ("environment_id",)

    def given(self) -> dict[str, Any]:
        """What `providers.add` takes. An empty field is left to the preset."""
        values = {name: value for name, value in self.cleaned_data.items() if value not in ("", None, [], {})}
        values.pop("environment_id", None)
        return values

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        if self.errors:
            return cleaned
        if not isinstance(cleaned["profile_fields"], dict | None):
            self.add_error("profile_fields", "This must be an object.")
            return cleaned
        _, wrong = providers.draft(cleaned["environment_id"], **self.given())
        self.add_errors(wrong)
        if not wrong:
            self.add_result_of_check()
        of_pool = providers.of_pool(cleaned["environment_id"])
        if of_pool.filter(name=cleaned["name"]).exists():
            self.add_error("name", "Another provider has this name.")
        if of_pool.count() >= providers.MAX_PROVIDERS:
            self.add_error(None, f"There are at most {providers.MAX_PROVIDERS} providers.")
        return cleaned


class ProviderForm(_ProviderFields, AsOpened):
    """A secret or key left empty stays as it is."""

    unwatched = frozenset({"client_secret", "private_key"})
    issuer = text("OpenID Connect. It can change while no user is linked; then enter the client secret or key again.")

    class Meta:
        model = IdentityProvider
        fields = ("display_name", "client_id", "trusts_email", "sign_up", "enabled")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial["scopes"] = " ".join(self.instance.scopes)
        self.initial.update({name: getattr(self.instance, name) for name in ("issuer", "team_id", "key_id")})

    def changes(self) -> dict[str, Any]:
        """What `providers.change` takes: the fields that the person changed; an empty secret stays as it is."""
        changed = {*self.changed_data, *SIGNING_KEY}
        return {name: each for name, each in self.cleaned_data.items() if name in changed and each is not None}

    def clean_scopes(self) -> list[str]:
        return super().clean_scopes() or self.instance.scopes

    def clean_display_name(self) -> str:
        return str(self.cleaned_data["display_name"] or self.instance.display_name)

    def clean_issuer(self) -> str | None:
        issuer: str | None = self.cleaned_data["issuer"] or self.instance.issuer
        return issuer

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        if self.errors:
            return cleaned
        if not set(SIGNING_KEY).intersection(self.changed_data):
            cleaned |= dict.fromkeys(SIGNING_KEY)
        wrong = providers.problems_of_change(self.instance, **self.changes())
        self.add_errors(wrong)
        if not wrong:
            self.add_result_of_check()
        if cleaned.get("issuer") != self.initial["issuer"] and self.instance.identities.exists():
            self.add_error("issuer", "Users are linked by this issuer. Remove the provider and add another one.")
        return cleaned
