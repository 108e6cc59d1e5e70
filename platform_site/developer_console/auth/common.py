from typing import Any, Final

from django.http import HttpResponse

from platform_site.developer_console import forms
from platform_site.developer_console.forms import Field
from platform_site.developer_console.frame import Console

TABS: Final = {"auth": "Users", "user-invitations": "Invitations", "sign-up": "Sign-up", "providers": "Providers"}
PERSON: Final = (
    Field("email", "Email", "email", required=True),
    Field("name", "Name"),
    Field("role", "Role", placeholder="editor", help="For the rules of your tables. Empty: user."),
    Field("claims", "Claims (JSON)", "code", placeholder='{"team": "sales"}', help="For the rules of your tables."),
)


def render(console: Console, template: str, tab: str, context: dict[str, Any]) -> HttpResponse:
    return console.render(template, {"tabs": console.tabs(TABS), "tab": tab, **context})


def person_of(asked: Any) -> dict[str, Any]:
    body = forms.read(PERSON, asked)
    return body | {"role": body["role"] or None, "claims": body["claims"] or {}}
