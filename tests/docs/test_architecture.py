"""The diagrams of docs/explanation/architecture.md are what the code imports."""

import ast
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import grimp
import pytest

from tests.support.service import ROOT

PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
APPS = ("accounts", "functions", "projects", "rows", "webhooks")
DIAGRAMS = {
    app: {
        package: set(imported.split())
        for package, imported in re.findall(r"^(\w+) +-> (.+)$", diagram, flags=re.MULTILINE)
    }
    for app, diagram in re.findall(r"^### (\w+)\n\n```text\n(.*?)```", PAGE, flags=re.MULTILINE | re.DOTALL)
}


@cache
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*APPS, "platform_site")


def imports_between_packages(app: str) -> dict[str, set[str]]:
    packages = {
        child.split(".")[1]
        for child in graph().find_children(app)
        if graph().find_children(child) and child.split(".")[1] not in ("management", "migrations")
    }
    found: dict[str, set[str]] = defaultdict(set)
    for module in graph().modules:
        for imported in graph().find_modules_directly_imported_by(module):
            if module.split(".")[0] == imported.split(".")[0] == app and "." in module and "." in imported:
                importer, target = module.split(".")[1], imported.split(".")[1]
                if importer != target and {importer, target} <= packages:
                    found[importer].add(target)
    return dict(found)


@pytest.mark.parametrize("app", APPS)
def test_the_diagram_of_an_app_is_what_it_imports(app: str) -> None:
    assert DIAGRAMS[app] == imports_between_packages(app)


def test_every_package_says_what_it_is_and_depends_on() -> None:
    for app in APPS:
        for package in imports_between_packages(app):
            text = (ROOT / app / package / "__init__.py").read_text()
            assert "Depends on: " in text or app + "." + package in ("accounts.models",), (app, package)


def test_the_page_has_at_most_2000_words() -> None:
    assert len(PAGE.split()) <= 2000


def product_modules() -> list[Path]:
    found = [path for app in (*APPS, "platform_site") for path in (ROOT / app).rglob("*.py")]
    return [path for path in found if path.parent.name != "migrations"]


def test_a_folder_has_at_most_15_modules() -> None:
    sizes = Counter(path.parent for path in product_modules() if path.name != "__init__.py")
    assert [str(folder.relative_to(ROOT)) for folder, size in sizes.items() if size > 15] == []


def test_a_module_has_at_most_400_lines_and_a_function_60() -> None:
    too_long = []
    for path in product_modules():
        text = path.read_text()
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        long = [node.name for node in nodes if (node.end_lineno or 0) - node.lineno >= 60]
        if long or len(text.splitlines()) > 400:
            too_long.append((str(path.relative_to(ROOT)), long))
    assert too_long == []
