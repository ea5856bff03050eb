"""The claim of a folder of files: a hidden file in it. Sinks without storage have only their ledger."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

from millstream.connectors.claims import Claim, Found, digest, shared
from millstream.connectors.file_ledger import FileLedger, replace_durably, unavailable_if_refused

PREFIX = ".millstream-output-"
"""Without a suffix: a reader may glob for one, including hidden files."""


class FilesKeeper:
    keeps_claims = True

    def __init__(self, path: str, claim: Claim, ledger: FileLedger) -> None:
        self._folder = Path(path).expanduser().absolute()
        self._claim = claim
        self._ledger = ledger
        self._note = self._folder / f"{PREFIX}{digest(claim.job, claim.step)}"
        self.where = f"files in {self._folder}"

    def look(self) -> Found:
        with unavailable_if_refused(str(self._folder), self._claim.step):
            return Found(self._folder.is_dir(), self._held(), self._ledger.newest())

    def _held(self) -> Claim | None:
        try:
            return Claim.read(json.loads(self._note.read_bytes()))
        except (FileNotFoundError, ValueError):
            return None

    def make(self) -> None:
        with unavailable_if_refused(str(self._folder), self._claim.step):
            if self._held() != self._claim:
                self._folder.mkdir(parents=True, exist_ok=True)
                replace_durably(self._note, json.dumps(self._claim.document()).encode())

    def check_clear(self) -> None:
        """File names identify the run that wrote them."""

    def clear(self) -> None:
        with unavailable_if_refused(str(self._folder), self._claim.step):
            held = self._held()
            runs = "|".join(re.escape(run) for run in {self._claim.run, held.run if held else self._claim.run})
            own = re.compile(rf"{re.escape(self._claim.step)}-({runs})-\d{{10}}(-\d{{4,}})?\.\w+")
            for path in list(self._folder.rglob("*")) if self._folder.is_dir() else []:
                if own.fullmatch(path.name) and path.is_file() and not path.is_symlink():
                    path.unlink()
                    self._remove_empty(path.parent)
            self._note.unlink(missing_ok=True)

    def _remove_empty(self, folder: Path) -> None:
        """Partition folders."""
        while folder != self._folder:
            with suppress(OSError):
                folder.rmdir()
            folder = folder.parent

    def release(self) -> None:
        with unavailable_if_refused(str(self._folder), self._claim.step):
            self._note.unlink(missing_ok=True)

    def close(self) -> None:
        """There is nothing to close."""


class LedgerKeeper:
    """For a sink that cannot store a claim. Its output can be undone only if it leaves no trace."""

    keeps_claims = False

    def __init__(self, where: str, claim: Claim, ledger: FileLedger, *, leaves_no_trace: bool) -> None:
        self.where = where
        self._claim = claim
        self._ledger = ledger
        self._leaves_no_trace = leaves_no_trace

    def look(self) -> Found:
        return Found(there=True, newest=self._ledger.newest())

    def make(self) -> None:
        """The sink cannot store a claim."""

    def check_clear(self) -> None:
        if not self._leaves_no_trace and self._ledger.newest() is not None:
            raise shared(
                f"Millstream cannot undo what {self.where} did with the rows",
                f"step '{self._claim.step}'",
                f"undo it by hand, forget the job (millstream jobs forget {self._claim.job}), and start over again",
            )

    def clear(self) -> None:
        """Printed output stays."""

    def release(self) -> None:
        """There is no claim."""

    def close(self) -> None:
        """There is nothing to close."""
