"""What a job records of the changes that it writes to tables in databases."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from connectors.support import table, weights
from jobs.support import CAUGHT_UP, SCHEMA, put, scores
from millstream.connectors.catalog import Remembered
from millstream.jobs.results import table_changes
from millstream.jobs.results.table_changes import TableChanges, read_changes
from millstream.log import EmbeddedLog
from millstream.plan.nodes import Write
from serving.support import total, totals_flow


class Recorded:
    """The changes of one table, written batch by batch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output: Write = totals_flow(ms.sqlite(folder / "tables.db", "totals")).check()[0]
        self.changes = TableChanges(folder, folder)

    @property
    def table(self) -> Remembered:
        found = self.output.sink.remembered(self.output, self.folder)
        assert found is not None
        return found

    def write(self, batch: int, *rows: tuple[dict[str, Any], int], refused: tuple[int, ...] | None = ()) -> None:
        made = table(self.output.schema, [row for row, _ in rows])
        self.changes.note(self.output, batch, made, weights(*[weight for _, weight in rows]), refused)

    def read(self, key: str | None = None) -> list[tuple[int, Any, int]]:
        """Batch, row and weight, the oldest first."""
        found = read_changes(self.folder, self.table, key=key and json.dumps({"team": key}, separators=(",", ":")))
        return [(each.batch, None if each.row is None else json.loads(each.row), each.weight) for each in found][::-1]


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    made = Recorded(tmp_path)
    yield made
    made.changes.close()


def test_a_row_comes_right_after_the_one_that_it_replaces(recorded: Recorded) -> None:
    recorded.write(3, (total("red", 5), 1), (total("blue", 1), 1))
    recorded.write(4, (total("red", 5), -1), (total("blue", 1), -1), (total("blue", 2), 1), (total("red", 7), 1))
    assert recorded.read() == [
        (3, total("red", 5), 1),
        (3, total("blue", 1), 1),
        (4, total("red", 5), -1),
        (4, total("red", 7), 1),
        (4, total("blue", 1), -1),
        (4, total("blue", 2), 1),
    ]
    assert recorded.read("blue") == [(3, total("blue", 1), 1), (4, total("blue", 1), -1), (4, total("blue", 2), 1)]


def test_a_batch_that_is_repeated_is_recorded_once(recorded: Recorded) -> None:
    for _ in range(2):
        recorded.write(0, (total("red", 5), 1))
        recorded.write(1, (total("red", 5), -1), (total("red", 6), 1))
        recorded.changes.close()
        recorded.changes = TableChanges(recorded.folder, recorded.folder)
        recorded.write(1, (total("red", 5), -1), (total("red", 6), 1))
        assert recorded.read() == [(0, total("red", 5), 1), (1, total("red", 5), -1), (1, total("red", 6), 1)]


def test_rows_that_the_database_refused_are_not_recorded(recorded: Recorded) -> None:
    recorded.write(0, (total("red", 5), 1), (total("b\0d", 1), 1), refused=(1,))
    recorded.write(1, (total("blue", 5), 1), (total("b\0d", 1), 1), refused=None)
    assert recorded.read() == [(0, total("red", 5), 1), (1, 2, 0)], "of the second, only how many rows it has is known"


def test_of_a_large_batch_the_last_keys_are_recorded(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with the row that it replaces, which comes long before it."""
    monkeypatch.setattr(table_changes, "BATCH_MAX", 4)
    monkeypatch.setattr(table_changes, "KEPT", 7)
    gone = [(total(f"t{number}", 0), -1) for number in range(10)]
    come = [(total(f"t{number}", 1), 1) for number in range(10)]
    recorded.write(0, *gone, *come)
    assert recorded.read() == [
        (0, 16, 0),
        (0, total("t8", 0), -1),
        (0, total("t8", 1), 1),
        (0, total("t9", 0), -1),
        (0, total("t9", 1), 1),
    ]
    assert recorded.read("t8") == recorded.read()[:3], "what was left out may be of this key"
    before = recorded.read()
    recorded.write(1, (total("red", 1), 1), (total("blue", 1), 1), (total(None, 1), 1))
    assert recorded.read()[:4] == before[1:], "the newest 7 are kept"
    assert len(recorded.read()) == 7


def test_a_long_row_is_recorded_by_its_key(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_changes, "ROW_CHARACTERS_MAX", 23)
    recorded.write(0, (total("red", 5), 1), (total("r", 5), 1))
    assert recorded.read() == [(0, None, 1), (0, total("r", 5), 1)]
    assert recorded.read("red") == [(0, None, 1)]


def test_no_batch_fails_because_its_changes_cannot_be_recorded(
    recorded: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    (recorded.folder / table_changes.FILE).mkdir()
    recorded.write(0, (total("red", 5), 1))
    recorded.write(1, (total("red", 6), 1))
    assert [each.split(":")[0] for each in caplog.messages] == ["changes of the table 'totals' are not recorded"]
    assert recorded.read() == []


def test_topics_have_their_changes_already(tmp_path: Path) -> None:
    output = totals_flow("totals").check()[0]
    with closing(TableChanges(tmp_path, tmp_path)) as changes:
        changes.note(output, 0, table(output.schema, [total("red", 5)]), weights(1), ())
    assert list(tmp_path.iterdir()) == []


@contextmanager
def scored(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with EmbeddedLog(tmp_path / "log", upkeep=False) as log:
        log.create_topic("scores", schema=SCHEMA, partitions=1)
        put(log, "scores", [("ann", 1, 0), ("bob", 2, 1)])
        yield log


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("keeps", [True, False])
def test_a_job_records_what_it_writes(tmp_path: Path, keeps: bool) -> None:
    """A table, and a stream of which the newest row of each key is kept."""
    path = tmp_path / "tables.db"

    def run() -> Path:
        flow = ms.Flow("written")
        rows = scores(flow)
        rows.group_by("user").agg(total=ms.sum("n")).write(ms.sqlite(path, "totals"))
        rows.select("user", "at", "n").write(ms.sqlite(path, "newest", key="user"))
        return flow.run(broker=log.path, until=CAUGHT_UP, provenance=keeps).folder.path

    with scored(tmp_path) as log:
        folder = run()
        put(log, "scores", [("ann", 5, 2)])
        run()
    with sqlite3.connect(path) as database:
        assert sorted(database.execute("SELECT user, total FROM totals")) == [("ann", 6), ("bob", 2)]
    assert (folder / table_changes.FILE).exists() is keeps
    if not keeps:
        return
    found = {}
    for name, key in (("totals", ("user",)), ("newest", ("user",))):
        of = Remembered(name, "sqlite", str(path), key, None)
        found[name] = [(json.loads(each.row or ""), each.weight) for each in read_changes(folder, of)][::-1]
    assert found["totals"][-2:] == [({"user": "ann", "total": 1}, -1), ({"user": "ann", "total": 6}, 1)]
    assert sorted((row["user"], sign) for row, sign in found["totals"][:-2]) == [("ann", 1), ("bob", 1)]
    assert [(row["user"], row["n"], sign) for row, sign in found["newest"]] == [
        ("ann", 1, 1),
        ("bob", 2, 1),
        ("ann", 5, 1),
    ]
