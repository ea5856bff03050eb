"""Violations of WCAG AA that axe finds on a page as it is now, light and dark, and whether it fits on a phone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from build_console import SOURCES
from waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Page

AXE = SOURCES / "node_modules" / "axe-core" / "axe.min.js"
NO_AXE = "the packages of the front end are not installed: make test installs them where Node is"
RULES = "{runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']}"


def violations(page: Page) -> list[tuple[str, str, str]]:
    """Where, which rule, and the first element that violates it; none if axe is not installed."""
    wrong = []
    for scheme in ("light", "dark") if AXE.is_file() else ():
        page.emulate_media(color_scheme=scheme)
        page.evaluate(AXE.read_text())
        found = page.evaluate(f"axe.run(document, {RULES})")
        wrong += [(scheme, each["id"], each["nodes"][0]["html"]) for each in found["violations"]]
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 390, "height": 800})
    wide = until(lambda: page.evaluate("document.documentElement.scrollWidth"), "the page has a width")
    wrong += [] if wide <= 390 else [("phone", "wider than the screen", str(wide))]
    page.set_viewport_size({"width": 1280, "height": 900})
    return wrong
