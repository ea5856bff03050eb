"""Reads Spark's checkpoint of a job without Spark: finds the files that the next batch needs, and damage to them.

Spark writes it. The offsets of the sources, those of Kafka among them, come from spark/query/batch_offsets.py.

    metadata                          the query's id
    offsets/N                         the offsets that batch N ends at, written before it starts
    commits/N                         batch N is complete
    state/OPERATOR/_metadata          the kind of state, and its schema
    state/OPERATOR/PARTITION/
      V.changelog                     the changes of batch V - 1
      V.zip, SSTs/                    all of the state after batch V - 1

Spark needs the newest offsets, the newest commit, and the newest snapshot with every changelog since. Next to each
file is its checksum (`.N.crc`), as Hadoop writes it.
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
"""Larger state files are checked against their checksums only after a failure: Spark checks them when it reads them."""
READ_BYTES = 1 << 20
CHECKSUMS = struct.Struct(">4sI")
MAGIC = b"crc\0"
COMPRESSED = (b"LZ4Block", b"\x28\xb5\x2f\xfd", b"\x82SNAPPY", b"ZV")
VERSION = re.compile(r"v\d+")
STATE_FILE = re.compile(r"(\d+)\.(zip|changelog)")
NAMED_BY_ID = re.compile(r"\d+_.*\.(zip|changelog)")
"""A newer format of Spark, which is off by default and not checked here."""


@dataclass(frozen=True)
class Damage:
    path: Path
    why: str

    def relative_to(self, folder: Path) -> str:
        return f"{self.path.relative_to(folder)} {self.why}"


@dataclass(frozen=True)
class RecoveryPoint:
    """The newest batch that can be repeated from intact files."""

    batch: int
    redone: tuple[int, ...]
    """The batches after it, which are also repeated, each with its original offsets."""
    is_replanned: bool
    """Whether the offsets of the batch itself are lost: repeating it is then safe only if no output has the batch."""
    unused: tuple[Path, ...]
    """Files that Spark must no longer find."""


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    operators: int
    """The number of the job's stages that keep state."""
    partitions: int
    thorough: bool = False
    """Whether large files are also read."""
    _flaws: dict[Path, str | None] = field(default_factory=dict, repr=False)

    @cached_property
    def started(self) -> int:
        """The newest batch that has started; -1 if none has."""
        return max(_numbers(self.path / "offsets"), default=-1)

    @cached_property
    def complete(self) -> int:
        return max(_numbers(self.path / "commits"), default=-1)

    @property
    def next_batch(self) -> int:
        """The batch that Spark runs next: the newest one, unless it is complete."""
        return self.started + 1 if self.complete >= self.started else self.started

    def damage(self) -> list[Damage]:
        """Damage to the files that Spark needs for the next batch."""
        if self.started < 0 and self.complete < 0:
            return []
        found = [self._damage_of(self.path / "metadata", _metadata)]
        if self.complete > self.started:
            lost = self.path / "offsets" / str(self.complete)
            found.append(Damage(lost, f"is missing, though batch {self.complete} is complete"))
        elif self.started > self.complete + 1:
            lost = self.path / "commits" / str(self.started - 1)
            found.append(Damage(lost, f"is missing, though batch {self.started} has started"))
        found += [self._damage_of(path, _as_offsets) for path in self._offsets_for(self.next_batch)]
        if self.complete >= 0:
            found.append(self._damage_of(self._commit(self.complete), _as_commit))
        found += self._descriptions()
        for folder in self._state_folders():
            found += self._state_damage(folder, self.next_batch)
        return [each for each in found if each is not None]

    def recovery_point(self) -> RecoveryPoint | None:
        """None if the job's results can only be rebuilt from its sources."""
        if any(self._descriptions()) or self.complete > self.started:
            return None
        oldest = min(_numbers(self.path / "offsets"), default=0)
        for batch in range(self.next_batch, oldest - 1, -1):
            point = self._recovery_at(batch)
            if point is not None:
                return point
        return None

    def offsets_of(self, batch: int) -> dict[str, Any] | None:
        """The end offsets of a batch; None if its query also reads other sources, or the file is damaged."""
        path = self._offsets(batch)
        if self._flaw(path, _as_offsets) is not None:
            return None
        lines = path.read_text().splitlines()
        if len(lines) != 3:  # a Spark DataFrame has its own offsets
            return None
        offsets: dict[str, Any] = json.loads(lines[2])
        return offsets

    def files_after(self, batch: int) -> list[Path]:
        """The files from which the batch after a complete one can start."""
        found = [self.path / "metadata"]
        for each in range(max(0, batch - 1), batch + 1):  # Spark also looks at the batch before
            found += [self._offsets(each), self._commit(each)]
        for number in self._operators:
            for part in ("_metadata", "_stateSchema"):
                folder = self.path / "state" / str(number) / part
                found += [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".crc"]
        for folder in self._state_folders():
            files = _state_files(folder)
            version = batch + 1
            start = max((number for number, kind in files if kind == "zip" and number <= version), default=0)
            if start:
                archive = folder / f"{start}.zip"
                found += [archive, *(folder / "SSTs" / name for name, _ in _tables_of(archive))]
            found += [folder / f"{number}.changelog" for number in range(start + 1, version + 1)]
            found += [path for path in sorted(folder.rglob("_metadata/*")) if path.is_file() and path.suffix != ".crc"]
        return found

    # ------------------------------------------------------------ recovery

    def _recovery_at(self, batch: int) -> RecoveryPoint | None:
        before = ((self._offsets(batch - 1), _as_offsets), (self._commit(batch - 1), _as_commit))
        if batch > 0 and any(self._flaw(*each) for each in before):
            return None
        is_lost = batch <= self.started and self._flaw(self._offsets(batch), _as_offsets) is not None
        if is_lost and (batch == 0 or batch <= self.complete or batch < self.started):
            return None
        redone = tuple(range(batch + 1, self.started + 1))
        if any(self.offsets_of(each) is None for each in (*redone, *((batch,) if redone else ()))):
            return None
        unused = [self._offsets(each) for each in range(batch if is_lost else batch + 1, self.started + 1)]
        unused += [self._commit(each) for each in _numbers(self.path / "commits") if each >= batch]
        for folder in self._state_folders():
            of_folder = self._unused_state(folder, batch)
            if of_folder is None:
                return None
            unused += of_folder
        existing = tuple(path for path in unused if path.exists())
        return RecoveryPoint(batch, redone, is_lost, existing)

    def _unused_state(self, folder: Path, version: int) -> list[Path] | None:
        """Files newer than a version, and snapshots that it cannot be read from; None if the version cannot be read."""
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
        """The offsets a batch starts at and, if it has started, those it ends at."""
        return [self._offsets(each) for each in (batch - 1, batch) if 0 <= each <= self.started]

    def _descriptions(self) -> list[Damage | None]:
        """Damage to the descriptions of operators, which do not change after the first batch."""
        found: list[Damage | None] = []
        if self.next_batch == 0:
            return found
        for number in self._operators:
            operator = self.path / "state" / str(number)
            described = operator / "_metadata" / "v2" / "0"
            found.append(self._damage_of(described, _as_operator))
            if found[-1] is None:
                found += [self._damage_of(path, _as_schema) for path in _schemas(operator, described)]
        return [each for each in found if each is not None]

    @cached_property
    def _operators(self) -> range:
        """A query that also reads Spark DataFrames may contain the user's own operators, numbered among ours."""
        is_ours = (
            self.started < 0 or self._flaw(self._offsets(self.started), _as_offsets) or self.offsets_of(self.started)
        )
        return range(self.operators if is_ours else 0)

    def _state_folders(self) -> list[Path]:
        folders = [
            self.path / "state" / str(operator) / str(partition)
            for operator in self._operators
            for partition in range(self.partitions)
        ]
        return [folder for folder in folders if not _is_named_by_id(folder)]

    def _state_damage(self, folder: Path, version: int) -> Iterator[Damage]:
        """Checks a version as Spark reads it: the newest snapshot up to it, and every changelog since."""
        if version > 0 and not folder.is_dir():
            yield Damage(folder, "is missing")
            return
        start = max((number for number, kind in _state_files(folder) if kind == "zip" and number <= version), default=0)
        if start:
            yield from self._snapshot_damage(folder, start)
        yield from self._changelog_damage(folder, start + 1, version)

    def _changelog_damage(self, folder: Path, first: int, last: int) -> Iterator[Damage]:
        for number in range(first, last + 1):
            found = self._damage_of(folder / f"{number}.changelog", _as_changelog)
            if found is not None:
                yield found

    def _snapshot_damage(self, folder: Path, version: int) -> Iterator[Damage]:
        archive = folder / f"{version}.zip"
        found = self._damage_of(archive, _as_snapshot)
        if found is not None:
            yield found
            return
        for name, size_bytes in _tables_of(archive):
            table = folder / "SSTs" / name
            found = self._damage_of(table, _as_any_content)
            if found is not None:
                yield found
            elif table.stat().st_size != size_bytes:
                yield Damage(table, f"has {table.stat().st_size:,} bytes instead of {size_bytes:,}")

    def _damage_of(self, path: Path, read: Callable[[Path], object]) -> Damage | None:
        why = self._flaw(path, read)
        return None if why is None else Damage(path, why)

    def _flaw(self, path: Path, read: Callable[[Path], object]) -> str | None:
        if path not in self._flaws:
            self._flaws[path] = flaw(path, read, thorough=self.thorough)
        return self._flaws[path]


def flaw(path: Path, read: Callable[[Path], object], *, thorough: bool = True) -> str | None:
    """What is wrong with a file that `read` must be able to read; None if nothing is."""
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
    """Compares a file with its checksums. Without any, Spark does not compare either."""
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
        return f"is truncated: it has {size_bytes:,} bytes of at least {(len(known) - 1) * chunk_bytes + 1:,}"
    with path.open("rb") as file:
        for number in range(chunks):
            if number >= len(known) or zlib.crc32(file.read(chunk_bytes)) != known[number]:
                return f"does not match its checksum in {sums.name}"
    return None


# ---------------------------------------------------------------- what a file must contain


def _lines(path: Path) -> list[str]:
    first, *lines = path.read_text().splitlines() or [""]
    if not VERSION.fullmatch(first):
        raise ValueError(f"it starts with {first[:20]!r} instead of a version such as v1")
    return lines


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return found


def _metadata(path: Path) -> None:
    if not isinstance(_object(path.read_text()).get("id"), str):
        raise ValueError("it has no id")


def _as_offsets(path: Path) -> None:
    lines = _lines(path)
    if len(lines) < 2:
        raise ValueError("it ends before the offsets")
    for line in lines:
        if line != "-":  # a source without offsets yet
            _object(line)


def _as_commit(path: Path) -> None:
    _object("".join(_lines(path)))


def _as_operator(path: Path) -> None:
    found = _object("".join(_lines(path)))
    if not isinstance(found.get("operatorInfo"), dict) or not isinstance(found.get("stateStoreInfo"), list):
        raise ValueError("it does not describe an operator")


def _schemas(operator: Path, described: Path) -> list[Path]:
    """Found by name, not by their recorded path: the folder may have been moved since."""
    stores = _object("".join(_lines(described)))["stateStoreInfo"]
    paths = [path for store in stores for path in store.get("stateSchemaFilePaths", [])]
    return [operator / "_stateSchema" / Path(path).parent.name / Path(path).name for path in paths]


def _as_snapshot(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        bad = archive.testzip()
        if bad is not None:
            raise ValueError(f"its entry {bad} does not match its checksum")
    _tables_of(path)


def _tables_of(archive: Path) -> list[tuple[str, int]]:
    """The files that a snapshot shares with others, and their sizes."""
    with zipfile.ZipFile(archive) as content:
        _, _, described = content.read("metadata").decode().partition("\n")
    return [(Path(each["dfsSstFileName"]).name, int(each["sizeBytes"])) for each in _object(described)["sstFiles"]]


def _as_schema(path: Path) -> None:
    """It starts with a length, as Java writes a string."""
    with path.open("rb") as file:
        if not re.match(rb"\0.v\d", file.read(4), re.DOTALL):
            raise ValueError("it is not a state schema")


def _as_changelog(path: Path) -> None:
    with path.open("rb") as file:
        if not file.read(8).startswith(COMPRESSED):
            raise ValueError("it is not compressed as changelogs are")


def _as_any_content(path: Path) -> None:
    """Binary: only its checksums can be checked."""


# ---------------------------------------------------------------- names


def _numbers(folder: Path) -> list[int]:
    try:
        return [int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _state_files(folder: Path) -> list[tuple[int, str]]:
    try:
        found = [STATE_FILE.fullmatch(entry.name) for entry in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [(int(match.group(1)), match.group(2)) for match in found if match]


def _is_named_by_id(folder: Path) -> bool:
    return folder.is_dir() and any(NAMED_BY_ID.fullmatch(entry.name) for entry in folder.iterdir())
