"""Signatures: the reference library verifies ours, and nothing else than what was signed."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from webhooks.delivery import signing


def now() -> datetime:
    return datetime.now(UTC)


def test_a_known_vector_of_the_specification() -> None:
    """The example of the Standard Webhooks reference libraries."""
    sent_at = datetime.fromtimestamp(1614265330, UTC)
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    sent = signing.headers([secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", sent_at, '{"test": 2432232314}')
    assert sent["webhook-timestamp"] == "1614265330"
    assert sent["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@given(st.binary(max_size=2000), st.text("abcdefghijklmnopqrstuvwxyz0123456789_", min_size=1, max_size=40))
def test_the_reference_library_verifies_what_we_sign(body: bytes, message_id: str) -> None:
    # The library decodes the body as UTF-8; ours always is.
    text = body.decode("utf-8", "replace").encode()
    body = b'{"data": "' + text.replace(b"\\", b"").replace(b'"', b"").translate(None, bytes(range(32))) + b'"}'
    secret = signing.new_secret()
    Webhook(secret).verify(body, signing.headers([secret], message_id, now(), body.decode()))


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_any_flipped_bit_is_refused(position: int, bit: int) -> None:
    body = b'{"id": "evt_1", "type": "tasks.insert"}'
    secret = signing.new_secret()
    sent = signing.headers([secret], "evt_1", now(), body.decode())
    flipped = bytearray(body)
    flipped[position % len(body)] ^= 1 << bit
    with pytest.raises((WebhookVerificationError, UnicodeDecodeError)):
        Webhook(secret).verify(bytes(flipped), sent)


def test_while_a_secret_rotates_both_verify() -> None:
    old, new = signing.new_secret(), signing.new_secret()
    sent = signing.headers([new, old], "evt_1", now(), "{}")
    Webhook(old).verify(b"{}", sent)
    Webhook(new).verify(b"{}", sent)
    with pytest.raises(WebhookVerificationError):
        Webhook(signing.new_secret()).verify(b"{}", sent)


def test_a_replay_after_six_minutes_is_refused() -> None:
    secret = signing.new_secret()
    sent = signing.headers([secret], "evt_1", now() - timedelta(minutes=6), "{}")
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(b"{}", sent)
