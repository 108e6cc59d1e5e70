"""How large a caller may make a row, which must not tell it how long the cells are that it may not read."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from platform_site.http.errors import ValidationFailed
from rows import services
from rows.schema.column_values import MAX_ROW_BYTES
from rows.write.bulk import BulkQuery
from tests.support.tenants import ALICE, OPERATOR, Tenant

MB: Final = 2**20
pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(databases="__all__")]
LONG: Final = [f"t{number}" for number in range(10)]
COLUMNS: Final[dict[str, Any]] = {
    **{name: {"type": "text", "null": True} for name in LONG},
    "n": {"type": "integer", "null": True},
    "tags": {"type": "text[]", "default": []},
    "meta": {"type": "json", "null": True},
    "notes": {"type": "text[]", "null": True},
    "secret": {"type": "text", "null": True},
}
HIDDEN: Final = ["secret", "notes", "meta"]
SEEN: Final = ["*", *(f"-{name}" for name in HIDDEN)]


def notes(read: Any, write: list[str]) -> Tenant:
    rules = {"read": read, "insert": {"columns": write}, "update": {"columns": write}}
    return Tenant({"tables": {"notes": {"columns": COLUMNS, "unique": [["n"]], "rules": {"user": rules}}}})


def hide(tenant: Tenant, row: str, length: int) -> None:
    """So many bytes in hidden columns, written without any limit."""
    sizes = [length // 3, length // 3, length - 2 * (length // 3)]
    tenant.raw(
        "UPDATE {}.notes SET secret = nullif(repeat('x', %s), ''), notes = CASE WHEN %s > 3 THEN ARRAY[repeat('x', %s)]"
        " END, meta = CASE WHEN %s > 3 THEN to_jsonb(repeat('x', %s)) END WHERE id = %s",
        sizes[0], sizes[1], sizes[1] - 2, sizes[2], sizes[2] - 2, row,
    )  # fmt: skip


def held(tenant: Tenant, row: str) -> int:
    long = " + ".join(f"coalesce(octet_length({name}::text), 0)" for name in [*LONG, "tags", *HIDDEN])
    return int(tenant.raw("SELECT " + long + " FROM {}.notes WHERE id = %s", row)[0][0])


def fill(tenant: Tenant, row: str, length: int) -> None:
    """So many bytes in what the caller reads and writes, without any limit, in all columns but the last."""
    cells = ", ".join(f"{name} = repeat('x', {length // 9})" for name in LONG[:9])
    tenant.raw("UPDATE {}.notes SET " + cells + ", t9 = NULL, tags = ARRAY[]::text[] WHERE id = %s", row)


def told(write: Callable[[], Any]) -> Any:
    """What a refusal says, without the ids of rows; None of what is done."""
    try:
        write()
    except ValidationFailed as error:
        return tuple((field.field, field.code, field.message.split(": ")[-1]) for field in error.fields)
    return None


def ways(tenant: Tenant, row: str) -> dict[str, Callable[[int], Any]]:
    """How alice brings so many bytes more into what she reads of a row."""
    everything = BulkQuery({})

    def many(**cells: Any) -> Any:
        return services.update_rows(tenant.environment, ALICE, "notes", everything, cells)

    def upsert(length: int) -> Any:
        return services.upsert_row(tenant.environment, ALICE, "notes", {"n": 7, "t9": "x" * length}, "n")

    return {
        "update": lambda length: tenant.update(ALICE, "notes", row, t9="x" * length),
        "update of many": lambda length: many(t9="x" * length),
        "upsert": upsert,
        "$append": lambda length: tenant.update(ALICE, "notes", row, tags={"$append": ["x" * (length - 2)]}),
        "$add": lambda length: tenant.update(ALICE, "notes", row, tags={"$add": ["x" * (length - 2)]}),
        "$append to many": lambda length: many(tags={"$append": ["x" * (length - 2)]}),
    }


FILLED: Final = 9 * 400_000
READS: Final[list[Any]] = [{"columns": SEEN}, [{"columns": SEEN}, {"where": {"n": 8}, "columns": ["*"]}]]


@pytest.mark.parametrize("way", ["update", "update of many", "upsert", "$append", "$add", "$append to many"])
@pytest.mark.parametrize("read", READS)
def test_the_bound_is_where_it_is_whatever_is_hidden(way: str, read: Any) -> None:
    tenant = notes(read, [*LONG, "tags", "n"])
    row = tenant.put("notes", n=7)
    room = 4 * MB - FILLED - (0 if "$" in way else len("{}"))  # an empty list has its braces
    grow = ways(tenant, row)[way]
    said = set()
    for length in (0, 1, 200_000, 3_999_999, 4 * MB):
        hide(tenant, row, length)
        fill(tenant, row, FILLED)
        before = held(tenant, row)
        said.add(told(lambda: grow(room + 1)))
        assert held(tenant, row) == before
        assert told(lambda: grow(room)) is None
        assert 4 * MB + length - 1 <= held(tenant, row) <= MAX_ROW_BYTES
    [[(field, code, message)]] = said
    assert (field, code) == ("tags" if "$" in way else "$body", "too_large")
    assert "4 MB" in message


@pytest.mark.parametrize(("least", "bound"), [(4 * MB + 1, 3), (5 * MB + 1, 2), (6 * MB + 1, 1)])
def test_of_more_hidden_bytes_than_half_a_row_has_whole_megabytes_are_told(least: int, bound: int) -> None:
    tenant = notes({"columns": SEEN}, [*LONG, "tags"])
    row = tenant.put("notes")
    said = set()
    for length in (least, least + 500_000, least + MB - 1):
        hide(tenant, row, length)
        fill(tenant, row, 9 * (bound * MB // 9 - 20_000))
        room = bound * MB - 9 * (bound * MB // 9 - 20_000) - len("{}")
        said.add(told(lambda: tenant.update(ALICE, "notes", row, t9="x" * (room + 1))))  # noqa: B023
        assert told(lambda: tenant.update(ALICE, "notes", row, t9="x" * room)) is None  # noqa: B023
        assert held(tenant, row) <= MAX_ROW_BYTES
        # What makes it smaller is taken, and so is what is small.
        tenant.update(ALICE, "notes", row, t9="x" * (room - 20_000), t0="x" * 16_000)
        hide(tenant, row, 8 * MB)
        tenant.update(ALICE, "notes", row, t1="x" * 16_000)
        tenant.update(ALICE, "notes", row, t9="x" * (room - 20_001))
    assert len(said) == 1


@pytest.mark.parametrize("filled", [0, 3 * MB])
def test_what_is_written_and_not_read_has_a_bound_of_its_own(filled: int) -> None:
    tenant = notes({"columns": SEEN}, [*LONG, "tags", "secret", "notes"])
    row = tenant.put("notes")
    fill(tenant, row, filled)
    said = set()
    for length in (0, 30_000, 1_000_000, 4 * MB):
        for more in (MB // 2 + 1, MB // 2):
            hide(tenant, row, length)
            before = held(tenant, row)
            refusal = told(lambda: tenant.update(ALICE, "notes", row, secret="y" * more))  # noqa: B023
            assert (refusal is None) == (more == MB // 2), (length, more)
            if refusal:
                assert held(tenant, row) == before
                said.add(refusal)
        assert held(tenant, row) <= MAX_ROW_BYTES
    [[(field, code, message)]] = said
    assert (field, code) == ("$body", "too_large")
    assert "3 MB" in message
    assert "512 KB" in message


def test_what_is_read_in_some_rows_is_the_reader_s_own_there() -> None:
    read = [{"columns": SEEN}, {"where": {"n": 8}, "columns": ["secret"]}]
    tenant = notes(read, [*LONG, "tags", "secret"])
    row = tenant.put("notes", n=8)
    fill(tenant, row, 3 * MB - 100_000)
    tenant.update(ALICE, "notes", row, secret="x" * 90_000)
    assert told(lambda: tenant.update(ALICE, "notes", row, secret="x" * 110_000))
    fill(tenant, row, MB)
    tenant.update(ALICE, "notes", row, secret="x" * (MB - 100))
    tenant.update(ALICE, "notes", row, t9="x" * (MB - 100))
    tenant.raw("UPDATE {}.notes SET n = NULL")
    fill(tenant, row, 3 * MB - 100_000)
    tenant.update(ALICE, "notes", row, t9="x" * 90_000)
    assert told(lambda: tenant.update(ALICE, "notes", row, t9="x" * 110_000))


def test_a_new_row_has_as_much_as_its_writer_may_fill() -> None:
    unfolded = [[1e308, 1e-300]] * 6_500  # 90 KB to send, 4 MB to store
    read = {"columns": ["*", "-secret"]}
    tenant = notes(read, ["meta", "t0", "tags"])
    length = tenant.raw("SELECT octet_length(%s::jsonb::text)", str(unfolded))[0][0]
    for rows in ([{"meta": unfolded, "t0": "x" * 500_000}], [{"t0": "x"}, {"meta": unfolded, "t0": "x" * 500_000}]):
        refusal = told(lambda: services.insert_rows(tenant.environment, ALICE, "notes", rows))  # noqa: B023
        assert [code for _, code, _ in refusal] == ["too_large"]
    assert tenant.raw("SELECT count(*) FROM {}.notes") == [(0,)]
    assert length < 4 * MB
    tenant.insert(ALICE, "notes", meta=unfolded, t0="x" * 100_000)
    tenant.put("notes", meta=unfolded, t0="x" * 500_000)
    # What its writer does not read has its bound at once, so that the row can be changed later.
    tenant = notes({"columns": ["*", "-meta"]}, ["meta", "t0"])
    assert told(lambda: tenant.insert(ALICE, "notes", meta=unfolded))
    tenant.insert(ALICE, "notes", meta=unfolded[:1_500])


def test_who_reads_everything_fills_a_row() -> None:
    tenant = notes({"columns": ["*"]}, ["*"])
    for who in (OPERATOR, ALICE):
        row = tenant.put("notes")
        hide(tenant, row, 4 * MB)
        fill(tenant, row, 9 * 400_000)
        room = MAX_ROW_BYTES - held(tenant, row)
        assert told(lambda: tenant.update(who, "notes", row, t9="x" * (room + 1)))  # noqa: B023
        tenant.update(who, "notes", row, t9="x" * room)
        assert held(tenant, row) == MAX_ROW_BYTES
