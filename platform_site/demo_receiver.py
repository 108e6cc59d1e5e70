"""The receiver of the demo's webhook, in development only: shows signed deliveries with nothing else running."""

import json
from pathlib import Path
from typing import Final

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from standardwebhooks import Webhook, WebhookVerificationError

from platform_site.embedded.data_dir import Layout

PATH: Final = "/demo/receiver"


@csrf_exempt
@require_POST
def receive(request: HttpRequest) -> HttpResponse:
    try:
        facts = json.loads(Layout(Path(settings.DATA_DIR)).demo_file.read_text())
        Webhook(facts["webhook"]["secret"]).verify(request.body, dict(request.headers), json_parse=False)
    except (OSError, ValueError, KeyError, TypeError, WebhookVerificationError):
        return HttpResponse(status=401)
    return HttpResponse(status=204)
