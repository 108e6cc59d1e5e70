"""Base classes of the console's pages: read-only, and every change is a service behind a form with a CSRF token. A page
only shows the fields that it names, so a new column (a hash, a sealed value) stays hidden."""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from operator import attrgetter
from typing import Any, ClassVar, Final, cast
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import BadRequest
from django.db import Error
from django.db.models import Model, Q, QuerySet
from django.db.models.constants import LOOKUP_SEP
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from unfold.admin import ModelAdmin
from unfold.decorators import display

from accounts.audit import Actor
from accounts.models import User
from accounts.staff.roles import MANAGE_STAFF, OPERATE
from platform_site.http.errors import ApiError, NotFound
from platform_site.postgres import sqlstates

admin.site.disable_action("delete_selected")  # two clicks would delete every row

MAX_AT_ONCE: Final = 100


class AsOpened(forms.ModelForm):  # type: ignore[type-arg]
    """A form that does not revert what others changed since the page was opened. Each field also sends the value that
    the page showed; if that is outdated, nothing is saved and the page shows both; saving again confirms."""

    unwatched: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for each in self:
            sent = not self.is_bound or each.html_initial_name in self.data
            each.field.show_hidden_initial = sent and each.name not in self.unwatched

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        for each in self:
            if not (each.field.show_hidden_initial and each.html_initial_name in self.data):
                continue
            opened = str(self.data[each.html_initial_name]).replace("\r\n", "\n")
            now = _sent_as(each)
            if opened == now or not each.field.has_changed(each.initial, each.data):
                continue
            is_untouched = not each._has_changed()  # type: ignore[attr-defined]  # Django's own, of `changed_data`
            sent = cast("QueryDict", self.data).copy()  # the page is shown again with the current value
            sent[each.html_initial_name] = now
            if is_untouched:
                sent[each.html_name] = now
                if isinstance(each.field, forms.BooleanField) and not each.initial:
                    del sent[each.html_name]  # browsers do not send an unchecked box
            self.data = sent
            self.add_error(
                each.name,
                f"Someone else changed this since you opened the page, from {_quoted(opened)} to {_quoted(now)}. "
                "Nothing was saved. Look at it, and save again.",
            )
        return cleaned


def _sent_as(field: forms.BoundField) -> str:
    value = field.field.hidden_widget().format_value(field.field.prepare_value(field.initial))
    return "" if value is None else str(value).replace("\r\n", "\n")


def _quoted(value: str) -> str:
    words = {"": "nothing", "True": "on", "False": "off"}
    return words.get(value) or f"“{' '.join(value.split())[:200]}”"


def showing_errors(view: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(view)
    def wrapped(page: ModelAdmin, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        try:
            return view(page, request, *args, **kwargs)
        except (ApiError, Error) as error:
            if request.method != "POST":
                raise
            page.message_user(request, _explanation(error), messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())

    return wrapped


class ConsoleAdmin(ModelAdmin):  # type: ignore[misc]  # unfold has no annotations
    """The URL can only filter by the declared filters: Django's lookups on every column, such as
    `?password__startswith=…`, would reveal a hidden hash character by character."""

    show_full_result_count = False  # a count of a million rows is a scan
    list_per_page = 50
    list_fullwidth = True
    list_filter_submit = True
    empty_words = ""
    add_form: Any = None
    add_fields: Any = None
    """The form and its fields for a new object, if they are others than those of a change."""

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        if obj is None and self.add_form is not None:
            kwargs["form"] = self.add_form
        return super().get_form(request, obj, change, **kwargs)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.add_fields if obj is None and self.add_fields else super().get_fields(request, obj)

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        column = lookup.partition(LOOKUP_SEP)[0]
        columns = {name for field in self.opts.get_fields() for name in (field.name, getattr(field, "attname", None))}
        filters = (each[0] if isinstance(each, list | tuple) else each for each in self.list_filter)
        filtered = {each.partition(LOOKUP_SEP)[0] for each in filters if isinstance(each, str)}
        return column not in {*columns, "pk"} - filtered and bool(super().lookup_allowed(lookup, value, request))

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """None in a form that adds an object."""
        return self.readonly_fields if obj else ()

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        refuse_nul(request)
        return super().changelist_view(request, extra_context)

    @showing_errors
    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return super().changeform_view(request, *args, **kwargs)

    @showing_errors
    def delete_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return super().delete_view(request, *args, **kwargs)


def _explanation(error: ApiError | Error) -> str:
    if isinstance(error, NotFound):
        return "This no longer exists: someone else changed it a moment ago."
    if sqlstates.is_unavailable(error):
        return (
            "A database is unavailable or busy: the region's, or the control database. Nothing was changed; try again."
        )
    answer = error if isinstance(error, ApiError) else sqlstates.error_for(error)
    if answer.status < 500:
        return " ".join(field.message for field in answer.fields) or answer.text
    raise error


class ConditionFilter(admin.SimpleListFilter):
    conditions: ClassVar[Mapping[str, tuple[str, Q]]]
    """By value of the parameter: its label, and the condition of the listed objects."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(value, label) for value, (label, _) in self.conditions.items()]

    def queryset(self, request: HttpRequest, queryset: "QuerySet[Any]") -> "QuerySet[Any]":
        chosen = self.conditions.get(self.value() or "")
        return queryset if chosen is None else queryset.filter(chosen[1])


def url_of(model: str, object_id: str) -> str:
    return reverse(f"admin:{model}_change", args=[quote(object_id)])


def _anchor(url: str, text: str) -> str:
    return format_html('<a class="text-link" href="{}">{}</a>', url, text)


def link(model: str, object_id: str | None, text: str | None = None) -> str:
    return _anchor(url_of(model, object_id), text or object_id) if object_id else "–"


def console_url(project_id: str, environment_id: str, page: str = "home", *arguments: str) -> str:
    """A page of an environment in `/console`."""
    return reverse(f"developer_console:{page}", args=[project_id, environment_id, *arguments])


def list_url(model: str, **query: str) -> str:
    path = reverse(f"admin:{model.lower().replace('.', '_')}_changelist")
    return f"{path}?{urlencode(query)}" if query else path


def list_link(model: str, text: str, **query: str) -> str:
    return _anchor(list_url(model, **query), text)


def link_column(description: str, model: str, id_of: str, text_of: str | None = None, *, empty: str = "–") -> Any:
    """A column or field of an admin page that links to another object, by the attributes with its id and its text."""

    @display(description=description)
    def column(admin: ConsoleAdmin, thing: Any) -> str:
        object_id = attrgetter(id_of)(thing)
        return link(model, object_id, attrgetter(text_of)(thing) if text_of else None) if object_id else empty

    return column


def timeline_column(description: str, id_of: str, text_of: str | None = None, *, ordering: str | None = None) -> Any:
    """As `link_column`, to the timeline of an id."""

    @display(description=description, ordering=ordering)
    def column(admin: ConsoleAdmin, thing: Any) -> str:
        if not (object_id := getattr(thing, id_of)):
            return "–"
        return _anchor(f"{reverse('console:timeline')}?{urlencode({'q': object_id})}", getattr(thing, text_of or id_of))

    return column


class ReadOnlyAdmin(ConsoleAdmin):
    """Support may view, operators may run the actions (`accounts.staff.roles`)."""

    view_on_site = False
    actions: ClassVar[list[str]] = []
    pool = link_column("Pool", "projects_environment", "environment_id", empty="platform")

    def _never(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    has_add_permission = has_change_permission = has_delete_permission = _never

    def has_operate_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return bool(request.user.is_staff and request.user.has_perm(OPERATE))

    def has_manage_staff_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return bool(request.user.is_staff and request.user.has_perm(MANAGE_STAFF))

    def act_on_many(
        self, request: HttpRequest, selected: "QuerySet[Any] | Sequence[Any]", act: Callable[..., object], done: str,
        *, warning: str = "",
    ) -> HttpResponse | None:  # fmt: skip
        """Run a service for each selected object and report; for none if more than MAX_AT_ONCE are selected. If there
        is a warning, a page shows it and asks first."""
        chosen = list(selected[: MAX_AT_ONCE + 1])
        if len(chosen) > MAX_AT_ONCE:
            self.message_user(request, f"Select {MAX_AT_ONCE} at most.", messages.ERROR)
            return None
        if warning and request.POST.get("confirmed") != "yes":
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
        actor = staff(request)
        count = 0
        for record in self.allowed(request, chosen):
            try:
                act(record, actor=actor)
                count += 1
            except ApiError as error:
                self.message_user(request, f"{record}: {error.text}", messages.ERROR)
        if count:
            name = self.opts.verbose_name if count == 1 else self.opts.verbose_name_plural
            self.message_user(request, f"{count} {name} {done}.", messages.SUCCESS)
        return None

    def allowed(self, request: HttpRequest, chosen: list[Any]) -> list[Any]:
        return chosen

    def act_on_one(self, request: HttpRequest, object_id: str, act: Callable[..., object], done: str) -> HttpResponse:
        """As `act_on_many` for the object whose page is open; called by the dialog, which reloads the page."""
        record = get_object_or_404(self.model, pk=unquote(object_id))
        self.act_on_many(request, [record], act, done)
        page = url_of(f"{self.opts.app_label}_{self.opts.model_name}", record.pk)
        return HttpResponse(headers={"HX-Redirect": page})


def refuse_nul(request: HttpRequest) -> None:
    """PostgreSQL rejects NUL in text: the error would look like a bug or an unavailable region."""
    if any("\0" in text for query in (request.GET, request.POST) for _, texts in query.lists() for text in texts):
        raise BadRequest("NUL in the URL or the form")


def staff(request: HttpRequest) -> Actor:
    if not isinstance(request.user, User):
        raise TypeError("the console requires a signed-in user")
    return Actor.staff(request.user)
