"""Redirect URIs: what the list accepts, decided when it is written; and the URLs made from them. Pure functions."""

from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounts.oauth.redirects import fault, with_parameters

GOOD = [
    "https://app.example.com",
    "https://app.example.com/",
    "https://app.example.com/signed-in",
    "https://app.example.com:8443/signed-in?tenant=1&x=%2F..",
    "https://192.0.2.7/cb",
    "https://[2001:db8::1]/cb",
    "https://xn--bcher-kva.example/cb",
    "http://localhost/cb",
    "http://localhost:5173/cb",
    "http://127.0.0.1:3000/cb",
    "http://[::1]:3000/cb",
    "com.example.app:/signed-in",
    "com.example.app://signed-in",
    "https://app.example.com/a..b/.well-known",
]

BAD = {
    "": "invalid_scheme",
    "app.example.com/cb": "invalid_scheme",
    "/cb": "invalid_scheme",
    "//app.example.com/cb": "invalid_scheme",
    "https:": "invalid_uri",
    "https:/cb": "invalid_uri",
    "https://": "invalid_uri",
    "https:///cb": "invalid_uri",
    "https:app.example.com": "invalid_uri",
    "HTTPS://app.example.com": "invalid_scheme",
    "ftp://app.example.com": "invalid_scheme",
    "javascript:alert(1)": "invalid_scheme",
    "javascript://app.example.com/%0aalert(1)": "invalid_scheme",
    "data:text/html,x": "invalid_scheme",
    "file:///etc/passwd": "invalid_scheme",
    "myapp:/cb": "invalid_scheme",
    "Com.example.app:/cb": "invalid_scheme",
    "http://app.example.com/cb": "not_https",
    "http://localhost.evil.example/cb": "not_https",
    "http://127.0.0.1.evil.example/cb": "not_https",
    "http://2130706433/cb": "not_https",
    "https://app.example.com/cb#": "fragment",
    "https://app.example.com/cb#x": "fragment",
    "https://user@app.example.com/": "credentials",
    "https://user:password@app.example.com/": "credentials",
    "https://app.example.com:443@evil.example/": "credentials",
    "https://@app.example.com/": "credentials",
    "https://APP.example.com/": "invalid_host",
    "https://app.example.com./": "invalid_host",
    "https://.example.com/": "invalid_host",
    "https://app..example.com/": "invalid_host",
    "https://-app.example.com/": "invalid_host",
    "https://app%2Eexample.com/": "invalid_host",
    "https://*.example.com/": "invalid_characters",
    "https://app.example.com/*": "invalid_characters",
    "https://app.example.com\\@evil.example/": "invalid_characters",
    "https://app.example.com/ ": "invalid_characters",
    " https://app.example.com/": "invalid_characters",
    "https://app.example.com/\n": "invalid_characters",
    "https://app.example.com/\0": "invalid_characters",
    "https://bücher.example/": "invalid_characters",
    "https://app.example.com/<script>": "invalid_characters",
    "https://app.example.com/{id}": "invalid_characters",
    "https://app.example.com:/": "invalid_port",
    "https://app.example.com:0/": "invalid_port",
    "https://app.example.com:99999/": "invalid_uri",
    "https://app.example.com:0443/": "invalid_port",
    "https://[::1/": "invalid_uri",
    "https://app.example.com/../x": "dot_segments",
    "https://app.example.com/a/./b": "dot_segments",
    "https://app.example.com/a/%2e%2e/b": "dot_segments",
    "https://app.example.com/a/%2E./b": "dot_segments",
    "https://app.example.com/a/..%5cb": "dot_segments",
    "https://app.example.com/cb?code=x": "reserved_parameter",
    "https://app.example.com/cb?a=1&state=": "reserved_parameter",
    "https://app.example.com/cb?c%6Fde=x": "reserved_parameter",
    "https://app.example.com/" + "x" * 500: "too_long",
}


@pytest.mark.parametrize("uri", GOOD)
def test_what_may_be_a_redirect_uri(uri: str) -> None:
    assert fault(uri) is None


@pytest.mark.parametrize(("uri", "code"), BAD.items())
def test_what_may_not(uri: str, code: str) -> None:
    found = fault(uri)
    assert found is not None
    assert found[0] == code


@given(st.text(max_size=60))
def test_no_text_breaks_it(text: str) -> None:
    for candidate in (text, "https://" + text, "https://app.example.com/" + text):
        if fault(candidate) is not None:
            continue
        parts = urlsplit(candidate)
        assert parts.fragment == ""
        assert "@" not in parts.netloc


@given(st.sampled_from(GOOD), st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=40))
def test_parameters_come_back_as_they_were_and_nothing_else_changes(uri: str, value: str) -> None:
    made = with_parameters(uri, {"code": "oac_x", "state": value, "error": None})
    assert made.startswith(uri)
    own = parse_qsl(urlsplit(uri).query, keep_blank_values=True)
    assert parse_qsl(urlsplit(made).query, keep_blank_values=True) == [*own, ("code", "oac_x"), ("state", value)]
    assert urlsplit(made).netloc == urlsplit(uri).netloc
