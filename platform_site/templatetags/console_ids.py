"""Tags of the operators' pages: links from ids to timelines and to objects' pages; headings and overviews."""

from typing import Any, Final

from django import template
from django.contrib.admin.utils import quote
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.text import capfirst

from platform_site.identity import ids

register = template.Library()

_PAGES: Final = {
    "prj": "projects_project",
    "env": "projects_environment",
    "usr": "accounts_user",
    "key": "accounts_serverkey",
    "ses": "accounts_session",
    "aud": "accounts_auditentry",
}


@register.simple_tag
def id_link(value: Any, environment_id: str = "") -> str:
    """The text, with each id in it as a link to its timeline."""
    words = [_linked(word, environment_id) for word in str(value).split(" ")]
    return format_html(" ".join(["{}"] * len(words)), *words)


def _linked(word: str, environment_id: str) -> str:
    if ids.prefix_of(word) not in ids.PREFIXES:
        return word
    return format_html('<a class="id" href="{}">{}</a>', timeline_url(word, environment_id), word)


@register.simple_tag
def timeline_url(text: str, environment_id: str = "") -> str:
    query = {"q": text} | ({"environment": environment_id} if environment_id else {})
    return f"{reverse('console:timeline')}?{urlencode(query)}"


@register.simple_tag(takes_context=True)
def heading_parts(context: Any, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A page's heading: the list's name in the menu, then the object, or *new*. unfold's `parts` are the app, the model
    and the object; or one title."""
    from platform_site.console.sidebar import list_names  # late: unfold loads all tag libraries while it is imported

    if len(parts) < 2:
        return parts
    _, listed, *rest = parts
    shown = [listed | {"title": list_names().get(str(listed["link"])) or capfirst(str(listed["title"]))}, *rest]
    return [*shown, {"title": "new"}] if context["request"].path.endswith("/add/") else shown


@register.simple_tag
def row_link(subject: str, environment_id: str) -> str:
    return format_html('<a class="id" href="{}">{}</a>', timeline_url(subject, environment_id), subject)


@register.filter
def rate(share: float) -> str:
    """A success rate (0 to 1) as a percentage, with a colour and, where something fails, a word."""
    level, word = ("good", "") if share >= 0.95 else ("warn", " some fail") if share >= 0.5 else ("bad", " failing")
    return format_html('<span class="rate {}"><b>{} %</b>{}</span>', level, int(share * 100), word)


@register.simple_tag
def page_of(object_id: str) -> str:
    """The URL of an object's page; empty if it has none."""
    page = _PAGES.get(ids.prefix_of(object_id) or "")
    # As `accounts.console.base.url_of`, which cannot be imported here.
    return reverse(f"admin:{page}_change", args=[quote(object_id)]) if page else ""


@register.simple_tag
def project_overview(project: Any) -> dict[str, Any]:
    """For the page of a project: `projects` may not import the apps that it summarises."""
    from platform_site.console.project_page import overview  # late, as above

    return overview(project)
