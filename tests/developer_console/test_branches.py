"""Branches: created, deleted and merged, with conflicts to resolve and changes to confirm."""

import copy
import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from platform_site.developer_console.branches.source_diffs import MAX_LINES
from projects.models import Environment
from tests.developer_console.conftest import DOCUMENT, Desk, desk_at, without_token
from tests.rows.conftest import Tracker

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(transaction=True, databases="__all__")]
SOURCE = "export default () => {};\n"


def text_of(answer: Any) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", answer.content.decode())).split())


def test_the_list_costs_the_same_with_many_branches(tracker: Tracker, desk: Desk) -> None:
    def queries() -> int:
        with (
            CaptureQueriesContext(connection) as control,
            CaptureQueriesContext(connections[tracker.project.cluster]) as region,
        ):
            assert desk.get("branches/").status_code == 200
        return len(control) + len(region)

    queries()
    before = queries()
    source = Environment.objects.get(pk=tracker.environment_id)
    Environment.objects.bulk_create(
        Environment(project=tracker.project, name=f"b{number}", status="ready", parent=source, pool_id=source.pk)
        for number in range(20)
    )
    assert "b19" in text_of(desk.get("branches/"))
    assert queries() == before


def hidden(answer: Any) -> dict[str, str]:
    """What the form of a plan carries besides the choices of the reader."""
    found = dict(
        re.findall(
            r'<input type="hidden" name="(plan|planned|replaced|fingerprint)" value="([^"]*)"', answer.content.decode()
        )
    )
    assert {"plan", "planned", "fingerprint"} <= found.keys(), text_of(answer)
    return found


class Branched:
    """Production, a branch of it, and the owner's browser at production."""

    def __init__(self, tracker: Tracker, desk: Desk) -> None:
        self.tracker, self.desk = tracker, desk
        self.deploy(desk.environment_id, SOURCE)
        desk.post("branches/", {"action": "create", "name": "blue", "from": desk.environment_id, "data": "none"})
        self.branch = Environment.objects.get(project=tracker.project, name="blue").pk

    def call(self, method: str, path: str, body: Any, environment: str) -> Any:
        token = self.tracker.tokens["owner"]
        given = {} if body is None else {"json": body}
        answer = self.tracker.api.request(method, f"/v1{path}", token=token, environment=environment, **given)
        assert answer.status < 300, answer.json
        return answer.json

    def set_schema(self, environment: str, change: Callable[[Any], Any], **more: Any) -> None:
        document = copy.deepcopy(self.call("GET", "/schema", None, environment)["document"])
        change(document["tables"])
        self.call("PUT", "/schema", {"document": document, **more}, environment)

    def columns(self) -> list[str]:
        return [*self.call("GET", "/schema", None, self.desk.environment_id)["document"]["tables"]["tasks"]["columns"]]

    def deploy(self, environment: str, source: str, **more: Any) -> None:
        self.call("PUT", "/functions/digest", {"source": source, **more}, environment)

    def function(self) -> Any:
        """Production's."""
        found = self.call("GET", "/config?parts=functions", None, self.desk.environment_id)
        return found["config"]["functions"]["digest"]

    def ask(self, action: str = "plan", **more: Any) -> Any:
        values = {"action": action, "from": self.branch, "into": self.desk.environment_id, **more}
        return self.desk.post("branches/merge", values)


def rename_title(tables: Any) -> None:
    columns = tables["tasks"]["columns"]
    columns["heading"] = {**columns.pop("title"), "renamed_from": "title"}


def drop_points(tables: Any) -> None:
    del tables["tasks"]["columns"]["points"]
    tables["tasks"]["rules"]["user"]["read"]["columns"] = ["*"]


@pytest.fixture
def branched(tracker: Tracker, desk: Desk) -> Branched:
    return Branched(tracker, desk)


def test_a_branch_is_created_and_deleted_by_its_name(tracker: Tracker, desk: Desk) -> None:
    assert desk.get("branches/").content.decode().count("Delete branch") == 0
    made = desk.post(
        "branches/", {"action": "create", "name": "fix/login", "from": desk.environment_id, "data": "full"}
    )
    assert "The branch fix/login is created." in text_of(made)
    assert re.search(r"fix/login branch production (ready|creating)", text_of(made))
    branch = Environment.objects.get(project=tracker.project, name="fix/login")
    wrong = desk.post("branches/", {"action": "delete", "branch": branch.pk, "confirm": "production"})
    assert wrong.status_code == 422
    assert "This is not the branch's name." in text_of(wrong)
    assert re.findall(r"<details open>\s*<summary>(\w+)", wrong.content.decode()) == ["Delete"]
    assert "was branched from it" not in text_of(made)
    desk.post("branches/", {"action": "create", "name": "more", "from": branch.pk, "data": "none"})
    assert "more was branched from it" in text_of(desk.get("branches/"))
    gone = desk.post("branches/", {"action": "delete", "branch": branch.pk, "confirm": "fix/login"})
    assert "The branch is deleted." in text_of(gone)
    more = Environment.objects.get(project=tracker.project, name="more")
    gone = desk.post("branches/", {"action": "delete", "branch": more.pk, "confirm": "more"})
    assert "Delete branch" not in text_of(gone)
    fixed = desk.post("branches/", {"action": "delete", "branch": desk.environment_id, "confirm": "production"})
    assert fixed.status_code == 409
    assert desk.get("branches/").status_code == 200


def test_the_users_of_a_branch_are_changed_at_its_source(branched: Branched) -> None:
    branch = Desk(branched.desk.browser, branched.desk.project_id, branched.branch)
    user = branched.tracker.users["alice"]
    source = branched.desk.url("auth/")
    for path in ("auth/", f"auth/users/{user}", "auth/invitations", "auth/sign-up", "auth/providers"):
        page = branch.get(path).content.decode()
        assert f'<a href="{source}"><bdi>production</bdi></a>' in page, path
        main = page.partition("<main")[2]
        assert re.findall(r'name="action" value="([^"]*)"', main) == (["redirects"] if "sign-up" in path else []), path
        assert f'<a href="{source}"><bdi>production' not in branched.desk.get(path).content.decode()
    assert "alice@" in branch.get("auth/").content.decode()


def test_a_branch_is_reset_by_its_name(branched: Branched) -> None:
    desk = branched.desk
    values = {"action": "reset", "branch": branched.branch, "data": "full"}
    wrong = desk.post("branches/", {**values, "confirm": "production"})
    assert wrong.status_code == 422
    assert "This is not the branch's name." in text_of(wrong)
    assert "The branch blue is reset." in text_of(desk.post("branches/", {**values, "confirm": "blue"}))
    fixed = {**values, "branch": desk.environment_id, "confirm": "production"}
    assert desk.post("branches/", fixed).status_code == 409


def test_a_branch_expires(tracker: Tracker, desk: Desk) -> None:
    values = {"action": "create", "name": "short", "from": desk.environment_id, "data": "none"}
    wrong = desk.post("branches/", {**values, "expires": "2"})
    assert wrong.status_code == 422
    assert "Choose one of the times." in text_of(wrong)
    made = desk.post("branches/", {**values, "expires": "7"})
    branch = Environment.objects.get(project=tracker.project, name="short")
    assert branch.expires_at is not None
    assert text_of(made).count(f"{branch.expires_at:%Y-%m-%d %H:%M:%S}") == 2, "in the list and above the form"
    asked = {"action": "expire", "branch": branch.pk}
    assert "does not expire" in text_of(desk.post("branches/", {**asked, "expires": ""}))
    branch.refresh_from_db()
    assert branch.expires_at is None
    assert desk.post("branches/", {**asked, "expires": "x"}).status_code == 422
    assert "The expiry is changed." in text_of(desk.post("branches/", {**asked, "expires": "30"}))
    fixed = desk.post("branches/", {**asked, "branch": desk.environment_id, "expires": "1"})
    assert fixed.status_code == 422


def test_a_merge_shows_the_impact_of_its_rules(branched: Branched) -> None:
    def closed(tables: Any) -> None:
        tables["tasks"]["rules"].pop("user", None)

    branched.set_schema(branched.branch, closed)
    assert "Impact of the rules" in text_of(branched.ask())


def test_deleting_the_current_branch_opens_another_environment(branched: Branched) -> None:
    there = Desk(branched.desk.browser, branched.desk.project_id, branched.branch)
    gone = there.post("branches/", {"action": "delete", "branch": branched.branch, "confirm": "blue"})
    assert gone.status_code == 302
    assert branched.desk.browser.get(gone["Location"]).status_code == 200


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"name": "<b>Bad</b>"}, "name"),
        ({"name": ""}, "name"),
        ({"name": "production"}, "name"),
        ({"from": "env_none"}, "from"),
        ({"data": "half"}, "data"),
    ],
)
def test_an_error_of_a_new_branch_is_at_its_field(desk: Desk, values: dict[str, str], field: str) -> None:
    given = {"action": "create", "name": "blue", "from": desk.environment_id, "data": "none", **values}
    answer = desk.post("branches/", given)
    assert answer.status_code in (409, 422)
    assert f'id="create-{field}-problem"' in answer.content.decode()
    assert "<b>Bad</b>" not in answer.content.decode()


def test_a_merge_with_a_rename_and_the_way_back(branched: Branched) -> None:
    branched.set_schema(branched.branch, rename_title)
    planned = branched.ask()
    assert "rename column tasks.title" in text_of(planned)
    assert "Changed" in text_of(planned)
    assert "ALTER TABLE" in text_of(planned)
    assert "tasks reads and writes catalog only" in text_of(planned)
    assert "destructive" not in text_of(planned)
    applied = branched.ask("apply", **hidden(planned))
    assert "All changes of the plan are applied." in text_of(applied)
    assert "heading" in branched.columns()
    assert "There is nothing to change." in text_of(branched.ask())
    version = hidden(planned)["replaced"]
    assert version in text_of(applied)
    merging = branched.desk.get("branches/merge").content.decode()
    title = rf"\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC, schema version 1 \({version}\)"
    assert re.search(rf'<option value="{version}" >{title}</option>', merging)
    into = {"into": branched.desk.environment_id, "version": version}
    back = branched.desk.post("branches/merge", {"action": "plan", **into})
    assert "Back to" in text_of(back)
    assert branched.desk.post("branches/merge", {"action": "apply", **into, **hidden(back)}).status_code == 200
    assert "title" in branched.columns()
    assert branched.desk.post("branches/merge", {"action": "plan", **into, "version": "cfg_none"}).status_code == 404


@pytest.mark.parametrize(("choice", "value"), [("ours", "1;"), ("theirs", "2;")])
def test_a_conflict_is_resolved(branched: Branched, choice: str, value: str) -> None:
    branched.deploy(branched.desk.environment_id, "export default () => 1;")
    branched.deploy(branched.branch, "export default () => 2; // <b>")
    planned = branched.ask()
    page = text_of(planned)
    assert "functions.digest.source" in page
    assert "Resolve the conflicts first." in page
    assert "=> 1;" in page
    assert "=> 2;" in page
    assert "<b>" not in planned.content.decode()
    early = branched.ask("apply", **hidden(planned))
    assert early.status_code == 422
    assert "The merge has conflicts." in text_of(early)
    choices = {"path": "functions.digest.source", "choice-0": choice}
    resolved = branched.ask(**choices)
    assert "resolved" in text_of(resolved)
    assert "Resolve the conflicts first." not in text_of(resolved)
    if choice == "theirs":
        changed = branched.ask("apply", **hidden(resolved), **choices | {"choice-0": "ours"})
        assert "The form was changed after the plan." in text_of(changed)
        assert "1;" in branched.function()["source"]
        assert branched.ask("apply", **hidden(resolved), **choices).status_code == 200
    else:
        assert "There is nothing to change." in text_of(resolved)
        assert 'value="apply"' in resolved.content.decode()
        assert branched.ask("apply", **hidden(resolved), **choices).status_code == 200
        assert "functions.digest.source" not in text_of(branched.ask()), "the conflict is settled"
    assert value in branched.function()["source"]


def test_a_plan_shows_the_diff_of_each_source(branched: Branched) -> None:
    branched.call("PUT", "/functions/fresh", {"source": f"// new\n{SOURCE}"}, branched.branch)
    branched.deploy(branched.branch, f"// <b>\n{SOURCE}")
    planned = branched.ask().content.decode()
    details = re.findall(r"<details>\s*<summary>(Source[^<]*)</summary>(.*?)</details>", planned, re.DOTALL)
    assert [title for title, _ in details] == ["Source: 2 lines added, 0 removed", "Source: 1 line added, 0 removed"]
    assert '<span class="ins">+// &lt;b&gt;</span>' in planned
    assert '<span class=""> export default () =&gt; {};</span>' in planned
    assert '<span class="ins">+// new</span>' in planned
    branched.deploy(branched.branch, "//\n" * MAX_LINES + SOURCE)
    assert "The source is too long to compare here." in text_of(branched.ask())


def test_a_plan_to_go_back_shows_the_diff_of_a_source(branched: Branched) -> None:
    branched.deploy(branched.branch, "export default () => 2;\n")
    planned = branched.ask()
    branched.ask("apply", **hidden(planned))
    into = {"into": branched.desk.environment_id, "version": hidden(planned)["replaced"]}
    back = branched.desk.post("branches/merge", {"action": "plan", **into}).content.decode()
    assert '<span class="del">-export default () =&gt; 2;</span>' in back
    assert '<span class="ins">+export default () =&gt; {};</span>' in back


def test_what_the_target_removed_is_merged_if_chosen(branched: Branched) -> None:
    branched.set_schema(branched.desk.environment_id, drop_points, confirm=["drop column tasks.points"])
    path = "schema.tables.tasks.columns.points"
    planned = branched.ask()
    assert f"Merge {path} all the same" in text_of(planned)
    assert f'<input type="hidden" name="path" value="{path}">' in planned.content.decode()
    choices = {"path": path, "choice-0": "theirs"}
    chosen = branched.ask(**choices)
    assert "all the same" not in text_of(chosen)
    assert branched.ask("apply", **hidden(chosen), **choices).status_code == 200
    assert "points" in branched.columns()


def test_destructive_changes_are_confirmed_by_name(branched: Branched) -> None:
    branched.set_schema(branched.branch, drop_points, confirm=["drop column tasks.points"])
    planned = branched.ask()
    assert "destructive" in text_of(planned)
    for confirm in ("", "drop column tasks"):
        refused = branched.ask("apply", **hidden(planned), confirm=confirm)
        assert refused.status_code == 422
        assert "drop column tasks.points" in text_of(refused)
        assert "Confirm each marked change" in text_of(refused)
    assert "points" in branched.columns()
    done = branched.ask("apply", **hidden(refused), confirm="drop column tasks.points")
    assert done.status_code == 200
    assert "points" not in branched.columns()


def test_settings_of_trust_are_included_and_confirmed(branched: Branched) -> None:
    branched.deploy(branched.branch, SOURCE, allowed_hosts=["evil.example.com"])
    assert "evil.example.com" not in text_of(branched.ask())
    include = {"include": "functions.digest"}
    planned = branched.ask(**include)
    assert "evil.example.com" in text_of(planned)
    assert "trust" in text_of(planned)
    assert branched.ask("apply", **hidden(planned), **include).status_code == 422
    path = "functions.digest.allowed_hosts"
    assert branched.ask("apply", **hidden(planned), confirm=path).status_code == 422, "not what was planned"
    assert branched.ask("apply", **hidden(planned), **include, confirm=path).status_code == 200
    assert branched.function()["allowed_hosts"] == ["evil.example.com"]


def test_what_the_plan_leaves_out_is_included_by_its_box(branched: Branched) -> None:
    made = branched.call("POST", "/webhooks", {"url": "https://example.com/", "events": ["tasks.*"]}, branched.branch)
    branched.call("PATCH", f"/webhooks/{made['id']}", {"name": "crm"}, branched.branch)
    branched.deploy(branched.branch, SOURCE, allowed_hosts=["example.com"])

    def left_out(page: Any) -> list[str]:
        plan = page.content.decode().partition('id="plan"')[2]
        return re.findall(r'name="include" value="([^"]+)"', plan)

    planned = branched.ask()
    assert left_out(planned) == ["functions.digest.allowed_hosts", "webhooks.crm"]
    assert "The plan does not merge these: a new webhook is not created" in text_of(planned)
    changed = branched.ask("apply", **hidden(planned), include="webhooks.crm")
    assert "The form was changed after the plan." in text_of(changed)
    chosen = branched.ask(include="webhooks.crm")
    assert left_out(chosen) == ["functions.digest.allowed_hosts"]
    assert 'value="webhooks.crm.url"' in chosen.content.decode(), "its URL is to be confirmed"
    both = ["webhooks.crm", "functions.digest"]
    chosen = branched.ask(include=both)
    assert "Left out" not in text_of(chosen)
    boxes = re.findall(r'name="include" value="([^"]+)" checked', chosen.content.decode())
    assert sorted(boxes) == sorted(both)
    refused = branched.ask("apply", **hidden(chosen), include=boxes)
    assert "Confirm each marked change" in text_of(refused), "the form of the plan is not another one"


def test_functions_and_webhooks_of_the_source_can_be_included(branched: Branched) -> None:
    for name in ("crm", None):
        webhook = {"url": "https://example.com/", "events": ["tasks.*"]}
        made = branched.call("POST", "/webhooks", webhook, branched.branch)
        branched.call("PATCH", f"/webhooks/{made['id']}", {"name": name}, branched.branch)
    page = branched.desk.get(f"branches/merge?from={branched.branch}")
    assert page.status_code == 200
    assert set(re.findall(r'name="include" value="([^"]+\.[^"]+)"', page.content.decode())) == {
        "functions.digest",
        "webhooks.crm",
    }


def test_a_new_column_gets_its_value_for_existing_rows(branched: Branched) -> None:
    assert branched.tracker.post("owner", "/rows/tasks", {"title": "Tea"}).status == 201

    def add_rank(tables: Any) -> None:
        tables["tasks"]["columns"]["rank"] = {"type": "integer"}

    branched.set_schema(branched.branch, add_rank)
    refused = branched.ask()
    assert refused.status_code == 422
    assert 'name="backfill.tasks.rank"' in refused.content.decode()
    wrong = branched.ask(**{"backfill.tasks.rank": "many"})
    assert wrong.status_code == 422
    assert 'name="backfill.tasks.rank" value="many"' in wrong.content.decode()
    values = {"backfill.tasks.rank": "7"}
    planned = branched.ask(**values)
    assert "add column tasks.rank" in text_of(planned)
    assert 'name="backfill.tasks.rank" value="7"' in planned.content.decode()
    changed = branched.ask("apply", **hidden(planned), **{"backfill.tasks.rank": "8"})
    assert "The form was changed after the plan." in text_of(changed)
    assert branched.ask("apply", **hidden(planned), **values).status_code == 200
    assert branched.tracker.get("owner", "/rows/tasks").json["data"][0]["rank"] == 7


def test_a_stale_plan_is_not_applied(branched: Branched) -> None:
    branched.set_schema(branched.branch, rename_title)
    planned = branched.ask()
    branched.set_schema(branched.desk.environment_id, lambda tables: tables.update(tags={"columns": {}}))
    stale = branched.ask("apply", **hidden(planned))
    assert stale.status_code == 412
    assert "Plan again to see what the merge does now" in text_of(stale)
    assert "title" in branched.columns()
    assert branched.ask("apply", **hidden(branched.ask())).status_code == 200
    assert "heading" in branched.columns()


def test_errors_of_a_plan_are_shown(branched: Branched) -> None:
    nothing = branched.desk.post("branches/merge", {"action": "plan", "into": branched.desk.environment_id})
    assert nothing.status_code == 422
    assert 'id="from-problem"' in nothing.content.decode()
    same = branched.ask(**{"from": branched.desk.environment_id})
    assert "cannot be merged into itself" in text_of(same)
    wrong = branched.ask(include="<i>nothing")
    assert wrong.status_code == 422
    assert "<i>" not in wrong.content.decode()


def test_the_list_leads_to_merging_without_a_branch(
    tracker: Tracker, desk: Desk, desk_of: Callable[[str], Desk]
) -> None:
    link = f'href="{desk.url("branches/merge")}"'
    assert link in desk.get("branches/").content.decode()
    assert link not in desk_of("viewer").get("branches/").content.decode()


def test_development_is_merged_into_production(branched: Branched) -> None:
    development = branched.tracker.project.environments.get(name="development").pk
    branched.set_schema(development, lambda tables: tables.update(tags={"columns": {"name": {"type": "text"}}}))
    planned = branched.ask(**{"from": development})
    assert planned.status_code == 200
    assert "create table tags" in text_of(planned)
    assert branched.ask("apply", **{"from": development}, **hidden(planned)).status_code == 200
    assert "title" in branched.columns(), "production keeps what development lacks"


def test_a_viewer_sees_branches_and_changes_nothing(branched: Branched, desk_of: Callable[[str], Desk]) -> None:
    viewer = desk_of("viewer")
    for path in ("branches/", "branches/merge"):
        page = viewer.get(path)
        assert page.status_code == 200
        assert "hx-post" not in page.content.decode()
    assert "blue" in text_of(viewer.get("branches/"))
    before = branched.tracker.project.environments.count()
    into = {"from": branched.branch, "into": viewer.environment_id}
    for path, values in (
        ("branches/", {"action": "create", "name": "red", "from": viewer.environment_id, "data": "none"}),
        ("branches/", {"action": "delete", "branch": branched.branch, "confirm": "blue"}),
        ("branches/", {"action": "reset", "branch": branched.branch, "confirm": "blue", "data": "full"}),
        ("branches/", {"action": "expire", "branch": branched.branch, "expires": "1"}),
        ("branches/merge", {"action": "plan", **into}),
        ("branches/merge", {"action": "plan", "into": viewer.environment_id, "version": "cfg_none"}),
    ):
        assert viewer.post(path, values).status_code in (403, 404), values
    planned = hidden(branched.ask())
    assert viewer.post("branches/merge", {"action": "apply", **into, **planned}).status_code in (403, 404)
    assert branched.tracker.project.environments.count() == before


def test_environments_of_other_projects_are_not_found(branched: Branched, make_tracker: Callable[..., Tracker]) -> None:
    stranger = desk_at(make_tracker(DOCUMENT, "Other"))
    theirs = Desk(stranger.browser, branched.desk.project_id, branched.desk.environment_id)
    for path in ("branches/", "branches/merge"):
        assert theirs.get(path).status_code == 404
        assert theirs.post(path, {"action": "plan", "from": branched.branch}).status_code == 404
    for values in ({"from": branched.branch}, {"into": branched.branch, "from": stranger.environment_id}):
        assert stranger.post("branches/merge", {"action": "plan", **values}).status_code == 404
    for values in (
        {"action": "delete", "branch": branched.branch, "confirm": "blue"},
        {"action": "reset", "branch": branched.branch, "confirm": "blue", "data": "full"},
        {"action": "expire", "branch": branched.branch, "expires": "1"},
    ):
        assert stranger.post("branches/", values).status_code == 404
    made = stranger.post("branches/", {"action": "create", "name": "x", "from": branched.branch, "data": "none"})
    assert made.status_code in (404, 422)
    assert "blue" not in text_of(made)


def test_a_form_without_its_token_is_refused(branched: Branched) -> None:
    strict = without_token(branched.desk)
    for path in ("branches/", "branches/merge"):
        assert strict.post(path, {"action": "delete", "branch": branched.branch, "confirm": "blue"}).status_code == 403
    assert Environment.objects.filter(pk=branched.branch).exists()
