"""Threat T8: no statement is put together from strings. Names come by look-up and `psycopg.sql.Identifier`, values by binding.

Parse GHSA-c442-97qw-j6c6, Django CVE-2025-57833 and CVE-2025-64459: a name or a dict of a client's went into SQL as text. The
source is read here: the SQL of `execute`, `RawSQL`, `sql.SQL`, the calls of `statements` and `prepared`, and the like must
not be an f-string, a `%`, a `+` or a `.format` of strings, directly or in a variable of the same function.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.service import ROOT

APPS = ("accounts", "functions", "platform_site", "projects", "rows", "webhooks")
TAKES_SQL = {"execute", "executemany", "executescript", "RawSQL", "SQL", "raw", "extra", "copy", "stream"}
AFTER_CONNECTION = {"statements", "prepared"}
"""Modules whose functions take the SQL as their second argument."""
SOURCES = [path for app in APPS for path in sorted((ROOT / app).rglob("*.py")) if "migrations" not in path.parts]


def strings_made(node: ast.expr) -> bool:
    """Whether the expression makes a text out of others that are not all written out in the source."""
    match node:
        case ast.JoinedStr():
            return any(isinstance(part, ast.FormattedValue) for part in node.values)
        case ast.BinOp(op=ast.Add() | ast.Mod()):
            return not (is_text(node.left) and is_text(node.right))
        case ast.Call(func=ast.Attribute(attr="format" | "join" | "replace", value=owner)):
            return is_text(owner)
        case ast.IfExp():
            return strings_made(node.body) or strings_made(node.orelse)
    return False


def is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return is_text(node.left) and is_text(node.right)
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def name_of(call: ast.Call) -> str:
    return (
        call.func.attr
        if isinstance(call.func, ast.Attribute)
        else call.func.id
        if isinstance(call.func, ast.Name)
        else ""
    )


def sql_of(call: ast.Call) -> list[ast.expr]:
    match call.func:
        case ast.Attribute(value=ast.Name(id=module)) if module in AFTER_CONNECTION:
            return call.args[1:2]
    return call.args[:1] if name_of(call) in TAKES_SQL else []


def offences(source: str) -> Iterator[tuple[int, str]]:
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for scope in [tree, *functions]:
        made = {
            target.id
            for node in ast.walk(scope)
            if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and node.value is not None
            if strings_made(node.value) or (isinstance(node, ast.AugAssign) and not is_text(node.value))
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(scope):
            for text in sql_of(node) if isinstance(node, ast.Call) else ():
                if strings_made(text) or (scope is not tree and isinstance(text, ast.Name) and text.id in made):
                    yield node.lineno, ast.unparse(node)[:160]


@pytest.mark.parametrize(
    "line",
    [
        'cursor.execute(f"SELECT * FROM {table}")',
        'cursor.execute("SELECT * FROM " + table)',
        'cursor.execute("SELECT * FROM %s" % table)',
        'cursor.execute("SELECT * FROM {}".format(table))',
        'cursor.execute(" ".join(parts))',
        'statements.rows(using, f"SELECT * FROM {table}")',
        'statements.execute(using, "DELETE FROM " + table)',
        'prepared.run(alias, b"SELECT * FROM %s" % table, [])',
        'sql.SQL(f"{name}")',
        'RawSQL("a" if x else f"{y}", [])',
        'def f(x):\n    text = f"SELECT {x}"\n    cursor.execute(text)',
        'def f(x):\n    text = "SELECT "\n    text += x\n    cursor.execute(text)',
    ],
)
def test_it_finds_what_it_looks_for(line: str) -> None:
    assert list(offences(line))


@pytest.mark.parametrize(
    "line",
    [
        'cursor.execute("SELECT 1" " FROM x WHERE y = %s", [y])',
        'cursor.execute(sql.SQL("SELECT {}").format(sql.Identifier(name)))',
        "cursor.execute(_SELECT, [y])",
        'statements.rows(using, "SELECT %s", [y])',
        'statements.execute(f"region_{name}", _DELETE)',
        'shutil.copy("a", b)',
    ],
)
def test_it_lets_pass_what_is_safe(line: str) -> None:
    assert not list(offences(line))


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_statement_is_made_of_strings(path: Path) -> None:
    found = sorted(set(offences(path.read_text())))
    assert found == []
