"""Functions that are deployed and invoked through the API."""

from collections.abc import Callable
from typing import Any

from accounts.models import ServerKey
from tests.projects.conftest import key_for
from tests.rows.conftest import Tracker
from tests.support.client import Answer

SUM = "export default ({a, b}: {a: number, b: number}) => ({sum: a + b})"


def deploy(tracker: Tracker, name: str, source: str, **more: Any) -> Answer:
    return tracker.call("owner", "PUT", f"/functions/{name}", json={"source": source, **more})


def invoke(tracker: Tracker, name: str, input: Any = None, who: str = "owner", **how: Any) -> Answer:
    return tracker.post(who, f"/functions/{name}/invoke", {} if input is None else {"input": input}, **how)


def run_body(tracker: Tracker, body: str, who: str = "owner", **settings: Any) -> tuple[Answer, dict[str, Any]]:
    """Deploy and invoke a function of that body; its answer, and its run as it was written down."""
    made = deploy(tracker, "f", f"export default async (input: any, ctx: any) => {{ {body} }}", **settings)
    assert made.status in (200, 201), made.json
    got = invoke(tracker, "f", who=who)
    run_id = got.json.get("run_id") or got.json["error"]["run_id"]
    run: dict[str, Any] = tracker.get("owner", f"/functions/f/runs/{run_id}").json
    assert run["phase"] == "ended"
    return got, run


def own_key(tracker: Tracker, who: str, *scopes: str) -> str:
    """A new key under the name `who`; its id."""
    known = set(ServerKey.objects.values_list("pk", flat=True))
    tracker.tokens[who] = key_for(tracker.environment_id, *scopes)
    return str(ServerKey.objects.exclude(pk__in=known).get().pk)


def preview_branch(tracker: Tracker) -> tuple[str, Callable[..., Any]]:
    """A new branch of production: its id, and a call there by the owner that returns the JSON."""
    made = tracker.api.post(
        f"/v1/projects/{tracker.project.pk}/environments",
        token=tracker.tokens["owner"],
        json={"name": "preview", "from": "production"},
    )
    assert made.status == 201, made.json

    def there(method: str, path: str, **how: Any) -> Any:
        return tracker.api.request(
            method, f"/v1{path}", token=tracker.tokens["owner"], environment=made.json["id"], **how
        ).json

    return made.json["id"], there
