"""Every POST and PATCH supports the Idempotency-Key, or is in a list that says why not."""

from collections.abc import Iterator
from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver

READS_OR_SIGNS_IN = {
    # A replayed answer would be stale, and asking twice does no harm.
    "v1/rows/<str:table>/query",
    "v1/rows/<str:table>/explain",
    "v1/rows/<str:table>/aggregate",
    "v1/changes",
    "v1/config/plan",  # a plan changes nothing; the author's old ones go
    # Tokens are not kept; a lost refresh answer is covered by the grace of the rotation.
    "v1/auth/token",
    # A provider's form: it only redirects.
    "v1/auth/callback/<str:provider_id>",
    "v1/auth/signup/confirm",
    "v1/auth/invitation/accept",
    # A wrong password is counted, which a rolled-back transaction would forget; the link works once by itself.
    "v1/auth/email-change/confirm",
}
BY_THEMSELVES = {
    # A plan is applied once; another call returns the same. Its transactions are in two databases.
    "v1/config/apply",
    # The record points at the run: a transaction cannot be held while a function runs.
    "v1/functions/<str:name>/invoke",
}
STRANGERS = {
    # Such a header would be the provider's own, and mean what the provider says: its event's id tells two of them
    # apart.
    "v1/inbound/<str:token>",
}


def routes(resolver: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for entry in resolver.url_patterns:
        route = prefix + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from routes(entry, route)
        elif isinstance(entry, URLPattern):
            yield route, entry.callback


def test_every_post_and_patch_is_idempotent_or_excepted() -> None:
    forgotten = []
    for route, view in routes(get_resolver("platform_site.urls")):
        for method, action in getattr(view, "actions", {}).items():
            if not route.startswith("v1/") or method not in {"post", "patch"}:
                continue
            if route in READS_OR_SIGNS_IN | BY_THEMSELVES | STRANGERS:
                continue
            if not getattr(getattr(view.cls, action), "is_idempotent", False):
                forgotten.append(f"{method.upper()} {route} ({view.cls.__name__}.{action})")
    assert forgotten == []
