"""The console's pages of identity providers, linked identities and redirect URIs. Client secrets are on none of them.

What a page changes goes through the same verbs as the API, with the member of staff as the actor.
"""

from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest
from unfold.decorators import display
from unfold.widgets import (
    UnfoldAdminPasswordWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from accounts.console.base import AsOpened, ReadOnlyAdmin, link, list_link, pool_link, staff
from accounts.directory import environments as environment_directory
from accounts.models.oauth import Identity, IdentityProvider, RedirectUri
from accounts.oauth import providers, redirects

_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "userinfo_endpoint", "emails_endpoint")


def _text(help_text: str = "", *, required: bool = False, longest: int = 500) -> forms.CharField:
    return forms.CharField(
        required=required, max_length=longest, help_text=help_text, widget=UnfoldAdminTextInputWidget
    )


def _switch(help_text: str, *, initial: bool = False) -> forms.BooleanField:
    return forms.BooleanField(required=False, initial=initial, help_text=help_text, widget=UnfoldBooleanSwitchWidget)


class _PoolForm(forms.ModelForm):  # type: ignore[type-arg]
    """A form that names an environment, or none for platform accounts."""

    environment_id = _text("env_… of the environment; empty: platform accounts", longest=30)
    is_of_pool = True

    def clean_environment_id(self) -> str | None:
        environment_id: str | None = self.cleaned_data["environment_id"] or None
        if environment_id is not None:
            pool_id = environment_directory.directory().pool_of(environment_id)
            if pool_id is None:
                raise forms.ValidationError("There is no such environment.")
            if self.is_of_pool and pool_id != environment_id:
                raise forms.ValidationError(f"Its users are those of {pool_id}, from which it branched.")
        return environment_id

    def validate_constraints(self) -> None:
        """The instance is not what will be stored: the service makes that."""


class _ProviderFields(forms.Form):
    display_name = _text("What people read on the button.", longest=100)
    client_id = _text(required=True, longest=300)
    client_secret = forms.CharField(
        required=False,
        max_length=2000,
        strip=False,
        widget=UnfoldAdminPasswordWidget(attrs={"autocomplete": "off"}),
        help_text="Stored encrypted and never shown.",
    )
    scopes = _text("Separated by spaces; empty: what is usual.", longest=2000)
    trusts_email = _switch(
        "Its e-mail addresses count as verified though it does not say so. For a directory of your own only: "
        "whoever can choose their address there takes over the user who has it here."
    )
    sign_up = _switch("Unknown people become users, where the pool admits new ones.", initial=True)
    enabled = _switch("Off: nobody signs in by it, and who is linked stays linked.", initial=True)

    def clean_scopes(self) -> list[str]:
        return str(self.cleaned_data["scopes"]).split()

    def clean_client_secret(self) -> str | None:
        return self.cleaned_data["client_secret"] or None


class NewProviderForm(_ProviderFields, _PoolForm):
    name = _text("1-48 of a-z, 0-9, - and _: how `provider=` calls it.", required=True, longest=48)
    preset = forms.ChoiceField(
        required=False,
        choices=[("", "none"), *((name, fields["display_name"]) for name, fields in providers.PRESETS.items())],
        widget=UnfoldAdminSelectWidget,
        help_text="Fills in the addresses.",
    )
    issuer = _text("OpenID Connect: its discovery document says the rest.")
    authorization_endpoint = _text("Plain OAuth 2.")
    token_endpoint = _text("Plain OAuth 2.")
    userinfo_endpoint = _text("Plain OAuth 2: where the profile is.")
    emails_endpoint = _text("Plain OAuth 2: where addresses are listed, as at GitHub.")
    profile_fields = forms.JSONField(
        required=False,
        initial=dict,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3}),
        help_text='Plain OAuth 2: where the profile holds what, such as {"subject": "data.id"}.',
    )
    client_auth = forms.ChoiceField(
        required=False,
        choices=[("", "as the provider says"), *IdentityProvider.ClientAuth.choices],
        widget=UnfoldAdminSelectWidget,
    )

    class Meta:
        model = IdentityProvider
        fields = ("environment_id",)

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        if self.errors:
            return cleaned
        preset = providers.PRESETS.get(cleaned["preset"], {})
        for name in ("display_name", "issuer", *_ENDPOINTS, "profile_fields", "scopes"):
            cleaned[name] = cleaned[name] or preset.get(name)
        if not isinstance(cleaned["profile_fields"] or {}, dict):
            self.add_error("profile_fields", "This must be an object.")
            return cleaned
        wrong = providers.problems(
            name=cleaned["name"],
            client_id=cleaned["client_id"],
            client_secret=cleaned["client_secret"],
            issuer=cleaned["issuer"],
            endpoints={name: cleaned[name] for name in _ENDPOINTS},
            profile_fields=cleaned["profile_fields"] or {},
            scopes=cleaned["scopes"] or (),
            client_auth=cleaned["client_auth"] or None,
        )
        for error in wrong:
            self.add_error(error.field.partition(".")[0], error.message)
        of_pool = providers.of_pool(cleaned["environment_id"])
        if of_pool.filter(name=cleaned["name"]).exists():
            self.add_error("name", "Another provider has this name.")
        if of_pool.count() >= providers.MOST:
            self.add_error(None, f"There are at most {providers.MOST} providers.")
        return cleaned


class ProviderForm(_ProviderFields, AsOpened):
    """What may change of a provider; a secret left empty stays as it is."""

    unwatched = frozenset({"client_secret"})

    class Meta:
        model = IdentityProvider
        fields = ("display_name", "client_id", "trusts_email", "sign_up", "enabled")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial["scopes"] = " ".join(self.instance.scopes)

    def clean_scopes(self) -> list[str]:
        return super().clean_scopes() or self.instance.scopes

    def clean_display_name(self) -> str:
        return str(self.cleaned_data["display_name"] or self.instance.display_name)


class _Managed(ReadOnlyAdmin):
    """Pages whose forms operators may send."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.has_operate_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return self.has_operate_permission(request)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return self.has_operate_permission(request)


@admin.register(IdentityProvider)
class IdentityProviderAdmin(_Managed):
    search_fields = ("=id", "=environment_id", "=name", "issuer")
    search_help_text = "Id, environment, name or issuer"
    empty_words = "Add one, and people of its environment sign in by it (OAuth 2, OpenID Connect)."
    list_display = ("name", "id", "pool", "kind", "where", "state", "created_at")
    list_filter = ("kind", "enabled")
    ordering = ("-id",)
    readonly_fields = (
        "id", "name", "pool", "kind", "where", "token_endpoint", "userinfo_endpoint", "emails_endpoint",
        "profile_fields", "client_auth", "callback", "people", "created_at",
    )  # fmt: skip
    changing: ClassVar = (
        "display_name", "client_id", "client_secret", "scopes", "trusts_email", "sign_up", "enabled",
    )  # fmt: skip
    adding: ClassVar = (
        "environment_id", "name", "preset", "client_id", "client_secret", "issuer", "display_name", "scopes",
        "authorization_endpoint", "token_endpoint", "userinfo_endpoint", "emails_endpoint", "profile_fields",
        "client_auth", "trusts_email", "sign_up", "enabled",
    )  # fmt: skip

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        kwargs["form"] = ProviderForm if obj else NewProviderForm
        kwargs["fields"] = None
        return kwargs["form"]

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        if obj is None:
            return self.adding
        shown = self.readonly_fields
        return (*shown, *self.changing) if self.has_operate_permission(request) else shown

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        return self.readonly_fields if obj else ()

    @display(description="Pool")
    def pool(self, provider: IdentityProvider) -> str:
        return pool_link(provider.environment_id)

    @display(description="Where")
    def where(self, provider: IdentityProvider) -> str:
        return provider.issuer or provider.authorization_endpoint or ""

    @display(description="State", label={"on": "success", "off": "warning"})
    def state(self, provider: IdentityProvider) -> str:
        return "on" if provider.enabled else "off"

    @display(description="Redirect URI to register there")
    def callback(self, provider: IdentityProvider) -> str:
        return providers.callback_url(provider)

    @display(description="People")
    def people(self, provider: IdentityProvider) -> str:
        return list_link("accounts_identity", "who signs in by it", q=provider.pk)

    def save_model(self, request: HttpRequest, obj: IdentityProvider, form: Any, change: bool) -> None:
        values = dict(form.cleaned_data)
        if change:
            # What the person changed and nothing else; a secret left empty stays.
            values = {name: values[name] for name in form.changed_data if values[name] is not None}
            stored = IdentityProvider.objects.get(pk=obj.pk)
            providers.change(stored, actor=staff(request), **values)
            return
        values.pop("preset")
        pool_id = values.pop("environment_id")
        given = {name: value for name, value in values.items() if value not in ("", None)}
        given.setdefault("client_secret", None)
        made = providers.add(pool_id, actor=staff(request), **given)
        obj.pk, obj._state.adding = made.pk, False

    def delete_model(self, request: HttpRequest, obj: IdentityProvider) -> None:
        providers.remove(obj, actor=staff(request))

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """What the service will do: people are not deleted, only how they were recognised."""
        listed = [f"{each}: {each.identities.count()} linked identities" for each in objs]
        return listed, {"identity providers": len(objs)}, set(), []


@admin.register(Identity)
class IdentityAdmin(ReadOnlyAdmin):
    search_fields = ("=id", "=user__id", "=provider__id", "=subject", "=email")
    search_help_text = "Id of the identity, the user or the provider, the subject there, or the e-mail"
    empty_words = "One is linked when somebody signs in through an identity provider."
    list_display = ("id", "person", "by", "subject", "email", "created_at", "last_used_at")
    list_select_related = ("user", "provider")
    ordering = ("-id",)
    fields = ("id", "person", "by", "subject", "email", "created_at", "last_used_at")
    readonly_fields = fields

    @display(description="User")
    def person(self, identity: Identity) -> str:
        return link("accounts_user", identity.user_id, identity.user.email)

    @display(description="Provider")
    def by(self, identity: Identity) -> str:
        return link("accounts_identityprovider", identity.provider_id, identity.provider.name)


class RedirectUriForm(_PoolForm):
    uri = _text("https://…, http://localhost…, or an app's own scheme. Compared letter by letter.", required=True)
    is_of_pool = False

    class Meta:
        model = RedirectUri
        fields = ("environment_id", "uri")

    def clean_uri(self) -> str:
        try:
            return redirects.check(self.cleaned_data["uri"])
        except redirects.NotARedirectUri as error:
            raise forms.ValidationError(str(error)) from None

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        if not self.errors and len({*redirects.of(cleaned["environment_id"]), cleaned["uri"]}) > redirects.MOST:
            self.add_error(None, f"At most {redirects.MOST} redirect URIs.")
        return cleaned


@admin.register(RedirectUri)
class RedirectUriAdmin(_Managed):
    search_fields = ("=id", "=environment_id", "uri")
    search_help_text = "Environment or address"
    empty_words = "Add the addresses that applications are sent back to after signing in through a provider."
    list_display = ("uri", "pool", "created_at")
    ordering = ("-id",)
    form = RedirectUriForm
    fields = ("uri", "pool", "created_at")
    readonly_fields = fields

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        return self.fields if obj else ("environment_id", "uri")

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        return self.readonly_fields if obj else ()

    @display(description="Environment")
    def pool(self, uri: RedirectUri) -> str:
        return pool_link(uri.environment_id)

    def save_model(self, request: HttpRequest, obj: RedirectUri, form: Any, change: bool) -> None:
        environment_id, uri = form.cleaned_data["environment_id"], form.cleaned_data["uri"]
        made = redirects.add(environment_id, uri, actor=staff(request))
        obj.pk, obj._state.adding = made.pk, False

    def delete_model(self, request: HttpRequest, obj: RedirectUri) -> None:
        redirects.remove(obj.environment_id, obj.uri, actor=staff(request))
