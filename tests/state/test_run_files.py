"""State on disk answers as a dictionary would, whatever is lost, replayed, reopened or shared by chance."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from millstream.errors import DamagedState, StorageError
from millstream.state import run_files as runs_module
from millstream.state import tables as tables_module
from millstream.state.run_files import Runs
from millstream.state.tables import NEVER, Marks

from .run_rows import EMPTY, KEYS, START, held, keys_of, nothing_kept, put, window


@pytest.fixture(autouse=True)
def _no_open_runs() -> None:
    runs_module.opened.clear()


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    made = Runs(tmp_path / "group", KEYS, EMPTY)
    made.open(None, nothing_kept)
    return made


def files(runs: Runs) -> set[Path]:
    return set((runs._folder).glob("*"))


def test_at_first_nothing_is_held_and_nothing_is_written(runs: Runs) -> None:
    assert held(runs, [(1, "x")], START, (NEVER, NEVER)) == []
    assert files(runs) == set()
    applied = runs.apply({}, {})
    assert (applied.next_event, applied.next_clock, applied.hold) == (NEVER, NEVER, NEVER)
    assert (applied.delta, applied.rows, applied.delta_rows) == (b"", 0, 0)
    again = Runs(runs._folder, KEYS, EMPTY)
    again.open(applied.version, nothing_kept)
    assert held(again, [(1, "x")]) == []


def test_only_the_keys_asked_for_are_given(runs: Runs) -> None:
    rows = [window(1, start=5), window(2), window(1, start=3), window(None), window(1, None)]
    applied = put(runs, [(1, "x"), (2, "x"), (None, "x"), (1, None)], rows)
    assert (applied.rows, applied.delta_rows) == (5, 5)
    assert held(runs, [(1, "x"), (7, "x")]) == [rows[0], rows[2]]
    assert held(runs, [(None, "x")]) == [rows[3]]
    assert held(runs, [(None, None)]) == []


def test_due_is_what_lies_after_before_and_up_to_now(runs: Runs) -> None:
    rows = [window(1, event=10), window(1, start=1, event=90), window(2, event=11), window(3, clock=10), window(4)]
    applied = put(runs, [(user, "x") for user in range(5)], rows)
    assert (applied.next_event, applied.next_clock) == (10, 10)
    assert sorted(held(runs, [], (9, 0), (10, 0))) == rows[:2]
    assert held(runs, [], (10, 0), (11, 0)) == [rows[2]]
    assert held(runs, [], (11, 9), (12, 10)) == [rows[3]]
    assert held(runs, [], (11, 10), (12, 1000)) == []


def test_the_end_of_time_is_a_deadline_and_none_is_not(runs: Runs) -> None:
    rows = [window(1, event=NEVER), window(2)]
    assert put(runs, [(1, "x"), (2, "x")], rows).next_event == NEVER
    assert held(runs, [], START, (NEVER, NEVER)) == [rows[0]]


def test_a_deadline_that_was_replaced_is_not_due(runs: Runs) -> None:
    put(runs, [(user, "x") for user in range(100)], [window(user, event=user, hold=user) for user in range(100)])
    applied = put(runs, [(user, "x") for user in range(90)], [window(0, event=500, hold=400)])
    assert (applied.next_event, applied.hold, applied.rows) == (90, 90, 11)
    assert held(runs, [], (-1, 0), (90, 0)) == [window(90, event=90, hold=90)]
    assert held(runs, [(5, "x")]) == []


def test_rows_of_keys_that_were_not_asked_for_are_refused(runs: Runs) -> None:
    with pytest.raises(ValueError, match="windows"):
        put(runs, [(1, "x")], [window(2)])


def test_a_step_that_changes_nothing_keeps_the_version(runs: Runs) -> None:
    first = put(runs, [(1, "x")], [window(1, event=7)])
    before = files(runs)
    second = put(runs, [(2, "x")], [])
    assert (second.version, second.delta, second.next_event, second.rows) == (first.version, b"", 7, 1)
    assert files(runs) == before


def test_when_all_is_deleted_nothing_stays(runs: Runs) -> None:
    keys = [(user, "x") for user in range(1000)]
    put(runs, keys, [window(user) for user in range(1000)])
    for start in range(0, 1000, 50):
        applied = put(runs, keys[start : start + 50], [])
    assert applied.rows == 0
    assert list(runs.snapshot()) == []
    assert runs._tables.tables["windows"].entries == []


def test_runs_stay_few_and_what_is_written_follows_what_is_touched(runs: Runs) -> None:
    keys = [(user, "x") for user in range(20_000)]
    put(runs, keys, [window(user) for user in range(20_000)])
    for step in range(100):
        before = files(runs)
        put(runs, keys[step : step + 1], [window(step, start=step)])
        assert sum(path.stat().st_size for path in files(runs) - before) < 50_000
        assert len(runs._tables.tables["windows"].entries) <= tables_module.RUNS_MAX
    assert sorted((row[0], row[2]) for row in held(runs, keys[:101])) == [*((n, n) for n in range(100)), (100, 0)]


def test_old_versions_are_deleted_and_open_readers_continue(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_module, "YOUNG_SECONDS", 0.0)
    monkeypatch.setattr(runs_module, "MAPPED_BYTES", 0)
    monkeypatch.setattr(runs_module, "TIDYING", frozenset("0123456789abcdef"))
    keys = [(user, "x") for user in range(100)]
    first = put(runs, keys, [window(user) for user in range(100)])
    other = Runs(runs._folder, KEYS, EMPTY)
    runs_module.opened.clear()
    other.open(first.version, nothing_kept)
    versions = [put(runs, keys, [window(user, start=step) for user in range(100)]).version for step in range(20)]
    assert {path.stem for path in runs._folder.glob("*.json")} == set(versions[-3:])
    assert len(list(runs._folder.glob("*.arrow"))) == 3
    assert len(held(other, keys)) == 100
    runs_module.opened.clear()
    for step, version in [(19, versions[-1]), (17, versions[-3])]:
        runs.open(version, nothing_kept)
        assert {row[2] for row in held(runs, keys)} == {step}


def test_a_young_file_that_no_version_names_is_left_alone(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_module, "TIDYING", frozenset("0123456789abcdef"))
    put(runs, [(1, "x")], [window(1)])
    (runs._folder / "other.arrow").write_bytes(b"of a version that is about to be named")
    for _ in range(5):
        put(runs, [(1, "x")], [window(1)])
    assert (runs._folder / "other.arrow").exists()


def test_a_step_that_could_not_be_written_can_be_tried_again(tmp_path: Path) -> None:
    (tmp_path / "group").write_text("a file where the folder should be")
    runs = Runs(tmp_path / "group", KEYS, EMPTY)
    runs.open(None, nothing_kept)
    with pytest.raises(StorageError, match="cannot be written"):
        put(runs, [(1, "x")], [window(1)])
    (tmp_path / "group").unlink()
    applied = put(runs, [(1, "x")], [window(1, start=4)])
    assert applied.rows == 1
    assert held(runs, [(1, "x")]) == [window(1, start=4)]


def test_a_damaged_delta_is_named(runs: Runs) -> None:
    good = put(runs, [(1, "x")], [window(1)])
    for broken in (good.delta[:-1], b"MSd1", b"-" * 100, good.delta[:60] + b"\xff" + good.delta[61:]):
        fresh = Runs(runs._folder / "other", KEYS, EMPTY)
        with pytest.raises(DamagedState, match="change 1 of the state"):
            fresh.open(good.version, lambda broken=broken: iter([good.delta, broken]))
        fresh.open(good.version, lambda: iter([good.delta]))
        assert held(fresh, [(1, "x")]) == [window(1)]
        shutil.rmtree(runs._folder / "other")


def test_deltas_of_other_columns_are_refused(runs: Runs) -> None:
    applied = put(runs, [(1, "x")], [window(1)])
    for changed in ({"windows": EMPTY["windows"].drop("start")}, {"counters": EMPTY["counters"].drop("seen")}):
        others = Runs(runs._folder, KEYS, {**EMPTY, **changed})
        if "windows" in changed:
            with pytest.raises(DamagedState, match="the columns are user, place, start"):
                others.open(applied.version, lambda: iter([applied.delta]))
        else:  # nothing is held in that table yet
            others.open(applied.version, nothing_kept)
            assert held(others, [(1, "x")]) == [window(1)]
    without = Runs(runs._folder, KEYS, {"counters": EMPTY["counters"]})
    with pytest.raises(DamagedState, match="'windows'"):
        without.open(applied.version, lambda: iter([applied.delta]))


def test_a_snapshot_comes_in_pieces_that_replace_all_deltas(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_module, "DELTA_BYTES", 10_000)
    keys = [(user, "x") for user in range(3000)]
    put(runs, keys, [window(user, event=user) for user in range(3000)])
    applied = put(runs, keys[:1000], [window(user, start=1) for user in range(500)])
    pieces = list(runs.snapshot())
    assert len(pieces) > 10
    assert max(map(len, pieces)) < 20_000
    rebuilt = Runs(runs._folder / "other", KEYS, EMPTY)
    rebuilt.open(applied.version, lambda: iter(pieces))
    assert sorted(held(rebuilt, keys)) == sorted(held(runs, keys))
    later = put(rebuilt, [], [])
    assert (later.rows, later.next_event) == (2500, 1000)


def test_without_keys_there_is_one() -> None:
    empty = {"counter": pl.DataFrame(schema={"seen": pl.Int64})}
    marks = {"counter": Marks(pl.col("seen"), pl.lit(None))}
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder), [], empty)
        runs.open(None, nothing_kept)
        for asked in (pl.DataFrame(), pl.DataFrame({"any": [1, 2]})):
            runs.held({"counter": asked}, START, START)
            runs.apply({"counter": pl.DataFrame({"seen": [3, 4]})}, marks)
            assert runs.held({"counter": asked}, START, START)["counter"]["seen"].to_list() == [3, 4]
        assert runs.held({"counter": pl.DataFrame({"any": []})}, START, START)["counter"].is_empty()
        assert runs.held({}, (2, 0), (3, 0))["counter"]["seen"].to_list() == [3, 4]
        assert runs.apply({}, marks).rows == 2
        runs.held({"counter": pl.DataFrame()}, START, START)
        assert runs.apply({"counter": empty["counter"]}, marks).rows == 0


def test_every_type_comes_back_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_module, "MAPPED_BYTES", 0)
    frame = pl.DataFrame(
        {
            "key": [1.5, None, float("nan")],
            "wide": pl.Series([1 << 100, None, -1], dtype=pl.Int128),
            "text": ["a", None, "long enough not to be kept in place"],
            "bytes": [b"\x00", None, b"b"],
            "money": pl.Series(["1.50", None, "-2"]).cast(pl.Decimal(20, 2)),
            "moment": pl.Series([0, None, 1]).cast(pl.Datetime("us", "UTC")),
            "span": pl.Series([0, None, 1]).cast(pl.Duration("us")),
            "day": pl.Series([0, None, 1]).cast(pl.Date),
            "choice": pl.Series(["x", None, "y"], dtype=pl.Enum(["y", "x"])),
            "kind": pl.Series(["x", None, "y"], dtype=pl.Categorical),
            "parts": [{"a": 1, "b": ["c"]}, None, {"a": None, "b": []}],
            "list": [[{"n": 1}], None, []],
            "yes": [True, None, False],
            "nothing": [None, None, None],
            "small": pl.Series([1, None, 2], dtype=pl.Int16),
        }
    )
    frame = frame.sort("key")
    for columns in (frame, frame.drop("wide")):
        runs = Runs(tmp_path / str(columns.width), ["key"], {"all": columns.clear()})
        runs.open(None, nothing_kept)
        runs.held({"all": columns}, START, START)
        applied = runs.apply({"all": columns}, {})
        runs_module.opened.clear()
        again = Runs(runs._folder, ["key"], {"all": columns.clear()})
        again.open(applied.version, nothing_kept)
        assert again.held({"all": columns}, START, START)["all"].sort("key").equals(columns)
        rebuilt = Runs(runs._folder / "other", ["key"], {"all": columns.clear()})
        rebuilt.open(applied.version, lambda delta=applied.delta: iter([delta]))
        given = rebuilt.held({"all": columns}, START, START)["all"]
        assert given.sort("key").equals(columns)
        assert given.schema == columns.schema


def test_few_runs_stay_open(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_module, "CACHED_RUNS", 4)
    for step in range(20):
        put(runs, [(step, "x")], [window(step)])
    assert len(runs_module.opened) == 4
    assert len(held(runs, [(step, "x") for step in range(20)])) == 20


def test_keys_of_a_narrower_type_find_their_rows(runs: Runs) -> None:
    put(runs, [(1, "x")], [window(1)])
    narrow = keys_of([(1, "x")]).with_columns(pl.col("user").cast(pl.Int16))
    assert runs.held({"windows": narrow}, START, START)["windows"].rows() == [window(1)]


def test_keys_that_share_a_hash_by_chance_leave_each_other_alone(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables_module, "key_hashes", lambda frame, keys: np.zeros(len(frame), np.uint64))
    put(runs, [(1, "x")], [window(1, event=5, hold=3)])
    assert held(runs, [(2, "x")]) == []
    applied = put(runs, [(2, "x")], [window(2, event=7, hold=6)])
    assert (applied.next_event, applied.hold, applied.rows) == (5, 3, 2)
    assert held(runs, [(1, "x")]) == [window(1, event=5, hold=3)]
    assert held(runs, [], (5, 0), (7, 0)) == [window(2, event=7, hold=6)]
    applied = put(runs, [(2, "x")], [])
    assert (applied.next_event, applied.hold, applied.rows) == (5, 3, 1)
    assert held(runs, [(1, "x"), (2, "x")]) == [window(1, event=5, hold=3)]


def test_a_flipped_bit_anywhere_in_a_file_is_found(runs: Runs) -> None:
    applied = put(runs, [(1, "x")], [window(1, event=5)])
    written = {path: path.read_bytes() for path in files(runs)}
    for path, content in written.items():
        for at in range(0, len(content), 97):
            for other, whole in written.items():  # a rebuilt version has files of its own
                other.write_bytes(whole)
            path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            runs_module.opened.clear()
            rebuilt: list[bytes] = []
            again = Runs(runs._folder, KEYS, EMPTY)
            again.open(applied.version, lambda rebuilt=rebuilt: rebuilt.append(applied.delta) or rebuilt)
            assert rebuilt == [applied.delta]
            assert held(again, [(1, "x")]) == [window(1, event=5)]
