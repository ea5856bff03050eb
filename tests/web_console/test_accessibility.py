"""Every page without violations of WCAG AA that axe finds, light and dark, as a desktop and a phone show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from build_console import SOURCES
from waiting import until

from .conftest import Console
from .test_letters_page import with_letters
from .test_time_plane import recorded
from .test_topics_pages import filled

if TYPE_CHECKING:
    from playwright.sync_api import Page

AXE = SOURCES / "node_modules" / "axe-core" / "axe.min.js"
PAGES = {
    "jobs": "totals",
    "jobs/totals": "Settings",
    "jobs/totals/plan": "Logical",
    "jobs/totals/plane": "batch 5",
    "jobs/totals/runs": "not run yet",
    "jobs/totals/log": "printed nothing",
    "jobs/totals/savepoints": "There are none.",
    "jobs/totals/upgrades": "There were none.",
    "jobs/totals/state": "Look up",
    "jobs/totals/alerts": "No rule holds now.",
    "topics": "points",
    "topics/points": "Open transactions",
    "groups": "readers",
    "dead-letters": "of 1",
    "dead-letters/marks.dead": "By reason",
    "tables": "of 0",
    "dashboards": "of 0",
}
"""By address, a text that a page has when it is complete."""


@pytest.mark.more
def test_no_violations(console: Console, page: Page) -> None:
    if not AXE.is_file():
        pytest.skip("the package axe-core is missing: cd console && npm ci")
    recorded(console)
    filled(console)
    with_letters(console)
    script = AXE.read_text()
    wrong = []
    for address, text in PAGES.items():
        page.goto(f"{console.url}/console/#/{address}")
        page.get_by_text(text).first.wait_for()
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.evaluate(script)
            found = page.evaluate("axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']})")
            wrong += [(address, scheme, each["id"], each["nodes"][0]["html"]) for each in found["violations"]]
        page.emulate_media(color_scheme="light")
        page.set_viewport_size({"width": 390, "height": 800})
        wide = until(lambda: page.evaluate("document.documentElement.scrollWidth"), "the page has a width")
        wrong += [] if wide <= 390 else [(address, "phone", "wider than the screen", str(wide))]
        page.set_viewport_size({"width": 1280, "height": 900})
    assert wrong == []
