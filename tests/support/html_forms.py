"""What a browser would send back of a form: so that a test can open a page, wait, and press the button."""

import re
from html.parser import HTMLParser

from django.test import Client


class _Forms(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.sent: list[dict[str, str]] = []
        self._form: dict[str, str] | None = None
        self._select = self._text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        facts = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._form = {}
            self.sent.append(self._form)
        if self._form is None:
            return
        name, kind = facts.get("name", ""), facts.get("type", "text")
        if tag == "input" and name and kind not in ("submit", "button", "file"):
            if kind not in ("checkbox", "radio") or "checked" in facts:
                self._form[name] = facts.get("value", "on" if kind == "checkbox" else "")
        elif tag == "select":
            self._select = name
        elif tag == "option" and self._select and ("selected" in facts or self._select not in self._form):
            self._form[self._select] = facts["value"]
        elif tag == "textarea":
            self._text = name
            self._form[name] = ""

    def handle_data(self, data: str) -> None:
        if self._text and self._form is not None:
            self._form[self._text] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._form = None
        elif tag == "select":
            self._select = ""
        elif tag == "textarea" and self._form is not None:
            self._form[self._text] = self._form[self._text].removeprefix("\n").replace("\n", "\r\n")
            self._text = ""


def form_values(page: str, field: str) -> dict[str, str]:
    """The fields of the form of a page that has this one, as they stand there; newlines as browsers write them."""
    forms = _Forms()
    forms.feed(page)
    (found,) = (sent for sent in forms.sent if field in sent)
    return {name: value.replace("\r\n", "\n").replace("\n", "\r\n") for name, value in found.items()}


def csrf(browser: Client, path: str) -> str:
    return str(re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', browser.get(path).content.decode())[1])  # type: ignore[index]
