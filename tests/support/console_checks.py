"""What every page of the members' console fulfils in a browser."""

from collections.abc import Sequence
from typing import Any

from playwright.sync_api import Page


def fits(page: Page) -> None:
    """Nothing reaches out of the window, no label is cut off, every control has a name."""
    width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width[0] <= width[1], (page.url, width)
    cut = page.locator("label, th, button, h1, h2, dt, .sidebar a").evaluate_all(
        "each => each.filter(one => one.offsetWidth > 1 && one.scrollWidth > one.clientWidth + 1).map(one => one.outerHTML)"
    )
    assert cut == [], page.url
    unnamed = page.locator("input:not([type=hidden]), select, textarea").evaluate_all(
        "each => each.filter(one => !one.labels.length && !one.ariaLabel && !one.getAttribute('aria-labelledby'))"
        ".map(one => one.outerHTML)"
    )
    assert unnamed == [], page.url


RULES_OF_COLORS = ("color-contrast", "link-in-text-block")
"""The rules of axe-core that a theme can break."""


def findings(page: Page, *, only: Sequence[str] = ()) -> list[str]:
    """What axe-core calls serious or critical, by these rules or by all. Empty without axe-core."""
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:  # pip install -r requirements-dev.lock
        return []
    if not page.evaluate("'axe' in window"):
        page.evaluate(Axe().axe_script)
    # Without asking for the style sheets again: only an experimental rule reads them.
    options = {"resultTypes": ["violations"], "preload": False} | ({"runOnly": list(only)} if only else {})
    found: list[dict[str, Any]] = page.evaluate("options => axe.run(options)", options)["violations"]
    return [
        f"{each['id']}: {node['html'][:200]} {node['failureSummary']}"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]
