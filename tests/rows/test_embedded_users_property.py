"""Users embedded in rows, over random documents, rules, rows and callers.

What is embedded is what the documentation says, and nothing that a caller may not read changes a byte.
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounts.api.serializers import UserDetail
from accounts.models import User
from platform_site.http.errors import ValidationFailed
from rows.rules.principal import Principal
from rows.schema.user_fields import USER_FIELDS
from tests.support import random_documents
from tests.support.documented_rules import Documented, Reading, Unknown
from tests.support.random_documents import RELATIONS, TABLES
from tests.support.random_rows import answer, tenant_with_rows, unreadable, usual, write
from tests.support.tenants import ALICE, BOB, Tenant

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(databases="__all__")]
FIELDS = st.lists(st.sampled_from(USER_FIELDS), min_size=1, unique=True)
ROLES = ("user", "editor", "anonymous", "server", "member")


@st.composite
def documents(draw: st.DrawFn) -> Any:
    """A document in which every table has an owner, and most roles see something of users."""
    document = draw(random_documents.documents())
    for table in document["tables"].values():
        table["columns"]["owner"] = random_documents.COLUMNS["owner"]
    document["users"] = {role: draw(FIELDS) for role in ROLES if draw(st.integers(0, 3))}
    return document


def open_fields(document: Any, who: Principal) -> list[str]:
    """docs/reference/schema.md, "Fields of users"."""
    users = document["users"]
    role = {"key": "server", "account": "member", "anonymous": "anonymous", "user": "user"}[who.kind]
    named = who.role if who.kind == "user" and who.role in users else role
    return [name for name in USER_FIELDS if name in users.get(named, ())]


def inhabitants(tenant: Tenant) -> dict[str, Any]:
    for who in (ALICE, BOB):
        User.objects.filter(pk=who.user_id).update(name=f"Name of {who.user_id}", role="editor")
    return {user.pk: dict(UserDetail(user).data) for user in User.objects.in_pool(tenant.environment.pool_id)}


@settings(usual, max_examples=12)
@given(data=st.data())
def test_embedded_users_equal_the_documentation(data: st.DataObject) -> None:
    document = data.draw(documents(), "document")
    tenant, oracle = tenant_with_rows(document, data.draw(random_documents.rows(document), "rows"))
    users = inhabitants(tenant)
    for who in data.draw(random_documents.callers(), "callers"):
        for table in TABLES:
            if oracle.read_rules(who, table):
                compare(tenant, oracle, who, table, users, open_fields(document, who))


def compare(
    tenant: Tenant, oracle: Documented, who: Principal, table: str, users: dict[str, Any], fields: list[str]
) -> None:
    def with_owner(row: Any) -> Any:
        user = users.get(row["owner_id"])
        return {**row, "owner": user and {name: user[name] for name in fields}}

    seen = sorted(oracle.seen(who, table), key=lambda row: str(row["id"]))
    expect(
        tenant,
        who,
        table,
        "owner",
        "owner_id" in oracle.columns(who, table) and fields,
        lambda: [*map(with_owner, seen)],
    )
    reading = Reading(oracle, who)
    for name in RELATIONS[table]:
        try:
            far, _, many = reading.relation(table, name)
        except Unknown:
            continue

        def related(row: Any, name: str = name, many: bool = many) -> Any:
            found = sorted(reading.related(table, name, row), key=lambda other: other["id"])
            return [*map(with_owner, found)] if many else with_owner(found[0]) if found else None

        is_known = "owner_id" in oracle.columns(who, far) and fields
        expect(tenant, who, table, f"{name}.owner", is_known, lambda: [{**row, name: related(row)} for row in seen])  # noqa: B023


def expect(tenant: Tenant, who: Principal, table: str, withs: str, is_known: Any, rows: Any) -> None:
    """The same rows in a list and one by one; or the refusal."""
    if not is_known:
        with pytest.raises(ValidationFailed) as refused:
            tenant.rows(who, table, withs=withs)
        assert [(error.field, error.code) for error in refused.value.fields] == [("with", "unknown")]
        return
    expected = rows()
    assert tenant.rows(who, table, withs=withs, limit=100) == expected
    for row in expected[:2]:
        assert tenant.get(who, table, row["id"], withs) == row


@settings(usual, max_examples=12)
@given(data=st.data())
def test_what_may_not_be_read_of_users_changes_no_byte(data: st.DataObject) -> None:
    document = data.draw(documents(), "document")
    tenant, oracle = tenant_with_rows(document, data.draw(random_documents.rows(document), "rows"))
    inhabitants(tenant)
    who = data.draw(st.sampled_from(data.draw(random_documents.callers())[:-1]), "who")
    queries = [
        (table, {"withs": withs, "limit": 100})
        for table in TABLES
        for withs in ("owner", *(f"{name}.owner" for name in RELATIONS[table]))
    ]
    before = [answer(tenant, who, table, query) for table, query in queries]
    closed = set(USER_FIELDS[1:]) - set(open_fields(document, who))
    other = {"email": "other@example.com", "name": "Other", "role": "other", "created_at": "2020-01-01T00:00Z"}
    User.objects.filter(pk=ALICE.user_id).update(claims={"other": 1}, **{name: other[name] for name in closed})
    assert [answer(tenant, who, table, query) for table, query in queries] == before
    for table, row, name, type_ in unreadable(document, oracle, who):
        value = BOB.user_id if row[name] == ALICE.user_id else ALICE.user_id
        changed = {t: [{**r, name: value} if r is row else r for r in there] for t, there in oracle.rows.items()}
        if name != "owner_id" or any(oracle.seen(who, t) != Documented(document, changed).seen(who, t) for t in TABLES):
            continue  # the rules make something of it that this caller sees
        write(tenant, table, row["id"], name, type_, value)
        assert [answer(tenant, who, t, query) for t, query in queries] == before
        write(tenant, table, row["id"], name, type_, row[name])
