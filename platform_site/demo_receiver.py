"""The receiver of the demo's webhook, in development only: shows signed deliveries with nothing else running."""

import hmac
import json
import time
from pathlib import Path
from typing import Final

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from platform_site.embedded.data_dir import Layout
from webhooks.delivery import signing

PATH: Final = "/demo/receiver"
TOLERANCE_SECONDS: Final = 300


@csrf_exempt
@require_POST
def receive(request: HttpRequest) -> HttpResponse:
    key = _key()
    try:
        sent_at = int(request.headers.get("webhook-timestamp", ""))
    except ValueError:
        sent_at = 0
    is_recent = abs(int(time.time()) - sent_at) <= TOLERANCE_SECONDS
    if key is None or not is_recent:
        return HttpResponse(status=401)
    expected = signing.sign(key, request.headers.get("webhook-id", ""), sent_at, request.body)
    given = request.headers.get("webhook-signature", "").split(" ")
    # Several, while a secret rotates. All are compared, each in constant time.
    verdicts = [hmac.compare_digest(expected.encode(), each.encode("utf-8", "replace")) for each in given]
    return HttpResponse(status=204 if any(verdicts) else 401)


def _key() -> bytes | None:
    try:
        facts = json.loads(Layout(Path(settings.DATA_DIR)).demo_file.read_text())
        return signing.decode_secret(facts["webhook"]["secret"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
