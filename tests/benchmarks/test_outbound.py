"""What one outgoing call costs this process, beside the connection itself."""

import time

import pytest

from platform_site import outbound
from platform_site.outbound.ssrf import networks
from tests.support.receiver import Receiver

pytestmark = pytest.mark.slow


def test_a_call_on_a_kept_connection() -> None:
    client = outbound.Client(opened=networks(("127.0.0.0/8",)))
    headers = {"content-type": "application/json", "webhook-id": "evt_1", "webhook-signature": "v1,abc"}
    best = float("inf")
    with Receiver() as receiver:
        url = receiver.url()
        for _ in range(6):
            at = time.thread_time()
            for _ in range(200):
                assert client.request("POST", url, headers=headers, body=b"x" * 500, owner="").status == 200
            best = min(best, (time.thread_time() - at) / 200 * 1e6)
        assert receiver.connections == 1
    client.close()
    print(f"  one call: {best:.0f} µs of CPU")
    assert best < 250
