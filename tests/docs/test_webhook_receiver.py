"""The receivers in the guide to webhooks tell genuine events from forged ones."""

import base64
import json
import shutil
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import WebhookVerificationError

from functions.runtime.launch import deno
from tests.support.doc_examples import fenced
from webhooks.delivery import signing

SECRET = b"\x00\xff" * 16
OTHER = b"another secret, as long as the 1st"
BODY = '{"type": "tasks.insert", "data": {"title": "ünï 😀"}}'
CALLS = """
import { readFileSync } from "node:fs";
import process from "node:process";
const cases = JSON.parse(readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(cases.map(([secret, headers, body]) => isGenuine(secret, headers, body))));
"""


def headers(at: int, *secrets: bytes) -> dict[str, str]:
    texts = [f"whsec_{base64.b64encode(secret).decode()}" for secret in secrets]
    return signing.headers(texts, "evt_1", datetime.fromtimestamp(at, UTC), BODY)


@pytest.mark.parametrize("engine", ["deno", "node"])
def test_the_function_of_the_guide_tells_genuine_events_from_others(tmp_path: Path, engine: str) -> None:
    if engine == "node" and shutil.which("node") is None:
        pytest.skip("this machine has no node")
    [source] = [text for language, text in fenced("how-to/webhooks.md") if language == "js"]
    (tmp_path / "receiver.mjs").write_text(source + CALLS)
    secret = f"whsec_{base64.b64encode(SECRET).decode()}"
    now = int(time.time())
    cases = [
        (True, headers(now, SECRET), BODY),
        (True, headers(now, OTHER, SECRET), BODY),
        (False, headers(now, OTHER), BODY),
        (False, headers(now, SECRET), BODY + " "),
        (False, headers(now, SECRET) | {"webhook-id": "evt_2"}, BODY),
        (False, headers(now - 400, SECRET), BODY),
        (False, headers(now + 400, SECRET), BODY),
        (False, headers(now, SECRET) | {"webhook-timestamp": "now"}, BODY),
        (False, headers(now, SECRET) | {"webhook-signature": "v1,"}, BODY),
        (False, {"webhook-id": "evt_1", "webhook-timestamp": str(now)}, BODY),
    ]
    command = [deno(), "run", "--allow-read", "--no-prompt"] if engine == "deno" else ["node"]
    told = subprocess.run(
        [*command, "receiver.mjs"],
        input=json.dumps([[secret, sent, body] for _, sent, body in cases]),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout) == [expected for expected, _, _ in cases]


def test_the_python_receiver_tells_genuine_events_from_others() -> None:
    [source] = [text for language, text in fenced("how-to/webhooks.md") if language == "python"]
    scope: dict[str, Any] = {}
    exec(source, scope)  # noqa: S102  # the page's own code
    secret, now = f"whsec_{base64.b64encode(SECRET).decode()}", int(time.time())
    assert scope["handle"](secret, headers(now, SECRET), BODY)["type"] == "tasks.insert"
    for sent in (headers(now, OTHER), headers(now - 400, SECRET)):
        with pytest.raises(WebhookVerificationError):
            scope["handle"](secret, sent, BODY)
