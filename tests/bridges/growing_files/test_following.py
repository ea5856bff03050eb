"""Files that grow into a topic: whole lines, once each, through rotation, truncation, restarts and failures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from folders import in_memory
from millstream.bridges.growing_files.following import FolderFollower
from millstream.bridges.growing_files.positioned import PositionedLanding
from millstream.errors import InvalidInput, ProducerFenced, StorageError
from millstream.log import EmbeddedLog
from waiting import until

from ..support import records, values


@pytest.fixture
def lines(log: EmbeddedLog) -> EmbeddedLog:
    log.create_topic("lines")
    return log


class Following:
    """A follower that can be restarted, as after a crash."""

    def __init__(self, log: EmbeddedLog, *patterns: Path, bytes_max: int = 100) -> None:
        self._log, self._patterns, self._bytes_max = log, [str(pattern) for pattern in patterns], bytes_max
        self.restart()

    def restart(self) -> None:
        """The process before is not closed: it is fenced."""
        self.landing = PositionedLanding(self._log, "files", "lines")
        self.follower = FolderFollower(self.landing, self._patterns, bytes_max=self._bytes_max)

    def read(self) -> list[bytes]:
        while self.follower.step():
            continue
        return values(self._log, "lines")


@pytest.fixture
def app(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "app.log"


@pytest.fixture
def following(lines: EmbeddedLog, app: Path) -> Iterator[Following]:
    app.parent.mkdir()
    made = Following(lines, app.parent / "app.log*")
    yield made
    made.landing.close()


def append(path: Path, text: bytes) -> None:
    with path.open("ab") as file:
        file.write(text)


def test_only_whole_lines_are_stored(following: Following, app: Path, lines: EmbeddedLog) -> None:
    append(app, b"one\ntw")
    assert following.read() == [b"one"]
    assert following.follower.behind() == (2, "bytes")
    following.restart()  # in the middle of a line
    append(app, b"o\r\n\nthree\n")
    assert following.read() == [b"one", b"two", b"", b"three"]
    following.restart()
    assert len(following.read()) == 4
    assert records(lines, "lines")[0].headers == (("file", str(app).encode()),)


def test_rotation(following: Following, app: Path) -> None:
    append(app, b"one\n")
    following.read()
    append(app, b"two\n")  # not read yet
    app.rename(app.with_name("app.log.1"))
    append(app, b"three\n")
    assert sorted(following.read()) == [b"one", b"three", b"two"]
    following.restart()
    append(app.with_name("app.log.1"), b"late\n")
    assert sorted(following.read()) == [b"late", b"one", b"three", b"two"]


def test_a_deleted_file_is_read_to_its_end(lines: EmbeddedLog, app: Path) -> None:
    app.parent.mkdir()
    following = Following(lines, app)
    append(app, b"one\n")
    following.read()
    append(app, b"two\nlast without a line break")
    app.unlink()
    append(app, b"new\n")
    assert sorted(following.read()) == [b"last without a line break", b"new", b"one", b"two"]
    assert len(following.landing.positions()) == 1
    following.landing.close()


def test_truncation_and_another_file_of_the_same_inode(following: Following, app: Path) -> None:
    append(app, b"one\ntwo\n")
    following.read()
    app.write_bytes(b"3\n")
    assert following.read()[2:] == [b"3"]
    following.restart()
    app.write_bytes(b"another beginning\n")  # longer than what was read
    assert following.read()[3:] == [b"another beginning"]


@pytest.mark.parametrize("is_killed", [False, True])
def test_files_with_a_marker_are_read_when_it_is_there_and_put_away(
    lines: EmbeddedLog, app: Path, tmp_path: Path, is_killed: bool
) -> None:
    """Method: in one case the process ends between storing a file and moving it."""
    archive, day = tmp_path / "archive", app.parent / "day.csv"
    app.parent.mkdir()
    archive.mkdir()
    (archive / "day.csv").write_text("of an earlier day")

    def follower(landing: PositionedLanding) -> FolderFollower:
        return FolderFollower(landing, [str(app.parent)], marker=".done", archive=archive)

    with PositionedLanding(lines, "files", "lines") as landing:
        following = follower(landing)
        append(day, b"one\ntwo")
        assert following.step() == 0
        day.with_name("day.csv.done").touch()
        assert [following.step(), following.step()] == [4, 3]
        if not is_killed:
            following.run(once=True)
    with PositionedLanding(lines, "files", "lines") as landing:
        follower(landing).run(once=True)
        assert landing.positions() == {}
    assert values(lines, "lines") == [b"one", b"two"]
    assert list(app.parent.iterdir()) == []
    assert (archive / "day.csv.1").read_bytes() == b"one\ntwo"


def test_only_files_with_a_marker_can_be_put_away(following: Following, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="may still grow"):
        FolderFollower(following.landing, ["logs"], archive=tmp_path)


def test_lines_that_are_too_long(following: Following, app: Path, lines: EmbeddedLog) -> None:
    append(app, b"x" * 150 + b"\nshort\n" + b"y" * 3_000_000)
    assert following.read() == [b"short"]
    following.restart()  # in the middle of the long line
    append(app, b"yyy\nend\n")
    assert following.read() == [b"short", b"end"]
    assert [letter["value"] for letter in values(lines, "lines.dead")] == [b"x" * 100, b"y" * 100]


def test_lines_that_do_not_fit_the_topic(log: EmbeddedLog, app: Path) -> None:
    log.create_topic("lines", schema="n int")
    app.parent.mkdir()
    append(app, b'{"n": 1}\n{"n": "x"}\n{"n": 2}\n')
    following = Following(log, app)
    assert following.read() == [{"n": 1}, {"n": 2}]
    (letter,) = values(log, "lines.dead")
    assert (letter["value"], letter["topic"]) == (b'{"n": "x"}', str(app))
    assert following.landing.counts.summary() == "stored 2, duplicates 0, dead letters 1"
    following.landing.close()


def test_a_failure_loses_nothing(following: Following, app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    land = PositionedLanding.land
    fails = iter([True, True])

    def broken(self: PositionedLanding, *given: object) -> None:
        if next(fails, False):
            raise StorageError("the disk is away")
        land(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(PositionedLanding, "land", broken)
    append(app, b"one\ntwo\n")
    following.follower.run(once=True)
    assert following.read() == [b"one", b"two"]


def test_an_old_process_is_fenced(following: Following, app: Path) -> None:
    append(app, b"one\n")
    old = following.follower
    following.restart()
    with pytest.raises(ProducerFenced):
        old.step()
    assert following.read() == [b"one"]


def test_no_patterns_are_refused(following: Following) -> None:
    with pytest.raises(InvalidInput, match="no files"):
        FolderFollower(following.landing, [])


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.binary(max_size=5)),
            st.tuples(st.just("read"), st.none()),
            st.tuples(st.just("restart"), st.none()),
            st.tuples(st.just("rotate"), st.none()),
        ),
        max_size=12,
    )
)
def test_every_line_is_stored_once(steps: list[tuple[str, bytes | None]]) -> None:
    """Method: writes, reads, rotations and restarts in any order; then all lines of all files are in the topic."""
    with in_memory() as folder, EmbeddedLog(folder / "log", upkeep=False) as log:
        log.create_topic("lines")
        app = folder / "app.log"
        following = Following(log, folder / "app.log*")
        rotated = 0
        for step, content in steps:
            if step == "write":
                append(app, (content or b"").replace(b"\r", b"r"))
            elif step == "read":
                following.read()
            elif step == "restart":
                following.restart()
            elif app.exists():
                rotated += 1
                app.rename(folder / f"app.log.{rotated}")
        found = following.read()
        written = [path.read_bytes() for path in folder.glob("app.log*")]
        expected = [line for content in written for line in content.split(b"\n")[:-1]]
        assert sorted(found) == sorted(expected)
        following.landing.close()


@pytest.mark.more
def test_the_command_survives_kills(log: EmbeddedLog, tmp_path: Path) -> None:
    log.create_topic("lines")
    logs = tmp_path / "logs"
    logs.mkdir()
    command = [sys.executable, "-m", "millstream.cli", "listen", "files", "lines", str(logs)]
    for round in range(3):
        process = subprocess.Popen([*command, "--log", str(tmp_path / "log")], stderr=subprocess.DEVNULL)
        append(logs / "a.log", b"".join(b"%d\n" % (100 * round + number) for number in range(100)))

        def is_some_stored(process: subprocess.Popen[bytes] = process, before: int = 100 * round) -> bool:
            assert process.poll() is None, "the command has ended"
            return len(values(log, "lines")) > before

        until(is_some_stored, "some lines are stored")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run([*command, "--once", "--log", str(tmp_path / "log")], check=True, capture_output=True)
    assert values(log, "lines") == [b"%d" % number for number in range(300)]
