"""A process is killed before each step of appends, snapshots, flushes and archiving: nothing is lost, nothing is twice.

A child appends to two streams of aggregates with snapshots, archives in between, and notes what it begins and what was
answered. Killed at step 1, 2, 3 …, its notes are checked against the store. The next process then appends the same
again, as after an error with an unclear outcome, and goes on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import pytest

import millstream as ms
from kafka_cluster import KafkaCluster
from log.disks import DeadlyDisk, Steps
from log.processes import run
from millstream.events import index, kafka_log
from millstream.events.store import EventStore
from millstream.log import Broker, EmbeddedLog
from millstream.log.storage import archive

from .histories import Counter, check

TEXT = {"text": "x" * 1500}
SETTINGS = {"segment_bytes": 4096, "retention_bytes": 4096}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def watch_files(step: Callable[[], None]) -> None:
    """A step before a file is opened for writing, renamed or deleted, and in the middle of each copy to the archive."""

    def noticed(event: str, given: tuple[Any, ...]) -> None:
        opens = event == "open" and isinstance(given[2], int) and given[2] & WRITING
        if opens or event in ("os.rename", "os.remove"):
            step()

    def copied(old: Any, new: Any, _: int) -> None:
        content = old.read()
        new.write(content[: len(content) // 2])
        new.flush()
        step()
        new.write(content[len(content) // 2 :])

    sys.addaudithook(noticed)
    archive.shutil.copyfileobj = copied  # type: ignore[assignment]


def work(store: EventStore, diary: TextIO, archived: Callable[[], None]) -> None:
    """Three rounds: two appends to one stream, one of which leads to a snapshot, and one to both."""

    def note(**line: Any) -> None:
        diary.write(json.dumps(line) + "\n")
        diary.flush()

    def append(*streams: str) -> None:
        counters = [store.load(Counter, stream) for stream in streams]
        for counter in counters:
            for number in (1, 2):
                name = f"{counter.stream}.{counter.version + 1}.{number}"
                counter.record(ms.Event("Counted", TEXT, id=name))
        expected = {each.stream: each.version - 2 for each in counters}
        note(begun={each.stream: [event.id for event in each.pending] for each in counters}, expected=expected)
        if len(counters) == 1:
            store.save(counters[0])
        else:
            store.append_together(ms.Append(each.stream, each.pending, expected[each.stream]) for each in counters)
        note(done={each.stream: each.version for each in counters})

    for _ in range(3):
        append("a")
        append("a", "b")
        append("b")
        archived()


def in_a_folder_until(folder: str, diary: str, last: int) -> None:
    index.FLUSH_EVENTS = 5
    disk = DeadlyDisk()
    log = EmbeddedLog(folder, disk=disk, upkeep=False)
    store = ms.event_store(log, "s")
    step = disk.step = Steps(last)
    store._index._db.set_trace_callback(step)
    with Path(diary).open("a") as notes:
        watch_files(step)
        work(store, notes, partial(log.clean, "s"))


def on_kafka_until(address: str, name: str, diary: str, last: int) -> None:
    """Steps are those of a transaction: before it begins, before and after each record, before and after its end."""
    index.FLUSH_EVENTS = 5
    step = Steps(last)

    def stepping(owner: Any, method: str) -> None:
        whole = getattr(owner, method)

        def called(*args: Any, **more: Any) -> Any:
            step()
            done = whole(*args, **more)
            step()
            return done

        setattr(owner, method, called)

    for owner, method in (
        (kafka_log.Transactions, "begin"),
        (kafka_log.Transactions, "commit"),
        (kafka_log.KafkaEventLog, "_produce"),
        (index.Index, "save_snapshot"),
        (index.Index, "flush"),
    ):
        stepping(owner, method)
    with Path(diary).open("a") as notes:
        work(ms.event_store(address, name), notes, lambda: None)


def check_and_go_on(broker: str | Broker, name: str, diaries: list[Path]) -> None:
    """What was begun last may be recorded or not; appended again, it is recorded once."""
    with ms.event_store(broker, name) as store:
        check(store, diaries)
        lines = [json.loads(line) for line in diaries[-1].read_text().splitlines()]
        if lines and "begun" in lines[-1]:
            cut = lines[-1]
            again = [
                ms.Append(stream, [ms.Event("Counted", TEXT, id=each) for each in ids], cut["expected"][stream])
                for stream, ids in cut["begun"].items()
            ]
            done = {each.stream: each.version for each in store.append_together(again)}
            assert done == {stream: cut["expected"][stream] + len(ids) for stream, ids in cut["begun"].items()}
            with diaries[-1].open("a") as file:
                file.write(json.dumps({"done": done}) + "\n")
        check(store, diaries)


STRIDE_OF_A_SHORT_RUN = 47
"""Of the shortest: from a minute per property on, there is a kill before every step."""
STRIDES = [
    pytest.param(97, id="few"),
    pytest.param(23, id="some", marks=pytest.mark.more),
    pytest.param(1, id="every", marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
]


@pytest.mark.parametrize("stride", STRIDES)
def test_a_kill_before_a_step_loses_and_doubles_nothing(
    tmp_path: Path, stride: int, rounds: Callable[[int, int], int]
) -> None:
    if stride == 1:
        stride = STRIDE_OF_A_SHORT_RUN // rounds(STRIDE_OF_A_SHORT_RUN, 1)
    last, code = 1, -signal.SIGKILL
    while code == -signal.SIGKILL:
        folder, diary = tmp_path / f"log{last}", tmp_path / f"{last}.diary"
        with EmbeddedLog(folder, upkeep=False) as log:
            with ms.event_store(log, "s"):
                log.change_topic("s", **SETTINGS, retention_archive=tmp_path / f"archive{last}")
            code = run(in_a_folder_until, str(folder), str(diary), last)
            check_and_go_on(log, "s", [diary])
            work_on = tmp_path / f"{last}.next.diary"
            with ms.event_store(log, "s") as store, work_on.open("a") as notes:
                work(store, notes, partial(log.clean, "s"))
            check_and_go_on(log, "s", [diary, work_on])
            assert log.topic("s").partition(0).own_start_offset() > 0  # some of it was read from the archive
        last += stride
    assert code == 0
    assert last > 100


@pytest.mark.more
def test_a_kill_before_a_step_on_kafka_loses_and_doubles_nothing(
    kafka: KafkaCluster, name: str, tmp_path: Path
) -> None:
    last, code, address = 1, -signal.SIGKILL, f"kafka://{kafka.bootstrap}"
    while code == -signal.SIGKILL:
        own, diaries = f"{name}-{last}", [tmp_path / f"{last}.diary", tmp_path / f"{last}.next.diary"]
        ms.event_store(address, own).close()
        code = run(on_kafka_until, address, own, str(diaries[0]), last)
        check_and_go_on(address, own, diaries[:1])
        with ms.event_store(address, own) as store, diaries[1].open("a") as notes:
            work(store, notes, lambda: None)
        check_and_go_on(address, own, diaries)
        last += 29
    assert code == 0
    assert last > 60
