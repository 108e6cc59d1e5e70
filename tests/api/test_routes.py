"""The table of URLs agrees with Django's resolver, for every URL and for similar ones."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.urls import ResolverMatch, URLResolver, get_resolver, include, path, re_path
from django.urls.exceptions import Resolver404
from django.urls.resolvers import RegexPattern
from hypothesis import given, settings
from hypothesis import strategies as st

from platform_site.fastpath.routes import Routes

SERVICE = get_resolver("platform_site.urls")


def every_address(patterns: list[Any], before: str = "") -> Iterator[str]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from every_address(pattern.url_patterns, before + str(pattern.pattern))
        else:
            yield before + str(pattern.pattern)


ADDRESSES = sorted(set(every_address(SERVICE.url_patterns)))
WORDS = sorted({word for address in ADDRESSES for word in address.split("/") if "<" not in word and "^" not in word})
ROUTES = Routes(SERVICE)


def outcome(resolve: Any, text: str) -> Any:
    try:
        match: ResolverMatch = resolve(text)
    except Resolver404:
        return None
    return {name: value for name, value in vars(match).items() if name != "tried"}


def same(routes: Routes, django: URLResolver, text: str) -> Any:
    found = outcome(routes.resolve, text)
    assert found == outcome(django.resolve, text), text
    return found


@pytest.mark.exhaustive
def test_every_address_of_the_service_leads_where_django_leads() -> None:
    routes = ROUTES
    for address in ADDRESSES:
        for word in ("tsk_1", "7", "query", "explain", "", "a b", "ä%2F"):
            text = "/".join(word if part.startswith("<") else part for part in address.split("/"))
            for form in (text, text + "/", text + "/x", text.rpartition("/")[0], text.replace("/", "//", 1)):
                same(routes, SERVICE, "/" + form)


@settings(deadline=None)
@given(st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=4)), max_size=6))
def test_so_does_whatever_else_is_asked_for(words: list[str]) -> None:
    same(ROUTES, SERVICE, "/" + "/".join(words))


def test_rows_are_found_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = Routes(SERVICE)
    monkeypatch.setattr(URLResolver, "resolve", lambda *_: pytest.fail("Django was asked"))
    for text in ("/v1/rows/tasks", "/v1/rows/tasks/tsk_1", "/v1/rows/tasks/query", "/v1/projects", "/v1/auth/token"):
        assert routes.resolve(text).func is not None


def one(request: HttpRequest, **_: Any) -> HttpResponse:
    return HttpResponse("one")


def two(request: HttpRequest, **_: Any) -> HttpResponse:
    return HttpResponse("two")


@pytest.mark.parametrize(
    "patterns",
    [
        [path("v1/a/<int:n>", one), path("v1/a/<str:s>", two)],
        [path("v1/a/<str:s>", two), path("v1/a/<int:n>", one)],
        [path("v1/<str:s>/b", one), path("v1/a/b", two)],
        [re_path(r"^v1/a", one), path("v1/a/b", two)],
        [path("v1/", include([re_path(r"a/(?P<s>.+)", one)])), path("v1/a/b", two)],
        [path("v1/a/x-<str:s>", one), path("v1/a/<str:s>", two)],
        [path("v1/a/<path:s>", one), path("v1/a/b/c", two)],
        [path("v1/a/b", one, {"given": 1}), path("v1/a/<str:s>", two)],
        [path("v1/", include(([path("a/b", one)], "app"), namespace="n")), path("v1/a/<str:s>", two)],
        [path("<str:v>/a/b", one), path("v1/a/b", two)],
        [path("", one), path("v1", two), path("v1/", two)],
    ],
)
def test_what_comes_first_comes_first_also_where_the_table_cannot_hold_it(patterns: list[Any]) -> None:
    django = URLResolver(RegexPattern(r"^/"), patterns)
    routes = Routes(django)
    for text in ("/", "/v1", "/v1/", "/v1/a", "/v1/a/", "/v1/a/b", "/v1/a/7", "/v1/a/x-1", "/v1/a/b/c", "/v1/x/b", "a"):
        same(routes, django, text)
