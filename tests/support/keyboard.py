"""A person without a mouse: Tab until the wanted control has the focus, which must be visible on the way."""

from playwright.sync_api import Locator, Page, expect

FARTHEST = 120
"""Tabs from one control to any other of a page."""
_FOCUS = """(wanted, isRemembered = false) => {
    const one = document.activeElement;
    if (!one || one === document.body) return null;
    const isAgain = one.dataset.reached !== undefined;
    if (isRemembered) one.dataset.reached = "";
    const box = one.getBoundingClientRect();
    const style = getComputedStyle(one);
    return {
        name: one.outerHTML.slice(0, 200),
        isWanted: one === wanted,
        isAgain: isAgain && !/^date/.test(one.type),  // a date has several stops
        takesTabs: one.matches("textarea[data-editor]"),
        isMarked: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0,
        isInView: box.width > 0 && box.bottom > 0 && box.right > 0 && box.top < innerHeight && box.left < innerWidth,
    };
}"""


_CONTROLS = """() => {
    const controls = "a[href], button, input, select, textarea, summary, [tabindex]";
    const isGroupMember = (one) => one.type === "radio" && !one.checked;
    return [...document.querySelectorAll(controls)]
        .filter((one) => one.tabIndex >= 0 && !one.disabled && one.checkVisibility({ visibilityProperty: true }))
        .filter((one) => !isGroupMember(one) && one.dataset.reached === undefined)
        .map((one) => one.outerHTML.slice(0, 200));
}"""


class Keyboard:
    def __init__(self, page: Page) -> None:
        self.page = page
        self.press = page.keyboard.press
        self.type = page.keyboard.type

    def to(self, wanted: Locator) -> None:
        """Tab to the control. Where Tab indents, Escape comes first."""
        expect(wanted).to_be_visible()
        for tabs in range(FARTHEST):
            focus = wanted.evaluate(_FOCUS)
            assert tabs == 0 or focus is None or (focus["isMarked"] and focus["isInView"]), focus
            if focus is not None and focus["isWanted"]:
                return
            if focus is not None and focus["takesTabs"]:
                self.press("Escape")
            self.press("Tab")
        raise AssertionError(f"{wanted} is not reached by Tab")

    def missed(self) -> list[str]:
        """The controls of the page that Tab does not reach, or where the focus is not seen."""
        hidden, ends = [], 0
        remember = f"() => ({_FOCUS})(null, true)"
        focus = self.page.evaluate(_FOCUS)
        for _ in range(10 * FARTHEST):
            if focus is not None and focus["takesTabs"]:
                self.press("Escape")
            self.press("Tab")
            focus = self.page.evaluate(remember)
            if focus is None:  # after the last control; the page may have begun in its middle
                ends += 1
                if ends > 1:
                    break
                continue
            if focus["isAgain"]:
                break
            if not (focus["isMarked"] and focus["isInView"]):
                hidden.append(focus["name"])
        return [*hidden, *self.page.evaluate(_CONTROLS)]

    def use(self, wanted: Locator) -> None:
        """Press Enter on a button or a link."""
        self.to(wanted)
        self.press("Enter")

    def fill(self, wanted: Locator, text: str) -> None:
        self.to(wanted)
        self.press("Control+a")
        self.type(text)

    def choose(self, wanted: Locator, value: str) -> None:
        """An option of a select, by arrow keys."""
        self.to(wanted)
        self.press("Home")
        for _ in range(FARTHEST):
            if wanted.input_value() == value:
                return
            self.press("ArrowDown")
        raise AssertionError(f"{value} is no option that the arrow keys reach")
