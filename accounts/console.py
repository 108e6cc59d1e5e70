"""What the console's pages share: everything is read-only, and every change is a service behind a form with a CSRF
token.

A page shows what its `fields` name and nothing else, so a new column (a hash, a sealed value) stays hidden until
somebody decides otherwise. Used by `admin.py` of this app and of those above.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Final
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.db.models.constants import LOOKUP_SEP
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from unfold.admin import ModelAdmin

from accounts.audit import Actor
from accounts.models import User
from accounts.staff.roles import OPERATE
from platform_site.api.errors import ApiError
from platform_site.routers import RegionNotNamed

MOST_AT_ONCE: Final = 100
"""Things that one action of a list is done to."""


class NarrowedByFilters(ModelAdmin):  # type: ignore[misc]  # unfold has no annotations
    """A list that its address narrows by its filters alone.

    Django lets an address ask of any column of the model, `?password__startswith=…` too: whoever may look at a list
    would read a hash that is on no page, one character after the other.
    """

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        name = lookup.partition(LOOKUP_SEP)[0]
        columns = {name for field in self.opts.get_fields() for name in (field.name, getattr(field, "attname", None))}
        filters = (each[0] if isinstance(each, list | tuple) else each for each in self.list_filter)
        asked = {each.partition(LOOKUP_SEP)[0] for each in filters if isinstance(each, str)}
        return name not in {*columns, "pk"} - asked and bool(super().lookup_allowed(lookup, value, request))


class ReadOnlyAdmin(NarrowedByFilters):
    """Pages to look at. Support may look, operators may run the actions (`accounts.staff.roles`)."""

    show_full_result_count = False  # a count of a million rows is a scan
    list_per_page = 50
    list_fullwidth = True
    list_filter_submit = True
    view_on_site = False
    empty_words = ""
    """What an empty list says: how the first of these comes to be (`templates/unfold/helpers/empty_results.html`)."""
    actions: ClassVar[list[str]] = []

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def changeform_view(self, request: HttpRequest, object_id: str | None = None, *args: Any, **kwargs: Any) -> Any:
        if object_id is None and not self.has_add_permission(request):
            raise PermissionDenied
        return self._answered(super().changeform_view, request, object_id, *args, **kwargs)

    def delete_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> Any:
        if not self.has_delete_permission(request):
            raise PermissionDenied
        return self._answered(super().delete_view, request, object_id, *args, **kwargs)

    def history_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> Any:
        return self._in_its_region(super().history_view, request, object_id, *args, **kwargs)

    def _answered(self, view: Any, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """The answer to a form; what the service refused although the form held is said on the page."""
        try:
            return self._in_its_region(view, request, *args, **kwargs)
        except ApiError as error:
            details = " ".join(field.message for field in error.fields)
            self.message_user(request, f"{error.text} {details}".strip(), messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())

    def _in_its_region(self, view: Any, *args: Any, **kwargs: Any) -> Any:
        """Django's own pages know one database. Of a model that lives in the regions they find nothing."""
        try:
            return view(*args, **kwargs)
        except RegionNotNamed:
            raise Http404("Open it from its environment.") from None

    def has_operate_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Who may run an action: `permissions=["operate"]`."""
        return bool(request.user.is_staff and request.user.has_perm(OPERATE))

    def act_on_many(
        self,
        request: HttpRequest,
        queryset: "QuerySet[Any]",
        act: Callable[[Any, Actor], object],
        done: str,
        *,
        warning: str,
    ) -> HttpResponse | None:
        """An action of a list, in two steps: a page names what was selected and warns; its button does it."""
        if request.POST.get("confirmed") == "yes":
            self.act_on_all(request, queryset, act, done)
            return None
        chosen = list(queryset[: MOST_AT_ONCE + 1])
        if len(chosen) > MOST_AT_ONCE:
            self.message_user(request, f"Select {MOST_AT_ONCE} at most.", messages.ERROR)
            return None
        context = self.admin_site.each_context(request) | {
            "title": "Are you sure?",
            "opts": self.opts,
            "things": chosen,
            "action": request.POST.get("action", ""),
            "done": done,
            "warning": warning,
            "back": request.get_full_path(),
        }
        return TemplateResponse(request, "accounts/confirm_action.html", context)

    def act_on_all(
        self, request: HttpRequest, queryset: "QuerySet[Any]", act: Callable[[Any, Actor], object], done: str
    ) -> None:
        """Run a service for each selected thing and say what came of it. `done` completes "3 users …"."""
        actor = staff(request)
        count = 0
        for thing in queryset:
            try:
                act(thing, actor)
                count += 1
            except ApiError as error:
                self.message_user(request, f"{thing}: {error.text}", messages.ERROR)
        if count:
            name = self.opts.verbose_name if count == 1 else self.opts.verbose_name_plural
            self.message_user(request, f"{count} {name} {done}.", messages.SUCCESS)

    def act_on_one(
        self, request: HttpRequest, object_id: str, act: Callable[[Any, Actor], object], done: str
    ) -> HttpResponse:
        """The same for the thing whose page is open; called by the dialog, which then reloads the page."""
        thing = get_object_or_404(self.model, pk=unquote(object_id))
        self.act_on_all(request, [thing], act, done)  # type: ignore[arg-type]  # a list serves as well
        page = address(f"{self.opts.app_label}_{self.opts.model_name}", thing.pk)
        return HttpResponse(headers={"HX-Redirect": page})


def staff(request: HttpRequest) -> Actor:
    """The member of staff who clicks, for the audit trail."""
    if not isinstance(request.user, User):
        raise TypeError("the console admits nobody who is not signed in")
    return Actor.staff(request.user)


def address(model: str, object_id: str) -> str:
    """The page of a thing. The console writes the underscore of our ids as `_5F`."""
    return reverse(f"admin:{model}_change", args=[quote(object_id)])


def link(model: str, object_id: str | None, text: str | None = None) -> str:
    """A link to the page of a thing, such as `link("accounts_user", "usr_…")`; a dash for none."""
    if not object_id:
        return "–"
    return format_html('<a href="{}">{}</a>', address(model, object_id), text or object_id)


def list_link(model: str, text: str, **query: str) -> str:
    """A link to a filtered list."""
    return format_html('<a href="{}?{}">{}</a>', reverse(f"admin:{model}_changelist"), urlencode(query), text)
