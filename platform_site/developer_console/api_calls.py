"""Calls of API operations in this process, by their views, with an access token of the account's session:
authenticated, limited, validated and audited like any call."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from urllib.parse import quote

from django.http import HttpRequest, HttpResponse
from django.urls.exceptions import Resolver404
from django.utils.http import urlencode

from accounts.tokens.access_tokens import make_access_token
from platform_site.concurrency import server_hints
from platform_site.developer_console.session import SignedIn
from platform_site.fastpath import routes
from platform_site.http import exact_json
from platform_site.http.errors import ApiError, NotFound
from platform_site.http.exception_handler import ERROR_ATTRIBUTE
from platform_site.http.views import encode
from platform_site.server.incoming import Incoming
from projects import staff_access
from projects.models import StaffGrant

_OF_THE_CLIENT: Final[tuple[str, ...]] = ("REMOTE_ADDR", "HTTP_USER_AGENT", "HTTP_HOST", "SERVER_NAME", "SERVER_PORT")


def path_to(*segments: str) -> str:
    """The path of an operation. What came from a form or URL stays one segment, which the API checks."""
    return "/".join(["/v1", *(quote(segment, safe="") for segment in segments)])


def data_of(response: HttpResponse) -> dict[str, Any]:
    """Empty without a body. Raises the ApiError of a response from status 400 on."""
    if response.status_code >= 400:
        error: ApiError = response.__dict__[ERROR_ATTRIBUTE]
        raise error
    return dict(exact_json.loads(response.content)) if response.content else {}


@dataclass
class ApiClient:
    request: HttpRequest
    signed_in: SignedIn
    staff_grant: StaffGrant | None = None

    def call(self, method: str, path: str, body: Any = None, **options: Any) -> dict[str, Any]:
        """A `body` of bytes is JSON already. Options: those of `respond`. Raises ApiError."""
        sent = b"" if body is None else body if isinstance(body, bytes) else encode(body)
        return data_of(self.respond(method, path, sent, **options))

    def respond(
        self,
        method: str,
        path: str,
        body: bytes,
        *,
        query: Mapping[str, str] | None = None,
        environment: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        """Raises NotFound if no operation has this path."""
        meta: dict[str, Any] = {name: self.request.META[name] for name in _OF_THE_CLIENT if name in self.request.META}
        meta |= {
            "wsgi.url_scheme": self.request.scheme or "http",
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "QUERY_STRING": urlencode(query or {}),
            "HTTP_AUTHORIZATION": f"Bearer {self._access_token}",
        }
        if environment is not None:
            meta["HTTP_X_ENVIRONMENT"] = environment
        if body:
            meta |= {"CONTENT_TYPE": "application/json", "CONTENT_LENGTH": str(len(body))}
        for name, value in (headers or {}).items():
            meta[f"HTTP_{name.upper().replace('-', '_')}"] = value
        inner = Incoming(path, meta, body)
        try:
            match = routes.resolve(path)
        except Resolver404:  # an id from a form that is none
            raise NotFound("There is no such object.") from None
        inner.resolver_match = match
        if server_hints.SHARE in self.request.__dict__:
            inner.__dict__[server_hints.SHARE] = self.request.__dict__[server_hints.SHARE]
        if self.staff_grant is not None:
            inner.__dict__[staff_access.ATTRIBUTE] = self.staff_grant.pk
        response: HttpResponse = match.func(inner, *match.args, **match.kwargs)
        return response

    @cached_property
    def _access_token(self) -> str:
        session = self.signed_in
        return make_access_token(user_id=session.user_id, session_id=session.session_id, environment_id=None)
