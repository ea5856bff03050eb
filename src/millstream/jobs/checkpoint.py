"""Spark's checkpoint of a job, read without Spark: which files the next batch needs, and what is wrong with them.

    metadata                          the query's id
    offsets/N                         how far batch N reads, written before it begins
    commits/N                         batch N is complete
    state/OPERATOR/_as_metadata          what kind of state it is, and its schema
    state/OPERATOR/PARTITION/
      V.changelog                     what batch V - 1 has changed
      V.zip, SSTs/                    all of the state after batch V - 1

Spark needs the newest offsets, the newest commit, and the newest snapshot with every changelog since. Beside each file
lies its checksum (`.N.crc`), as Hadoop writes it.
"""

from __future__ import annotations

import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

CHECKED_BYTES_MAX = 64 << 20
"""Larger files of state are compared with their checksums only after a failure: Spark does so when it reads them."""
READ_BYTES = 1 << 20
CHECKSUMS = struct.Struct(">4sI")
MAGIC = b"crc\0"
COMPRESSED = (b"LZ4Block", b"\x28\xb5\x2f\xfd", b"\x82SNAPPY", b"ZV")
VERSION = re.compile(r"v\d+")
OF_STATE = re.compile(r"(\d+)\.(zip|changelog)")
NAMED_BY_ID = re.compile(r"\d+_.*\.(zip|changelog)")
"""Files of a newer format of Spark's, which is off by default and not checked here."""


@dataclass(frozen=True)
class Damage:
    path: Path
    why: str

    def below(self, folder: Path) -> str:
        return f"{self.path.relative_to(folder)} {self.why}"


@dataclass(frozen=True)
class WayBack:
    """The newest batch that can be done again from files that are whole."""

    batch: int
    redone: tuple[int, ...]
    """The batches after it that are done again too, each with the offsets that it had."""
    is_planned_again: bool
    """Whether the offsets of the batch itself are lost: then it is right only if no output has the batch."""
    unused: tuple[Path, ...]
    """Files that Spark must not find any more."""


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    operators: int
    """How many stages of the job keep state."""
    partitions: int
    thorough: bool = False
    """Whether large files are read, too."""
    _known: dict[Path, str | None] = field(default_factory=dict, repr=False)

    @cached_property
    def begun(self) -> int:
        """The newest batch that has begun; -1 if none has."""
        return max(_numbers(self.path / "offsets"), default=-1)

    @cached_property
    def complete(self) -> int:
        return max(_numbers(self.path / "commits"), default=-1)

    @property
    def next_batch(self) -> int:
        """What Spark does next: the newest batch, unless that is complete."""
        return self.begun + 1 if self.complete >= self.begun else self.begun

    def damage(self) -> list[Damage]:
        """What is wrong with the files that Spark needs for the next batch."""
        if self.begun < 0 and self.complete < 0:
            return []
        found = [self._looked_at(self.path / "metadata", _as_metadata)]
        if self.complete > self.begun:
            lost = self.path / "offsets" / str(self.complete)
            found.append(Damage(lost, f"is missing, though batch {self.complete} is complete"))
        elif self.begun > self.complete + 1:
            lost = self.path / "commits" / str(self.begun - 1)
            found.append(Damage(lost, f"is missing, though batch {self.begun} has begun"))
        found += [self._looked_at(path, _as_offsets) for path in self._offsets_for(self.next_batch)]
        if self.complete >= 0:
            found.append(self._looked_at(self._commit(self.complete), _as_commit))
        found += self._descriptions()
        for folder in self._state_folders():
            found += self._state_damage(folder, self.next_batch)
        return [each for each in found if each is not None]

    def way_back(self) -> WayBack | None:
        """None if the job's results can only be computed again from its sources."""
        if any(self._descriptions()) or self.complete > self.begun:
            return None
        oldest = min(_numbers(self.path / "offsets"), default=0)
        for batch in range(self.next_batch, oldest - 1, -1):
            way = self._way_to(batch)
            if way is not None:
                return way
        return None

    def offsets_of(self, batch: int) -> dict[str, Any] | None:
        """How far a batch reads, if this is all that its query reads, and the file is whole."""
        path = self._offsets(batch)
        if self._flaw(path, _as_offsets) is not None:
            return None
        lines = path.read_text().splitlines()
        if len(lines) != 3:  # a DataFrame of Spark has offsets of its own
            return None
        said: dict[str, Any] = json.loads(lines[2])
        return said

    # ------------------------------------------------------------ going back

    def _way_to(self, batch: int) -> WayBack | None:
        before = ((self._offsets(batch - 1), _as_offsets), (self._commit(batch - 1), _as_commit))
        if batch > 0 and any(self._flaw(*each) for each in before):
            return None
        is_lost = batch <= self.begun and self._flaw(self._offsets(batch), _as_offsets) is not None
        if is_lost and (batch == 0 or batch <= self.complete or batch < self.begun):
            return None
        redone = tuple(range(batch + 1, self.begun + 1))
        if any(self.offsets_of(each) is None for each in (*redone, *((batch,) if redone else ()))):
            return None
        unused = [self._offsets(each) for each in range(batch if is_lost else batch + 1, self.begun + 1)]
        unused += [self._commit(each) for each in _numbers(self.path / "commits") if each >= batch]
        for folder in self._state_folders():
            of_folder = self._unused_state(folder, batch)
            if of_folder is None:
                return None
            unused += of_folder
        there = tuple(path for path in unused if path.exists())
        return WayBack(batch, redone, is_lost, there)

    def _unused_state(self, folder: Path, version: int) -> list[Path] | None:
        """What is newer than a version, and the snapshots that it cannot be read from; None if it cannot be read."""
        files = _state_files(folder)
        snapshots = sorted((number for number, kind in files if kind == "zip" and number <= version), reverse=True)
        for start in (*snapshots, 0):
            is_whole = start == 0 or not any(self._snapshot_damage(folder, start))
            if is_whole and not any(self._changelog_damage(folder, start + 1, version)):
                newer = [folder / f"{number}.{kind}" for number, kind in files if number > version]
                return newer + [folder / f"{number}.zip" for number in snapshots if number > start]
        return None

    # ------------------------------------------------------------ single files

    def _offsets(self, batch: int) -> Path:
        return self.path / "offsets" / str(batch)

    def _commit(self, batch: int) -> Path:
        return self.path / "commits" / str(batch)

    def _offsets_for(self, batch: int) -> list[Path]:
        """Where a batch begins and, if it has begun, where it ends."""
        return [self._offsets(each) for each in (batch - 1, batch) if 0 <= each <= self.begun]

    def _descriptions(self) -> list[Damage | None]:
        """Of the operators, which say the same from the first batch on."""
        found: list[Damage | None] = []
        if self.next_batch == 0:
            return found
        for number in self._operators:
            operator = self.path / "state" / str(number)
            described = operator / "_metadata" / "v2" / "0"
            found.append(self._looked_at(described, _as_operator))
            if found[-1] is None:
                found += [self._looked_at(path, _as_schema) for path in _schemas(operator, described)]
        return [each for each in found if each is not None]

    @cached_property
    def _operators(self) -> range:
        """A query that also reads DataFrames of Spark may have operators of the user's own, numbered among ours."""
        is_ours = self.begun < 0 or self._flaw(self._offsets(self.begun), _as_offsets) or self.offsets_of(self.begun)
        return range(self.operators if is_ours else 0)

    def _state_folders(self) -> list[Path]:
        folders = [
            self.path / "state" / str(operator) / str(partition)
            for operator in self._operators
            for partition in range(self.partitions)
        ]
        return [folder for folder in folders if not _is_named_by_id(folder)]

    def _state_damage(self, folder: Path, version: int) -> Iterator[Damage]:
        """As Spark reads a version: from the newest snapshot that is not newer, and every changelog since."""
        if version > 0 and not folder.is_dir():
            yield Damage(folder, "is missing")
            return
        start = max((number for number, kind in _state_files(folder) if kind == "zip" and number <= version), default=0)
        if start:
            yield from self._snapshot_damage(folder, start)
        yield from self._changelog_damage(folder, start + 1, version)

    def _changelog_damage(self, folder: Path, first: int, last: int) -> Iterator[Damage]:
        for number in range(first, last + 1):
            found = self._looked_at(folder / f"{number}.changelog", _as_changelog)
            if found is not None:
                yield found

    def _snapshot_damage(self, folder: Path, version: int) -> Iterator[Damage]:
        archive = folder / f"{version}.zip"
        found = self._looked_at(archive, _as_snapshot)
        if found is not None:
            yield found
            return
        for name, size_bytes in _tables_of(archive):
            table = folder / "SSTs" / name
            found = self._looked_at(table, _as_any_content)
            if found is not None:
                yield found
            elif table.stat().st_size != size_bytes:
                yield Damage(table, f"has {table.stat().st_size:,} bytes instead of {size_bytes:,}")

    def _looked_at(self, path: Path, read: Callable[[Path], object]) -> Damage | None:
        why = self._flaw(path, read)
        return None if why is None else Damage(path, why)

    def _flaw(self, path: Path, read: Callable[[Path], object]) -> str | None:
        if path not in self._known:
            self._known[path] = flaw(path, read, thorough=self.thorough)
        return self._known[path]


def flaw(path: Path, read: Callable[[Path], object], *, thorough: bool = True) -> str | None:
    """What is wrong with a file whose content must be readable in some way; None if nothing is."""
    try:
        if not path.is_file():
            return "is not a file" if path.exists() else "is missing"
        size_bytes = path.stat().st_size
        if size_bytes == 0:
            return "is empty"
        if thorough or size_bytes <= CHECKED_BYTES_MAX:
            against = _against_checksums(path, size_bytes)
            if against is not None:
                return against
        read(path)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    except RecursionError:
        return "is nested too deeply"
    except (ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        return f"cannot be read: {error}"
    return None


def _against_checksums(path: Path, size_bytes: int) -> str | None:
    """Compares a file with its checksums; where there are none, Spark has nothing to compare with either."""
    sums = path.with_name(f".{path.name}.crc")
    try:
        content = sums.read_bytes()
        magic, chunk_bytes = CHECKSUMS.unpack_from(content)
    except (FileNotFoundError, struct.error):
        return None
    if magic != MAGIC or not 0 < chunk_bytes <= READ_BYTES:
        return None
    known = [number for (number,) in struct.iter_unpack(">I", content[CHECKSUMS.size :][: (len(content) - 8) // 4 * 4])]
    chunks = -(-size_bytes // chunk_bytes)
    if chunks < len(known):
        return f"is cut short: it has {size_bytes:,} bytes of at least {(len(known) - 1) * chunk_bytes + 1:,}"
    with path.open("rb") as file:
        for place in range(chunks):
            if place >= len(known) or zlib.crc32(file.read(chunk_bytes)) != known[place]:
                return f"does not match its checksum in {sums.name}"
    return None


# ---------------------------------------------------------------- what a file must hold


def _lines(path: Path) -> list[str]:
    first, *lines = path.read_text().splitlines() or [""]
    if not VERSION.fullmatch(first):
        raise ValueError(f"it begins with {first[:20]!r} instead of a version such as v1")
    return lines


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found


def _as_metadata(path: Path) -> None:
    if not isinstance(_object(path.read_text()).get("id"), str):
        raise ValueError("it names no id")


def _as_offsets(path: Path) -> None:
    lines = _lines(path)
    if len(lines) < 2:
        raise ValueError("it ends before the offsets")
    for line in lines:
        if line != "-":  # a source that has none yet
            _object(line)


def _as_commit(path: Path) -> None:
    _object("".join(_lines(path)))


def _as_operator(path: Path) -> None:
    found = _object("".join(_lines(path)))
    if not isinstance(found.get("operatorInfo"), dict) or not isinstance(found.get("stateStoreInfo"), list):
        raise ValueError("it describes no operator")


def _schemas(operator: Path, described: Path) -> list[Path]:
    """Wherever they were when they were written: the folder may have been moved since."""
    stores = _object("".join(_lines(described)))["stateStoreInfo"]
    paths = [path for store in stores for path in store.get("stateSchemaFilePaths", [])]
    return [operator / "_stateSchema" / Path(path).parent.name / Path(path).name for path in paths]


def _as_snapshot(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        bad = archive.testzip()
        if bad is not None:
            raise ValueError(f"{bad} in it does not match its checksum")
    _tables_of(path)


def _tables_of(archive: Path) -> list[tuple[str, int]]:
    """The files that a snapshot shares with others, and their sizes."""
    with zipfile.ZipFile(archive) as content:
        _, _, described = content.read("metadata").decode().partition("\n")
    return [(Path(each["dfsSstFileName"]).name, int(each["sizeBytes"])) for each in _object(described)["sstFiles"]]


def _as_schema(path: Path) -> None:
    """It begins as Java writes a text: with its length."""
    with path.open("rb") as file:
        if not re.match(rb"\0.v\d", file.read(4), re.DOTALL):
            raise ValueError("it is no schema of state")


def _as_changelog(path: Path) -> None:
    with path.open("rb") as file:
        if not file.read(8).startswith(COMPRESSED):
            raise ValueError("it is not compressed as changelogs are")


def _as_any_content(path: Path) -> None:
    """Binary, and known by its checksums alone."""


# ---------------------------------------------------------------- names


def _numbers(folder: Path) -> list[int]:
    try:
        return [int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _state_files(folder: Path) -> list[tuple[int, str]]:
    try:
        found = [OF_STATE.fullmatch(entry.name) for entry in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [(int(match.group(1)), match.group(2)) for match in found if match]


def _is_named_by_id(folder: Path) -> bool:
    return folder.is_dir() and any(NAMED_BY_ID.fullmatch(entry.name) for entry in folder.iterdir())
