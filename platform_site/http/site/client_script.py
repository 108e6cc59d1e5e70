"""The JavaScript client: `/client.js`, `/client.d.ts`, and the immutable `/client@0.1.0.js`."""

import re
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.cache import get_conditional_response
from django.views.decorators.http import require_safe

DIST: Final = Path(settings.BASE_DIR) / "platform_site" / "client" / "dist"
_MEDIA_TYPES: Final = {"client.js": "text/javascript; charset=utf-8", "client.d.ts": "application/typescript"}
_CURRENT: Final = "public, no-cache"
_FOREVER: Final = "public, max-age=31536000, immutable"


def urlpatterns() -> list[URLPattern]:
    return [
        path(url, serve, {"name": name, "cache_control": cache_control})
        for name in _MEDIA_TYPES
        for url, cache_control in ((name, _CURRENT), (name.replace("client", f"client@{_version()}"), _FOREVER))
    ]


@require_safe
def serve(request: HttpRequest, name: str, cache_control: str) -> HttpResponse:
    text, tag = _read(name)
    whole = HttpResponse(text, content_type=_MEDIA_TYPES[name], headers={"ETag": tag, "Cache-Control": cache_control})
    response = get_conditional_response(request, etag=tag, response=whole) or whole
    response["Access-Control-Allow-Origin"] = "*"  # of a 304 too, which Django answers with few headers
    return response


@cache
def _read(name: str) -> tuple[bytes, str]:
    text = (DIST / name).read_bytes()
    return text, f'"{sha256(text).hexdigest()[:32]}"'


def _version() -> str:
    found = re.search(rb'VERSION = "([\d.]+)"', _read("client.js")[0])
    if found is None:
        raise RuntimeError("client.js has no version")
    return found[1].decode()
