"""docs/examples/team: built, type-checked, deployed with `platform`, and used by two people in a real browser."""

import functools
import http.server
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from functions.runtime.launch import deno
from tests.support.browser import NARROW, in_a_browser, save_screenshot
from tests.support.browser import browser as browser
from tests.support.browser import browser_errors as browser_errors
from tests.support.browser import window as window
from tests.support.developer_cli import Cli
from tests.support.printed_emails import link_to
from tests.support.service import ROOT, Up

pytestmark = in_a_browser

EXAMPLE = ROOT / "docs" / "examples" / "team"
PASSWORD = "correct horse battery"


@dataclass
class Team:
    """The deployed application."""

    cli: Cli
    origin: str = ""
    suffix: str = field(default_factory=lambda: secrets.token_hex(4))

    def email(self, name: str) -> str:
        return f"{name.lower()}-{self.suffix}@example.com"

    def check(self, *scripts: str) -> "subprocess.CompletedProcess[str]":
        environ = {"PATH": os.environ["PATH"], "DENO_DIR": str(self.cli.folder / ".deno"), "NO_COLOR": "1"}
        host = self.cli.url.removeprefix("http://")
        command = [deno(), "check", f"--allow-import={host}", *scripts]
        return subprocess.run(command, cwd=self.cli.folder, capture_output=True, text=True, env=environ, timeout=90)

    def report(self) -> str:
        key = self.cli.run("keys", "create", "report", "--preset", "server").stdout.strip()
        environ = {"PATH": os.environ["PATH"], "PLATFORM_URL": self.cli.url, "PLATFORM_TOKEN": key}
        command = [sys.executable, "report.py"]
        done = subprocess.run(command, cwd=self.cli.folder, capture_output=True, text=True, env=environ, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def team(served: Up, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    """As docs/how-to/team-application.md says: `init`, `push`, `types`, a key for the page, and a web server."""
    folder = tmp_path_factory.mktemp("examples") / "team"
    shutil.copytree(EXAMPLE, folder)
    cli = Cli(folder, served.base_url)
    cli.login(served.facts["account"])
    made = cli.json("init", "Team")
    cli.run("push")
    cli.run("types")
    (folder / "key.json").write_text(cli.run("keys", "create", "page", "--preset", "browser", "--json").stdout)
    config = folder / "config.js"
    assert "http://127.0.0.1:8000" in config.read_text()
    config.write_text(config.read_text().replace("http://127.0.0.1:8000", served.base_url))

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            pass

    handler = functools.partial(Handler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Team(cli, f"http://localhost:{server.server_port}")
    server.shutdown()
    server.server_close()
    token = json.loads(cli.credentials.read_text())[served.base_url]["token"]
    headers = {"Authorization": f"Bearer {token}"}
    assert httpx.delete(f"{served.base_url}/v1/projects/{made['project']}", headers=headers).status_code == 204


def test_it_is_short_and_has_no_build_step() -> None:
    front_end = [EXAMPLE / name for name in ("index.html", "app.js", "config.js")]
    assert sum(len(path.read_text().splitlines()) for path in front_end) <= 250
    assert {path.name for path in EXAMPLE.iterdir()} == {
        "app.js", "backend", "config.js", "deno.json", "index.html", "report.py"
    }  # fmt: skip


def test_who_is_a_member_is_defined_once() -> None:
    schema = (EXAMPLE / "backend/schema.json").read_text()
    assert schema.count('"members": { "$some": { "user_id": "$user.id" } }') == 1
    assert schema.count('{ "$is": "is_member" }') >= 4


def test_it_compiles_and_a_misspelled_name_does_not(team: Team) -> None:
    """In one call of the compiler, which takes seconds to start."""
    source = (team.cli.folder / "app.js").read_text()
    misspelled = {}
    for right, wrong, told in (
        ('rows("deals")', 'rows("daels")', "daels"),
        ('sum: ["value"]', 'sum: ["valeu"]', "valeu"),
        ('with: ["user"]', 'with: ["usre"]', "usre"),
        ('order: "email"', 'order: "emial"', "emial"),
    ):
        assert right in source
        misspelled[f"{told}.js"] = told
        (team.cli.folder / f"{told}.js").write_text(source.replace(right, wrong))
    done = team.check("app.js", *misspelled)
    assert done.returncode != 0
    errors = [each for each in re.split(r"(?=^TS\d+ \[ERROR\])", done.stderr, flags=re.MULTILINE) if "[ERROR]" in each]
    assert "/app.js" not in done.stderr
    for script, told in misspelled.items():
        assert [each for each in errors if told in each.replace(script, "") and f"/{script}:" in each], done.stderr


class Person:
    """Somebody with a browser of their own."""

    def __init__(self, team: Team, name: str, page: Page) -> None:
        self.team, self.name, self.page = team, name, page
        self.alert = page.get_by_role("alert")

    def sign_up(self, served: Up) -> None:
        page, email = self.page, self.team.email(self.name)
        page.goto(self.team.origin)
        self.write("Email", email)
        self.write("Password", PASSWORD)
        self.write("Your name", self.name)
        self.press("Create account")
        expect(self.alert).to_have_text("Open the link in your email, then sign in.")
        page.goto(link_to(served, email, "confirm-sign-up"))
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Confirm my account").click()
        expect(page.get_by_role("heading", name="Your account is ready")).to_be_visible()
        page.goto(self.team.origin)
        self.write("Email", email)
        self.write("Password", PASSWORD)
        self.press("Sign in")
        expect(page.locator("#me")).to_have_text(self.name)

    def press(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).click()

    def write(self, label: str, text: str) -> None:
        self.page.get_by_label(label, exact=True).fill(text)

    def lines(self, name: str) -> Locator:
        return self.page.locator(f"#{name} li span")

    def add_deal(self, title: str, value: str) -> None:
        self.write("Deal", title)
        self.write("Value", value)
        self.press("Add")

    def stage(self, title: str) -> Locator:
        return self.page.get_by_label(f"Stage of {title}", exact=True)


@pytest.fixture
def people(served: Up, team: Team, window: Callable[..., Page]) -> list[Person]:
    found = [Person(team, "Ada", window()), Person(team, "Bob", window(width=NARROW, theme="dark"))]
    for person in found:
        person.sign_up(served)
    return found


def test_two_people_work_together(team: Team, people: list[Person], browser_errors: list[str]) -> None:
    ada, bob = people
    ada.write("New organization", "Acme")
    ada.press("Create")
    expect(ada.lines("organizations")).to_have_text(["Acme"])
    expect(bob.lines("organizations")).to_have_count(0)
    ada.press("Open")
    ada.write("Emails", f"{team.email('Bob').upper()}, eve@example.com")
    ada.press("Invite")
    expect(ada.lines("members")).to_have_text(
        ["Ada: owner", f"{team.email('Bob')} is invited", "eve@example.com is invited"]
    )

    bob.page.reload()
    bob.press("Join")
    bob.press("Open")
    expect(bob.lines("members")).to_have_text(["Ada: owner", "Bob: member"])

    # Deals, totals and activity appear in the other window by themselves.
    ada.add_deal("<b>Engines</b>", "10.50")
    expect(bob.lines("deals")).to_have_text(["<b>Engines</b>, 10.50"])
    bob.add_deal("Wheels", "2")
    expect(ada.lines("deals")).to_have_text(["<b>Engines</b>, 10.50", "Wheels, 2.00"])
    bob.stage("Wheels").select_option("won")
    expect(ada.lines("totals")).to_have_text(["open: 1 worth 10.50", "won: 1 worth 2.00"])
    expect(ada.stage("Wheels")).to_have_value("won")
    expect(ada.lines("activity")).to_have_text(["Wheels is won", "Wheels was added", "<b>Engines</b> was added"])
    expect(bob.lines("activity")).to_have_count(3)

    # A member may neither change another's deal nor invite; an admin may do both.
    bob.stage("<b>Engines</b>").select_option("won")
    expect(bob.alert).not_to_be_empty()
    expect(bob.stage("<b>Engines</b>")).to_have_value("open")
    bob.write("Emails", "mallory@example.com")
    bob.press("Invite")
    expect(bob.alert).to_contain_text("The rules do not allow this value")
    expect(ada.lines("members")).to_have_count(3)
    ada.press("Open")
    expect(ada.lines("members")).to_have_text(["Ada: owner", "Bob", "eve@example.com is invited"])
    with ada.page.expect_response(lambda response: response.request.method == "PATCH") as changed:
        ada.page.get_by_label("Role").select_option("admin")
    assert changed.value.status == 200
    bob.stage("<b>Engines</b>").select_option("won")
    expect(ada.lines("totals")).to_have_text(["won: 2 worth 12.50"])
    bob.write("Emails", "carol@example.com")
    bob.press("Invite")
    expect(bob.lines("members")).to_contain_text(["carol@example.com is invited"])
    assert team.report() == "Acme\t2\t12.50\n"
    for person in people:
        save_screenshot(person.page, f"team-{person.name}")
        assert person.page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    # A former member sees nothing, also without a reload.
    ada.press("Open")
    ada.press("Remove")
    expect(ada.lines("members")).to_have_count(3)
    expect(bob.lines("deals")).to_have_count(0)
    bob.press("Sign out")
    expect(bob.page.get_by_role("button", name="Sign in")).to_be_visible()
    browser_errors.clear()  # Chromium reports each 404 and 422
