from typing import Any, Final

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from platform_site.http import exact_json
from platform_site.identity import ids

register = template.Library()
_FIRST_STRONG_ISOLATE: Final = "\N{FIRST STRONG ISOLATE}"
_POP_ISOLATE: Final = "\N{POP DIRECTIONAL ISOLATE}"
_CONTROLS: Final = dict.fromkeys(map(ord, "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"))


@register.filter
def moment(text: str | None) -> SafeString | str:
    if not text:
        return ""
    return format_html('<time datetime="{}" class="nowrap">{}</time>', text, text[:19].replace("T", " "))


@register.filter
def json_text(value: Any) -> str:
    """A text as it is, anything else as JSON."""
    if value is None:
        return "(none)"
    return value if isinstance(value, str) else exact_json.dumps(value, indent=True)


@register.filter
def isolated(text: object) -> str:
    """Tenants' text in a sentence without markup: it cannot change the direction of the sentence."""
    return f"{_FIRST_STRONG_ISOLATE}{str(text).translate(_CONTROLS)}{_POP_ISOLATE}"


@register.filter
def linked_ids(text: str) -> SafeString:
    """Each id in the text is a link to its timeline."""
    return format_html_join(" ", "{}", ((_linked(word),) for word in text.split(" ")))


def _linked(word: str) -> SafeString | str:
    if ids.prefix_of(word) is None:
        return word
    return format_html('<a href="?id={}"><code>{}</code></a>', word, word)


@register.inclusion_tag("console/column_heads.html")
def column_heads(*names: str, hidden: str = "") -> dict[str, Any]:
    """The head of a table; `hidden` names its last column, of buttons, for screen readers alone."""
    return {"names": names, "hidden": hidden}


@register.simple_tag(takes_context=True)
def page_url(context: Any, name: str, *arguments: str) -> str:
    url: str = context["console"].url(name, *arguments)
    return url


@register.inclusion_tag("console/one_button.html", takes_context=True)
def one_button(
    context: Any,
    action: str,
    label: str,
    *,
    about: object = "",
    hint: str = "",
    question: str = "",
    css: str = "danger",
    to: str = "",
    **fields: Any,
) -> dict[str, Any]:
    """A form of one button for `action`, with hidden `fields`. It asks the `question` first, if there is one;
    screen readers read the `hint`. {} in both is `about`."""
    texts = {"label": label, "hint": hint.format(about), "question": question.format(about)}
    return {"action": action, "css": css, "to": to, "fields": fields, **texts}
