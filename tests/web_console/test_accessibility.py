"""Every page without violations of WCAG AA that axe finds, light and dark, as a desktop and a phone show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .axe import AXE, NO_AXE, violations
from .conftest import Console
from .test_letters_page import with_letters
from .test_time_plane import recorded
from .test_topics_pages import filled

if TYPE_CHECKING:
    from playwright.sync_api import Page

PAGES = {
    "jobs": "totals",
    "jobs/totals": "Settings",
    "jobs/totals/plan": "Logical",
    "jobs/totals/plane": "batch 5",
    "jobs/totals/runs": "not run yet",
    "jobs/totals/errors": "No run has failed.",
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
    "bridges": "No bridge runs.",
}
"""By address, a text that a page has when it is complete."""


@pytest.mark.more
def test_no_violations(console: Console, page: Page) -> None:
    if not AXE.is_file():
        pytest.skip(NO_AXE)
    recorded(console)
    filled(console)
    with_letters(console)
    wrong = []
    for address, text in PAGES.items():
        page.goto(f"{console.url}/console/#/{address}")
        page.get_by_text(text).first.wait_for()
        wrong += [(address, *each) for each in violations(page)]
    assert wrong == []
