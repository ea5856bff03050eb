"""Concurrent writers, threads and processes, also killed ones: their histories are checked against the store."""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from pathlib import Path

import pytest

import millstream as ms
from waiting import exit_code_of_child, until

from .conftest import Open
from .histories import check, write, write_in_process

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["millstream", "millstream.events.opening", __name__])


def test_fifty_threads_lose_no_update(open_store: Open, tmp_path: Path) -> None:
    """Goal: group commits keep the rules. Method: 50 threads on 5 streams, with two handles on the store."""
    stores = [open_store(), open_store()]
    diaries = [tmp_path / f"{number}.diary" for number in range(50)]
    threads = [
        threading.Thread(target=write, args=(stores[number % 2], f"w{number}", 4, 5, diary))
        for number, diary in enumerate(diaries)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert check(open_store(), diaries) >= 50 / 4


def processes(address: str, name: str, diaries: list[Path], appends: int, *, forever: bool = False) -> list:
    started = [
        context.Process(
            target=write_in_process, args=(address, name, f"p{number}", appends, 3, str(diary), forever), daemon=True
        )
        for number, diary in enumerate(diaries)
    ]
    for process in started:
        process.start()
    return started


def test_processes_lose_no_update(address: str, name: str, open_store: Open, tmp_path: Path) -> None:
    diaries = [tmp_path / f"{number}.diary" for number in range(3)]
    for process in processes(address, name, diaries, 15):
        assert exit_code_of_child(process, "a writer") == 0
    assert check(open_store(), diaries) >= 15


@pytest.mark.parametrize(
    "kills",
    [pytest.param(2, marks=pytest.mark.more), pytest.param(60, marks=[pytest.mark.soak, pytest.mark.timeout(900)])],
)
def test_killed_writers_leave_whole_appends(
    address: str, name: str, open_store: Open, tmp_path: Path, kills: int
) -> None:
    """Goal: a kill in an append, a snapshot or a flush leaves nothing torn, lost or doubled.

    Method: two writers at a time are killed after a random moment; the index is flushed every few events meanwhile.
    """
    ms.event_store(address, name).close()
    diaries: list[Path] = []
    for round_ in range(kills):
        pair = [tmp_path / f"{round_}.{number}.diary" for number in range(2)]
        started = [
            context.Process(target=write_flushing, args=(address, name, f"r{round_}.{number}", str(diary)), daemon=True)
            for number, diary in enumerate(pair)
        ]
        for process in started:
            process.start()
        until(lambda pair=pair, started=started: both_append(pair, started), "an append of each of the two writers")
        time.sleep(random.uniform(0, 0.3))
        for process in started:
            process.kill()
            process.join()
        diaries += pair
    assert check(open_store(), diaries) >= 2 * kills


def both_append(diaries: list[Path], writers: list) -> bool:
    assert all(writer.is_alive() for writer in writers), "a writer has ended before it was killed"
    return all(diary.exists() and '"done"' in diary.read_text() for diary in diaries)


def write_flushing(address: str, name: str, who: str, diary: str) -> None:
    from millstream.events import index

    index.FLUSH_EVENTS = 5
    write_in_process(address, name, who, 0, 4, diary, True)
