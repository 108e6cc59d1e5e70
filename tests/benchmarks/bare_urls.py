"""A view that does nothing, by our server and by WSGI; and one that waits, as if for a lock."""

import time

from django.http import HttpRequest, HttpResponse
from django.urls import path


def bare(request: HttpRequest) -> HttpResponse:
    return HttpResponse(b'{"ok":true}', content_type="application/json")


def wait(request: HttpRequest) -> HttpResponse:
    """Half a millisecond outside of Python, as a statement takes."""
    time.sleep(0.0005)
    return HttpResponse(b'{"ok":true}', content_type="application/json")


urlpatterns = [path("bare", bare), path("wait", wait)]
