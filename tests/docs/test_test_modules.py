"""Test modules: short names of tests, and no imports from one another."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.support.service import ROOT

LONGEST = 70
MODULES = sorted((ROOT / "tests").rglob("test_*.py"))


@cache
def nodes(module: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(module.read_text())))


@pytest.mark.parametrize("directory", sorted({module.parent for module in MODULES}), ids=lambda path: path.name)
def test_test_names_have_at_most_70_characters(directory: Path) -> None:
    too_long = [
        f"{module.name}: {node.name}"
        for module in MODULES
        if module.parent == directory
        for node in nodes(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and len(node.name) > LONGEST
    ]
    assert too_long == []


@pytest.mark.exhaustive
def test_no_test_module_imports_another() -> None:
    imports = [
        f"{module.name}: {node.module}"
        for module in (ROOT / "tests").rglob("*.py")
        for node in nodes(module)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("tests.")
        and (node.module or "").rpartition(".")[2].startswith("test_")
    ]
    assert imports == []
