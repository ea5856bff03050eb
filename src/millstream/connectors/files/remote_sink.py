"""Files of an object store or HDFS as a sink, in the same steps as on the local disk.

    write drafts under a hidden name, in workers and here
    record which draft becomes which file
    move them; record that the batch is written

In an object store a move is a copy and a deletion. If the process is killed in between, the file is copied again, with
the same content: readers see whole files only, each at one name.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.connectors.file_ledger import Move, Moves
from millstream.connectors.files import drafts_folder
from millstream.connectors.files.drafts import Drafting
from millstream.connectors.flat_rows import check_json
from millstream.connectors.sink import DRIVER_SHARD, Prepared, TwoPhaseSink
from millstream.errors import MillstreamError, SinkFailed, SinkUnavailable
from millstream.remote_folders import FOR_GOOD, RemoteFolder, error_text
from millstream.secrets import shown_address

if TYPE_CHECKING:
    from millstream.connectors.connector import Writing
    from millstream.connectors.files.endpoint import Files


@dataclass(frozen=True)
class RemoteDrafting(Drafting):
    remote: RemoteFolder = field(kw_only=True)

    def prepare(self, batch: int, shard: int, rows: pa.Table, weights: pa.Array | None) -> Prepared:
        return self.drafted(shard, rows, weights)

    def _write(self, name: str, rows: pa.Table) -> None:
        content = io.BytesIO()
        self._encode(rows, content)
        self.remote.write(f"{self.name}/{name}", content.getvalue())

    def _remove(self, name: str) -> None:
        self.remote.delete(f"{self.name}/{name}")


class RemoteFilesSink(TwoPhaseSink):
    def __init__(self, endpoint: Files, writing: Writing) -> None:
        if endpoint.format != "parquet":
            check_json(writing.schema)
        self._step, self._ledger = writing.step, writing.ledger
        self._remote = RemoteFolder(endpoint.path.rstrip("/"), endpoint.options)
        self._where = f"step '{writing.step}', {shown_address(endpoint.path)}"
        self._hidden = drafts_folder.folder_name(writing.step, writing.run)
        self._drafting = RemoteDrafting(
            Path(endpoint.path.rstrip("/")),
            self._hidden,
            endpoint.format,
            tuple(endpoint.partition_by),
            writing.schema,
            remote=self._remote,
        )
        with self._explained():
            self._remote.check()

    def preparer(self) -> RemoteDrafting:
        return self._drafting

    def is_decided(self, batch: int) -> bool:
        return self._ledger.has(batch) or self._ledger.prepared(batch) is not None

    def prepare(self, batch: int, shard: int, rows: pa.Table, weights: pa.Array | None) -> Prepared:
        with self._explained():
            return self._drafting.drafted(shard, rows, weights)

    def commit(self, batch: int, receipts: Sequence[Any]) -> None:
        if self._ledger.has(batch):
            return
        moves = self._ledger.prepared(batch)
        if moves is None and any(receipt["drafts"] for receipt in receipts):
            moves = self._moves(batch, receipts)
            self._ledger.prepare(batch, moves)
        with self._explained():
            for draft, path in moves.moves if moves is not None else ():
                if self._remote.about(f"{self._hidden}/{draft}") is not None:
                    self._remote.move(f"{self._hidden}/{draft}", path)
        self._ledger.record(batch)
        if moves is not None:
            self._tidy()

    def close(self) -> None:
        with suppress(SinkUnavailable, SinkFailed):  # an unreadable record must not be removed
            if self._ledger.is_settled():
                self._tidy()

    def _moves(self, batch: int, receipts: Sequence[Any]) -> Moves:
        name, ending = f"{self._step}-{self._ledger.run}-{batch:010d}", self._drafting.format
        moves: list[Move] = []
        numbers = count(1)
        for receipt in receipts:
            number = "" if receipt["shard"] == DRIVER_SHARD else f"-{next(numbers):04d}"
            for draft, below in receipt["drafts"]:
                moves.append((draft, (Path(below) / f"{name}{number}.{ending}").as_posix()))
        return Moves(str(Path(self._remote.address)), str(Path(self._remote.address) / self._hidden), tuple(moves))

    def _tidy(self) -> None:
        """Removes drafts of failed attempts."""
        hidden = RemoteFolder(f"{self._remote.address}/{self._hidden}", self._remote.options)
        with suppress(OSError, pa.ArrowException):  # leftovers are harmless
            for about in hidden.listed():
                if drafts_folder.DRAFT.fullmatch(about.path):
                    hidden.delete(about.path)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        with remote_errors(self._where):
            yield


@contextmanager
def remote_errors(where: str) -> Iterator[None]:
    """Errors of a store: it may be away for a while, or refuse for good."""
    try:
        yield
    except MillstreamError:
        raise
    except (OSError, pa.ArrowException) as error:
        kind: type[MillstreamError] = SinkFailed if FOR_GOOD.search(str(error)) else SinkUnavailable
        raise kind(
            f"files cannot be written: {error_text(error)}",
            where=where,
            next_step="check the address, the endpoint and the credentials",
        ) from error
