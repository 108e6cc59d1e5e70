"""Every operation of the API as a call that succeeds, prepared as often as required.

`CALLS` has one function for each operation of the description, which makes what the call needs (a webhook to delete, a
link from an email) and says the call; a new operation fails `test_each_step` until it has one.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from accounts.audit import SYSTEM
from accounts.oauth import proofs
from accounts.registration import email_outbox, pool_settings
from platform_site import demo
from platform_site.embedded.data_dir import REGIONS, Layout
from projects.directory.environments import environment_ref
from projects.tasks import finish_and_clean
from tests.accounts.oauth.conftest import APP, HOST, s256
from tests.support.client import Answer, Api
from tests.support.identity_provider import CLIENT_ID, CLIENT_SECRET, IdentityProvider, Person, sign_in_at
from tests.support.openapi import operations
from tests.support.postbox import Postbox, token_in
from webhooks.delivery.relay import relay_batch
from webhooks.models import Delivery

REGION: Final = "us-east-1"
"""Where everything is that the calls are about."""
MAX_BRANCHES: Final = 10
MAX_PROVIDERS: Final = 10
PASSWORD: Final = "a nut, a bolt, a wheel"
VERIFIER: Final = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
DIARIES: Final = {
    "columns": {"text": {"type": "text"}, "writer": {"type": "user", "on_delete": "delete"}},
    "rules": {"user": {"read": {}, "insert": {"set": {"writer_id": "$user.id"}, "columns": ["text"]}}},
}
"""Rows that go with their user."""
PLACES: Final = {operation["operationId"]: (method, path) for method, path, operation in operations()}
TAKES_KEY: Final = {
    operation["operationId"]
    for _, _, operation in operations()
    if any(parameter["name"] == "Idempotency-Key" for parameter in operation.get("parameters", ()))
}


@dataclass(frozen=True)
class Call:
    """One request, which may be sent again as it is."""

    operation: str
    body: Any = None
    token: str | None = None
    environment: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    query: str = ""
    known: dict[str, str] = field(default_factory=dict)

    @property
    def method(self) -> str:
        return PLACES[self.operation][0]

    def send(self, api: Api) -> Answer:
        path = PLACES[self.operation][1].format(**{name.rstrip("_"): it for name, it in self.known.items()})
        given = {} if self.body is None else {"json": self.body}
        return api.request(
            self.method,
            path + self.query,
            token=self.token,
            environment=self.environment,
            headers=self.headers,
            **given,
        )


class World:
    """A project with a schema, rows, users, functions; its owner; a mail server and an identity provider."""

    def __init__(self, api: Api, directory: Path, postbox: Postbox, idp: IdentityProvider) -> None:
        self.api, self.postbox, self.idp = api, postbox, idp
        facts = demo.complete(Layout(directory), base_url="http://testserver")
        self.facts = facts
        self.production: str = facts["environments"]["production"]
        self.project: dict[str, str] = {"project_id": facts["project_id"]}
        self.owner = self.signed_in(facts["account"], pool=False)
        self.do("updateProject", {"plan": "team"}, bare=True, **self.project)
        self.ada = self.signed_in(facts["app_users"][0])
        self.do("updateSettings", {"sign_up": "open"})
        self.do("replaceRedirectUris", {"redirect_uris": [APP]})
        self.provider: dict[str, Any] = self.do("createIdentityProvider", self.a_provider("acme"))
        idp.register(f"http://{HOST}/v1/auth/callback")
        rows = api.get("/v1/rows/tasks?limit=1", token=self.ada, environment=self.production).json["data"]
        self.task: dict[str, Any] = rows[0]
        document = self.do("getSchema")["document"]
        document["tables"]["diaries"] = DIARIES
        self.do("replaceSchema", {"document": document})
        self.webhook: dict[str, Any] = self.do("createWebhook", self.a_webhook())
        self.do("testWebhook", webhook_id=self.webhook["id"])
        self.relay()
        self.run_id: str = self.a_run()
        self.user: dict[str, Any] = self.do("createUser", self.somebody())
        pool_settings.change_settings(None, actor=SYSTEM, sign_up="invited")

    def call(
        self,
        operation: str,
        body: Any = None,
        /,
        *,
        token: str | None = "owner",  # noqa: S107 - who, not what
        bare: bool = False,
        headers: dict[str, str] | None = None,
        query: str = "",
        **known: str,
    ) -> Call:
        sent = dict(headers or {})
        if operation in TAKES_KEY:
            sent["Idempotency-Key"] = secrets.token_hex(8)
        who = self.owner if token == "owner" else token
        return Call(operation, body, who, None if bare else self.production, sent, query, known)

    def do(self, operation: str, body: Any = None, /, **how: Any) -> Any:
        """Make such a call; its JSON."""
        answer = self.call(operation, body, **how).send(self.api)
        assert answer.status < 400, (operation, answer.status, answer.json)
        return answer.json

    # ── What a call may need ──

    def name(self, kind: str = "it") -> str:
        return f"{kind}-{secrets.token_hex(5)}"

    def somebody(self) -> dict[str, Any]:
        """An unused email, and a password."""
        return {"email": f"{self.name('mary')}@example.org", "password": PASSWORD}

    def signed_in(self, person: dict[str, Any], *, pool: bool = True) -> str:
        body = {"grant_type": "password", "email": person["email"], "password": person["password"]}
        return str(self.do("createToken", body, token=None, bare=not pool)["access_token"])

    def member(self) -> tuple[dict[str, Any], str]:
        """An app user, with the password, and a token."""
        person = self.somebody()
        person["id"] = self.do("createUser", person)["id"]
        return person, self.signed_in(person)

    def mailed(self, address: str) -> str:
        """The token of the latest link sent to this email."""
        email_outbox.send_due()
        return token_in(self.postbox.last(address))

    def a_provider(self, name: str) -> dict[str, Any]:
        return {"name": name, "issuer": self.idp.issuer, "client_id": CLIENT_ID, "client_secret": CLIENT_SECRET}

    def new_provider(self) -> dict[str, str]:
        return {"provider_id": self.do("createIdentityProvider", self.another_provider())["id"]}

    def another_provider(self) -> dict[str, Any]:
        """There is a free slot."""
        found = [each["id"] for each in self.do("listIdentityProviders")["data"] if each["name"] != "acme"]
        for each in found if len(found) > MAX_PROVIDERS else ():
            self.do("deleteIdentityProvider", provider_id=each)
        return self.a_provider(self.name("p"))

    def a_webhook(self) -> dict[str, Any]:
        return {"url": "https://example.com/hook", "events": ["tasks.*"]}

    def an_event(self) -> str:
        """A type without subscribers yet: of a table that may be created."""
        return f"t{secrets.token_hex(5)}.insert"

    def new_webhook(self) -> dict[str, str]:
        return {"webhook_id": self.do("createWebhook", self.a_webhook())["id"]}

    def a_function(self) -> dict[str, str]:
        name = self.name("f")
        self.do("deployFunction", {"source": "export default () => 1", "secrets": {"A": "s3cr3t"}}, name=name)
        return {"name": name}

    def a_run(self, name: str = "sum") -> str:
        """A queued one."""
        body, headers = {"input": {"a": 1, "b": 2}}, {"Prefer": "respond-async"}
        return str(self.do("invokeFunction", body, headers=headers, name=name)["run_id"])

    def an_address(self) -> dict[str, str]:
        """An inbound one of a function of its own: `name`, `address_id`, and the `token` in it."""
        here = self.a_function()
        made = self.do("createInboundEndpoint", {"label": "Stripe", "async": False}, **here)
        return {"address_id": made["id"], "token": made["url"].rpartition("/")[2], **here}

    def a_task(self) -> dict[str, Any]:
        body = {"title": self.name("Sew"), "list_id": self.task["list_id"]}
        made: dict[str, Any] = self.do("insertRows", body, token=self.ada, table="tasks")
        return made

    def a_project(self) -> dict[str, str]:
        return {"project_id": self.do("createProject", {"name": self.name("Notes"), "plan": "team"}, bare=True)["id"]}

    def room_for_a_branch(self) -> None:
        found = self.do("listEnvironments", bare=True, **self.project)["data"]
        branches = [each["id"] for each in found if each["name"].startswith("blue-")]
        if len(branches) > MAX_BRANCHES:
            for each in branches:
                self.do("deleteBranch", bare=True, environment_id=each, **self.project)
            finish_and_clean()

    def a_branch(self) -> dict[str, str]:
        self.room_for_a_branch()
        body = {"name": self.name("blue"), "from": "production", "data": "full"}
        made = self.do("createBranch", body, **self.project)
        return {"environment_id": made["id"], **self.project}

    def relay(self) -> None:
        environment = environment_ref(self.production)
        assert environment is not None
        while relay_batch(environment.cluster):
            pass

    def an_account(self) -> str:
        """The email of a platform account."""
        email = f"{self.name('joan')}@example.org"
        demo._person(None, email, "Joan")
        return email

    def begun(self, **more: str) -> str:
        """The URL of the provider's sign-in page, for a browser that signs in."""
        asked = {"redirect_uri": APP, "environment": self.production, "provider": self.provider["name"], **more}
        answer = self.api.get("/v1/auth/authorize?" + urlencode(asked), headers={"Host": HOST})
        assert answer.status == 303, answer.json
        return answer.headers["Location"]


Make = Callable[[World], Call]
CALLS: Final[dict[str, Make]] = {}


def call_of(function: Make) -> Make:
    """Register it for the operation of its name (`create_key`: createKey)."""
    first, *more = function.__name__.split("_")
    CALLS[first + "".join(word.capitalize() for word in more)] = function
    return function


def reads(operation: str, *things: str, **how: Any) -> None:
    """A read of what the world has: `things` are ids to put in the path, as `_known` finds them."""
    CALLS[operation] = lambda w: w.call(operation, **how, **{name: _known(w)[name] for name in things})


def _known(w: World) -> dict[str, str]:
    return {
        **w.project,
        "environment_id": w.production,
        "webhook_id": w.webhook["id"],
        "provider_id": w.provider["id"],
        "user_id": w.user["id"],
        "run_id": w.run_id,
        "row_id": w.task["id"],
        "table": "tasks",
        "name": "sum",
        "number": "1",
    }


for _operation in (
    "getConfig", "getMe", "getSettings", "listFunctions", "listIdentityProviders", "listInvitations", "getLimits",
    "listLogEntries",
    "getRedirectUris", "getSchema", "listSchemaVersions", "listUsers", "listWebhooks",
):  # fmt: skip
    reads(_operation)
for _operation in ("listKeys", "listSessions", "listProjects", "getPublicKeys"):
    reads(_operation, bare=True)
for _operation in ("getProject", "listEnvironments", "listMemberInvitations", "listMembers"):
    reads(_operation, "project_id", bare=True)
for _operation in ("getFunction", "listRuns", "listFunctionVersions", "listInboundEndpoints"):
    reads(_operation, "name")
reads("listUserSessions", "user_id")


@call_of
def plan_config(w: World) -> Call:
    return w.call("planConfig", {"config": {"origins": ["https://app.example.com"]}})


@call_of
def apply_config(w: World) -> Call:
    parts = {
        "origins": [f"https://{w.name()}.example.com"],
        "functions": {
            "sum": {"timeout_ms": 1000 + secrets.randbelow(1000)},
            w.name(): {"source": "export default () => 1"},
        },
    }
    plan = w.do("planConfig", {"config": parts})
    return w.call("applyConfig", {"plan": plan["plan"], "confirm": plan["confirm"]})


@call_of
def list_audit_entries(w: World) -> Call:
    return w.call("listAuditEntries", bare=True, query=f"?project={w.project['project_id']}")


reads("getEnvironment", "project_id", "environment_id", bare=True)
reads("getIdentityProvider", "provider_id")
reads("getRun", "name", "run_id")
reads("listDeliveries", "webhook_id")
reads("getWebhook", "webhook_id")
reads("getUser", "user_id")
reads("getSchemaTypes", query="?role=user")
reads("getSchemaVersion", "number")
reads("getRow", "table", "row_id")
reads("listRows", "table", query="?count=exact&with=list")
reads("listSignInProviders", token=None)


@call_of
def list_identities(w: World) -> Call:
    return w.call("listIdentities", token=w.ada)


@call_of
def query_rows(w: World) -> Call:
    return w.call("queryRows", {"limit": 1}, token=w.ada, table="tasks")


@call_of
def aggregate_rows(w: World) -> Call:
    return w.call("aggregateRows", {"count": True}, token=w.ada, table="tasks")


@call_of
def explain_row(w: World) -> Call:
    return w.call("explainRow", {"id": w.task["id"], "as": w.facts["app_users"][0]["id"]}, table="tasks")


# ── Who ──


@call_of
def begin_provider_sign_in(w: World) -> Call:
    asked = {"redirect_uri": APP, "environment": w.production, "provider": w.provider["name"]}
    return w.call("beginProviderSignIn", token=None, bare=True, query="?" + urlencode(asked), headers={"Host": HOST})


@call_of
def receive_sign_in_callback(w: World) -> Call:
    login = w.name("ann")
    w.idp.people[login] = Person(login, {"email": f"{login}@example.org", "email_verified": True, "name": "Ann"})
    back = urlsplit(sign_in_at(w.begun(), login))
    return w.call(
        "receiveSignInCallback",
        token=None,
        bare=True,
        query=f"?{back.query}",
        headers={"Host": HOST},
        provider_id=w.provider["id"],
    )


@call_of
def create_token(w: World) -> Call:
    person = w.facts["app_users"][0]
    body = {"grant_type": "password", "email": person["email"], "password": person["password"]}
    return w.call("createToken", body, token=None)


@call_of
def update_me(w: World) -> Call:
    person, token = w.member()
    return w.call("updateMe", {"current_password": PASSWORD, "password": w.name("a new password")}, token=token)


@call_of
def delete_me(w: World) -> Call:
    _, token = w.member()
    w.do("insertRows", {"text": "Today"}, token=token, table="diaries")
    return w.call("deleteMe", {"current_password": PASSWORD}, token=token, bare=True)


@call_of
def request_email_change(w: World) -> Call:
    _, token = w.member()
    body = {"email": w.somebody()["email"], "current_password": PASSWORD}
    return w.call("requestEmailChange", body, token=token, bare=True)


@call_of
def confirm_email_change(w: World) -> Call:
    _, token = w.member()
    email = w.somebody()["email"]
    w.do("requestEmailChange", {"email": email, "current_password": PASSWORD}, token=token, bare=True)
    return w.call("confirmEmailChange", {"token": w.mailed(email), "password": PASSWORD}, token=None)


@call_of
def request_email_verification(w: World) -> Call:
    _, token = w.member()
    return w.call("requestEmailVerification", token=token, bare=True)


@call_of
def verify_email(w: World) -> Call:
    person, token = w.member()
    w.do("requestEmailVerification", token=token, bare=True)
    return w.call("verifyEmail", {"token": w.mailed(person["email"])}, token=None)


@call_of
def request_password_reset(w: World) -> Call:
    person, _ = w.member()
    return w.call("requestPasswordReset", {"email": person["email"]}, token=None)


@call_of
def confirm_password_reset(w: World) -> Call:
    person, _ = w.member()
    w.do("requestPasswordReset", {"email": person["email"]}, token=None)
    body = {"token": w.mailed(person["email"]), "password": w.name("a new password")}
    return w.call("confirmPasswordReset", body, token=None)


@call_of
def sign_up(w: World) -> Call:
    return w.call("signUp", w.somebody(), token=None)


@call_of
def confirm_sign_up(w: World) -> Call:
    person = w.somebody()
    w.do("signUp", person, token=None)
    body = {"token": w.mailed(person["email"]), "password": PASSWORD}
    return w.call("confirmSignUp", body, token=None)


@call_of
def revoke_session(w: World) -> Call:
    person, token = w.member()
    w.signed_in(person)
    return w.call("revokeSession", {"scope": "others"}, token=token, bare=True)


@call_of
def delete_session(w: World) -> Call:
    person, token = w.member()
    w.signed_in(person)
    found = w.api.get("/v1/auth/sessions", token=token, environment=w.production).json["data"]
    other = next(each["id"] for each in found if not each["current"])
    return w.call("deleteSession", token=token, bare=True, session_id=other)


@call_of
def delete_user_session(w: World) -> Call:
    person, _ = w.member()
    [session] = w.do("listUserSessions", user_id=person["id"])["data"]
    return w.call("deleteUserSession", user_id=person["id"], session_id=session["id"])


@call_of
def delete_user_sessions(w: World) -> Call:
    person, _ = w.member()
    w.signed_in(person)
    return w.call("deleteUserSessions", user_id=person["id"])


def _proof(w: World) -> dict[str, str]:
    proof = proofs.Proof(
        provider_id=w.provider["id"],
        subject=w.name("subject"),
        email=None,
        environment_id=w.production,
        code_challenge=s256(VERIFIER),
        issuer=w.provider["issuer"],
    )
    return {"code": proofs.seal(proof), "code_verifier": VERIFIER, "current_password": PASSWORD}


@call_of
def link_identity(w: World) -> Call:
    _, token = w.member()
    return w.call("linkIdentity", _proof(w), token=token, bare=True)


@call_of
def delete_identity(w: World) -> Call:
    _, token = w.member()
    linked = w.do("linkIdentity", _proof(w), token=token, bare=True)
    return w.call("deleteIdentity", token=token, bare=True, identity_id=linked["id"])


@call_of
def create_invitation(w: World) -> Call:
    return w.call("createInvitation", {"email": w.somebody()["email"]})


@call_of
def delete_invitation(w: World) -> Call:
    made = w.do("createInvitation", {"email": w.somebody()["email"]})
    return w.call("deleteInvitation", invitation_id=made["id"])


@call_of
def accept_invitation(w: World) -> Call:
    email = w.somebody()["email"]
    w.do("createInvitation", {"email": email})
    return w.call("acceptInvitation", {"token": w.mailed(email), "password": PASSWORD}, token=None)


@call_of
def update_settings(w: World) -> Call:
    return w.call("updateSettings", {"app_name": w.name("Tracker")})


@call_of
def create_identity_provider(w: World) -> Call:
    return w.call("createIdentityProvider", w.another_provider())


@call_of
def update_identity_provider(w: World) -> Call:
    return w.call("updateIdentityProvider", {"display_name": "Acme!"}, **w.new_provider())


@call_of
def delete_identity_provider(w: World) -> Call:
    return w.call("deleteIdentityProvider", **w.new_provider())


@call_of
def replace_redirect_uris(w: World) -> Call:
    first, second = ({"redirect_uris": [APP, f"https://{w.name('a')}.example.com/in"]} for _ in range(2))
    w.do("replaceRedirectUris", first)
    return w.call("replaceRedirectUris", second)


@call_of
def create_user(w: World) -> Call:
    return w.call("createUser", w.somebody())


@call_of
def update_user(w: World) -> Call:
    person, _ = w.member()
    return w.call("updateUser", {"role": "editor", "password": w.name("a new password")}, user_id=person["id"])


@call_of
def delete_user(w: World) -> Call:
    person, token = w.member()
    w.do("insertRows", {"text": "Today"}, token=token, table="diaries")
    return w.call("deleteUser", user_id=person["id"])


# ── Where ──


@call_of
def create_key(w: World) -> Call:
    body = {"name": "Nightly", "environment_id": w.production, "scopes": ["rows:read"]}
    return w.call("createKey", body, bare=True)


@call_of
def delete_key(w: World) -> Call:
    body = {"name": "Nightly", "environment_id": w.production, "scopes": ["rows:read"]}
    return w.call("deleteKey", bare=True, key_id=w.do("createKey", body, bare=True)["id"])


@call_of
def create_project(w: World) -> Call:
    return w.call("createProject", {"name": w.name("Notes"), "plan": "team"}, bare=True)


@call_of
def update_project(w: World) -> Call:
    return w.call("updateProject", {"name": w.name("Tracker")}, bare=True, **w.project)


@call_of
def delete_project(w: World) -> Call:
    return w.call("deleteProject", bare=True, **w.a_project())


@call_of
def create_branch(w: World) -> Call:
    w.room_for_a_branch()
    body = {"name": w.name("blue"), "from": "production", "data": "full"}
    return w.call("createBranch", body, bare=True, **w.project)


@call_of
def update_environment(w: World) -> Call:
    body = {"allowed_origins": [f"https://{w.name('a')}.example.com"]}
    return w.call("updateEnvironment", body, bare=True, **w.a_branch())


@call_of
def delete_branch(w: World) -> Call:
    return w.call("deleteBranch", bare=True, **w.a_branch())


@call_of
def reset_branch(w: World) -> Call:
    return w.call("resetBranch", {"data": "full"}, bare=True, **w.a_branch())


@call_of
def create_member(w: World) -> Call:
    body = {"email": w.an_account(), "role": "developer"}
    return w.call("createMember", body, bare=True, **w.project)


def _joined(w: World) -> dict[str, str]:
    made = w.do("createMember", {"email": w.an_account(), "role": "developer"}, bare=True, **w.project)
    return {"user_id": made["user_id"], **w.project}


@call_of
def update_member(w: World) -> Call:
    return w.call("updateMember", {"role": "viewer"}, bare=True, **_joined(w))


@call_of
def delete_member(w: World) -> Call:
    return w.call("deleteMember", bare=True, **_joined(w))


@call_of
def delete_member_invitation(w: World) -> Call:
    body = {"email": w.somebody()["email"], "role": "viewer"}
    made = w.do("createMember", body, bare=True, **w.project)
    return w.call("deleteMemberInvitation", bare=True, invitation_id=made["id"], **w.project)


@call_of
def accept_member_invitation(w: World) -> Call:
    body = {"email": w.somebody()["email"], "role": "viewer"}
    w.do("createMember", body, bare=True, **w.project)
    return w.call(
        "acceptMemberInvitation", {"token": w.mailed(body["email"]), "password": PASSWORD}, token=None, bare=True
    )


# ── What ──


def _document(w: World) -> dict[str, Any]:
    found: dict[str, Any] = w.do("getSchema")["document"]
    return found


@call_of
def replace_schema(w: World) -> Call:
    document = _document(w)
    document["tables"][f"t{secrets.token_hex(5)}"] = {"columns": {"text": {"type": "text"}}}
    return w.call("replaceSchema", {"document": document})


@call_of
def revert_schema(w: World) -> Call:
    document, table = _document(w), f"t{secrets.token_hex(5)}"
    version = w.do("getSchema")["version"]
    document["tables"][table] = {"columns": {"text": {"type": "text"}}}
    w.do("replaceSchema", {"document": document})
    return w.call("revertSchema", {"version": version, "confirm": [f"drop table {table}"]})


@call_of
def insert_rows(w: World) -> Call:
    body = {"title": w.name("Sew"), "list_id": w.task["list_id"]}
    return w.call("insertRows", body, token=w.ada, table="tasks")


@call_of
def write_batch(w: World) -> Call:
    values = {"title": w.name("Sew"), "list_id": w.task["list_id"]}
    first = {"op": "insert", "table": "tasks", "values": values, "name": "task"}
    second = {"op": "update", "table": "tasks", "id": {"$ref": "task.id"}, "values": {"done": True}}
    return w.call("writeBatch", {"operations": [first, second]}, token=w.ada)


@call_of
def update_row(w: World) -> Call:
    return w.call("updateRow", {"done": True}, token=w.ada, table="tasks", row_id=w.a_task()["id"])


@call_of
def update_rows(w: World) -> Call:
    query = "?" + urlencode({"where": f'{{"title":"{w.a_task()["title"]}"}}'})
    return w.call("updateRows", {"done": True}, token=w.ada, table="tasks", query=query)


@call_of
def delete_row(w: World) -> Call:
    return w.call("deleteRow", token=w.ada, table="tasks", row_id=w.a_task()["id"])


@call_of
def delete_rows(w: World) -> Call:
    query = "?" + urlencode({"where": f'{{"title":"{w.a_task()["title"]}"}}'})
    return w.call("deleteRows", token=w.ada, table="tasks", query=query)


# ── Then ──


@call_of
def create_webhook(w: World) -> Call:
    return w.call("createWebhook", w.a_webhook() | {"events": [w.an_event()]})


@call_of
def update_webhook(w: World) -> Call:
    return w.call("updateWebhook", {"events": [w.an_event()]}, **w.new_webhook())


@call_of
def rotate_webhook_secret(w: World) -> Call:
    return w.call("rotateWebhookSecret", **w.new_webhook())


@call_of
def test_webhook(w: World) -> Call:
    return w.call("testWebhook", **w.new_webhook())


@call_of
def delete_webhook(w: World) -> Call:
    return w.call("deleteWebhook", **w.new_webhook())


@call_of
def redeliver_delivery(w: World) -> Call:
    here = w.new_webhook()
    w.do("testWebhook", **here)
    w.relay()
    delivery, *_ = w.do("listDeliveries", **here)["data"]
    for region in REGIONS:
        Delivery.objects.using(region).filter(pk=delivery["id"]).update(status="delivered", next_attempt_at=None)
    return w.call("redeliverDelivery", delivery_id=delivery["id"], **here)


@call_of
def recover_webhook(w: World) -> Call:
    return w.call("recoverWebhook", {"since": w.task["created_at"]}, **w.new_webhook())


@call_of
def deploy_function(w: World) -> Call:
    body = {"source": "export default () => 2", "on": [w.an_event()]}
    return w.call("deployFunction", body, **w.a_function())


@call_of
def configure_function(w: World) -> Call:
    return w.call("configureFunction", {"timeout_ms": 500, "secrets": {"TOKEN": "s3cr3t"}}, **w.a_function())


@call_of
def activate_function(w: World) -> Call:
    here = w.a_function()
    w.do("deployFunction", {"source": "export default () => 2"}, **here)
    return w.call("activateFunction", {"version": 1}, **here)


@call_of
def delete_function(w: World) -> Call:
    here = w.a_function()
    w.a_run(here["name"])
    return w.call("deleteFunction", **here)


@call_of
def create_inbound_endpoint(w: World) -> Call:
    return w.call("createInboundEndpoint", {"label": "Stripe"}, **w.a_function())


@call_of
def delete_inbound_endpoint(w: World) -> Call:
    there = w.an_address()
    return w.call("deleteInboundEndpoint", name=there["name"], address_id=there["address_id"])


@call_of
def verify_inbound(w: World) -> Call:
    return w.call("verifyInbound", token=None, bare=True, token_=w.an_address()["token"])


@call_of
def deliver_inbound(w: World) -> Call:
    return w.call("deliverInbound", {"a": 1, "b": 2}, token=None, bare=True, token_=w.an_address()["token"])


@call_of
def invoke_function(w: World) -> Call:
    return w.call("invokeFunction", {"input": {"a": 2, "b": 3}}, token=w.ada, name="sum")


@call_of
def cancel_run(w: World) -> Call:
    return w.call("cancelRun", name="sum", run_id=w.a_run())
