"""Files that grow and are rotated, archives in a watched folder, and a Python generator pass the public suite."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from itertools import count, cycle
from pathlib import Path
from typing import Any, ClassVar

import pytest

import millstream as ms
from millstream.bridges.arrivals import Arrival
from millstream.bridges.growing_files.following import FolderFollower
from millstream.bridges.growing_files.positioned import PositionedLanding
from millstream.connectors.opening import open_source
from millstream.records import Schema
from millstream.testing.connectors import BridgeUnderTest, DoorSuite, Message
from millstream.testing.connectors.bridge_suite import SCHEMA

from ..growing_files.archives import packed, put
from .kills import killed_often

pytestmark = pytest.mark.more
LOOK_SECONDS = 0.02
OFTEN = 2
"""So many sends, and the file is rotated."""


def run_files(landing: PositionedLanding, ready: Any, folder: Path) -> None:
    made = FolderFollower(landing, [str(folder)], unpack=True)
    ready()
    made.run()


class FilesUnderTest(BridgeUnderTest):
    has_ids: ClassVar[bool] = False
    keeps_positions: ClassVar[bool] = True

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._numbers = count(1)

    def runner(self, port: int) -> Any:
        return functools.partial(run_files, folder=self.folder)

    def send(self, messages: Sequence[Message], port: int) -> None:
        path = self.folder / "app.log"
        with path.open("ab") as file:
            for message in messages:
                file.write(message.body)
                file.flush()  # half a line may be read
                file.write(b"\n")
        number = next(self._numbers)
        if not number % OFTEN:
            path.rename(self.folder / f"app.log.{number}")


class TestFiles(DoorSuite):
    @pytest.fixture
    def bridge(self, tmp_path: Path) -> FilesUnderTest:
        return FilesUnderTest(tmp_path / "watched")


class ArchivesUnderTest(FilesUnderTest):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._endings = cycle([".zip", ".gz", ".tar.xz", ".tar.zst"])

    def send(self, messages: Sequence[Message], port: int) -> None:
        """Half of them in each of two files."""
        half = len(messages) // 2
        parts = {"a": messages[:half], "b": messages[half:]}
        contents = {name: b"".join(each.body + b"\n" for each in part) for name, part in parts.items()}
        ending = next(self._endings)
        put(self.folder / f"{next(self._numbers)}{ending}", packed(ending, contents))


class TestArchives(DoorSuite):
    @pytest.fixture
    def bridge(self, tmp_path: Path) -> ArchivesUnderTest:
        return ArchivesUnderTest(tmp_path / "watched")


# ---------------------------------------------------------------- a generator


def rows_after(position: int | None, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """What is in a file after a position, as far as it is there: then it is asked again."""
    content = path.read_bytes()[position or 0 :]
    at = position or 0
    for line in content[: content.rfind(b"\n") + 1].splitlines(keepends=True):
        at += len(line)
        yield at, json.loads(line)


def run_generator(landing: PositionedLanding, ready: Any, path: Path, folder: Path) -> None:
    """As a job reads it: what was read and how far are stored together."""
    endpoint = ms.generate(functools.partial(rows_after, path=path))
    source = open_source(endpoint, Schema.of(SCHEMA), broker=str(folder / "log"), folder=folder, name="made")
    ready()
    start = landing.positions().get("made", {"0": 0})
    while True:
        source.wait(start, LOOK_SECONDS)
        end = source.latest()
        if end != start:
            slabs = [slab for task in source.slices(start, end, 1) for slice in task for slab in source.read(slice)]
            rows = [row for slab in slabs for row in slab.rows.to_pylist()]
            landing.land([Arrival("messages", json.dumps(row).encode()) for row in rows], {"made": end})
            start = end


class GeneratorUnderTest(BridgeUnderTest):
    has_ids: ClassVar[bool] = False
    keeps_positions: ClassVar[bool] = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "made"
        self._path.touch()

    def runner(self, port: int) -> Any:
        return functools.partial(run_generator, path=self._path, folder=self._folder)

    def send(self, messages: Sequence[Message], port: int) -> None:
        with self._path.open("ab") as file:
            file.write(b"".join(each.body + b"\n" for each in messages))


class TestGenerator(DoorSuite):
    test_a_malformed_message = None  # type: ignore[assignment]
    """A row that does not fit is a fault of the function, which it ends: tests/connectors/test_generated.py."""
    test_a_message_that_is_too_large = None  # type: ignore[assignment]
    """A row is as large as the function makes it."""

    @pytest.fixture
    def bridge(self, tmp_path: Path) -> GeneratorUnderTest:
        folder = tmp_path / "job"
        folder.mkdir()
        return GeneratorUnderTest(folder)


TestFilesKilledOften = killed_often(TestFiles)
TestArchivesKilledOften = killed_often(TestArchives)
TestGeneratorKilledOften = killed_often(TestGenerator)
