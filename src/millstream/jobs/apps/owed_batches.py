"""Batches of a flow of an app that its sinks have not taken yet: the other flows go on, and nothing is lost.

They are durable in the job's folder before their batch ends, and written in order before the flow continues. An output
that had a batch already skips it then.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import polars as pl

from millstream.connectors.file_ledger import replace_durably
from millstream.errors import DamagedState
from millstream.log.storage.disk import storage_errors
from millstream.private_files import make_folders
from millstream.state.arrow_bytes import from_stream, to_stream

OWED = "owed"
_decoder: msgspec.msgpack.Decoder[dict[str, bytes]] = msgspec.msgpack.Decoder(dict[str, bytes])


class OwedBatches:
    def __init__(self, job: Path) -> None:
        self._folder = job / OWED

    def numbers(self, flow: str) -> list[int]:
        """The batches that a flow owes, the oldest first."""
        return sorted(int(path.stem) for path in (self._folder / flow).glob("*.rows"))

    def keep(self, flow: str, number: int, rows: Mapping[str, pl.DataFrame]) -> None:
        """Keeps the rows of a batch by output."""
        path = self._path(flow, number)
        with storage_errors(path):
            make_folders(path.parent)
            packed = {name: to_stream(frame, compressed=True) for name, frame in rows.items()}
            replace_durably(path, msgspec.msgpack.encode(packed))

    def of(self, flow: str, number: int) -> dict[str, pl.DataFrame]:
        path = self._path(flow, number)
        try:
            return {name: from_stream(blob) for name, blob in _decoder.decode(path.read_bytes()).items()}
        except (OSError, ValueError, pl.exceptions.PolarsError) as error:
            raise DamagedState(
                f"the rows of batch {number}, which the flow '{flow}' has not written yet, cannot be read: {error}",
                where=str(path),
                next_step="restore the file from a copy, or start the app over",
            ) from error

    def done(self, flow: str, number: int) -> None:
        """Forgets a batch that was written, or is repeated."""
        with storage_errors(self._folder):
            self._path(flow, number).unlink(missing_ok=True)

    def flows(self) -> list[str]:
        """The flows that owe a batch."""
        folders = self._folder.iterdir() if self._folder.is_dir() else ()
        return sorted(each.name for each in folders if self.numbers(each.name))

    def _path(self, flow: str, number: int) -> Path:
        return self._folder / flow / f"{number}.rows"
