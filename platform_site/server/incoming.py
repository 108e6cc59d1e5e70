from collections.abc import Callable
from io import BytesIO
from typing import TYPE_CHECKING, Any

from django.core.handlers.wsgi import WSGIRequest
from django.utils.http import parse_header_parameters

from platform_site.concurrency import server_hints
from platform_site.server.thread_shares import ThreadShare

if TYPE_CHECKING:
    from platform_site.server.http_message import Message


class Incoming(WSGIRequest):
    """The request as Django sees it. Its text is UTF-8, whatever charset the client names."""

    message: "Message"
    thread_share: ThreadShare | None = None
    release: Callable[[], None] | None = None
    """That of `server_hints.Parked`."""

    def __init__(self, path: str, meta: dict[str, Any], body: bytes) -> None:
        # Without super().__init__, which would read the path and the body again.
        self.path = self.path_info = path
        self.environ = self.META = meta
        self.method = meta["REQUEST_METHOD"]
        self.resolver_match = None
        self._read_started = False
        self._body = body
        self._stream = BytesIO(body)
        stated = meta.get("CONTENT_TYPE")
        try:
            self.content_type, self.content_params = parse_header_parameters(stated) if stated else ("", {})
        except (LookupError, ValueError):  # a parameter in an unknown charset, or one that is too long
            self.content_type, self.content_params = "", {}

    @classmethod
    def from_message(cls, message: "Message") -> "Incoming":
        request = cls(message.path, message.meta, message.body)
        request.message = message
        request.__dict__[server_hints.REPEATABLE] = True
        return request

    def end(self) -> None:
        if self.thread_share is not None:
            self.thread_share.leave()
        if self.release is not None:
            self.release()
