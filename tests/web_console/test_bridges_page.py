"""The page of bridges: each with its rate, what waits, and why it does not run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import millstream as ms
from millstream.bridges.arrivals import Arrival
from millstream.bridges.landing import Landing
from millstream.bridges.reports import GIVEN_UP, Behind, mark, reported, reports_folder

from .axe import violations
from .conftest import Console
from .flows import HTML

if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_bridges_are_shown_with_rates_and_what_waits(console: Console, page: Page) -> None:
    with ms.connect(console.log) as log:
        log.create_topic("orders")
        mark(reports_folder(log), HTML, "tcp", GIVEN_UP, "its settings are wrong")
        with Landing(log, "http", ["orders"]) as landing:
            landing.land([Arrival("orders", b"tea")])
            with reported(log, "http", landing, lambda: Behind(2048, "bytes")):
                _, _, found = console.ask("GET", "/v1/bridges", **console.logged_in())
                assert {each["name"]: (each["state"], each["stored"]) for each in found} == {
                    HTML: ("given up", 0),
                    "http": ("running", 1),
                }
                page.goto(f"{console.url}/console/#/bridges")
                row = page.get_by_role("row").filter(has_text="orders")
                row.wait_for()
                assert "running" in row.inner_text()
                assert "2" in row.get_by_role("cell").nth(6).inner_text(), "how far it is behind"
                failed = page.get_by_role("row").filter(has_text="given up").inner_text()
                assert HTML in failed
                assert "its settings are wrong" in failed
                assert violations(page) == []
