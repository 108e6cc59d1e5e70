from typing import Final

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.middleware.csrf import CsrfViewMiddleware

DEVELOPER_CONSOLE: Final = "/console"


class CsrfMiddleware(CsrfViewMiddleware):
    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        answered = super().process_response(request, response)
        cookie = answered.cookies.get(settings.CSRF_COOKIE_NAME)
        if cookie is not None and request.path_info.startswith(f"{DEVELOPER_CONSOLE}/"):
            cookie["path"] = DEVELOPER_CONSOLE
        return answered
