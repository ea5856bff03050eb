"""The claim of a folder in an object store or HDFS: a hidden file in it, as on the local disk."""

from __future__ import annotations

import json
import re
from pathlib import PurePosixPath

from millstream.connectors.claims import Claim, Found, digest
from millstream.connectors.file_claims import PREFIX
from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.files.remote_sink import remote_errors
from millstream.errors import SinkFailed, SinkUnavailable
from millstream.remote_folders import RemoteFolder
from millstream.secrets import shown_address


class RemoteFilesKeeper:
    keeps_claims = True

    def __init__(self, remote: RemoteFolder, claim: Claim, ledger: FileLedger) -> None:
        self._remote = remote
        self._claim = claim
        self._ledger = ledger
        self._note = f"{PREFIX}{digest(claim.job, claim.step)}"
        self.where = f"files in {shown_address(remote.address)}"

    def look(self) -> Found:
        try:
            with remote_errors(self.where):
                held = self._held()
        except SinkFailed as error:  # refused: the sink reports it when it is opened
            raise SinkUnavailable(error.what, where=error.where, next_step=error.next_step) from error
        return Found(held is not None or self._ledger.newest() is None, held, self._ledger.newest())

    def _held(self) -> Claim | None:
        content = self._remote.read(self._note)
        try:
            return None if content is None else Claim.read(json.loads(content))
        except ValueError:
            return None

    def make(self) -> None:
        with remote_errors(self.where):
            if self._held() != self._claim:
                self._remote.write(self._note, json.dumps(self._claim.document()).encode())

    def check_clear(self) -> None:
        """File names identify the run that wrote them."""

    def clear(self) -> None:
        with remote_errors(self.where):
            held = self._held()
            runs = "|".join(re.escape(run) for run in {self._claim.run, held.run if held else self._claim.run})
            own = re.compile(rf"{re.escape(self._claim.step)}-({runs})-\d{{10}}(-\d{{4,}})?\.\w+")
            try:
                found = list(self._remote.listed())
            except FileNotFoundError:
                found = []
            for about in found:
                if own.fullmatch(PurePosixPath(about.path).name):
                    self._remote.delete(about.path)
            self._remote.delete(self._note)

    def release(self) -> None:
        with remote_errors(self.where):
            self._remote.delete(self._note)

    def close(self) -> None:
        """There is nothing to close."""
