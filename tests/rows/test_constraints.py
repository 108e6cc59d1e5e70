"""`min`, `max`, `min_length` and `format` of a column: every way in holds values to them, and existing rows are
counted first."""

import io
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connections
from hypothesis import given, settings
from hypothesis import strategies as st

from rows.query.tables.table_models import COLLATION
from rows.schema.formats import FORMATS
from rows.schema.model import InvalidDocument
from tests.rows.conftest import Tracker
from tests.support import catalog
from tests.support.catalog import change, make, run
from tests.support.client import Answer
from tests.support.timing import within

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)
ROLLED_BACK = pytest.mark.django_db(databases="__all__")
"""For tests that make PostgreSQL schemas themselves."""

DOCUMENT: dict[str, Any] = {
    "tables": {
        "products": {
            "columns": {
                "sku": {"type": "text", "min_length": 3, "max_length": 10},
                "stock": {"type": "integer", "min": 0, "default": 0},
                "price": {"type": "decimal", "precision": 8, "scale": 2, "min": "0.50", "max": "1000", "null": True},
                "weight": {"type": "float", "max": 1.5, "null": True},
                "sold_on": {"type": "date", "min": "2026-01-01", "null": True},
                "seen_at": {"type": "timestamp", "max": "2026-12-31T23:00:00Z", "null": True},
                "score": {"type": "integer", "min": 1, "max": 5, "default": 1},
            },
            "unique": [["sku"]],
            "rules": {
                "user": {
                    "read": {"columns": ["*", "-score"]},
                    "insert": {"columns": ["sku", "stock"], "set": {"score": "$user.claims.score"}},
                    "update": {"columns": ["sku", "stock", "score"]},
                }
            },
        }
    }
}


@pytest.fixture
def shop(make_tracker: Any) -> Tracker:
    made: Tracker = make_tracker(DOCUMENT)
    return made


def refused(answer: Answer) -> dict[str, str]:
    assert answer.status == 422, answer.json
    found: dict[str, str] = answer.fields
    return found


BAD: tuple[tuple[str, Any, str, str], ...] = (
    ("sku", "ab", "too_short", "Must have at least 3 characters."),
    ("sku", "", "too_short", "Must have at least 3 characters."),
    ("stock", -1, "out_of_range", "Must be at least 0."),
    ("price", "0.49", "out_of_range", "Must be at least 0.50."),
    ("price", 1001, "out_of_range", "Must be at most 1000."),
    ("weight", 1.5000001, "out_of_range", "Must be at most 1.5."),
    ("sold_on", "2025-12-31", "out_of_range", "Must be at least 2026-01-01."),
    ("seen_at", "2027-01-01T00:30:00+01:00", "out_of_range", "Must be at most 2026-12-31T23:00:00+00:00."),
)


def test_values_out_of_bounds_are_refused_by_name_and_not_written(shop: Tracker) -> None:
    row = shop.post("key", "/rows/products", {"id": "p1", "sku": "äöü"}).json
    for column, value, code, message in BAD:
        body = {"sku": "abc", column: value}
        for answer in (
            shop.post("key", "/rows/products", body),
            shop.post("key", "/rows/products?on_conflict=id", [{"id": "p1", **body}]),
            shop.patch("key", "/rows/products/p1", {column: value}),
            shop.patch("operator", "/rows/products/p1", {column: value}),
            shop.patch("key", f"/rows/products?where={quote('{}')}", {column: value}),
        ):
            [(field, found)] = refused(answer).items()
            assert (field.removeprefix("0."), found) == (column, code), (column, value)
            assert answer.json["error"]["fields"][0]["message"] == message
    assert shop.get("key", "/rows/products").json["data"] == [row]


def test_the_bounds_themselves_and_null_are_allowed(shop: Tracker) -> None:
    ends: list[dict[str, Any]] = [
        {"sku": "äö😀", "stock": 0, "price": "0.5", "weight": 1.5, "score": 1},
        {"sku": "0123456789", "price": "1000.00", "score": 5, "sold_on": "2026-01-01", "seen_at": "2026-12-31T23:00:00Z"},
        {"sku": "null", "price": None, "weight": None, "sold_on": None, "seen_at": None},
    ]  # fmt: skip
    assert shop.post("key", "/rows/products", ends).status == 201


def test_an_increment_stops_at_the_bounds(shop: Tracker) -> None:
    first = {"id": "p1", "sku": "abc", "stock": 2, "price": "999.00", "weight": 1.0, "score": 3}
    row = shop.post("key", "/rows/products", first).json
    for column, by in (
        ("stock", -3), ("price", "1.01"), ("price", "-998.51"), ("weight", 0.6), ("score", 3), ("score", -3),
        ("stock", -(2**63)), ("score", 2**63 - 1),
    ):  # fmt: skip
        change = {column: {"$inc": by}}
        assert refused(shop.patch("key", "/rows/products/p1", change)) == {column: "out_of_range"}
        assert refused(shop.patch("key", f"/rows/products?where={quote('{}')}", change)) == {column: "out_of_range"}
        upsert = shop.post("key", "/rows/products?on_conflict=id", [{**first, **change}])
        assert refused(upsert) == {f"0.{column}": "out_of_range"}, column
    assert shop.get("key", "/rows/products/p1").json == row
    for column, by in (("stock", -2), ("price", "1"), ("weight", 0.5), ("score", 2), ("score", -4)):
        assert shop.patch("key", "/rows/products/p1", {column: {"$inc": by}}).status == 200, column


def test_an_increment_of_a_new_row_starts_from_the_default(shop: Tracker) -> None:
    assert refused(shop.post("key", "/rows/products", {"sku": "abc", "score": {"$inc": 5}})) == {
        "score": "out_of_range"
    }
    made = shop.post("key", "/rows/products?on_conflict=sku", [{"sku": "abc", "score": {"$inc": 4}}])
    assert made.json["data"][0]["score"] == 5


def test_a_value_that_a_rule_sets_is_refused_without_the_hidden_column(shop: Tracker) -> None:
    from accounts.models import User

    User.objects.filter(pk=shop.users["alice"]).update(claims={"score": 9})
    answer = shop.post("alice", "/rows/products", {"sku": "abc", "stock": 1})
    assert refused(answer) == {"$body": "invalid"}
    assert "score" not in str(answer.json["error"]["fields"])


def test_an_increment_of_a_hidden_cell_tells_nothing_of_it(shop: Tracker) -> None:
    shop.post("key", "/rows/products", {"id": "p1", "sku": "abc", "score": 5})
    told = [shop.patch("alice", "/rows/products/p1", {"score": {"$inc": by}}) for by in (-4, 0, 1, 5)]
    assert {answer.status for answer in told} == {422}
    assert {answer.fields["score"] for answer in told} == {"not_allowed"}


def test_other_ways_in_are_held_to_the_bounds_by_postgresql(shop: Tracker) -> None:
    for values in ("'ab', 0", "'abc', -1"):
        with pytest.raises(IntegrityError):
            run(shop.environment_id, f"INSERT INTO products (id, sku, stock) VALUES ('x', {values})")


def test_a_line_of_an_import_outside_of_the_bounds_is_reported(shop: Tracker, tmp_path: Path) -> None:
    file = tmp_path / "products.csv"
    file.write_text("sku,stock,score\nab,1,1\nabc,-1,9\nabcd,2,2\n")
    err = io.StringIO()
    with pytest.raises(CommandError):
        call_command("import_rows", shop.environment_id, "products", str(file), stdout=io.StringIO(), stderr=err)
    for told in (
        "line 2: sku: Must have at least 3 characters.",
        "line 3: stock: Must be at least 0.",
        "line 3: score: Must be at most 5.",
    ):
        assert told in err.getvalue()
    assert shop.get("key", "/rows/products").json["data"] == []
    call_command("import_rows", shop.environment_id, "products", str(file), "--skip-bad", stdout=err, stderr=err)
    assert [row["sku"] for row in shop.get("key", "/rows/products").json["data"]] == ["abcd"]


def test_a_plan_counts_and_lists_the_rows_in_the_way(shop: Tracker) -> None:
    rows = [{"id": f"p{number:02}", "sku": f"abc{number}", "stock": number} for number in range(30)]
    assert shop.post("key", "/rows/products", rows).status == 201
    columns = DOCUMENT["tables"]["products"]["columns"]
    for low, shown in ((2, "p00, p01"), (25, ", ".join(f"p{number:02}" for number in range(20)) + ", …")):
        changed = {**columns, "amount": {**columns["stock"], "min": low, "default": 25, "renamed_from": "stock"}}
        changed["sku"] = {**columns["sku"], "min_length": 5}
        del changed["stock"]
        for dry_run in (True, False):
            body = {"document": {"tables": {"products": {"columns": changed}}}, "dry_run": dry_run}
            answer = shop.call("owner", "PUT", "/schema", json=body)
            found = {field["field"]: field["message"] for field in answer.json["error"]["fields"]}
            assert answer.status == 422
            assert set(answer.fields.values()) == {"conflict"}
            where = "document.tables.products.columns"
            assert found == {
                f"{where}.amount": f"existing rows have values that this does not allow ({low}): {shown}",
                f"{where}.sku": "existing rows have values that this does not allow (10): "
                + ", ".join(f"p{number:02}" for number in range(10)),
            }
    assert shop.get("key", "/rows/products/p00").json["stock"] == 0


@pytest.mark.parametrize("dry_run", [True, False])
def test_existing_duplicates_and_longer_texts_are_counted_and_listed(shop: Tracker, dry_run: bool) -> None:
    text: dict[str, Any] = {"type": "text", "null": True}

    def refused(columns: dict[str, Any], **more: Any) -> dict[str, str]:
        document = {"tables": {"visits": {"columns": columns, **more}}}
        answer = shop.call("owner", "PUT", "/schema", json={"document": document, "dry_run": dry_run})
        assert (answer.status, {*answer.fields.values()}) == (422, {"conflict"})
        at = "document.tables.visits."
        return {field["field"].removeprefix(at): field["message"] for field in answer.json["error"]["fields"]}

    shop.apply({"tables": {"visits": {"columns": {"staff": text, "day": text}}}})
    rows: list[dict[str, Any]] = [{"id": f"v{n:02}", "staff": f"s{n % 12}", "day": "monday"} for n in range(24)]
    rows += [{"id": f"w{n}", "staff": None, "day": "tuesday "} for n in range(3)]
    assert shop.post("key", "/rows/visits", rows).status == 201
    pairs = ", ".join(f"v{n:02} and v{n + 12:02}" for n in range(10))
    unique = f"existing rows are not unique in who, day (24): {pairs}, …"
    who = {**text, "renamed_from": "staff"}
    assert refused({"who": who, "day": text}, unique=[["who", "day"]]) == {"unique": unique}
    assert refused({"who": who, "day": {**text, "max_length": 7}}, unique=[["day", "who"]]) == {
        "unique": unique.replace("who, day", "day, who"),
        "columns.day": "existing rows have longer values (3): w0, w1, w2",
    }
    assert shop.get("key", "/rows/visits/w0").json["day"] == "tuesday "


@pytest.mark.parametrize("dry_run", [True, False])
def test_one_response_has_the_errors_of_rules_and_of_existing_rows(shop: Tracker, dry_run: bool) -> None:
    def document(values: list[str], **more: Any) -> dict[str, Any]:
        rules = {"user": {"read": {"where": {"state": "b"}}}}
        return {
            "tables": {"orders": {"columns": {"state": {"type": "enum", "values": values}, **more}, "rules": rules}}
        }

    shop.apply(document(["a", "b", "c"]))
    rows = [{"id": f"o{number}", "state": state} for number, state in enumerate("abcb")]
    assert shop.post("key", "/rows/orders", rows).status == 201
    body = {"document": document(["a", "c"], note={"type": "text"}), "dry_run": dry_run}
    answer = shop.call("owner", "PUT", "/schema", json=body)
    found = {field["field"]: field for field in answer.json["error"]["fields"]}
    at = "document.tables.orders"
    assert {path: field["code"] for path, field in found.items()} == {
        f"{at}.rules.user.read.where.state": "not_among",
        f"{at}.columns.state": "conflict",
        f"{at}.columns.note": "required",
    }
    assert found[f"{at}.columns.state"]["message"].endswith("(2): o1, o3")
    again = document(["c", "b", "a"])
    assert shop.call("owner", "PUT", "/schema", json={"document": again, "dry_run": True}).json["operations"] == []


def test_bounds_go_and_come_back_with_a_revert_and_follow_a_branch(shop: Tracker) -> None:
    columns = DOCUMENT["tables"]["products"]["columns"]
    free = {**columns, "amount": {"type": "integer", "default": 0, "renamed_from": "stock"}}
    del free["stock"]
    before = catalog.catalog(shop.environment_id)
    shop.apply({"tables": {"products": {"columns": free}}})
    assert shop.post("key", "/rows/products", {"id": "p1", "sku": "abc", "amount": -1}).status == 201
    back = shop.call("owner", "POST", "/schema/revert", json={"version": 1})
    assert refused(back) == {"document.tables.products.columns.stock": "conflict"}
    shop.patch("key", "/rows/products/p1", {"amount": 1})
    assert shop.call("owner", "POST", "/schema/revert", json={"version": 1}).status == 200
    assert catalog.catalog(shop.environment_id) == before
    assert refused(shop.patch("key", "/rows/products/p1", {"stock": -1})) == {"stock": "out_of_range"}


def test_a_float_that_is_rounded_over_its_bound_is_refused_by_name(shop: Tracker) -> None:
    """PostgreSQL's sum, not ours, decides: 0.1 + 0.2 is more than 0.3."""
    columns = {"n": {"type": "float", "max": 0.3}}
    shop.apply({"tables": {"numbers": {"columns": columns}}})
    shop.post("key", "/rows/numbers", {"id": "n1", "n": 0.1})
    assert refused(shop.patch("key", "/rows/numbers/n1", {"n": {"$inc": 0.2}})) == {"n": "out_of_range"}
    assert shop.get("key", "/rows/numbers/n1").json["n"] == 0.1


@ROLLED_BACK
def test_rows_that_violate_several_new_constraints_are_listed_for_each() -> None:
    first = catalog.schema(a={"n": {"type": "integer"}, "s": {"type": "text"}})
    make("t_env", first)
    run("t_env", "INSERT INTO a (id, n, s) VALUES ('1', 1, 'x'), ('2', 2, 'yy')")
    with pytest.raises(InvalidDocument) as caught:
        change(
            "t_env",
            first,
            catalog.schema(a={"n": {"type": "integer", "min": 2}, "s": {"type": "text", "min_length": 3}}),
        )
    assert [(error.field, error.message.partition("): ")[2]) for error in caught.value.errors] == [
        ("tables.a.columns.n", "1"),
        ("tables.a.columns.s", "1, 2"),
    ]


# ── Formats ─────────────────────────────────────────────────────────────────────────────────────────────────────────

FORMATTED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "email": (
        ("ada@example.com", "A.b+c_d'e@Sub.Example.co", "x@y-z.example", "a@1.example", "a@xn--mnchen-3ya.xn--p1ai",
         f"a@{'a' * 64}.example", "a=b@example.com", "a?=b@example.com", f"{'a' * 242}@example.com"),
        ("", "a", "@example.com", "ada@", "ada@localhost", "a b@example.com", "ada@exam ple.com", "ada@@example.com",
         "ada@example.com\n", "\nada@example.com", "ada@example.com,bob@example.com", ".a@example.com", "a.@example.com",
         "a..b@example.com", '"a"@example.com', "a@[10.0.0.1]", "ada@example..com", "ada@-example.com", "ada@example-.com",
         "ada@example.c", "ada@example.1",  "ädä@example.com", "ada@exämple.com",
         "=?utf-8?q?b=6fss?=@example.com", "<ada@example.com>", "a\x1f@example.com", f"{'a' * 243}@example.com",
         "ada@example.com\u2028", "\u0131da@example.com", "ada@ex\u212aample.com"),
    ),
    "url": (
        ("https://example.com", "http://example.com/", "HTTPS://Example.com:8443/a/b?c=d&e#f", "http://localhost:3000",
         "http://example.com:65535/", "http://example.com:00080/", "https://[2001:db8::1]:80/x", "https://example.com?q", "https://example.com#f", "https://de.example/Müller?ü=😀",
         "https://münchen.example/", "https://example.com/~a/(b)/@c;d,e'f!$*+=[1]", "https://10.0.0.1/%20%2F",
         f"https://example.com/{'a' * 2028}"),
        ("", "example.com", "//example.com", "https://", "https:///x", "https:example.com", "ftp://example.com",
         "javascript:alert(1)", "https://example.com/a b", " https://example.com", "https://example.com ",
         "https://example.com\n", "https://example.com/\njavascript:alert(1)", "https://user@example.com",
         "https://bank.example:pw@evil.example", "https://bank.example\\@evil.example", "https://example.com:port",
         "https://example.com:123456", "https://example.com:65536", "https://example.com:99999",
         'https://example.com/"onclick=', "https://example.com/<script>",
         "https://example.com/\u202etxt", "https://exa\u200bmple.com", "https://example.com/\u00a0", "https://[::1",
         "https://a[b]c/", "https://%65xample.com", "https://example.com/\x7f", "https://example.com/{a}",
         f"https://example.com/{'a' * 2029}"),
    ),
    "slug": (
        ("a", "0", "hello-world", "a_b-c", "2026-01-31", "a" * 3000, "a-" * 1000 + "a"),
        ("", "-", "a-", "-a", "a--b", "a_-b", "Hello", "a b", "a\n", "\na", "ä", "a.b", "\u0131", "a/b", "\uff41", "\u0661"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATTED)
@ROLLED_BACK
def test_python_and_postgresql_take_the_same_texts_for_a_format(name: str) -> None:
    good, bad = FORMATTED[name]
    make("t_formats", catalog.schema(a={"x": {"type": "text", "format": name}}))
    for text in (*good, *bad):
        taken = FORMATS[name].matches(text)
        assert taken == (text in good), text[:100]
        try:
            run("t_formats", "INSERT INTO a (id, x) VALUES (gen_random_uuid(), %s)", text)
        except IntegrityError:
            stored = False
        else:
            stored = True
        assert stored == taken, text[:100]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(FORMATS)),
    st.text(st.sampled_from("aZ0-_.@:/?#[]%=\\ \n\u00a0\u0130\u017f\u212aäß😀")),
    st.sampled_from(["", "https://", "a@b."]),
)
@ROLLED_BACK
def test_python_and_postgresql_agree_about_any_text(name: str, text: str, before: str) -> None:
    with connections[catalog.REGION].cursor() as cursor:
        pattern = FORMATS[name].sql_pattern
        cursor.execute(f'SELECT %s COLLATE "{COLLATION}" ~ %s', [before + text, pattern])
        assert cursor.fetchone() == (FORMATS[name].matches(before + text),)


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_decided_at_once(name: str) -> None:
    start = time.monotonic()
    for text in (
        "a" * 200_000,
        "a-" * 100_000 + "!",
        "a@" + "a." * 100_000,
        "https://" + "a" * 200_000,
        "a." * 120 + "@",
    ):
        FORMATS[name].matches(text)
    assert time.monotonic() - start < within(1)


def test_a_text_of_another_format_is_refused_by_name(shop: Tracker) -> None:
    columns = {"mail": {"type": "text", "format": "email", "null": True}, "site": {"type": "text", "format": "url"}}
    shop.apply({"tables": {"people": {"columns": columns}}})
    answer = shop.post("key", "/rows/people", {"mail": "ada", "site": "javascript:alert(1)"})
    assert refused(answer) == {"mail": "invalid", "site": "invalid"}
    messages = [field["message"] for field in answer.json["error"]["fields"]]
    assert messages == [FORMATS["email"].message, FORMATS["url"].message]
    made = shop.post("key", "/rows/people", {"mail": "Ada@Example.com", "site": "https://example.com"})
    assert (made.status, made.json["mail"]) == (201, "Ada@Example.com")
    where = quote('{"mail": {"$ieq": "ada@example.com"}}')
    found = shop.get("key", f"/rows/people?where={where}")
    assert len(found.json["data"]) == 1


@pytest.mark.parametrize(
    "shape", ['"{}"', '{{"$ieq":"{}"}}', '{{"$in":["{}"]}}', '{{"$iin":["{}"]}}', '{{"$ne":"{}"}}']
)
def test_an_email_whose_plus_a_url_turned_into_a_space_is_explained(shop: Tracker, shape: str) -> None:
    columns = {"mail": {"type": "text", "format": "email"}, "name": {"type": "text"}}
    shop.apply({"tables": {"people": {"columns": columns}}})
    shop.post("key", "/rows/people", {"mail": "ada+test@example.com", "name": "a b"})
    answer = shop.get("key", f'/rows/people?where={{"mail":{shape.format("ada+test@example.com")}}}')
    assert refused(answer) == {"where": "invalid"}
    assert 'In a URL, "+" means a space: write "%2B".' in answer.json["error"]["fields"][0]["message"]
    escaped = shop.get("key", f'/rows/people?where={{"mail":{shape.format("ada%2Btest@example.com")}}}')
    assert (escaped.status, len(escaped.json["data"])) == (200, 0 if "$ne" in shape else 1)
    assert len(shop.get("key", '/rows/people?where={"name":"a+b"}').json["data"]) == 1
    assert shop.get("key", '/rows/people?where={"mail":{"$contains":"a+b"}}').status == 200


@ROLLED_BACK
def test_existing_texts_of_another_format_are_listed() -> None:
    first = catalog.schema(a={"x": {"type": "text"}})
    make("t_env", first)
    run("t_env", "INSERT INTO a (id, x) VALUES ('1', 'a-b'), ('2', 'A b')")
    with pytest.raises(InvalidDocument, match=r"\(1\): 2$"):
        change("t_env", first, catalog.schema(a={"x": {"type": "text", "format": "slug"}}))
