"""Violations of WCAG AA that axe finds on a page, and what is too wide: light and dark, as a desktop and a phone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from build_console import SOURCES
from waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Page

AXE = SOURCES / "node_modules" / "axe-core" / "axe.min.js"
NO_AXE = "the packages of the front end are not installed: make test installs them where Node is"
RULES = "{runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']}"
WIDTHS = {"desktop": 1280, "phone": 390}


def violations(page: Page) -> list[tuple[str, ...]]:
    """On which screen, which rule, and the first element that violates it; without axe only what is too wide."""
    wrong: list[tuple[str, ...]] = []
    for screen, width in WIDTHS.items():
        page.set_viewport_size({"width": width, "height": 900})
        shown = until(lambda: page.evaluate("document.documentElement.scrollWidth"), "the page has a width")
        wrong += [] if shown <= width else [(screen, "wider than the screen", str(shown))]
        for scheme in ("light", "dark") if AXE.is_file() else ():
            page.emulate_media(color_scheme=scheme)
            if not page.evaluate("'axe' in window"):
                page.evaluate(AXE.read_text())
            found = page.evaluate(f"axe.run(document, {RULES})")
            wrong += [(screen, scheme, each["id"], each["nodes"][0]["html"]) for each in found["violations"]]
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": WIDTHS["desktop"], "height": 900})
    return wrong
