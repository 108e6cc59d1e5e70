"""Which URLs and IP addresses may be called: every known spelling of an internal host."""

import ipaddress
import time
from contextlib import ExitStack

import pytest
from django.conf import LazySettings
from hypothesis import given
from hypothesis import strategies as st

from platform_site.developer_cli.webhook_urls import normal_url
from platform_site.http.errors import ValidationFailed
from platform_site.outbound import BadUrl, check_url, parse_url, resolver
from platform_site.outbound.resolver import NotResolved, resolve
from platform_site.outbound.ssrf import FORBIDDEN_V4, is_allowed, networks
from tests.support.timing import within


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("https://example.com", "https://example.com/"),
        ("HTTPS://EXAMPLE.com:443/Path?Query=1", "https://example.com/Path?Query=1"),
        ("http://example.com:80/", "http://example.com/"),
        ("http://example.com:443/", "http://example.com:443/"),
        ("http://example.com.:8080?a", "http://example.com:8080/?a"),
        ("https://bücher.example/ä?ö=ü", "https://xn--bcher-kva.example/%C3%A4?%C3%B6=%C3%BC"),
        ("https://BÜCHER.example/", "https://xn--bcher-kva.example/"),
        ("https://日本語。jp/", "https://xn--wgv71a119e.jp/"),
        ("https://hooks_1.example.com/%41%zz", "https://hooks_1.example.com/%41%zz"),
        ("https://93.184.216.34/", "https://93.184.216.34/"),
        ("https://[2606:4700::1111]:8443/x", "https://[2606:4700::1111]:8443/x"),
        ("https://[2606:4700:0:0::1111]/", "https://[2606:4700::1111]/"),
        ("https://①②⑦.⓪.⓪.①/", "https://127.0.0.1/"),
    ],
)
def test_a_url_has_one_canonical_form(text: str, canonical: str) -> None:
    assert parse_url(text).url == canonical
    assert parse_url(canonical).url == canonical
    assert normal_url(text) == normal_url(canonical) == canonical, "as the developers' command compares it"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "invalid_scheme"),
        ("example.com/hook", "invalid_scheme"),
        ("//example.com/", "invalid_scheme"),
        ("ftp://example.com/", "invalid_scheme"),
        ("file:///etc/passwd", "invalid_scheme"),
        ("gopher://example.com/_x", "invalid_scheme"),
        ("javascript:alert(1)", "invalid_scheme"),
        ("unix:///run/docker.sock", "invalid_scheme"),
        ("https:///path", "invalid_host"),
        ("https:example.com", "invalid_host"),
        ("https://user@example.com/", "credentials"),
        ("https://user:secret@example.com/", "credentials"),
        ("https://example.com:secret@127.0.0.1/", "credentials"),
        ("https://@example.com/", "credentials"),
        ("https://example.com/#top", "fragment"),
        ("https://example.com#@127.0.0.1/", "fragment"),
        ("https://example.com\\@127.0.0.1/", "invalid_url"),
        ("https://exa mple.com/", "invalid_url"),
        (" https://example.com/", "invalid_url"),
        ("https://example.com/\r\nX-Evil: 1", "invalid_url"),
        ("https://example.com/\x00", "invalid_url"),
        ("https://exam\tple.com/", "invalid_url"),
        ("https://example.com/" + "a" * 3000, "too_long"),
        ("https://" + "a" * 64 + ".com/", "invalid_host"),
        ("https://" + "a." * 130 + "com/", "invalid_host"),
        ("https://-a.com/", "invalid_host"),
        ("https://a..com/", "invalid_host"),
        ("https://%31%32%37.0.0.1/", "invalid_host"),
        ("https://127.0.0.1%2f@example.com/", "credentials"),
        ("https://2130706433/", "invalid_host"),
        ("https://0x7f000001/", "invalid_host"),
        ("https://0x7f.1/", "invalid_host"),
        ("https://017700000001/", "invalid_host"),
        ("https://0177.0.0.1/", "invalid_host"),
        ("https://127.1/", "invalid_host"),
        ("https://127.0.0.01/", "invalid_host"),
        ("https://127.0.0.1./", "invalid_host"),
        ("https://1.2.3.4.5/", "invalid_host"),
        ("https://256.1.1.1/", "invalid_host"),
        ("https://example.0x1/", "invalid_host"),
        ("https://[::1", "invalid_url"),
        ("https://[fe80::1%25eth0]/", "invalid_host"),
        ("https://[127.0.0.1]/", "invalid_url"),
        ("https://[v1.x]/", "invalid_host"),
        ("https://\u2100.example/", "invalid_url"),
        ("https://a\u200db.example/", "invalid_host"),
        ("https://example.com/\ud800", "invalid_url"),
        ("https://example.com:0/", "port_not_allowed"),
        ("https://example.com:22/", "port_not_allowed"),
        ("https://example.com:25/", "port_not_allowed"),
        ("https://example.com:1023/", "port_not_allowed"),
        ("https://example.com:5432/", "port_not_allowed"),
        ("https://example.com:6379/", "port_not_allowed"),
        ("https://example.com:2375/", "port_not_allowed"),
        ("https://example.com:65536/", "invalid_url"),
        ("https://example.com:-1/", "invalid_url"),
        ("https://example.com:8o/", "invalid_url"),
        ("https://example.com:80:80/", "invalid_url"),
    ],
)
def test_what_cannot_be_called_is_named(text: str, code: str) -> None:
    with pytest.raises(BadUrl) as told:
        parse_url(text)
    assert told.value.code == code
    assert str(told.value).endswith(".")


def test_text_after_the_bracket_of_an_address_is_refused() -> None:
    with pytest.raises(BadUrl) as told:
        parse_url("https://[::1]x/")
    assert told.value.code in {"invalid_host", "invalid_url"}  # later Pythons than 3.11 refuse it themselves


@given(st.text(max_size=60), st.sampled_from(["", "http://", "https://", "https://a.example"]))
def test_any_text_is_a_url_or_a_bad_one(text: str, before: str) -> None:
    try:
        target = parse_url(before + text)
    except BadUrl:
        return
    assert parse_url(target.url) == target, "its canonical form reads as the same"
    assert target.url.isascii()
    assert not set(target.path) & set(" \r\n\0#")
    assert "@" not in target.host


PRIVATE = [
    "127.0.0.1",
    "127.255.255.254",
    "0.0.0.0",  # noqa: S104
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "192.0.2.1",
    "192.31.196.1",
    "192.52.193.1",
    "192.88.99.1",
    "192.175.48.1",
    "198.18.0.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:0:127.0.0.1",
    "::127.0.0.1",
    "::7f00:1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::7f00:1",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::1",
    "2001:0:7f00:1::",
    "2001:db8::1",
    "2001:2::1",
    "2001:10::1",
    "2001:20::1",
    "2606:4700::1111%1",
    "2620:4f:8000::1",
    "3fff::1",
    "5f00::1",
    "100::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%1",
    "fec0::1",
    "ff02::1",
]
PUBLIC = ["93.184.216.34", "8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450::1", "::ffff:8.8.8.8"]


@pytest.mark.parametrize("text", PRIVATE)
def test_inner_addresses_in_every_form_are_not_allowed(text: str) -> None:
    assert not is_allowed(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses_are_allowed(text: str) -> None:
    assert is_allowed(ipaddress.ip_address(text))


@given(st.ip_addresses(v=4))
def test_ipv4_agrees_with_the_standard_library_where_that_is_strict(address: ipaddress.IPv4Address) -> None:
    if not address.is_global or address.is_multicast or address.is_reserved:
        assert not is_allowed(address)
    for disguise in (f"::ffff:{address}", f"::{address}", f"64:ff9b::{address}"):
        hidden = ipaddress.IPv6Address(disguise)
        assert is_allowed(hidden) == (disguise.startswith("::ffff") and is_allowed(address))
    six_to_four = ipaddress.IPv6Address((0x2002 << 112) | (int(address) << 80))
    assert not is_allowed(six_to_four)


@given(st.ip_addresses(v=6))
def test_ipv6_is_global_unicast_or_nothing(address: ipaddress.IPv6Address) -> None:
    if is_allowed(address) and address.ipv4_mapped is None:
        assert address in ipaddress.IPv6Network("2000::/3")
        assert not address.is_private


def test_a_network_that_is_opened_is_open_and_nothing_else() -> None:
    opened = networks(("127.0.0.0/8", "::1/128"))
    assert is_allowed(ipaddress.ip_address("127.0.0.9"), opened)
    assert is_allowed(ipaddress.ip_address("::ffff:127.0.0.9"), opened)
    assert is_allowed(ipaddress.ip_address("::1"), opened)
    for text in set(PRIVATE) - {"127.0.0.1", "127.255.255.254", "::1", "::ffff:127.0.0.1"}:
        assert not is_allowed(ipaddress.ip_address(text), opened), text
    with pytest.raises(ValueError, match="host bits"):
        networks(("127.0.0.1/8",))
    assert len(FORBIDDEN_V4) > 15


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000/", "http://localhost:8000/", "http://[::1]:8000/", "http://169.254.169.254/latest"]
)
def test_a_url_of_an_inner_host_is_refused_when_it_is_written_down(url: str) -> None:
    with pytest.raises(ValidationFailed) as told:
        check_url(url)
    assert [(field.field, field.code) for field in told.value.fields] == [("url", "address_not_allowed")]


def test_a_url_is_checked_with_what_is_opened(settings: LazySettings) -> None:
    settings.OUTBOUND_ALLOWED_NETWORKS = ["127.0.0.0/8", "::1/128"]
    check_url("http://LOCALHOST:8000")
    check_url("http://127.0.0.1:3000/hook")
    with pytest.raises(ValidationFailed):
        check_url("http://10.0.0.1:3000/hook")


def test_a_name_that_does_not_resolve_yet_may_be_written_down() -> None:
    check_url("https://not-there.invalid/hook")


def test_a_malformed_url_names_its_field() -> None:
    with pytest.raises(ValidationFailed) as told:
        check_url("https://u:p@example.com/")
    assert told.value.fields[0].code == "credentials"
    assert "u:p" not in told.value.fields[0].message


def test_resolving_knows_addresses_names_and_a_deadline() -> None:
    soon = time.monotonic() + 5
    assert resolve("127.0.0.1", 80, soon, "") == [ipaddress.ip_address("127.0.0.1")]
    assert ipaddress.ip_address("127.0.0.1") in resolve("localhost", 80, soon, "")
    assert len(resolve("localhost", 80, soon, "")) == len(set(resolve("localhost", 80, soon, "")))
    with pytest.raises(NotResolved):
        resolve("not-there.invalid", 80, soon, "")
    owners = [f"env_{number}" for number in range(resolver.MAX_PENDING)]
    for owner in owners:  # they were quick before
        with resolver._semaphore.slot(owner, wait=5):
            pass
    with ExitStack() as held:  # by names that no server resolves
        for owner in owners:
            held.enter_context(resolver._semaphore.slot(owner, wait=5))
        at = time.monotonic()
        with pytest.raises(TimeoutError):
            resolve("localhost", 80, at + 0.1, "")
        assert time.monotonic() - at < within(0.5)
        assert resolve("127.0.0.1", 80, at, "") == [ipaddress.ip_address("127.0.0.1")], "no name, no question"
    assert resolve("localhost", 80, time.monotonic() + 5, "")
