"""Signatures: the reference library verifies ours, and nothing else than what was signed."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from webhooks.delivery import signing


def test_a_known_vector_of_the_specification() -> None:
    """The example of the Standard Webhooks reference libraries."""
    key = signing.decode_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signature = signing.sign(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@given(st.binary(max_size=2000), st.text("abcdefghijklmnopqrstuvwxyz0123456789_", min_size=1, max_size=40))
def test_the_reference_library_verifies_what_we_sign(body: bytes, message_id: str) -> None:
    # The library decodes the body as UTF-8; ours always is.
    text = body.decode("utf-8", "replace").encode()
    body = b'{"data": "' + text.replace(b"\\", b"").replace(b'"', b"").translate(None, bytes(range(32))) + b'"}'
    secret = signing.new_secret()
    sent = signing.headers([signing.decode_secret(secret)], message_id, int(time.time()), body)
    Webhook(secret).verify(body, sent)


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_any_flipped_bit_is_refused(position: int, bit: int) -> None:
    body = b'{"id": "evt_1", "type": "tasks.insert"}'
    secret = signing.new_secret()
    sent = signing.headers([signing.decode_secret(secret)], "evt_1", int(time.time()), body)
    flipped = bytearray(body)
    flipped[position % len(body)] ^= 1 << bit
    with pytest.raises((WebhookVerificationError, UnicodeDecodeError)):
        Webhook(secret).verify(bytes(flipped), sent)


def test_while_a_secret_rotates_both_verify() -> None:
    old, new = signing.new_secret(), signing.new_secret()
    sent = signing.headers([signing.decode_secret(new), signing.decode_secret(old)], "evt_1", int(time.time()), b"{}")
    Webhook(old).verify(b"{}", sent)
    Webhook(new).verify(b"{}", sent)
    with pytest.raises(WebhookVerificationError):
        Webhook(signing.new_secret()).verify(b"{}", sent)


def test_a_replay_after_six_minutes_is_refused() -> None:
    secret = signing.new_secret()
    sent = signing.headers([signing.decode_secret(secret)], "evt_1", int(time.time()) - 360, b"{}")
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(b"{}", sent)


@pytest.mark.parametrize(
    "text",
    ["", "whsec_", "whsec_!!!", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_" + "QUJD" * 5, "whsec_" + "QUJD" * 22],
)
def test_what_is_no_secret_is_refused(text: str) -> None:
    with pytest.raises(signing.InvalidSecret):
        signing.decode_secret(text)
