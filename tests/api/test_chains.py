"""The length of a chain: believed where this platform signed it for that environment, and nowhere else."""

import string

import pytest
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from platform_site.identity import call_depth
from platform_site.security import keyring
from tests.support.client import Api

ONE, TWO = "11" * 32, "22" * 32
HERE, THERE = "env_01h455vb4pex5vsknk084sn02q", "env_01h455vb4pex5vsknk084sn02r"
depths = st.integers(0, 999)


def depth_of(value: str | None, environment_id: str) -> int:
    return call_depth.depth_of({} if value is None else {call_depth.META: value}, environment_id)


@given(depths)
def test_what_was_signed_for_an_environment_is_believed_there_alone(depth: int) -> None:
    value = call_depth.sign(depth, HERE)
    assert depth_of(value, HERE) == depth
    assert depth_of(value, THERE) == 0
    assert len(value) <= 40
    assert set(value) <= {*string.ascii_letters, *string.digits, "-", "_", "."}, (
        "it passes through every server as it is"
    )


@given(depths, depths)
def test_another_number_under_the_same_mac_is_not_believed(depth: int, other: int) -> None:
    rest = call_depth.sign(depth, HERE).partition(".")[2]
    assert depth_of(f"{other}.{rest}", HERE) == (depth if other == depth else 0)


@pytest.mark.parametrize(
    ("minutes", "is_believed"), [(-61, False), (-60, True), (60, True), (61, False), (-(10**8), False)]
)
def test_it_is_believed_for_an_hour(monkeypatch: pytest.MonkeyPatch, minutes: int, is_believed: bool) -> None:
    now = call_depth._minute()
    with monkeypatch.context() as then:
        then.setattr(call_depth, "_minute", lambda: now + minutes)
        value = call_depth.sign(3, HERE)
    monkeypatch.setattr(call_depth, "_minute", lambda: now)
    assert depth_of(value, HERE) == (3 if is_believed else 0)


def test_another_minute_under_the_same_mac_is_not_believed() -> None:
    depth, minute, mac = call_depth.sign(3, HERE).split(".")
    assert depth_of(f"{depth}.{int(minute) + 1}.{mac}", HERE) == 0
    assert depth_of(f"{depth}.{minute}.{mac}", HERE) == 3


@given(st.integers(0, 15), st.integers(1, 255))
def test_a_changed_mac_is_not_one(place: int, change: int) -> None:
    mac = bytearray(keyring.mac(b"x", purpose="a"))
    assert keyring.is_mac(bytes(mac), b"x", purpose="a")
    mac[place] ^= change
    assert not keyring.is_mac(bytes(mac), b"x", purpose="a")


def test_a_mac_is_one_for_its_purpose_and_whole() -> None:
    mac = keyring.mac(b"x", purpose="a")
    assert len(mac) == keyring.MAC
    for given_mac, message, purpose in ((mac, b"x", "b"), (mac, b"y", "a"), (mac[:-1], b"x", "a"), (b"", b"x", "a")):
        assert not keyring.is_mac(given_mac, message, purpose=purpose)


@pytest.mark.parametrize(
    "value",
    [None, "", "0", "7", "8", "-1", "1e3", "7.", ".", "\u0667", "7.\N{SUPERSCRIPT TWO}", " 7", "1000.1.AAAAAAAAAAAAAAAAAAAAAA", "7." + "A" * 22,
     "7.29948640." + "A" * 22, "7.29948640." + "A" * 21, "7.29948640." + "=" * 22, "7." + "9" * 11 + "." + "A" * 22,
     "7.\u0667." + "A" * 22, "9" * 10_000],
)  # fmt: skip
def test_whatever_else_it_says_is_nothing(value: str | None) -> None:
    assert depth_of(value, HERE) == 0


@given(st.text(max_size=40))
def test_no_text_is_too_strange(value: str) -> None:
    assert depth_of(value, HERE) == 0


def test_a_request_begins_without_the_header_of_the_one_before(api: Api) -> None:
    call_depth.trust_header({call_depth.META: call_depth.sign(3, HERE)})
    assert call_depth.depth_here(HERE) == 3
    assert api.get("/healthz").status == 200
    assert call_depth.depth_here(HERE) == 0


def test_it_outlives_a_change_of_keys_and_not_the_end_of_one() -> None:
    with override_settings(ENCRYPTION_KEYS=[ONE]):
        value = call_depth.sign(3, HERE)
    with override_settings(ENCRYPTION_KEYS=[TWO, ONE]):
        assert depth_of(value, HERE) == 3
        assert call_depth.sign(3, HERE).rpartition(".")[2] != value.rpartition(".")[2]
    with override_settings(ENCRYPTION_KEYS=[TWO]):
        assert depth_of(value, HERE) == 0
