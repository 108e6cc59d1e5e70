"""Console pages of identity providers, linked identities and redirect URIs, without client secrets."""

from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.db.models import Model
from django.http import HttpRequest
from unfold.decorators import display

from accounts.console.base import ReadOnlyAdmin, link_column, list_link, staff
from accounts.console.provider_forms import NewProviderForm, PoolForm, ProviderForm, text
from accounts.models.oauth import Identity, IdentityProvider, RedirectUri
from accounts.oauth import discovery, providers, redirects


class _Managed(ReadOnlyAdmin):
    has_add_permission = ReadOnlyAdmin.has_operate_permission

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Who controls a provider can sign in to the accounts whose emails it confirms."""
        is_of_platform = isinstance(obj, IdentityProvider | RedirectUri) and obj.environment_id is None
        return self.has_manage_staff_permission(request) if is_of_platform else self.has_operate_permission(request)

    has_delete_permission = has_change_permission


@admin.register(IdentityProvider)
class IdentityProviderAdmin(_Managed):
    search_fields = ("=id", "=environment_id", "=name", "issuer")
    search_help_text = "Id, environment, name or issuer"
    empty_words = "Users of its environment can sign in with it (OAuth 2, OpenID Connect)."
    list_display = ("name", "id", "pool", "kind", "where", "state", "created_at")
    list_filter = ("kind", "enabled")
    ordering = ("-id",)
    readonly_fields = (
        "id", "name", "pool", "kind", "where", "token_endpoint", "userinfo_endpoint", "emails_endpoint",
        "profile_fields", "client_auth", "callback", "people", "created_at",
    )  # fmt: skip
    changing: ClassVar = (
        "display_name", "issuer", "client_id", "client_secret", "team_id", "key_id", "private_key", "scopes",
        "trusts_email", "sign_up", "enabled",
    )  # fmt: skip
    adding: ClassVar = (
        "environment_id", "name", "preset", "client_id", "client_secret", "issuer", "team_id", "key_id",
        "private_key", "display_name", "scopes",
        "authorization_endpoint", "token_endpoint", "userinfo_endpoint", "emails_endpoint", "profile_fields",
        "client_auth", "trusts_email", "sign_up", "enabled",
    )  # fmt: skip

    def changeform_view(self, request: HttpRequest, object_id: str | None = None, *args: Any, **kwargs: Any) -> Any:
        issuer = request.POST.get("issuer", "").strip()
        provider = self.get_object(request, unquote(object_id)) if object_id else None
        is_new = object_id is None or (provider is not None and issuer != provider.issuer)
        if issuer and is_new and self.has_change_permission(request, provider):
            pool_id = provider.environment_id if provider else request.POST.get("environment_id") or None
            request.__dict__["checked_issuer"] = discovery.try_check(issuer, pool_id)
        return super().changeform_view(request, object_id, *args, **kwargs)

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        base: Any = ProviderForm if obj else NewProviderForm

        class Form(base):  # type: ignore[misc]  # one of two
            checked_issuer = request.__dict__.get("checked_issuer", {})
            may_be_of_platform = self.has_manage_staff_permission(request)

        return Form

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        if obj is None:
            return self.adding
        shown = self.readonly_fields
        return (*shown, *self.changing) if self.has_change_permission(request, obj) else shown

    @display(description="Where")
    def where(self, provider: IdentityProvider) -> str:
        return provider.issuer or provider.authorization_endpoint or ""

    @display(description="State", label={"on": "success", "off": "warning"})
    def state(self, provider: IdentityProvider) -> str:
        return "on" if provider.enabled else "off"

    @display(description="Redirect URI to register there")
    def callback(self, provider: IdentityProvider) -> str:
        return provider.callback_url

    @display(description="People")
    def people(self, provider: IdentityProvider) -> str:
        return list_link("accounts_identity", "linked users", q=provider.pk)

    def save_model(self, request: HttpRequest, obj: IdentityProvider, form: Any, change: bool) -> None:
        if change:
            providers.change(IdentityProvider.objects.get(pk=obj.pk), actor=staff(request), **form.changes())
            return
        made = providers.add(form.cleaned_data["environment_id"], actor=staff(request), **form.given())
        obj.pk, obj._state.adding = made.pk, False

    def delete_model(self, request: HttpRequest, obj: IdentityProvider) -> None:
        providers.remove(obj, actor=staff(request))

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        listed = [f"{each}: {each.identities.count()} linked identities" for each in objs]
        return listed, {"identity providers": len(objs)}, set(), []


@admin.register(Identity)
class IdentityAdmin(ReadOnlyAdmin):
    search_fields = ("=id", "=user__id", "=provider__id", "=subject", "=email")
    search_help_text = "Id of the identity, the user or the provider, the subject there, or the email"
    empty_words = "An identity is linked when a user signs in through an identity provider."
    list_display = ("id", "person", "by", "subject", "email", "created_at", "last_used_at")
    list_select_related = ("user", "provider")
    ordering = ("-id",)
    fields = ("id", "person", "by", "subject", "email", "created_at", "last_used_at")

    person = link_column("User", "accounts_user", "user_id", "user.email")
    by = link_column("Provider", "accounts_identityprovider", "provider_id", "provider.name")


class RedirectUriForm(PoolForm):
    uri = text(
        "https://…, http://localhost…, or an app's own scheme. Compared letter by letter.", label="URI", required=True
    )
    is_of_pool = False

    class Meta:
        model = RedirectUri
        fields = ("environment_id", "uri")

    def clean_uri(self) -> str:
        uri: str = self.cleaned_data["uri"]
        if found := redirects.fault(uri):
            raise forms.ValidationError(found[1])
        return uri

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        if not self.errors and len({*redirects.of(cleaned["environment_id"]), cleaned["uri"]}) > redirects.MAX_URIS:
            self.add_error(None, f"At most {redirects.MAX_URIS} redirect URIs.")
        return cleaned


@admin.register(RedirectUri)
class RedirectUriAdmin(_Managed):
    search_fields = ("=id", "=environment_id", "uri")
    search_help_text = "Environment or URI"
    empty_words = "Add the URIs to which applications are redirected after a sign-in through a provider."
    list_display = ("uri", "pool", "created_at")
    ordering = ("-id",)
    form = RedirectUriForm
    pool = link_column("Environment", "projects_environment", "environment_id", empty="platform")
    fields = ("uri", "pool", "created_at")
    add_fields = ("environment_id", "uri")

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form: Any = super().get_form(request, obj, change, **kwargs)
        form.may_be_of_platform = self.has_manage_staff_permission(request)
        return form

    def save_model(self, request: HttpRequest, obj: RedirectUri, form: Any, change: bool) -> None:
        environment_id, uri = form.cleaned_data["environment_id"], form.cleaned_data["uri"]
        made = redirects.add(environment_id, uri, actor=staff(request))
        obj.pk, obj._state.adding = made.pk, False

    def delete_model(self, request: HttpRequest, obj: RedirectUri) -> None:
        redirects.remove(obj.environment_id, obj.uri, actor=staff(request))
