"""State on disk answers as a dictionary would, whatever is lost, replayed, reopened or shared by chance."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from millstream.errors import DamagedState, StorageError
from millstream.state import runs as runs_module
from millstream.state import tables as tables_module
from millstream.state.hashing import key_hashes
from millstream.state.runs import Applied, Runs
from millstream.state.tables import NEVER, Marks
from soak import examples

KEYS = ["user", "place"]
EMPTY = {
    "windows": pl.DataFrame(
        schema={
            "user": pl.Int64,
            "place": pl.String,
            "start": pl.Int64,
            "names": pl.List(pl.String),
            "event": pl.Int64,
            "clock": pl.Int64,
            "hold": pl.Int64,
        }
    ),
    "counters": pl.DataFrame(schema={"user": pl.Int64, "place": pl.String, "seen": pl.Int64, "nothing": pl.Null}),
}
MARKS = {
    "windows": Marks(pl.col("event"), pl.col("clock"), pl.col("hold")),
    "counters": Marks(pl.lit(None), pl.lit(None)),
}
START = (-NEVER, -NEVER)

Row = tuple[Any, ...]
Key = tuple[Any, ...]


def nothing_kept() -> Iterator[bytes]:
    raise AssertionError("the files of this version should be there")
    yield b""


def frame_of(table: str, rows: list[Row]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=EMPTY[table].schema, orient="row")


def keys_of(keys: list[Key]) -> pl.DataFrame:
    return pl.DataFrame(keys, schema={"user": pl.Int64, "place": pl.String}, orient="row")


def counted(frame: pl.DataFrame) -> Counter[str]:
    return Counter(repr(row) for row in frame.rows())


def window(user: int | None, place: str | None = "x", start: int = 0, **more: int | None) -> Row:
    return (user, place, start, ["a", None], more.get("event"), more.get("clock"), more.get("hold"))


@pytest.fixture(autouse=True)
def _no_open_runs() -> None:
    runs_module.opened.clear()


def put(runs: Runs, keys: list[Key], rows: list[Row]) -> Applied:
    runs.held({"windows": keys_of(keys)}, START, START)
    return runs.apply({"windows": frame_of("windows", rows)}, MARKS)


def held(runs: Runs, keys: list[Key], before: tuple[int, int] = START, now: tuple[int, int] = START) -> list[Row]:
    return runs.held({"windows": keys_of(keys)}, before, now)["windows"].rows()


# ---------------------------------------------------------------- against a dictionary


users, places = st.none() | st.integers(0, 12), st.none() | st.sampled_from(["", "a", "a long name of a place"])
keys = st.tuples(users, places)
times = st.none() | st.integers(0, 30)


def weak_hashes(frame: pl.DataFrame, columns: list[str]) -> npt.NDArray[np.uint64]:
    return key_hashes(frame, columns) % np.uint64(5)


def few_hashes(frame: pl.DataFrame, columns: list[str]) -> npt.NDArray[np.uint64]:
    return key_hashes(frame, columns)


class StateMachine(RuleBasedStateMachine):
    """The model keeps, for every version, the rows of every key, and the deltas that lead to it."""

    hashes = staticmethod(few_hashes)

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="runs-"))
        self.real = tables_module.key_hashes
        tables_module.key_hashes = self.hashes
        self.runs = Runs(self.folder, KEYS, EMPTY)
        self.runs.open(None, nothing_kept)
        self.version: str | None = None
        self.model: dict[str, dict[Key, list[Row]]] = {"windows": {}, "counters": {}}
        self.deltas: list[bytes] = []
        self.past: list[tuple[str | None, dict[str, dict[Key, list[Row]]], list[bytes]]] = []
        self.now = (0, 0)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            tables_module.key_hashes = self.real
            shutil.rmtree(self.folder, ignore_errors=True)

    @rule(
        asked=st.fixed_dictionaries(
            {}, optional={"windows": st.lists(keys, max_size=8), "counters": st.lists(keys, max_size=3)}
        ),
        forward=st.tuples(st.integers(0, 6), st.integers(0, 6)),
        news=st.lists(st.tuples(st.integers(0, 20), times, times, times), max_size=10),
        kept=st.sampled_from(["all", "none", "some"]),
        survives=st.booleans(),
    )
    def step(
        self,
        asked: dict[str, list[Key]],
        forward: tuple[int, int],
        news: list[tuple[int, int | None, int | None, int | None]],
        kept: str,
        survives: bool,
    ) -> None:
        before = self.now
        now = (before[0] + forward[0], before[1] + forward[1])
        held = self.runs.held({name: keys_of(found) for name, found in asked.items()}, before, now)
        touched = {name: self.touched(name, asked.get(name, []), before, now) for name in EMPTY}
        for name, frame in held.items():
            expected = [row for key in touched[name] for row in self.model[name].get(key, [])]
            assert counted(frame) == counted(frame_of(name, expected))
            assert frame.schema == EMPTY[name].schema
        changes: dict[str, dict[Key, list[Row]]] = {"windows": {}, "counters": {}}
        for name, found in touched.items():
            for number, key in enumerate(found):
                if kept == "all" or (kept == "some" and number % 2):
                    changes[name][key] = list(self.model[name].get(key, []))
        if touched["windows"]:
            for place, (start, event, clock, hold) in enumerate(news):
                key = touched["windows"][place % len(touched["windows"])]
                row = (*key, start, None if start > 15 else ["n"] * (start % 3), event, clock, hold)
                changes["windows"].setdefault(key, []).append(row)
        for key in touched["counters"]:
            changes["counters"][key] = [(*key, len(news), None)]
        frames = {
            name: frame_of(name, [row for rows in found.values() for row in rows]) for name, found in changes.items()
        }
        applied = self.runs.apply(frames, MARKS)
        if not survives:  # the step is lost before its version is known: it comes again
            self.runs = Runs(self.folder, KEYS, EMPTY)
            self.runs.open(self.version, lambda: iter(self.deltas))
            return
        self.past.append((self.version, self.model, self.deltas))
        self.model = {name: dict(found) for name, found in self.model.items()}
        for name, found in touched.items():
            for key in found:
                self.model[name].pop(key, None)
                if changes[name].get(key):
                    self.model[name][key] = changes[name][key]
        self.version, self.now = applied.version, now
        if applied.delta:
            self.deltas = [*self.deltas, applied.delta]
        rows = [row for found in self.model["windows"].values() for row in found]
        assert applied.next_event == min((row[4] for row in rows if row[4] is not None), default=NEVER)
        assert applied.next_clock == min((row[5] for row in rows if row[5] is not None), default=NEVER)
        assert applied.hold == min((row[6] for row in rows if row[6] is not None), default=NEVER)
        assert applied.rows == sum(len(found) for table in self.model.values() for found in table.values())

    def touched(self, name: str, asked: list[Key], before: tuple[int, int], now: tuple[int, int]) -> list[Key]:
        found = dict.fromkeys(asked)
        if name == "windows":
            for key, rows in self.model[name].items():
                for row in rows:
                    event_due = row[4] is not None and before[0] < row[4] <= now[0]
                    if event_due or (row[5] is not None and before[1] < row[5] <= now[1]):
                        found[key] = None
        return list(found)

    @rule(cold=st.booleans())
    def reopen(self, cold: bool) -> None:
        if cold:
            runs_module.opened.clear()
        self.runs = Runs(self.folder, KEYS, EMPTY)
        self.runs.open(self.version, nothing_kept)

    @rule(
        spared=st.lists(st.booleans(), min_size=7, max_size=7),
        where=st.floats(0, 1, exclude_max=True),
        how=st.sampled_from(["lost", "emptied", "cut", "flipped"]),
    )
    def damage(self, spared: list[bool], where: float, how: str) -> None:
        """Some files are gone or wrong, as after a power cut."""
        runs_module.opened.clear()
        self.runs = Runs(self.folder, KEYS, EMPTY)
        files = sorted(self.folder.glob("*"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for number, path in enumerate(files):
            if spared[number % len(spared)]:
                continue
            content = path.read_bytes() or b"-"
            at = int(where * len(content))
            path.unlink()
            if how == "emptied":
                path.write_bytes(b"")
            elif how == "cut":
                path.write_bytes(content[:at])
            elif how == "flipped":
                path.write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
        self.runs.open(self.version, lambda: iter(self.deltas))

    @rule()
    def lose_all(self) -> None:
        runs_module.opened.clear()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.runs = Runs(self.folder, KEYS, EMPTY)
        self.runs.open(self.version, lambda: iter(self.deltas))

    @rule()
    def snapshot(self) -> None:
        self.deltas = list(self.runs.snapshot())

    @precondition(lambda self: self.past)
    @rule(steps=st.integers(1, 3))
    def roll_back(self, steps: int) -> None:
        for _ in range(min(steps, len(self.past))):
            self.version, self.model, self.deltas = self.past.pop()
        self.runs.open(self.version, lambda: iter(self.deltas))

    @invariant()
    def everything_is_there(self) -> None:
        if not hasattr(self, "model"):
            return
        for name, model in self.model.items():
            asked = keys_of(list(model))
            found = self.runs.held({name: asked}, START, START)[name]
            assert counted(found) == counted(frame_of(name, [row for rows in model.values() for row in rows]))
            for key, rows in model.items():  # rows of one key stay in their order
                kept = [row for row in found.rows() if row[:2] == key]
                assert kept == rows


class WeakStateMachine(StateMachine):
    """Every hash is that of several keys."""

    hashes = staticmethod(weak_hashes)


@pytest.mark.property
@pytest.mark.parametrize("machine", [StateMachine, WeakStateMachine])
def test_runs_hold_what_a_dictionary_holds(machine: type[StateMachine]) -> None:
    run_state_machine_as_test(machine, settings=examples(50, stateful_step_count=25))


# ---------------------------------------------------------------- tables with keys of their own

SEEN = {"seen": pl.DataFrame(schema={"user": pl.Int64, "value": pl.String, "mask": pl.UInt64})}
SEEN_KEYS = {"seen": ["user", "value"]}
entries = st.dictionaries(st.tuples(st.integers(0, 3), st.none() | st.sampled_from("abc")), st.integers(0, 9))


def seen_frame(rows: dict[Key, int]) -> pl.DataFrame:
    return pl.DataFrame([(*key, mask) for key, mask in rows.items()], schema=SEEN["seen"].schema, orient="row")


@pytest.mark.parametrize("hashes", [few_hashes, weak_hashes])
def test_what_is_found_stays_unless_it_is_replaced(hashes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps ask for some entries and put others of them; in the end each has what was put last."""
    monkeypatch.setattr(tables_module, "key_hashes", hashes)

    @given(st.lists(st.tuples(entries, entries), max_size=8))
    def check(steps: list[tuple[dict[Key, int], dict[Key, int]]]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            runs = Runs(Path(folder), ["user"], SEEN, SEEN_KEYS)
            runs.open(None, nothing_kept)
            model: dict[Key, int] = {}
            deltas: list[bytes] = []
            version = None
            for looked_at, put_ in steps:
                asked = {**looked_at, **put_}
                found = runs.held({"seen": seen_frame(asked)}, START, START)["seen"]
                assert {row[:2]: row[2] for row in found.rows()} == {k: m for k, m in model.items() if k in asked}
                applied = runs.apply({"seen": seen_frame(put_)}, {})
                model |= put_
                assert applied.rows == len(model)
                version, deltas = applied.version, deltas + ([applied.delta] if applied.delta else [])
            for given_, files in ((lambda: iter(deltas), False), (lambda: iter(deltas), True)):
                if not files:
                    shutil.rmtree(folder, ignore_errors=True)
                    runs_module.opened.clear()
                again = Runs(Path(folder), ["user"], SEEN, SEEN_KEYS)
                again.open(version, given_)
                everything = again.held({"seen": seen_frame(model)}, START, START)["seen"]
                assert {row[:2]: row[2] for row in everything.rows()} == model
            Path(folder).mkdir(exist_ok=True)

    check()


# ---------------------------------------------------------------- one thing at a time


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


def test_old_versions_are_deleted_and_who_has_them_open_goes_on(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
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
