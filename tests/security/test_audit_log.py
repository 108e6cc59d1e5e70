"""What changes something leaves an entry that says who and where; and no secret stays behind anywhere, in clear.

One walk over the whole API, with what each operation needs: operations are taken from the API's description, so that a
new one fails here until it says what it leaves, or why it leaves nothing.
"""

import secrets
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from psycopg import sql

from accounts import audit
from accounts.models import AuditEntry
from accounts.oauth import proofs
from accounts.registration import email_outbox, pool_settings
from platform_site import demo
from platform_site.embedded.data_dir import Layout
from platform_site.postgres.row_access import row_access
from projects.directory.environments import environment_ref
from tests.accounts.conftest import _mail_server, postbox  # noqa: F401 - fixtures
from tests.accounts.oauth.conftest import s256
from tests.support.client import Answer, Api
from tests.support.log_lines import listening
from tests.support.openapi import operations
from tests.support.postbox import Postbox, token_in
from webhooks.delivery.relay import relay_batch
from webhooks.models import Delivery

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

LEAVES = {
    "deleteMe": "user.deleted",
    "confirmEmailChange": "user.changed",
    "verifyEmail": "user.changed",
    "linkIdentity": "identity.linked",
    "deleteIdentity": "identity.unlinked",
    "acceptInvitation": "user.created",
    "updateMe": "user.changed",
    "confirmPasswordReset": "user.changed",
    "revokeSession": "session.revoked",
    "deleteSession": "session.revoked",
    "updateSettings": "sign_up.changed",
    "confirmSignUp": "user.created",
    "createToken": "session.started",
    "deployFunction": "function.deployed",
    "deleteFunction": "function.deleted",
    "configureFunction": "function.configured",
    "activateFunction": "function.activated",
    "cancelRun": "run.cancelled",
    "createInboundEndpoint": "function.inbound_made",
    "deleteInboundEndpoint": "function.inbound_revoked",
    "createIdentityProvider": "identity_provider.added",
    "updateIdentityProvider": "identity_provider.changed",
    "deleteIdentityProvider": "identity_provider.removed",
    "createInvitation": "invitation.sent",
    "deleteInvitation": "invitation.withdrawn",
    "createKey": "key.issued",
    "deleteKey": "key.revoked",
    "createProject": "project.created",
    "updateProject": "project.changed",
    "deleteProject": "project.deleted",
    "createBranch": "environment.branched",
    "updateEnvironment": "environment.changed",
    "deleteBranch": "environment.deleted",
    "resetBranch": "environment.reset",
    "createMember": "member.added",
    "updateMember": "member.changed",
    "deleteMember": "member.removed",
    "deleteMemberInvitation": "member.invitation_withdrawn",
    "acceptMemberInvitation": "member.added",
    "replaceRedirectUris": "redirect_uris.changed",
    "replaceSchema": "schema.applied",
    "revertSchema": "schema.reverted",
    "createUser": "user.created",
    "updateUser": "user.changed",
    "deleteUser": "user.deleted",
    "deleteUserSession": "session.revoked",
    "deleteUserSessions": "session.revoked",
    "createWebhook": "webhook.created",
    "updateWebhook": "webhook.changed",
    "deleteWebhook": "webhook.deleted",
    "redeliverDelivery": "delivery.resent",
    "recoverWebhook": "webhook.recovered",
    "rotateWebhookSecret": "webhook.secret_rotated",
    "testWebhook": "webhook.tested",
    "applyConfig": "config.applied",
}
LEAVES_NOTHING = {
    "requestEmailChange": "the link changes something, not the wish; the email is in the console's list",
    "requestEmailVerification": "as above",
    "requestPasswordReset": "as above; an anonymous request must not write to the audit log",
    "signUp": "as above",
    "invokeFunction": "its run says who, what and when",
    "deliverInbound": "as above",
    "insertRows": "rows are the tenant's: events tell of them, with the request",
    "updateRow": "as above",
    "deleteRow": "as above",
    "updateRows": "as above",
    "deleteRows": "as above",
    "writeBatch": "as above",
    "aggregateRows": "reads",
    "explainRow": "reads",
    "queryRows": "reads",
    "planConfig": "changes nothing of the environment",
}
STREAMS = {"streamChanges"}
"""Read, and have no single response: tests/rows/test_changes.py."""
REDIRECTS = {"receiveSignInCallbackForm"}
"""Change nothing: tests/accounts/oauth/test_apple.py."""
ELSEWHERE = {
    "createProject", "updateProject", "deleteProject", "createMember", "updateMember", "deleteMember",
    "acceptMemberInvitation", "deleteMemberInvitation",
}  # fmt: skip
"""What is about a project, or an account, and no environment."""


def test_each_operation_that_may_change_something_is_in_one_of_the_lists() -> None:
    changing = {operation["operationId"] for method, _, operation in operations() if method != "GET"}
    assert changing == LEAVES.keys() | LEAVES_NOTHING.keys() | STREAMS | REDIRECTS
    assert not LEAVES.keys() & LEAVES_NOTHING.keys()


class Walk:
    """The calls so far: which operations, and the secrets that were given or made on the way."""

    def __init__(self, api: Api, facts: dict[str, Any]) -> None:
        self.api, self.facts = api, facts
        self.production: str = facts["environments"]["production"]
        self.done: set[str] = set()
        self.secrets: dict[str, str] = {}
        self.paths = {operation["operationId"]: (method, path) for method, path, operation in operations()}

    def secret(self, kind: str, value: str = "") -> str:
        """A secret of the client's (random if none is given), remembered."""
        value = value or f"Canary-{secrets.token_hex(12)}"
        self.secrets[f"{kind} {len(self.secrets)}"] = value
        return value

    def do(
        self,
        name: str,
        body: Any = None,
        /,
        *,
        token: str | None,
        bare: bool = False,
        headers: Any = (),
        query: str = "",
        **known: str,
    ) -> Any:
        """Call one operation; its JSON. Fails unless it succeeds and leaves what LEAVES says."""
        method, path = self.paths[name]
        given = {} if body is None else {"json": body}
        answer: Answer = self.api.request(
            method,
            path.replace("{token}", known.pop("address", "")).format(**known) + query,
            token=token,
            environment=None if bare else self.production,
            headers={"Idempotency-Key": secrets.token_hex(8), **dict(headers)} if method in ("POST", "PATCH") else {},
            **given,
        )
        assert 200 <= answer.status < 300, (name, answer.status, answer.json)
        left = list(AuditEntry.objects.filter(request_id=answer.headers["X-Request-Id"]))
        if name in LEAVES:
            entry = next((each for each in left if each.action == LEAVES[name]), None)
            assert entry is not None, (name, left)
            assert entry.actor_id, name
            assert entry.environment_id or bare or name in ELSEWHERE, name
        else:
            assert left == [], name
        self.done.add(name)
        return answer.json

    def signed_in(self, person: dict[str, Any], *, bare: bool = False) -> str:
        body = {"grant_type": "password", "email": person["email"], "password": person["password"]}
        grant = self.do("createToken", body, token=None, bare=bare)
        self.secret("refresh token", grant["refresh_token"])
        return self.secret("access token", grant["access_token"])


def people(walk: Walk, owner: str, box: Postbox) -> None:
    """Separate accounts, by links and by providers."""

    def mailed(address: str) -> str:
        email_outbox.send_due()
        return walk.secret("link", token_in(box.last(address)))

    walk.do("updateSettings", {"sign_up": "open"}, token=owner)
    password = walk.secret("password")
    mary = {"email": "mary@example.org", "password": password}
    walk.do("signUp", mary, token=None)
    walk.do("confirmSignUp", {"token": mailed(mary["email"]), "password": password}, token=None)
    walk.do("requestPasswordReset", {"email": mary["email"]}, token=None)
    mary["password"] = walk.secret("password")
    body = {"token": mailed(mary["email"]), "password": mary["password"]}
    walk.do("confirmPasswordReset", body, token=None)

    token = walk.signed_in(mary)
    provider = walk.do(
        "createIdentityProvider",
        {"name": "github", "preset": "github", "client_id": "Iv1", "client_secret": walk.secret("client secret")},
        token=owner,
    )
    walk.do("updateIdentityProvider", {"display_name": "GitHub!"}, token=owner, provider_id=provider["id"])
    verifier = walk.secret("verifier", secrets.token_urlsafe(48))
    proof = proofs.Proof(
        provider_id=provider["id"],
        subject="1",
        email=None,
        environment_id=walk.production,
        code_challenge=s256(verifier),
        issuer=provider["issuer"],
    )
    body = {
        "code": walk.secret("proof", proofs.seal(proof)),
        "code_verifier": verifier,
        "current_password": mary["password"],
    }
    identity = walk.do("linkIdentity", body, token=token)
    walk.do("deleteIdentity", token=token, identity_id=identity["id"])
    walk.do("deleteIdentityProvider", token=owner, provider_id=provider["id"])
    walk.do("replaceRedirectUris", {"redirect_uris": ["https://app.example.com/in"]}, token=owner)

    changed = {"email": "mary@example.net", "current_password": mary["password"]}
    walk.do("requestEmailChange", changed, token=token)
    mary["email"] = "mary@example.net"
    body = {"token": mailed(mary["email"]), "password": mary["password"]}
    walk.do("confirmEmailChange", body, token=None)
    other = walk.do(
        "createToken", {"grant_type": "password", **{k: mary[k] for k in ("email", "password")}}, token=None
    )
    walk.secret("refresh token", other["refresh_token"])
    body = {"current_password": mary["password"], "password": walk.secret("password")}
    walk.do("updateMe", body, token=token)
    mary["password"] = body["password"]
    walk.signed_in(mary)
    walk.do("revokeSession", {"scope": "others"}, token=token)
    [session] = walk.api.get("/v1/auth/sessions", token=token, environment=walk.production).json["data"]
    walk.do("deleteSession", token=token, session_id=session["id"])
    walk.do("deleteMe", {"current_password": mary["password"]}, token=walk.signed_in(mary))

    walk.do("createInvitation", {"email": "joan@example.org"}, token=owner)
    walk.do(
        "acceptInvitation",
        {"token": mailed("joan@example.org"), "password": walk.secret("password")},
        token=None,
    )
    invited = walk.do("createInvitation", {"email": "jean@example.org"}, token=owner)
    walk.do("deleteInvitation", token=owner, invitation_id=invited["id"])
    hedy = {"email": "hedy@example.org", "password": walk.secret("password")}
    user = walk.do("createUser", hedy, token=owner)
    walk.do("updateUser", {"role": "editor", "password": walk.secret("password")}, token=owner, user_id=user["id"])
    walk.do("updateUser", {"password": hedy["password"]}, token=owner, user_id=user["id"])
    hers = walk.signed_in(hedy)
    walk.do("requestEmailVerification", token=hers)
    walk.do("verifyEmail", {"token": mailed(hedy["email"])}, token=None)
    walk.signed_in(hedy)
    path = f"/v1/users/{user['id']}/sessions"
    session = walk.api.get(path, token=owner, environment=walk.production).json["data"][0]
    walk.do("deleteUserSession", token=owner, user_id=user["id"], session_id=session["id"])
    walk.do("deleteUserSessions", token=owner, user_id=user["id"])
    walk.do("deleteUser", token=owner, user_id=user["id"])


def things(walk: Walk, owner: str) -> None:
    """Rows, webhooks, functions, schema."""
    ada = walk.signed_in(walk.facts["app_users"][0])
    task = walk.api.get("/v1/rows/tasks?limit=1", token=ada, environment=walk.production).json["data"][0]
    new = walk.do("insertRows", {"title": "Sew", "list_id": task["list_id"]}, token=ada, table="tasks")
    walk.do("updateRow", {"done": True}, token=ada, table="tasks", row_id=new["id"])
    walk.do("queryRows", {"limit": 1}, token=ada, table="tasks")
    walk.do("aggregateRows", {"count": True}, token=ada, table="tasks")
    change = {"op": "update", "table": "tasks", "id": new["id"], "values": {"done": True}}
    walk.do("writeBatch", {"operations": [change]}, token=ada)
    walk.do("explainRow", {"id": task["id"], "as": walk.facts["app_users"][0]["id"]}, token=owner, table="tasks")
    walk.do("deleteRow", token=ada, table="tasks", row_id=new["id"])
    which = '?where={"title":"Sew"}'
    walk.do("updateRows", {"done": True}, token=ada, table="tasks", query=which)
    walk.do("deleteRows", token=ada, table="tasks", query=which)

    hook = walk.do("createWebhook", {"url": "https://example.com/hook", "events": ["tasks.*"]}, token=owner)
    walk.secret("webhook secret", hook["secret"])
    here = {"webhook_id": hook["id"]}
    walk.do("updateWebhook", {"events": ["tasks.insert"]}, token=owner, **here)
    walk.secret("webhook secret", walk.do("rotateWebhookSecret", token=owner, **here)["secret"])
    walk.do("testWebhook", token=owner, **here)
    environment = environment_ref(walk.production)
    assert environment is not None
    while relay_batch(environment.cluster):
        pass
    path = f"/v1/webhooks/{hook['id']}/deliveries"
    delivery, *_ = walk.api.get(path, token=owner, environment=walk.production).json["data"]
    sent = Delivery.objects.using(environment.cluster).filter(pk=delivery["id"])
    sent.update(status="delivered", next_attempt_at=None)
    walk.do("redeliverDelivery", token=owner, delivery_id=delivery["id"], **here)
    walk.do("recoverWebhook", {"since": task["created_at"]}, token=owner, **here)
    walk.do("deleteWebhook", token=owner, **here)

    plan = walk.do("planConfig", {"config": {"origins": ["https://plan.example.com"]}}, token=owner)
    walk.do("applyConfig", {"plan": plan["plan"], "confirm": plan["confirm"]}, token=owner)
    source = {"source": "export default () => 1", "secrets": {"API_TOKEN": walk.secret("function secret")}}
    walk.do("deployFunction", source, token=owner, name="one")
    walk.do("deployFunction", {"source": "export default () => 2"}, token=owner, name="one")
    walk.do("configureFunction", {"secrets": {"TOKEN": walk.secret("function secret")}}, token=owner, name="one")
    walk.do("activateFunction", {"version": 1}, token=owner, name="one")
    headers = {"Prefer": "respond-async"}
    run = walk.do("invokeFunction", {"input": {}}, token=owner, name="one", headers=headers)
    walk.do("cancelRun", token=owner, name="one", run_id=run["run_id"])
    inbound = walk.do("createInboundEndpoint", {"label": "Stripe"}, token=owner, name="one")
    token = walk.secret("inbound address", inbound["url"].rpartition("/")[2])
    walk.do("deliverInbound", {"id": "evt_1"}, token=None, address=token)
    walk.do("deleteInboundEndpoint", token=owner, name="one", address_id=inbound["id"])
    walk.do("deleteFunction", token=owner, name="one")

    document = walk.api.get("/v1/schema", token=owner, environment=walk.production).json["document"]
    document["tables"]["notes"] = {"id_prefix": "nte_", "columns": {"text": {"type": "text"}}}
    walk.do("replaceSchema", {"document": document}, token=owner)
    walk.do("revertSchema", {"version": 1, "confirm": ["drop table notes"]}, token=owner)


def make_and_change_environments(walk: Walk, owner: str, box: Postbox) -> None:
    """Keys, projects, branches, members."""
    body = {"name": "Nightly", "environment_id": walk.production, "scopes": ["rows:read"]}
    key = walk.do("createKey", body, token=owner)
    walk.secret("key", key["secret"])
    walk.do("deleteKey", token=owner, key_id=key["id"])
    here = {"project_id": walk.facts["project_id"]}
    branch = walk.do("createBranch", {"name": "blue", "from": "production", "data": "full"}, token=owner, **here)
    there = {"environment_id": branch["id"], **here}
    walk.do("updateEnvironment", {"allowed_origins": ["https://app.example.com"]}, token=owner, **there)
    walk.do("resetBranch", {"data": "full"}, token=owner, **there)
    walk.do("deleteBranch", token=owner, **there)
    body = {"email": walk.facts["admin"]["email"], "role": "developer"}
    member = walk.do("createMember", body, token=owner, **here)
    walk.do("updateMember", {"role": "viewer"}, token=owner, user_id=member["user_id"], **here)
    walk.do("deleteMember", token=owner, user_id=member["user_id"], **here)
    pool_settings.change_settings(None, actor=audit.SYSTEM, sign_up="invited")
    for name in ("mate", "none"):
        body = {"email": f"{name}@example.org", "role": "viewer"}
        invited = walk.api.post(f"/v1/projects/{here['project_id']}/members", token=owner, json=body)
        assert invited.status == 202
        [entry] = AuditEntry.objects.filter(request_id=invited.headers["X-Request-Id"])
        assert entry.action == "member.invited"
    email_outbox.send_due()
    body = {"token": walk.secret("link", token_in(box.last("mate@example.org"))), "password": walk.secret("password")}
    walk.do("acceptMemberInvitation", body, token=None)
    walk.do("deleteMemberInvitation", token=owner, invitation_id=invited.json["id"], **here)
    project = walk.do("createProject", {"name": "Notes", "region": "eu-west-1"}, token=owner, bare=True)
    walk.do("updateProject", {"name": "Field notes"}, token=owner, bare=True, project_id=project["id"])
    walk.do("deleteProject", token=owner, bare=True, project_id=project["id"])


def audit_log_of(walk: Walk, owner: str) -> list[Any]:
    """Every entry that the owner of the project can read."""
    found: list[Any] = []
    cursor = ""
    while cursor is not None:
        address = f"/v1/audit?project={walk.facts['project_id']}&limit=100{cursor and '&cursor=' + cursor}"
        page = walk.api.get(address, token=owner).json
        found += page["data"]
        cursor = page["next_cursor"]
    return found


_TABLES = """
    SELECT table_schema, table_name FROM information_schema.tables
     WHERE table_type = 'BASE TABLE' AND table_schema NOT IN ('pg_catalog', 'information_schema')
       AND table_schema <> ALL(%s)
"""


def environments() -> list[str]:
    """The PostgreSQL schemas of all environments that there are."""
    found = []
    for connection in connections.all():
        with connection.cursor() as cursor:
            cursor.execute("SELECT nspname FROM pg_namespace WHERE starts_with(nspname, 'env_')")
            found += [name for (name,) in cursor.fetchall()]
    return found


def tables_that_hold(texts: list[str], others: list[str]) -> set[tuple[str, str]]:
    """The tables of all databases that hold one of `texts` in some column, as text, inside JSON or as bytes; and which
    (bytes: in hexadecimal). Not those of `others`, environments which other tests left behind, with megabytes in them."""
    wanted = [*texts, *(text.encode().hex() for text in texts)]
    held = sql.SQL(
        "SELECT DISTINCT wanted FROM {} AS it, unnest(%s::text[]) AS wanted WHERE position(wanted IN it::text) > 0"
    )
    found = set()
    for connection in connections.all():
        with row_access(), connection.cursor() as cursor:
            cursor.execute(_TABLES, [others])
            for schema, table in cursor.fetchall():
                cursor.execute(held.format(sql.Identifier(schema, table)), [wanted])
                found |= {(f"{connection.alias}: {schema}.{table}", text) for (text,) in cursor.fetchall()}
    return found


@pytest.mark.exhaustive
def test_audit_log_has_actor_and_place_and_no_secret_is_stored(
    api: Api,
    tmp_path: Path,
    settings: Any,
    postbox: Postbox,  # noqa: F811
) -> None:
    settings.RATE_LIMIT_FACTOR = 1000
    others = environments()
    facts = demo.complete(Layout(tmp_path), base_url="http://testserver")
    walk = Walk(api, facts)
    for kind in ("account", "admin"):
        walk.secret("password", facts[kind]["password"])
    with listening() as lines:
        owner = walk.signed_in(facts["account"], bare=True)
        people(walk, owner, postbox)
        things(walk, owner)
        make_and_change_environments(walk, owner, postbox)
    assert walk.done == LEAVES.keys() | LEAVES_NOTHING.keys()

    told = audit_log_of(walk, owner)
    assert len(told) > len(LEAVES) // 2
    assert [kind for kind, secret in walk.secrets.items() if secret in str(told)] == []
    assert len(lines.text) >= len(walk.done), "each request makes a line"
    known = tables_that_hold([facts["project_id"]], others)
    assert known, "what is searched for is found"
    written = "\n".join(lines.text)
    assert [kind for kind, secret in walk.secrets.items() if secret in written] == []
    assert tables_that_hold(list(walk.secrets.values()), others) == set()
