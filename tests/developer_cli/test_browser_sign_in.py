"""`platform login` in a real browser, and what other programs and pages send to its port."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.developer_cli.conftest import signed_out as signed_out
from tests.support.browser import NARROW, in_a_browser, save_screenshot
from tests.support.browser import browser as browser
from tests.support.browser import browser_errors as browser_errors
from tests.support.browser import window as window
from tests.support.developer_cli import Cli
from tests.support.service import Up, wait_for

pytestmark = in_a_browser


class Login:
    """A running `platform login --browser`. Its browser is a script that writes down which page to open."""

    def __init__(self, cli: Cli) -> None:
        opened = cli.folder / "opened"
        script = cli.folder / "browser"
        script.write_text(f'#!/bin/sh\nprintf "%s" "$1" > {opened}.part && mv {opened}.part {opened}\n')
        script.chmod(0o755)
        self.process = cli.process("login", "--browser", "--url", cli.url, "--json", BROWSER=str(script))
        wait_for("the browser is opened", lambda: opened.exists() or self.process.poll() is not None)
        assert self.process.poll() is None, self.process.communicate()
        self.url = opened.read_text()
        self.asked = {name: value[0] for name, value in parse_qs(urlsplit(self.url).query).items()}
        self.callback = f"http://127.0.0.1:{self.asked['port']}"

    def ends(self, code: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """What it prints on standard output and on standard error."""
        out, err = self.process.communicate(timeout=30)
        assert self.process.returncode == code, err
        return json.loads(out or "{}"), [json.loads(line) for line in err.splitlines()]


def sign_in(page: Page, served: Up, url: str) -> None:
    page.goto(url)
    page.get_by_label("Email").fill(served.facts["account"]["email"])
    page.get_by_label("Password").fill(served.facts["account"]["password"])
    page.get_by_role("button", name="Sign in").click()


def test_it_signs_in(signed_out: Cli, served: Up, window: Callable[..., Page]) -> None:
    login = Login(signed_out)
    page = window(width=NARROW, theme="dark")
    sign_in(page, served, login.url)
    expect(page.get_by_role("heading", name="Sign in the command line")).to_be_visible()
    expect(page.get_by_text(served.facts["account"]["email"])).to_be_visible()
    phrase = page.locator("strong").text_content()
    save_screenshot(page, "command-line")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.get_by_role("button", name="Allow").click()
    expect(page.get_by_text("Return to your terminal.")).to_be_visible()
    out, [said] = login.ends(0)
    assert said == {"open": login.url, "phrase": phrase}
    assert out["name"] == served.facts["account"]["email"]
    assert signed_out.credentials.stat().st_mode & 0o077 == 0
    assert signed_out.json("logout")["session_ended"]


def test_a_refusal_ends_it(signed_out: Cli, served: Up, window: Callable[..., Page]) -> None:
    login = Login(signed_out)
    page = window()
    sign_in(page, served, login.url)
    page.get_by_role("button", name="Refuse").click()
    expect(page.get_by_text("The sign-in was refused.")).to_be_visible()
    _, said = login.ends(4)
    assert said[-1]["error"]["code"] == "access_denied"
    assert not signed_out.credentials.exists()


def test_what_others_send_to_its_port_changes_nothing(signed_out: Cli) -> None:
    login = Login(signed_out)
    state = login.asked["state"]
    host = {"Host": "evil.example"}
    for path, headers in (
        ("/?code=oac_x", {}),
        (f"/?code=oac_x&state={state[:-1]}", {}),
        (f"/?code=oac_x&state={state}&state={state}", {}),
        (f"/elsewhere?code=oac_x&state={state}", {}),
        (f"/?code=oac_x&state={state}", host),  # a name that an attacker points at this computer
        ("/favicon.ico", {}),
    ):
        assert httpx.get(login.callback + path, headers=headers).status_code == 404
    assert httpx.post(f"{login.callback}/?code=oac_x&state={state}").status_code == 501
    with socket.create_connection(("127.0.0.1", int(login.asked["port"]))) as silent:
        silent.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
    assert login.process.poll() is None
    # A code that the service did not issue ends the sign-in without one.
    assert httpx.get(f"{login.callback}/?code=oac_x&state={state}").status_code == 200
    _, said = login.ends(4)
    assert said[-1]["error"]["code"] == "invalid_grant"
    assert not Path(signed_out.credentials).exists()


def test_it_needs_a_terminal_or_an_option(signed_out: Cli) -> None:
    error = signed_out.error("login", "--url", signed_out.url, code=2)
    assert (error["code"], "--browser" in error["message"]) == ("no_email", True)


def test_the_port_is_closed_to_other_computers(signed_out: Cli) -> None:
    login = Login(signed_out)
    others = {found[4][0] for found in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
    for other in others:
        with pytest.raises(OSError):  # noqa: PT011 - refused or unreachable
            socket.create_connection((other, int(login.asked["port"])), timeout=2)
    login.process.terminate()
    login.process.communicate(timeout=30)
