"""Compressed files and archives in a watched folder: every line once, through restarts, and never more than allowed."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from folders import in_memory
from millstream.bridges.growing_files import packed as packed_files
from millstream.bridges.growing_files import unpacking
from millstream.bridges.growing_files.following import FolderFollower
from millstream.bridges.growing_files.positioned import PositionedLanding
from millstream.log import EmbeddedLog

from ..support import records, values
from .archives import ARCHIVES, COMPRESS, packed, put, tarred, zipped

MEMBERS = {"a.log": b"one\ntwo\n", "sub/b.log": b"three\nlast without a line break"}
LINES = [b"one", b"two", b"three", b"last without a line break"]


class Watching:
    """A watched folder whose bridge can be restarted, as after a crash."""

    def __init__(self, log: EmbeddedLog, folder: Path) -> None:
        self.log, self.folder = log, folder
        folder.mkdir()
        log.create_topic("lines")
        self.landing: PositionedLanding | None = None
        self.restart()

    def restart(self, bytes_max: int = 100, **more: Any) -> None:
        if self.landing is not None:
            self.landing.close()
        self.landing = PositionedLanding(self.log, "files", "lines")
        self.follower = FolderFollower(
            self.landing, [str(self.folder)], bytes_max=bytes_max, **{"unpack": True, **more}
        )

    def put(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        put(path, content)
        return path

    def read(self) -> list[bytes]:
        self.follower.run(once=True)
        return values(self.log, "lines")

    def letters(self) -> list[tuple[bytes, str, str]]:
        if "lines.dead" not in self.log.topics():
            return []
        return [(each["value"], each["topic"], each["reason"]) for each in values(self.log, "lines.dead")]


@pytest.fixture
def watching(log: EmbeddedLog, tmp_path: Path) -> Iterator[Watching]:
    made = Watching(log, tmp_path / "in")
    yield made
    assert made.landing is not None
    made.landing.close()


@pytest.mark.parametrize("ending", ARCHIVES)
def test_every_file_of_an_archive_is_read(watching: Watching, ending: str) -> None:
    path = watching.put(f"day{ending}", packed(ending, MEMBERS))
    assert watching.read() == LINES
    headers = [dict(record.headers) for record in records(watching.log, "lines")]
    assert [each["member"] for each in headers] == [b"a.log", b"a.log", b"sub/b.log", b"sub/b.log"]
    assert {each["file"] for each in headers} == {str(path).encode()}
    watching.restart()
    assert watching.read() == LINES


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_compressed_file_is_read_and_may_grow(watching: Watching, ending: str) -> None:
    """Compressed files of these kinds can be put one after the other."""
    first, second = COMPRESS[ending](b"one\ntw"), COMPRESS[ending](b"o\nthree\n")
    path = watching.put(f"app.log{ending}", first + second)
    assert watching.read() == [b"one", b"two", b"three"]
    with path.open("ab") as file:
        file.write(COMPRESS[ending](b"four\n"))
    assert watching.read()[3:] == [b"four"]
    assert "member" not in dict(records(watching.log, "lines")[0].headers)
    assert watching.letters() == []


def test_without_the_option_they_are_left_alone(watching: Watching, caplog: pytest.LogCaptureFixture) -> None:
    watching.put("app.log.gz", gzip.compress(b"one\n"))
    watching.restart(unpack=False)
    assert watching.read() == []
    assert caplog.text.count("--unpack") == 1


def test_a_file_that_is_still_written_is_not_read(watching: Watching, monkeypatch: pytest.MonkeyPatch) -> None:
    path = watching.folder / "app.log.gz"
    content = gzip.compress(b"one\ntwo\n")
    path.write_bytes(content[:10])
    assert watching.follower.step() == 0
    path.write_bytes(content)
    assert watching.follower.step() == 0
    monkeypatch.setattr(packed_files, "SETTLED_SECONDS", 0.0)
    assert watching.follower.step()
    assert values(watching.log, "lines") == [b"one", b"two"]


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".zst", ".tar", ".tar.gz", ".zip"])
def test_half_a_file_is_a_dead_letter_until_the_rest_comes(watching: Watching, ending: str) -> None:
    lines = [b"%032x" % (number * 7**60 % 2**120) for number in range(20_000)]
    content = packed(ending, {"a.log": b"".join(line + b"\n" for line in lines)})
    path = watching.put(f"day{ending}", content[: len(content) // 2])
    found = watching.read()
    assert found == lines[: len(found)]
    ((_, origin, reason),) = watching.letters()
    assert origin.startswith(str(path))
    assert "unpacked" in reason
    watching.restart()
    assert watching.read() == found
    assert len(watching.letters()) == 1
    with path.open("ab") as file:
        file.write(content[len(content) // 2 :])
    assert watching.read() == lines
    assert len(watching.letters()) == 1


def test_what_is_not_an_archive(watching: Watching) -> None:
    paths = [
        watching.put(f"bad{ending}", b"these are not the bytes of one\n" * 40) for ending in (*COMPRESS, *ARCHIVES)
    ]
    good = watching.put("good.log", b"one\n")
    assert watching.read() == [b"one"]
    assert sorted(origin for _, origin, _ in watching.letters()) == sorted(str(path) for path in paths)
    assert watching.read() == [b"one"]
    assert len(watching.letters()) == len(paths)
    assert good.exists()


def bomb(kind: str) -> bytes:
    zeros = bytes(1 << 20)
    if kind == "zip":
        return zipped({f"{number}": zeros for number in range(4)})
    if kind == "tar.gz":
        return gzip.compress(tarred({"zeros": zeros * 4}))
    if kind == "tar":  # whose content is said to be there
        made = io.BytesIO()
        header = tarfile.TarInfo("zeros")
        header.size = 1 << 40
        made.write(header.tobuf())
        return made.getvalue()
    return gzip.compress(zeros * 4)


@pytest.mark.parametrize("kind", ["gz", "tar.gz", "tar", "zip"])
def test_a_bomb_is_refused(watching: Watching, kind: str) -> None:
    path = watching.put(f"bomb.{kind}", bomb(kind))
    watching.put("good.zip", zipped(MEMBERS))
    watching.restart(unpacked_bytes_max=3 << 20)
    assert watching.read() == LINES
    reasons = [(origin, reason) for _, origin, reason in watching.letters() if "3,145,728" in reason]
    assert [origin.partition(": ")[0] for origin, _ in reasons] == [str(path)]


def test_too_many_files_and_a_name_that_is_too_long(watching: Watching, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "MEMBERS_MAX", 2)
    watching.put("many.zip", zipped({str(number): b"x\n" for number in range(3)}))
    watching.put("many.tar", tarred({str(number): b"y\n" for number in range(3)}))
    watching.put("name.tar", tarred({"n" * (1 << 21): b"z\n"}))
    assert watching.read() == [b"y", b"y"]
    assert sorted(reason for *_, reason in watching.letters()) == [
        "a header of it is larger than 1,048,576 bytes",
        "it has more than 2 files",
        "it has more than 2 files",
    ]


def test_what_cannot_be_read_in_an_archive(watching: Watching) -> None:
    inner = zipped({"inner.gz": gzip.compress(b"x"), "good": b"one\n"})
    watching.put("nested.zip", inner)
    watching.put("lzma.zip", zipped({"a": b"two\n"}, zipfile.ZIP_LZMA))
    assert watching.read() == [b"one"]
    letters = sorted((origin.rpartition("/")[2], reason) for _, origin, reason in watching.letters())
    assert letters == [
        ("lzma.zip: a", "it is compressed by a method that is not supported"),
        ("nested.zip: inner.gz", "an archive, or a compressed file, inside of another one is not unpacked"),
    ]


def test_lines_that_are_too_long(watching: Watching) -> None:
    watching.put("day.zip", zipped({"a": b"x" * 3_000_000 + b"\nshort\n", "b": b"y" * 150}))
    assert watching.read() == [b"short"]
    assert [value for value, *_ in watching.letters()] == [b"x" * 100, b"y" * 100]


def test_one_with_a_marker_is_put_away(watching: Watching, tmp_path: Path) -> None:
    path = watching.put("day.tar.gz", packed(".tar.gz", MEMBERS))
    watching.restart(marker=".done", archive=tmp_path / "stored")
    assert watching.read() == []
    path.with_name("day.tar.gz.done").touch()
    watching.follower.step()
    assert watching.read() == LINES
    assert (tmp_path / "stored" / "day.tar.gz").exists()
    assert list(watching.folder.iterdir()) == []
    assert watching.landing is not None
    assert watching.landing.positions() == {}


@given(
    st.lists(st.lists(st.binary(max_size=6), max_size=8), min_size=1, max_size=3),
    st.sampled_from([*ARCHIVES, *COMPRESS]),
    st.lists(st.booleans(), max_size=12),
)
def test_restarts_at_any_step(files: list[list[bytes]], ending: str, restarts: list[bool]) -> None:
    """Method: pieces of a few bytes are read, with restarts between them; in the end every line is there once."""
    contents = [b"".join(line.replace(b"\r", b"r").replace(b"\n", b"n") + b"\n" for line in lines) for lines in files]
    with in_memory() as folder, EmbeddedLog(folder / "log", upkeep=False) as log, pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_files, "READ_BYTES", 3)
        watching = Watching(log, folder / "in")
        watching.restart(bytes_max=7)
        watching.put(f"day{ending}", packed(ending, {f"{at}": content for at, content in enumerate(contents)}))
        for is_restart in restarts:
            if is_restart:
                watching.restart(bytes_max=7)
            watching.follower.step(is_ended=True)
        assert watching.read() == [line for content in contents for line in content.split(b"\n")[:-1]]
        assert watching.letters() == []
        assert watching.landing is not None
        watching.landing.close()
