"""The loader of SQL files."""

from pathlib import Path

import pytest

from platform_site.postgres import sql_files

TEXT = """-- What the module does.

-- name: open_tasks
-- Why this is so.
SELECT id FROM tasks
  -- Comments with 100 % are not sent.
 WHERE {is_open} AND tags = '{}'

-- name: count_open
SELECT count(*) FROM ({open_tasks}) AS found
"""


def test_statements_are_put_together_from_parts_and_fragments(tmp_path: Path) -> None:
    (tmp_path / "tasks.sql").write_text(TEXT)
    found = sql_files.load(str(tmp_path / "tasks.py"), is_open="NOT done")
    inner = "SELECT id FROM tasks\n WHERE NOT done AND tags = '{}'"
    assert found == {"open_tasks": inner, "count_open": "".join(("SELECT count(*) FROM (", inner, ") AS found"))}


def test_an_unknown_placeholder_is_an_error_when_the_module_loads(tmp_path: Path) -> None:
    (tmp_path / "tasks.sql").write_text(TEXT)
    with pytest.raises(KeyError, match="is_open"):
        sql_files.load(str(tmp_path / "tasks.py"))


def test_named_parameters_are_numbered_in_the_order_of_their_first_use() -> None:
    statement = sql_files.PreparedStatement("SELECT %(a)s, %(b)s::int, %(a)s LIKE '100%' WHERE %(c)s AND %(d)s")
    parameters: dict[str, sql_files.Value] = {"d": True, "c": None, "b": 17, "a": "é", "other": 1}
    sql = b"SELECT $1, $2::int, $1 LIKE '100%' WHERE $3 AND $4"
    assert statement.bind(parameters) == (sql, ["é".encode(), b"17", None, b"True"])
    with pytest.raises(KeyError, match="a"):
        statement.bind({"b": 1})
