"""Files of an object store or HDFS as a source: found by listing, and copied to the local disk when they are read."""

from __future__ import annotations

import glob
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pyarrow as pa

from millstream.connectors.files.journal import Entry
from millstream.connectors.files.source import PARTITION, ROW_BITS, FilesSource, is_below_hidden, is_hidden
from millstream.connectors.source import Slice
from millstream.errors import InvalidInput, MillstreamError, NotFound, SourceUnavailable
from millstream.plan.steps.partition_folders import is_folder_name
from millstream.remote_folders import FOR_GOOD, RemoteFolder, error_text
from millstream.secrets import shown_address


class RemoteFilesSource(FilesSource):
    def _place(self) -> str:
        self._remote = RemoteFolder(self.endpoint.path.rstrip("/"), self.endpoint.options)
        self._is_checked = False
        return self._remote.address

    def _new_files(self) -> list[Entry]:
        is_pattern, base = glob.has_magic(self._pattern), self._remote.base.address
        found = []
        with self._explained():
            if not self._is_checked:
                self._remote.base.check()
                self._is_checked = True
            for about in self._remote.listed():
                below = PurePosixPath(about.path)
                if is_pattern:
                    hidden = is_below_hidden(Path(below))
                else:
                    hidden = is_hidden(below.name) or not all(map(is_folder_name, below.parent.parts))
                path = f"{base}/{about.path}" if about.path else base
                if not hidden and path not in self._journal:
                    found.append(Entry(path, about.size_bytes, about.modified_ns))
        return found

    def _units(self, number: int) -> list[tuple[Slice, int]]:
        """Whole files: each is copied once, by one task."""
        whole = Slice(PARTITION, number << ROW_BITS, (number + 1) << ROW_BITS)
        return [(whole, self._journal.entry(number).size_bytes + 1)]

    def _below_base(self, entry: Entry) -> str:
        return entry.path.removeprefix(self._remote.base.address).lstrip("/")

    def _now(self, entry: Entry) -> Entry | None:
        with self._explained():
            about = self._remote.base.about(self._below_base(entry))
        return None if about is None else Entry(entry.path, about.size_bytes, about.modified_ns)

    @contextmanager
    def _opened(self, entry: Entry) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
            copied = Path(folder) / PurePosixPath(entry.path).name
            with self._explained():
                self._remote.base.copy_to(self._below_base(entry), copied)
            yield copied

    @contextmanager
    def _explained(self) -> Iterator[None]:
        where = shown_address(self._pattern)
        try:
            yield
        except MillstreamError:
            raise
        except FileNotFoundError as error:
            raise NotFound(
                "there is no such folder or file",
                where=where,
                next_step="write a file there first, or use a pattern such as 's3://bucket/in/*.parquet'",
            ) from error
        except (OSError, pa.ArrowException) as error:
            kind: type[MillstreamError] = InvalidInput if FOR_GOOD.search(str(error)) else SourceUnavailable
            raise kind(
                f"files cannot be read: {error_text(error)}",
                where=where,
                next_step="check the address, the endpoint and the credentials",
            ) from error
