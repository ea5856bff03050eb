"""What is inside compressed files and archives, read in pieces: never more is unpacked than the limits allow.

Names of members are only ever texts: nothing is written to disk, and an archive inside another one is not opened.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import IO, Any, ClassVar, NamedTuple, Protocol

import pyarrow as pa

UNPACKED_BYTES_MAX = 1 << 30
MEMBERS_MAX = 100_000
READ_BYTES = 1 << 16
HEADER_BYTES_MAX = 1 << 20
XZ_MEMORY_BYTES_MAX = 128 << 20
ZIP_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2}
IS_ENCRYPTED = 1


class Refused(Exception):
    """An archive that is not read any further, and why."""


MALFORMED: tuple[type[Exception], ...] = (
    Refused,
    EOFError,
    NotImplementedError,
    OverflowError,
    ValueError,
    lzma.LZMAError,
    pa.ArrowException,
    struct.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)


class Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Member(NamedTuple):
    """One file in an archive; of a file that is only compressed, the only one."""

    name: str | None
    read: Callable[[int], bytes]
    fault: str | None = None
    """Why it is not read, and the others are."""


@dataclass
class Bounded:
    """A stream that ends with an error when too much was read from it."""

    stream: Stream
    bytes_max: int
    _bytes: int = 0

    def read(self, size: int) -> bytes:
        found = self.stream.read(size)
        self._bytes += len(found)
        if self._bytes > self.bytes_max:
            raise too_large(self.bytes_max)
        return found


def too_large(bytes_max: int) -> Refused:
    return Refused(f"it has more than {bytes_max:,} bytes when it is unpacked")


class Xz:
    """As lzma.LZMAFile, with a limit on memory: the file itself says how much its dictionary needs."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._decompressor = self._new()

    @staticmethod
    def _new() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(memlimit=XZ_MEMORY_BYTES_MAX)

    def read(self, size: int) -> bytes:
        while True:
            given = b""
            if self._decompressor.eof:
                given = self._decompressor.unused_data.lstrip(b"\0") or self._file.read(READ_BYTES).lstrip(b"\0")
                if not given:
                    return b""
                self._decompressor = self._new()  # several streams, one after the other
            elif self._decompressor.needs_input:
                given = self._file.read(READ_BYTES)
                if not given:
                    raise EOFError("the compressed file ended before its end was marked")
            if found := self._decompressor.decompress(given, size):
                return found


class _Kept:
    """A file that Arrow reads, and does not close."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self.read = file.read

    def close(self) -> None:
        return


def zstd(file: IO[bytes]) -> Stream:
    opened: Stream = pa.CompressedInputStream(pa.PythonFile(_Kept(file), mode="r"), "zstd")
    return opened


def plain(file: IO[bytes]) -> Stream:
    return file


COMPRESSIONS: dict[str, Callable[[IO[bytes]], Stream]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".bz2": bz2.BZ2File,
    ".xz": Xz,
    ".zst": zstd,
}
TARS = {
    ".tar": plain,
    ".tgz": COMPRESSIONS[".gz"],
    ".tbz2": COMPRESSIONS[".bz2"],
    ".txz": COMPRESSIONS[".xz"],
    ".tzst": COMPRESSIONS[".zst"],
    **{f".tar{ending}": opened for ending, opened in COMPRESSIONS.items()},
}
ENDINGS = (*COMPRESSIONS, *TARS, ".zip")


def is_packed(name: str) -> bool:
    return name.lower().endswith(ENDINGS)


def members(file: IO[bytes], name: str, bytes_max: int = UNPACKED_BYTES_MAX) -> Iterator[Member]:
    """The files in a file, from its beginning, in their order; each must be read before the next one.

    Raises one of MALFORMED, here or when a member is read.
    """
    ending = name.lower()
    if ending.endswith(".zip"):
        return _of_zip(file, bytes_max)
    for each, opened in TARS.items():
        if ending.endswith(each):
            return _of_tar(Bounded(opened(file), bytes_max), bytes_max)
    opened = next(opened for each, opened in COMPRESSIONS.items() if ending.endswith(each))
    return iter([Member(None, Bounded(opened(file), bytes_max).read)])


class _Header(tarfile.TarInfo):
    """Names and attributes of members are read into memory as a whole."""

    LONG: ClassVar[set[bytes]] = {
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
    }

    @classmethod
    def frombuf(cls, *given: Any, **named: Any) -> _Header:
        made = super().frombuf(*given, **named)
        if made.type in cls.LONG and made.size > HEADER_BYTES_MAX:
            raise Refused(f"a header of it is larger than {HEADER_BYTES_MAX:,} bytes")
        return made


def _of_tar(stream: Bounded, bytes_max: int) -> Iterator[Member]:
    total = 0
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Header) as opened:  # type: ignore[call-overload]
        for number, each in enumerate(opened):
            opened.members = []  # it would keep them all
            _check_number(number)
            if not each.isfile():
                continue
            total += each.size
            if total > bytes_max:  # also of what is sparse
                raise too_large(bytes_max)
            content = opened.extractfile(each)
            if content is not None:
                with closing(content):
                    yield _member(each.name, content.read)


def _of_zip(file: IO[bytes], bytes_max: int) -> Iterator[Member]:
    with zipfile.ZipFile(file) as opened:
        found = [each for each in opened.infolist() if not each.is_dir()]
        _check_number(len(found) - 1)
        if sum(each.file_size for each in found) > bytes_max:  # no more than that is read of each
            raise too_large(bytes_max)
        for each in found:
            if each.flag_bits & IS_ENCRYPTED:
                yield Member(each.filename, nothing, "it is encrypted")
            elif each.compress_type not in ZIP_METHODS:
                yield Member(each.filename, nothing, "it is compressed by a method that is not supported")
            else:
                with opened.open(each) as content:
                    yield _member(each.filename, content.read)


def _check_number(number: int) -> None:
    if number >= MEMBERS_MAX:
        raise Refused(f"it has more than {MEMBERS_MAX:,} files")


def _member(name: str, read: Callable[[int], bytes]) -> Member:
    if is_packed(name):
        return Member(name, nothing, "an archive, or a compressed file, inside of another one is not unpacked")
    return Member(name, read)


def nothing(size: int) -> bytes:
    return b""
