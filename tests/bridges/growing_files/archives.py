"""Compressed files and archives of every kind, for tests."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda content: pa.compress(content, codec="zstd", asbytes=True),
}
TARS = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
ARCHIVES = (*TARS, ".zip")


def tarred(members: Mapping[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as opened:
        for name, content in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            opened.addfile(header, io.BytesIO(content))
    return made.getvalue()


def zipped(members: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as opened:
        for name, content in members.items():
            opened.writestr(name, content)
    return made.getvalue()


def packed(ending: str, members: Mapping[str, bytes]) -> bytes:
    """A file that is only compressed has the members one after the other."""
    if ending == ".zip":
        return zipped(members)
    if ending in COMPRESS:
        return COMPRESS[ending](b"".join(members.values()))
    compression = {".tar": "", ".tgz": ".gz"}.get(ending, ending.removeprefix(".tar"))
    return COMPRESS[compression](tarred(members)) if compression else tarred(members)


def put(path: Path, content: bytes) -> None:
    """All at once, as a program does that does not want half a file to be read."""
    draft = path.with_name(f".{path.name}")
    draft.write_bytes(content)
    draft.rename(path)
