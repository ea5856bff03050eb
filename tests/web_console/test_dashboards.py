"""Dashboards of a flow's file: described, kept with the job's plan, and shown live in a real browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import millstream as ms
from millstream.errors import InvalidInput
from millstream.plan.shown import dashboards
from serving.support import total

from .axe import violations
from .conftest import Console
from .flows import HTML, planned, pumps_flow
from .pictures import picture
from .test_table_changes import totals

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture(autouse=True)
def none_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the dashboards that other tests have built."""
    monkeypatch.setattr(dashboards, "_built", {})


def described() -> None:
    ms.dashboard(
        "pumps",
        ms.panel("line", "Litres per minute", "litres", x="window.start", y="litres", by="pump"),
        ms.panel("bar", "By pump", "litres", x="pump", y="litres"),
        ms.panel("number", "Newest", "litres", y="litres"),
        ms.panel("table", "Rows", "litres", columns=["pump", "litres"], rows=5),
        ms.panel("heat", "Heat", "litres", x="window.start", y="litres", by="pump"),
        ms.panel("search", "Search", "litres"),
        ms.panel("table", "Levels", "levels"),
    )


@pytest.mark.parametrize(
    ("kind", "given", "what"),
    [
        ("pie", {}, "there is no panel 'pie'"),
        ("line", {"y": "a"}, "a line panel needs x"),
        ("heat", {"x": "a", "y": "b"}, "a heat panel needs by"),
        ("bar", {}, "a bar panel needs x and y"),
        ("number", {}, "a number panel needs y"),
        ("table", {"rows": 0}, "a panel shows 1 to 200 records, not 0"),
    ],
)
def test_wrong_panels_are_refused_where_they_are_written(kind: Any, given: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidInput, match=what) as raised:
        ms.panel(kind, "title", "topic", **given)
    assert __file__ in str(raised.value.where)
    with pytest.raises(InvalidInput, match="a dashboard has a name and panels"):
        ms.dashboard("empty")


def test_dashboards_are_answered_once_a_job_has_started(console: Console) -> None:
    session = console.logged_in()
    assert console.ask("GET", "/v1/dashboards", **session)[2] == []
    described()
    planned(console, pumps_flow())
    assert console.ask("GET", "/v1/dashboards", **session)[2] == ["pumps"]
    found = console.ask("GET", "/v1/dashboards/pumps", **session)[2]
    kinds = ["line", "bar", "number", "table", "heat", "search", "table"]
    assert (found["job"], [each["kind"] for each in found["panels"]]) == ("pumps", kinds)
    assert console.ask("GET", "/v1/dashboards/other", **session)[0] == 404


def of_a_table(console: Console, page: Page) -> None:
    """A panel over a table has the newest row of each key."""
    with ms.connect(console.log) as log, log.producer() as producer:
        log.create_topic("levels", partitions=1, schema="pump string, litres int", compaction=True)
        for pump, litres in (("a", 1), ("b", 2), ("a", 3)):
            producer.send("levels", {"pump": pump, "litres": litres}, pump)
        producer.flush()
        levels = page.get_by_role("region", name="Levels")
        levels.get_by_role("row", name="b 2").wait_for()
        assert [row.inner_text().split() for row in levels.get_by_role("row").all()[1:]] == [["a", "3"], ["b", "2"]]
        producer.send("levels", None, "b")
        producer.flush()
        levels.get_by_role("row", name="b 2").wait_for(state="detached")


@pytest.mark.more
def test_a_dashboard_in_the_browser(console: Console, page: Page) -> None:
    described()
    planned(console, pumps_flow())

    def send(minutes: range) -> None:
        with ms.connect(console.log) as log, log.producer() as producer:
            for minute in minutes:
                for pump in (1, 2, 3):
                    window = {"start": f"2026-01-31T12:{minute:02}:00Z"}
                    value = {"pump": f"pump {pump}", "litres": 10.0 * pump + minute, "window": window}
                    producer.send("litres", {**value, "weight": 1})

    with ms.connect(console.log) as log:
        schema = "pump string, litres double, window struct<start: string>, weight int"
        log.create_topic("litres", partitions=1, schema=schema)
    send(range(10))
    page.get_by_role("link", name="Dashboards").click()
    page.get_by_role("link", name="pumps").click()
    page.get_by_role("img", name="Litres per minute: 3 lines").wait_for()
    page.locator(".big", has_text="39").wait_for()
    picture(page, "dashboard")
    assert violations(page) == []
    page.get_by_role("region", name="Heat").get_by_role("row", name="pump 2").get_by_role("cell", name="29").wait_for()
    page.get_by_label("Text").fill("pump 3")
    page.get_by_role("button", name="Search").click()
    page.get_by_text("10 found in 30 records").wait_for()
    send(range(10, 12))
    page.locator(".big", has_text="41").wait_for()
    with ms.connect(console.log) as log, log.producer() as producer:  # a retraction is not drawn
        producer.send("litres", {"pump": "pump 3", "litres": 41.0, "window": {"start": ""}, "weight": -1})
        producer.send("litres", {"pump": "pump 3", "litres": 77.0, "window": {"start": ""}, "weight": 1})
        producer.send("litres", {"pump": "pump 3", "litres": 77.5, "window": {"start": ""}, "weight": -1})
    page.locator(".big", has_text="77").wait_for()
    of_a_table(console, page)
    with ms.connect(console.log) as log, log.producer() as producer:
        producer.send("litres", {"pump": HTML, "litres": 1.0, "window": {"start": HTML}, "weight": 1})
    page.get_by_role("cell", name=HTML).first.wait_for()
    assert "taken over" not in page.title()


@pytest.mark.more
def test_panels_over_a_table_in_a_database(console: Console, page: Page) -> None:
    """They have the newest row of each key, from the changes that the job has recorded."""
    ms.dashboard(
        "teams",
        ms.panel("table", "Rows", "totals"),
        ms.panel("bar", "By team", "totals", x="team", y="total"),
        ms.panel("search", "Search", "totals"),
    )
    planned(console, pumps_flow())
    with totals(console) as job:
        page.goto(f"{console.url}/console/#/dashboards/teams")
        rows = page.get_by_role("region", name="Rows")
        rows.get_by_role("row", name="red 5").wait_for()
        job.write((total("red", 5), -1), (total("red", 7), 1), (total("blue", 1), -1))
        rows.get_by_role("row", name="red 7").wait_for()
        assert rows.get_by_role("row").count() == 2, "the heading, and no deleted row"
        page.get_by_label("Text").fill("blue")
        page.get_by_role("button", name="Search").click()
        page.get_by_text("0 found in 5 records").wait_for()
        page.get_by_label("Text").fill("red")
        page.get_by_role("button", name="Search").click()
        page.get_by_text("1 found in 5 records").wait_for()
        assert violations(page) == []
