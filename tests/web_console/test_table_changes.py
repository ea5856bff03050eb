"""Tables in databases: their changes as they come, and the history of a key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

import millstream as ms
from connectors.support import table, weights
from millstream.jobs.results.table_changes import TableChanges
from millstream.log import EmbeddedLog
from serving.support import Job, total, totals_flow

from .axe import violations
from .conftest import Console
from .flows import HTML, write_plan_of
from .pictures import picture

if TYPE_CHECKING:
    from playwright.sync_api import Page


class RecordingJob(Job):
    """As jobs do that run on Spark."""

    def __init__(self, log: EmbeddedLog, flow: ms.Flow) -> None:
        super().__init__(log, flow)
        self._changes, self._number = TableChanges(self.folder, log.path), -1

    def write(self, *changes: tuple[dict[str, Any], int]) -> None:
        super().write(*changes)
        self._number += 1
        for output in self.outputs:
            rows = table(output.schema, [row for row, _ in changes])
            self._changes.note(output, self._number, rows, weights(*[weight for _, weight in changes]), ())

    def close(self) -> None:
        super().close()
        self._changes.close()


@contextmanager
def totals(console: Console, *, flow: ms.Flow | None = None) -> Iterator[RecordingJob]:
    with ms.connect(console.log) as log:
        assert isinstance(log, EmbeddedLog)
        job = RecordingJob(log, flow or totals_flow(ms.sqlite(console.log.parent / "tables.db", "totals")))
        job.write((total("red", 5), 1), (total("blue", 1), 1))
        yield job
        job.close()


def changes(console: Console, name: str = "totals", **asked: Any) -> tuple[int, Any]:
    given = {each if each in ("text", "limit") else f"key.{each}": value for each, value in asked.items()}
    status, _, answer = console.ask("GET", f"/v1/tables/{name}/changes?{urlencode(given)}", **console.logged_in())
    return status, answer


def signed(answer: Any) -> list[tuple[str, Any]]:
    return [("0+-"[each["weight"]], each["row"]) for each in answer["changes"]]


def test_changes_are_the_newest_first(console: Console) -> None:
    with totals(console) as job:
        job.write((total("red", 5), -1), (total("red", 7), 1))
        status, answer = changes(console)
        assert status == 200
        assert signed(answer) == [
            ("+", total("red", 7)),
            ("-", total("red", 5)),
            ("+", total("blue", 1)),
            ("+", total("red", 5)),
        ]
        assert [each["batch"] for each in answer["changes"]] == [1, 1, 0, 0]
        assert answer["complete"] is True
        assert signed(changes(console, team="blue")[1]) == [("+", total("blue", 1))]
        assert signed(changes(console, text='"TOTAL":7')[1]) == [("+", total("red", 7))]
        assert signed(changes(console, text="BLUE")[1]) == [("+", total("blue", 1))]
        assert changes(console, team="green")[1] == {"changes": [], "complete": True, "scanned": 0}
        assert changes(console, other="x")[0] == 400
        assert changes(console, "nothing")[0] == 404


@pytest.mark.more
def test_changes_of_a_table_in_postgres(console: Console, dsn: str) -> None:
    with totals(console, flow=totals_flow(ms.postgres(dsn, "totals"))) as job:
        job.write((total("red", 5), -1), (total("red", 7), 1))
        assert signed(changes(console, team="red")[1]) == [
            ("+", total("red", 7)),
            ("-", total("red", 5)),
            ("+", total("red", 5)),
        ]
        assert console.ask("GET", "/v1/tables/totals?team=red", **console.logged_in())[0] == 200


def test_a_newest_row_replaces_the_one_before(console: Console) -> None:
    """Where a job writes rows that replace others, and no retractions."""
    flow = ms.Flow("newest")
    flow.read("scores", "team string, total int").write(ms.sqlite(console.log.parent / "t.db", "totals", key="team"))
    with totals(console, flow=flow) as job:
        job.write((total("red", 6), 1))
        assert signed(changes(console, team="red")[1]) == [
            ("+", total("red", 6)),
            ("-", total("red", 5)),
            ("+", total("red", 5)),
        ]


def test_only_the_newest_are_sent(console: Console) -> None:
    with totals(console) as job:
        job.write(*((total(f"team {number}", number), 1) for number in range(150)))
        answer = changes(console)[1]
        assert len(answer["changes"]) == 100
        assert [len(changes(console, limit=limit)[1]["changes"]) for limit in (3, 1000)] == [3, 152]
        assert changes(console, limit="x")[0] == 400
        assert answer["complete"] is False
        assert signed(changes(console, text="team 3")[1]) == [
            ("+", total(f"team {number}", number)) for number in (*range(39, 29, -1), 3)
        ], "a text is searched in all that are kept"


def test_the_changes_of_a_topic_are_its_records(console: Console) -> None:
    with totals(console, flow=totals_flow("totals")):
        status, answer = changes(console)
    assert status == 400
    assert answer["error"]["next"] == "GET /v1/topics/totals/records"


def test_masked_columns_are_hidden_and_their_history_can_be_followed(console: Console) -> None:
    with totals(console) as job, pytest.MonkeyPatch.context() as patch:
        flow = totals_flow(ms.sqlite(console.log.parent / "tables.db", "totals"))
        patch.setattr("millstream.jobs.versions.plan_document.masked_columns", lambda: ["team"])
        write_plan_of(job.folder, flow)
        answer = changes(console)[1]
        assert "red" not in str(answer)
        blue = answer["changes"][0]["key"]["team"]
        assert blue.startswith("•••")
        assert answer["changes"][0]["row"] == {"team": blue, "total": 1}
        assert [each["key"] for each in changes(console, team=blue)[1]["changes"]] == [{"team": blue}]
        assert changes(console, text="red")[1]["changes"] == []
        missing = console.ask("GET", "/v1/tables/totals?team=green", **console.logged_in())
        assert missing[0] == 404
        assert "keys that exist" not in str(missing[2])


@pytest.mark.more
def test_a_table_in_a_database_in_the_browser(console: Console, page: Page) -> None:
    """A key, its history, the changes of all keys as they come, and a filter."""
    with totals(console) as job:
        job.write((total(HTML, 1), 1))
        page.goto(f"{console.url}/console/#/tables/totals")
        list_ = page.get_by_role("region", name="Changes")
        list_.get_by_role("row", name='+ blue {"team":"blue","total":1}').wait_for()
        job.write((total("red", 5), -1), (total("red", 7), 1))
        list_.get_by_role("row", name='+ red {"team":"red","total":7}').wait_for()
        list_.get_by_role("row", name='\N{MINUS SIGN} red {"team":"red","total":5}').wait_for()
        page.get_by_label("Filter").fill("blue")
        list_.get_by_role("row", name="red").first.wait_for(state="detached")
        list_.get_by_role("row", name="blue").wait_for()
        assert list_.get_by_role("row").count() == 2
        page.get_by_label("Filter").fill("")
        list_.get_by_role("button", name="blue").click()
        page.get_by_role("heading", name="The history of blue").wait_for()
        list_.get_by_role("row", name="red").first.wait_for(state="detached")
        page.get_by_role("button", name="All keys").click()
        list_.get_by_role("row", name="red").first.wait_for()
        page.get_by_label("team", exact=True).fill("red")
        page.get_by_role("button", name="Look up").press("Enter")
        page.get_by_role("heading", name="The history of red").wait_for()
        page.get_by_role("region", name="The current row").get_by_role("row", name="total 7").wait_for()
        list_.get_by_role("row", name="blue").first.wait_for(state="detached")
        list_.get_by_role("row", name="red").first.wait_for()
        assert list_.get_by_role("row").count() == 4
        picture(page, "table-in-database")
        job.write((total("red", 7), -1))
        list_.get_by_role("row", name='\N{MINUS SIGN} red {"team":"red","total":7}').wait_for()
        page.get_by_text("all of them are shown").wait_for()
        assert violations(page) == []
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert "taken over" not in page.title()
