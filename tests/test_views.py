"""Goal: a merged view holds, at every moment, what reading both parts from scratch, row by row, would give.

Method: random histories of rows, retractions, panes and tombstones, read in random pieces and compared with a plain
interpreter; and the typical cases, one by one.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.errors import InvalidInput, UnknownTopic
from millstream.log import EmbeddedLog

TABLE = "team string, total int, n int"
PANES = (
    "team string, window struct<start: timestamp, end: timestamp>, "
    "pane struct<timing: string, index: bigint>, weight int, total bigint"
)
Row = dict[str, Any]


def send(log: EmbeddedLog, topic: str, *rows: Row | None, key: str = "team", dead: str | None = None) -> None:
    with log.producer() as producer:
        for row in rows:
            if row is not None:
                producer.send(topic, row, key=str(row[key]))
        if dead is not None:
            producer.send(topic, None, key=dead)


def held(frame: pl.DataFrame) -> list[Row]:
    return frame.sort(frame.columns[0]).to_dicts()


def pane(team: str, minute: int, index: int, total: int, weight: int = 1) -> Row:
    start = datetime(2025, 6, 1, tzinfo=UTC) + timedelta(minutes=minute)
    window = {"start": start, "end": start + timedelta(minutes=1)}
    return {
        "team": team,
        "window": window,
        "pane": {"timing": "early", "index": index},
        "weight": weight,
        "total": total,
    }


# ---------------------------------------------------------------- typical cases


def test_the_live_row_wins_and_a_refresh_reads_only_what_is_new(log: EmbeddedLog) -> None:
    log.create_topic("live", schema=TABLE, partitions=3)
    batch = pl.DataFrame({"team": ["x", "y"], "total": [1, 2], "n": [1, 1]})
    send(log, "live", {"team": "y", "total": 20, "n": 2})
    with ms.merged(batch, "live", key="team", log=log) as view:
        assert held(view.frame) == [{"team": "x", "total": 1, "n": 1}, {"team": "y", "total": 20, "n": 2}]
        send(log, "live", {"team": "z", "total": 3, "n": 1}, {"team": "y", "total": 21, "n": 3})
        assert [row["total"] for row in held(view.frame)] == [1, 20]
        assert [row["total"] for row in held(view.refresh())] == [1, 21, 3]
        assert sum(view.offsets.values()) == 3
        before = view.refresh()
        assert view.refresh() is before  # nothing new, nothing done


def test_the_batch_part_can_be_a_topic_or_files(log: EmbeddedLog, tmp_path: Path) -> None:
    log.create_topic("live", schema=TABLE)
    log.create_topic("done", schema=TABLE)
    rows = [{"team": "x", "total": 1, "n": 1}, {"team": "y", "total": 2, "n": 1}]
    frame = pl.DataFrame(rows, schema={"team": pl.String, "total": pl.Int64, "n": pl.Int16})
    send(log, "done", rows[0], {"team": "y", "total": 0, "n": 0}, rows[1])
    for team, part in frame.partition_by("team", as_dict=True).items():
        folder = tmp_path / "plain"
        folder.mkdir(exist_ok=True)
        part.write_parquet(folder / f"part-{team[0]}.parquet")
        by_team = tmp_path / "by" / f"team={team[0]}"
        by_team.mkdir(parents=True)
        part.drop("team").write_parquet(by_team / "part-0.parquet")
    (tmp_path / "plain" / "_SUCCESS").touch()
    for batch in (
        "done",
        tmp_path / "plain",
        str(tmp_path / "by"),
        tmp_path / "plain" / "part-x.parquet",
        frame,
        frame.lazy(),
        frame.to_arrow(),
        pa.RecordBatch.from_pylist(rows),
    ):
        view = ms.merged(batch, "live", key=["team"], log=log)
        found = [{name: row[name] for name in ("team", "total", "n")} for row in held(view.frame)]
        assert found == (rows[:1] if str(batch).endswith(".parquet") else rows)


def test_disjoint_parts_are_combined(log: EmbeddedLog) -> None:
    log.create_topic("live", schema="team string, total int, n int, best int, seen string")
    batch = pl.DataFrame(
        {"team": ["x", "y", "w"], "total": [2**31 - 1, 5, None], "n": [1, 2, 1], "best": [7, 1, 1], "seen": ["a"] * 3}
    )
    send(
        log,
        "live",
        {"team": "x", "total": 9, "n": 9, "best": 9, "seen": "early"},
        {"team": "x", "total": 1, "n": 1, "best": 3, "seen": "b"},
        {"team": "z", "total": 4, "n": 1, "best": 4, "seen": "b"},
        {"team": "w", "total": 4, "n": 1, "best": 4, "seen": "b"},
    )
    view = ms.merged(batch, "live", key="team", combine={"total": "sum", "n": "sum", "best": "max"}, log=log)
    assert held(view.frame) == [
        {"team": "w", "total": 4, "n": 2, "best": 4, "seen": "b"},
        {"team": "x", "total": 2**31, "n": 2, "best": 7, "seen": "b"},
        {"team": "y", "total": 5, "n": 2, "best": 1, "seen": "a"},
        {"team": "z", "total": 4, "n": 1, "best": 4, "seen": "b"},
    ]


def test_the_pane_with_the_highest_index_is_current_and_the_key_is_known(log: EmbeddedLog) -> None:
    log.create_topic("live", schema=PANES)
    batch = pl.DataFrame([pane("x", 0, 0, 10), pane("x", 1, 0, 11)])
    send(log, "live", pane("x", 1, 0, 1), pane("x", 1, 2, 3), pane("x", 1, 1, 2), pane("y", 1, 0, 4))
    view = ms.merged(batch, "live", log=log)
    assert view.key == ["team", "window"]
    assert sorted(view.frame["total"]) == [3, 4, 10]
    assert "weight" not in view.frame.columns
    send(log, "live", pane("y", 1, 0, 4, -1), pane("y", 1, 1, 5), pane("x", 1, 2, 3, -1))
    assert sorted(view.refresh()["total"]) == [5, 10, 11]  # without its live row the batch row is there again


def test_a_key_whose_row_was_retracted_starts_over(log: EmbeddedLog) -> None:
    log.create_topic("live", schema=PANES)
    batch = pl.DataFrame([pane("x", 0, 0, 10)])
    send(log, "live", pane("x", 0, 3, 7), pane("x", 0, 3, 7, -1), pane("x", 0, 1, 5), pane("x", 0, 0, 4))
    view = ms.merged(batch, "live", log=log)
    assert view.frame["total"].to_list() == [5]
    send(log, "live", pane("x", 0, 0, 5, -1), pane("x", 0, 0, 5, -1))  # equal but for its pane; the second finds none
    assert view.refresh()["total"].to_list() == [10]


def test_a_live_row_of_weight_minus_one_retracts_an_equal_batch_row(log: EmbeddedLog) -> None:
    log.create_topic("live", schema="team string, weight int, total int, tags array<string>")
    batch = pl.DataFrame({"team": ["x", "y"], "total": [1, 2], "tags": [["a"], None]})
    send(log, "live", {"team": "x", "weight": -1, "total": 1, "tags": ["b"]})
    view = ms.merged(batch, "live", key="team", log=log)
    assert held(view.frame.select("team")) == [{"team": "x"}, {"team": "y"}]
    send(log, "live", {"team": "x", "weight": -1, "total": 1, "tags": ["a"]}, {"team": "y", "weight": -1, "total": 2})
    assert view.refresh().height == 0


def test_a_tombstone_deletes_from_both_parts(log: EmbeddedLog) -> None:
    log.create_topic("live", schema=TABLE, compaction=True, partitions=2)
    batch = pl.DataFrame({"team": ["x", "y"], "total": [1, 2], "n": [1, 1]})
    send(log, "live", {"team": "y", "total": 20, "n": 2}, dead="x")
    view = ms.merged(batch, "live", key="team", log=log)
    assert view.frame["team"].to_list() == ["y"]
    send(log, "live", dead="y")
    assert view.refresh().height == 0
    send(log, "live", {"team": "x", "total": 5, "n": 1})
    assert held(view.refresh()) == [{"team": "x", "total": 5, "n": 1}]


def test_a_column_called_weight_may_be_data(log: EmbeddedLog) -> None:
    log.create_topic("live", schema="id int, weight double")
    batch = pl.DataFrame({"id": [1], "weight": [-2.5]})
    with pytest.raises(InvalidInput, match="cannot be the weight"):
        ms.merged(batch, "live", key="id", log=log)
    send(log, "live", {"id": 2, "weight": -1.0}, key="id")
    view = ms.merged(batch, "live", key="id", weight=None, log=log)
    assert view.frame.sort("id")["weight"].to_list() == [-2.5, -1.0]


def test_a_topic_that_gets_a_column(log: EmbeddedLog) -> None:
    log.create_topic("live", schema="team string, total int")
    view = ms.merged(pl.DataFrame({"team": ["x"], "total": [1]}), "live", key="team", log=log)
    send(log, "live", {"team": "y", "total": 2})
    view.refresh()
    log.change_topic("live", schema=TABLE)
    send(log, "live", {"team": "z", "total": 3, "n": 7})
    assert [row["n"] for row in held(view.refresh())] == [None, None, 7]


def test_a_view_stays_with_the_version_it_began_with(log: EmbeddedLog) -> None:
    for name in ("live", "live.v2"):
        log.create_topic(name, schema=TABLE)
    send(log, "live.v2", {"team": "v2", "total": 1, "n": 1})
    view = ms.merged(pl.DataFrame({"team": ["x"], "total": [1], "n": [1]}), "live", key="team", log=log)
    log.switch("live", "live.v2")
    assert view.refresh()["team"].to_list() == ["x"]
    assert ms.merged(view.frame, "live", key="team", log=log).frame["team"].sort().to_list() == ["v2", "x"]


def test_the_usual_log_is_opened_and_closed(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_BROKER", str(log.path))
    log.create_topic("live", schema=TABLE)
    with ms.merged(pl.DataFrame({"team": ["x"], "total": [1], "n": [1]}), "live", key="team") as view:
        assert view.frame.height == 1


def test_mistakes_are_reported(log: EmbeddedLog, tmp_path: Path) -> None:
    log.create_topic("live", schema=TABLE)
    log.create_topic("bytes")
    batch = pl.DataFrame({"team": ["x"], "total": [1], "n": [1]})
    wrong: list[tuple[Any, str, dict[str, Any], str]] = [
        (batch, "live", {}, "so they need a key"),
        (batch, "live", {"key": "tem"}, "no column 'tem'"),
        (batch.drop("team"), "live", {"key": "team"}, "no column 'team'"),
        (batch, "live", {"key": []}, "a key must be one"),
        (batch, "bytes", {"key": "team"}, "has no schema"),
        ("bytes", "live", {"key": "team"}, "has no schema"),
        (batch, "live", {"key": "team", "combine": {"total": "mean"}}, "cannot be combined by 'mean'"),
        (batch, "live", {"key": "team", "combine": {"team": "sum"}}, "part of the key"),
        (batch, "live", {"key": "n", "combine": {"team": "sum"}}, "has no sum"),
        (batch, "live", {"key": "team", "combine": {"x": "sum"}}, "no column 'x' in both"),
        (batch.with_columns(total=pl.lit("many")), "live", {"key": "team"}, "column 'total' is String"),
        (tmp_path / "nothing", "live", {"key": "team"}, "no Parquet files"),
        (17, "live", {"key": "team"}, "cannot be a int"),
    ]
    for given_batch, live, settings, says in wrong:
        with pytest.raises(InvalidInput, match=says):
            ms.merged(given_batch, live, log=log, **settings)
    with pytest.raises(UnknownTopic):
        ms.merged(batch, "nowhere", key="team", log=log)


# ---------------------------------------------------------------- against a plain interpreter

# Few keys and values, so that rows meet each other.
KEYS = st.sampled_from(["a", "b"])
SMALL = st.integers(0, 1)
EVENT = st.one_of(
    st.fixed_dictionaries(
        {"team": KEYS, "minute": st.just(0), "index": SMALL, "total": SMALL, "weight": st.sampled_from([1, 1, -1])}
    ),
    st.fixed_dictionaries(
        {"team": KEYS, "minute": SMALL, "index": SMALL, "total": SMALL, "weight": st.sampled_from([1, -1])}
    ),
    st.fixed_dictionaries({"dead": KEYS}),
)


class Part:
    """One row per key, changed event by event."""

    def __init__(self) -> None:
        self.rows: dict[Any, Row] = {}

    def add(self, row: Row) -> None:
        key = row["team"], row["minute"]
        now = self.rows.get(key)
        if row["weight"] > 0 and (now is None or row["index"] >= now["index"]):
            self.rows[key] = row
        elif row["weight"] < 0 and now is not None and now["total"] == row["total"]:
            del self.rows[key]

    def delete(self, team: str) -> None:
        self.rows = {key: row for key, row in self.rows.items() if row["team"] != team}


def expected(batch: list[Row], live: list[Row], *, combine: bool) -> dict[Any, int]:
    old, new = Part(), Part()
    for event in batch:
        old.add(event)
    for event in live:
        if "dead" in event:
            old.delete(event["dead"])
            new.delete(event["dead"])
            continue
        key = event["team"], event["minute"]
        if not combine and event["weight"] < 0 and old.rows.get(key, {}).get("total") == event["total"]:
            del old.rows[key]
        new.add(event)
    totals = {key: row["total"] for key, row in old.rows.items()}
    for key, row in new.rows.items():
        totals[key] = row["total"] + (totals.get(key, 0) if combine else 0)
    return totals


def as_panes(events: list[Row]) -> list[Row]:
    return [pane(e["team"], e["minute"], e["index"], e["total"], e["weight"]) for e in events]


@given(
    batch=st.lists(EVENT.filter(lambda event: "dead" not in event), max_size=6),
    live=st.lists(st.lists(EVENT, max_size=8), max_size=4),
    combine=st.booleans(),
)
def test_a_view_is_what_reading_row_by_row_gives(
    batch: list[Row], live: list[list[Row]], combine: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with EmbeddedLog(tmp_path_factory.mktemp("view"), upkeep=False) as log:
        topic = log.create_topic("live", schema=PANES, partitions=2)
        assert topic.settings.schema is not None
        rows = pa.Table.from_pylist(as_panes(batch), schema=topic.settings.schema.arrow)
        # The batch result lies in a topic, so that its rows have the keys that tombstones name.
        log.create_topic("batch", schema=PANES)
        with log.producer() as producer:
            producer.send_batch("batch", rows, key="team")
        settings: dict[str, Any] = {"combine": {"total": "sum"} if combine else None, "log": log}
        view = ms.merged("batch", "live", **settings)
        for count, piece in enumerate(live, 1):
            with log.producer() as producer:
                for event in piece:
                    value = None if "dead" in event else as_panes([event])[0]
                    producer.send("live", value, key=event.get("dead") or event["team"])
            read = [event for part in live[:count] for event in part]
            wanted = expected(batch, read, combine=combine)
            for frame in (view.refresh(), ms.merged("batch", "live", **settings).frame):
                found = {(row["team"], row["window"]["start"].minute): row["total"] for row in frame.to_dicts()}
                assert found == wanted
                assert frame.height == len(wanted)
