"""Rows made by the clock, and lines that came over a socket, can be read again exactly as they were."""

import socket
import threading
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

import millstream as ms
from millstream.errors import InvalidInput
from waiting import until

from .reading import dead, offsets, rows


def test_rows_of_a_rate_are_the_same_after_a_restart(open_):
    first = open_(ms.rate(1000), "value long, at timestamp")
    first.latest()
    assert first.wait({"rate": 5}, 60.0)
    end = first.limited({"rate": 0}, 6)
    assert end == {"rate": 6}
    made = rows(first, {"rate": 0}, end)
    assert [row["value"] for row in made] == list(range(6))
    assert {later["at"] - row["at"] for row, later in pairwise(made)} == {timedelta(milliseconds=1)}
    assert rows(open_(ms.rate(1000), "value long, at timestamp"), {"rate": 0}, end) == made


def test_a_rate_goes_with_the_clock(open_):
    source = open_(ms.rate(50), "value long")
    before = time.time()
    assert source.latest()["rate"] >= 1
    time.sleep(0.1)
    count = source.latest()["rate"]
    assert 1 <= count <= (time.time() - before) * 50 + 2
    assert source.at(datetime.now(UTC) + timedelta(hours=1))["rate"] >= 3600 * 50


def test_many_rows_of_a_rate_are_spread_over_tasks(open_):
    source = open_(ms.rate(1_000_000), "value long, at timestamp")
    tasks = source.slices({"rate": 0}, {"rate": 300_000}, 3)
    assert [sum(map(len, task)) for task in tasks] == [100_000] * 3
    assert offsets(source, start={"rate": 0}, end={"rate": 300_000}, tasks=3) == list(range(300_000))


@pytest.mark.parametrize("place", [ms.rate(1), ms.socket("localhost", 9)], ids=str)
def test_columns_that_are_not_there_are_refused(open_, place):
    with pytest.raises(InvalidInput, match="no column 'other'"):
        open_(place, "other string not null")
    with pytest.raises(InvalidInput, match="has another type"):
        open_(place, "at string")


class Server:
    """Sends given lines to its clients, one connection after the other."""

    def __init__(self, *answers):
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, args=[answers], daemon=True)
        self._thread.start()

    def _serve(self, answers):
        for answer in answers:
            connection, _ = self._listening.accept()
            with connection:
                connection.sendall(answer)
        self._listening.close()


def received(source, count):
    while source.latest()["0"] < count:
        assert source.wait({"0": source.latest()["0"]}, 30.0)
    return rows(source, {"0": 0}, {"0": count})


def test_lines_are_received_over_several_connections_and_can_be_read_again(open_):
    server = Server(b"one\r\ntwo\nthr", b"four\n\xff\n")
    source = open_(ms.socket("127.0.0.1", server.port), "value string, at timestamp")
    before = datetime.now(UTC)
    found = received(source, 5)
    assert [row["value"] for row in found] == ["one", "two", "thr", "four", "\ufffd"]
    assert all(before <= row["at"] <= datetime.now(UTC) for row in found)
    worker = open_(ms.socket("127.0.0.1", server.port), "value string, at timestamp")
    assert rows(worker, {"0": 0}, {"0": 5}) == found


def test_a_server_that_is_not_there_yet_is_waited_for(open_):
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    source = open_(ms.socket("127.0.0.1", port), "value string")
    assert source.latest() == {"0": 0}
    with socket.create_server(("127.0.0.1", port)) as listening:
        connection, _ = listening.accept()
        with connection:
            connection.sendall(b"late\n")
            assert received(source, 1) == [{"value": "late"}]


def test_a_line_without_end_is_one_dead_letter(open_):
    mebibyte = 1 << 20
    long = b"x" * (5 * mebibyte)
    exact = b"y" * mebibyte
    server = Server(b"one\n" + long + b"\ntwo\n" + exact + b"\n" + exact + b"y\nthree\n" + long, b"four\n")
    source = open_(ms.socket("127.0.0.1", server.port), "value string NOT NULL")
    found = received(source, 8)
    assert [row["value"] for row in found] == ["one", "two", exact.decode(), "three", "four"]
    letters = dead(source, start={"0": 0}, end={"0": 8})
    assert [letter["offset"] for letter in letters] == [1, 4, 6]
    assert letters[0]["reason"] == "a line is longer than 1 MiB and was dropped"
    assert letters[0]["topic"] == f"socket(127.0.0.1:{server.port})"
    assert len(rows(open_(ms.socket("127.0.0.1", server.port), "at timestamp"), {"0": 0}, {"0": 8})) == 5


def test_lines_that_are_not_kept_are_read_by_workers_of_the_same_run_only(open_, tmp_path):
    server = Server(b"one\ntwo\n")
    place = ms.socket("127.0.0.1", server.port, keep=None)
    source = open_(place, "value string, at timestamp")
    until(lambda: len(rows(source, {}, source.latest())) == 2, "both lines have come")
    end = source.limited({}, None)
    worker = open_(place, "value string")
    (task,) = source.slices({}, end, 1)
    found = [row["value"] for each in task for slab in worker.read(each) for row in slab.rows.to_pylist()]
    assert found == ["one", "two"]
    assert not any(tmp_path.rglob("*.log")), "nothing is on disk"
    source.close()
    again = open_(place, "value string")
    assert again.limited(end, None)["0"] > end["0"], "numbers go on"
    assert again.slices({}, end, 1) == [], "a repeated batch of an earlier run has no rows"
    assert [list(open_(place, "value string").read(each)) for each in task] == [[]]


def test_lines_that_are_not_kept_go_on_after_a_restart(open_):
    server = Server(b"one\n", b"two\n")
    place = ms.socket("127.0.0.1", server.port, keep=None)
    source = open_(place, "value string")
    assert source.wait({}, 60)
    done = source.limited({}, None)
    source.close()
    again = open_(place, "value string")
    assert again.wait(done, 60)
    end = again.limited(done, None)
    assert [row["value"] for row in rows(again, done, end)] == ["two"]
