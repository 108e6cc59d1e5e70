"""Pages for people: errors that look like ours, a reference that works offline, and the policy of both."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.contrib.staticfiles import finders

from tests.support.client import Api

ROOT = Path(__file__).resolve().parents[2]
BROWSER = {"Accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"}
STRICT = {
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "base-uri 'none'",
    "frame-ancestors 'none'",
    "form-action 'self'",
}


def test_an_unknown_page_is_a_page(api: Api) -> None:
    answer = api.get("/nothing/here", headers=BROWSER | {"X-Request-Id": "find-me"})
    assert answer.status == 404
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "Page not found" in answer.body.decode()
    assert "find-me" in answer.body.decode()


@pytest.mark.parametrize("accept", [None, "*/*", "application/json"])
def test_a_program_that_forgets_v1_is_told_so_in_json(api: Api, accept: str | None) -> None:
    answer = api.get("/projects", headers={"Accept": accept} if accept else {})
    assert (answer.status, answer.error) == (404, "not_found")
    assert "/v1" in answer.json["error"]["message"]


def test_a_page_that_breaks_tells_nothing(api: Api, things: str) -> None:
    answer = api.get("/broken-page")
    assert answer.status == 500
    assert b"Something went wrong on our side" in answer.body
    assert b"secret" not in answer.body
    assert answer.headers["X-Request-Id"].encode() in answer.body


def test_page_without_its_database_sends_retry_after(api: Api, things: str) -> None:
    answer = api.get("/page-without-its-database")
    assert answer.status == 503
    assert answer.headers["Retry-After"] == "1"
    assert b"Not available at the moment" in answer.body
    assert b"secret" not in answer.body


def test_a_form_without_its_token_is_refused_with_a_page(settings: LazySettings) -> None:
    from django.test import Client

    answer = Client(enforce_csrf_checks=True).post("/admin/login/", {"username": "x", "password": "y"})
    assert answer.status_code == 403
    assert b"The form is too old" in answer.content


@pytest.mark.parametrize("path", ["/docs", "/nothing", "/admin/login/"])
def test_pages_carry_the_policy_and_the_headers(api: Api, path: str) -> None:
    answer = api.get(path)
    policy = set(answer.headers["Content-Security-Policy"].split("; "))
    if path.startswith("/admin/"):
        [nonce] = re.findall(r'<style nonce="([^"]{16,})"', answer.body.decode())
        more = {
            "script-src 'self' 'unsafe-eval'",
            f"style-src 'self' 'nonce-{nonce}'",
            "style-src-attr 'unsafe-inline'",
        }
        assert more <= policy
        assert answer.body.decode().count("<style") == 1
        assert int(answer.headers["Content-Length"]) == len(answer.body)
        assert not re.search(r"<script(?![^>]*src=)|\son\w+=", answer.body.decode())
        assert nonce not in api.get(path).body.decode(), "a nonce is of one page"
        policy = policy - more | {"script-src 'self'", "style-src 'self'"}
    assert policy >= STRICT
    assert answer.headers["X-Frame-Options"] == "DENY"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "same-origin"
    assert answer.headers["Cross-Origin-Opener-Policy"] == "same-origin"


@pytest.mark.parametrize("path", ["/docs", "/nothing"])
def test_everything_a_page_loads_is_ours_and_no_script_stands_in_it(api: Api, path: str) -> None:
    page = api.get(path, headers=BROWSER).body.decode()
    loaded = re.findall(r'(?:src|<link[^>]*href)="([^"]+)"', page)
    assert loaded
    for address in loaded:
        assert address.startswith("/static/"), address
        assert finders.find(address.removeprefix("/static/")), address
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=", page)


@pytest.mark.parametrize(
    "path", ["/docs", "/docs/guides", "/nothing", "/admin/login/", "/auth/reset-password", "/auth/nothing"]
)
def test_each_page_names_the_icon(api: Api, path: str) -> None:
    page = api.get(path, headers=BROWSER).body.decode()
    icons = re.findall(r'<link rel="icon"[^>]*href="([^"]+)"|href="([^"]+)" rel="icon"', page)
    assert [a or b for a, b in icons] == ["/static/platform_site/favicon.svg"]


def test_browsers_find_the_icon_where_they_look_for_one(api: Api) -> None:
    icon = api.get("/favicon.ico")
    assert (icon.status, icon.headers["Content-Type"]) == (200, "image/x-icon")
    assert icon.body[:6] == b"\0\0\1\0\3\0", "an icon file of three sizes"
    assert "Set-Cookie" not in icon.headers
    assert "max-age" in icon.headers["Cache-Control"]


def test_the_first_page_leads_to_the_reference(api: Api) -> None:
    answer = api.get("/")
    assert (answer.status, answer.headers["Location"]) == (302, "/docs")


def test_the_console_is_found_without_its_slash(api: Api) -> None:
    found = api.get("/admin")
    assert (found.status, found.headers["Location"]) == (302, "/admin/")


@pytest.mark.exhaustive
def test_production_settings_pass_djangos_deployment_check() -> None:
    production = {
        "PLATFORM_MODE": "production",
        "SECRET_KEY": "k" * 20 + "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLM",
        "ENCRYPTION_KEYS": "0" * 64,
        "PLATFORM_DOMAIN": "platform.example",
        "ALLOWED_HOSTS": "platform.example,.platform.example",
        "EMAIL_HOST": "smtp.platform.example",
        "TRUSTED_PROXIES": "10.0.0.0/8",
        "METRICS_TOKEN": "m" * 32,
    }
    done = subprocess.run(
        [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"],
        cwd=ROOT,
        env=os.environ | production,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    named = re.findall(r"^\?: \((\S+)\)", done.stdout + done.stderr, re.MULTILINE)
    assert set(named) <= {"functions.I001"}, "what the host lacks is no fault of the settings"
