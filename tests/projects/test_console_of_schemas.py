"""The console's schema page through Django's own test client: plan, confirm by name, apply, look back."""

import hashlib
import json
import re

import pytest
from django.test import Client

from accounts.audit import SYSTEM
from accounts.models import AuditEntry, User
from platform_site.identity.plans import plan_limits
from projects.directory.environments import place_of
from rows.migrate import service as schema_service
from tests.projects.conftest import Make, environment_of, make_project

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

DOCUMENT = {"tables": {"notes": {"columns": {"title": {"type": "text"}, "body": {"type": "text"}}}}}
SMALLER = {"tables": {"notes": {"columns": {"title": {"type": "text"}}}}}


def test_a_schema_is_planned_confirmed_applied_and_looked_back_at(make_account: Make, alice: User) -> None:
    member_of_staff = make_account("staff", is_staff=True)
    environment = environment_of(make_project(alice))
    place = place_of(environment.pk)
    assert place is not None
    path = f"/admin/rows/schemaversion/?environment={environment.pk}"
    console = Client()

    # Staff only.
    assert console.get(path).status_code == 302
    console.force_login(alice)
    assert console.post(path, {"expected": 0, "document": json.dumps(DOCUMENT), "apply": 1}).status_code == 302
    assert schema_service.current(place).version == 0

    console.force_login(member_of_staff)
    assert "Choose an environment" in console.get("/admin/rows/schemaversion/").content.decode()
    assert console.get("/admin/rows/schemaversion/?environment=env_x").status_code == 404
    assert "No table yet" in console.get(path).content.decode()
    assert (
        path.replace("&", "&amp;")
        in console.get(f"/admin/projects/environment/{environment.pk}/change/").content.decode()
    )

    def post(document: object, expected: object, **more: object) -> str:
        text = document if isinstance(document, str) else json.dumps(document)
        planned = hashlib.sha256(text.encode()).hexdigest()
        posted = {"expected": expected, "document": text, "planned": planned, **more}
        return console.post(path, posted).content.decode()

    # A plan changes nothing; an applied one is a version with its author and its audit entry.
    assert "CREATE TABLE" in post(DOCUMENT, 0)
    assert schema_service.current(place).version == 0
    post(DOCUMENT, 0, apply=1)
    state = schema_service.current(place)
    assert state.version == 1
    assert state.record is not None
    assert (state.record.author_kind, state.record.author_id) == ("staff", member_of_staff.pk)
    entry = AuditEntry.objects.get(action="schema.applied")
    assert (entry.actor_id, entry.environment_id) == (member_of_staff.pk, environment.pk)

    # Impossible changes are reported with the reason.
    limit = plan_limits(place.plan).tables_per_environment
    table = DOCUMENT["tables"]["notes"]
    assert f"allows {limit} tables" in post({"tables": {f"t{n}": table for n in range(limit + 1)}}, 1)

    # What is applied is what was planned.
    assert "changed since it was planned" in post(SMALLER, 1, apply=1, planned="", confirm=["drop column notes.body"])
    assert schema_service.current(place).version == 1

    # What loses data is confirmed by its name.
    page = post(SMALLER, 1, apply=1)
    assert "Not confirmed" in page
    assert "loses data" in page
    assert schema_service.current(place).version == 1
    lost = [each.name for each in schema_service.rehearse(place, SMALLER).operations if each.destructive]
    post(SMALLER, 1, apply=1, confirm=lost)
    assert schema_service.current(place).version == 2

    # Bad input has its answer, and the text is not lost.
    assert "The document cannot be read" in post("{oops", 2)
    assert "{oops" in post("{oops", 2)
    assert "nested" in post("[" * 100_000, 2)
    assert "tables.notes" in post({"tables": {"notes": {"columns": {"title": {"type": "nonsense"}}}}}, 2)
    assert "moved to version 2" in post(DOCUMENT, 1, apply=1)
    assert "page was incomplete" in post(DOCUMENT, "x")
    assert "&lt;script&gt;" in post("<script>", 2)
    assert schema_service.current(place).version == 2

    assert "body" in console.get(f"{path}&version=2").content.decode().split("What the chosen version changed")[1]
    assert console.get(f"{path}&version=1").status_code == 200
    for number in ("0", "3", "x", "9" * 40):
        assert console.get(f"{path}&version={number}").status_code == 404, number


def test_an_earlier_version_comes_back_by_its_plan(make_account: Make, alice: User) -> None:
    place = place_of(environment_of(make_project(alice)).pk)
    assert place is not None
    for number in range(30):
        columns: dict[str, object] = {"title": {"type": "text", "max_length": 10 + number}}
        if number >= 10:
            columns["extra"] = {"type": "text", "null": True}
        schema_service.change(place, {"tables": {"notes": {"columns": columns}}}, actor=SYSTEM)
    console = Client()
    console.force_login(make_account("staff", is_staff=True))
    path = f"/admin/rows/schemaversion/?environment={place.environment_id}"

    # Versions beyond the first page are reached, and each of them once.
    first = console.get(path).content.decode()
    following = re.search(r'rel="next" href="\?([^"]+)"', first)
    assert following is not None
    second = console.get(f"/admin/rows/schemaversion/?{following[1].replace('&amp;', '&')}").content.decode()
    numbers = re.findall(r"#chosen\">Version (\d+)</a>", first + second)
    assert numbers == [str(number) for number in range(30, 0, -1)]

    planned = console.post(path, {"expected": 30, "revert": 5, "plan": 1}).content.decode()
    assert "Back to version 5" in planned
    assert "drop column notes.extra" in planned
    assert schema_service.current(place).version == 30
    digest = re.search(r'name="planned" value="([0-9a-f]{64})"', planned)
    assert digest is not None
    to_apply = {"expected": 30, "revert": 5, "planned": digest[1], "apply": 1}
    assert "Not confirmed: drop column notes.extra" in console.post(path, to_apply).content.decode()
    done = console.post(path, {**to_apply, "confirm": ["drop column notes.extra"]})
    assert done.status_code == 302, done.content.decode()[-2000:]
    state = schema_service.current(place)
    assert state.record is not None
    assert (state.version, state.record.reverts_to) == (31, 5)
    assert state.record.document["tables"]["notes"]["columns"]["title"]["max_length"] == 14
    assert AuditEntry.objects.get(action="schema.reverted").actor_kind == "staff"
    assert console.post(path, {"expected": 31, "revert": 99}).status_code == 404
