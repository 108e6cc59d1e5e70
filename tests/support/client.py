"""The API as a client sees it: `api.get("/v1/projects", token=…)`, with every response checked by
`response_invariants`."""

from dataclasses import dataclass
from typing import Any

import httpx
import orjson
from django.test import Client

from tests.support import response_invariants, response_schema

_NOTHING: Any = object()


@dataclass(frozen=True)
class Answer:
    """`json` is None where the body is none. Headers compare without regard to case."""

    status: int
    headers: httpx.Headers
    body: bytes
    json: Any

    @property
    def error(self) -> str:
        """The error's code."""
        return str(self.json["error"]["code"])

    @property
    def fields(self) -> dict[str, str]:
        """The invalid fields and their codes."""
        return {field["field"]: field["code"] for field in self.json["error"].get("fields", ())}


class Api:
    """Speaks to the service in this process, or over HTTP if given a base URL. Raises nothing for any status."""

    def __init__(self, base_url: str | None = None) -> None:
        self._over_http = httpx.Client(base_url=base_url, timeout=30) if base_url else None
        self._client = Client(raise_request_exception=False)

    def request(
        self,
        method: str,
        path: str,
        *,
        token: str | None = None,
        json: Any = _NOTHING,
        body: bytes = b"",
        content_type: str | None = None,
        environment: str | None = None,
        headers: dict[str, str] | None = None,
        remote_addr: str | None = None,
    ) -> Answer:
        """One call. `json` is sent as JSON; `body` as it is, with `content_type` (default JSON where there is a
        body)."""
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        if environment is not None:
            sent["X-Environment"] = environment
        if json is not _NOTHING:
            body = orjson.dumps(json)
        if body and content_type is None:
            content_type = "application/json"
        if self._over_http is not None:
            if content_type:
                sent["Content-Type"] = content_type
            got = self._over_http.request(method, path, content=body, headers=sent)
            status, received, content = got.status_code, got.headers, got.content
        else:
            extra = {} if remote_addr is None else {"REMOTE_ADDR": remote_addr}
            answer = self._client.generic(
                method, path, data=body, content_type=content_type or "", headers=sent, **extra
            )
            received = httpx.Headers(list(answer.items()))
            status, content = answer.status_code, answer.content
        media_type = received.get("Content-Type", "")
        made = Answer(status, received, content, orjson.loads(content) if content and "json" in media_type else None)
        if path.startswith("/v1"):
            response_invariants.check(made.status, made.headers, made.body, made.json)
            response_schema.check(method, path, made.status, made.headers, made.json)
        return made

    def get(self, path: str, **how: Any) -> Answer:
        return self.request("GET", path, **how)

    def post(self, path: str, **how: Any) -> Answer:
        return self.request("POST", path, **how)

    def put(self, path: str, **how: Any) -> Answer:
        return self.request("PUT", path, **how)

    def patch(self, path: str, **how: Any) -> Answer:
        return self.request("PATCH", path, **how)

    def delete(self, path: str, **how: Any) -> Answer:
        return self.request("DELETE", path, **how)
