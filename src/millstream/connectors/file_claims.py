"""The claim of a folder of files: a hidden file in it. Sinks that hold nothing themselves have their ledger only."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from millstream.connectors.claims import Claim, Found, digest, shared
from millstream.connectors.file_ledger import FileLedger, replace_durably, unavailable_if_refused
from millstream.plan.endpoints import Files, Foreach, Memory

PREFIX = ".millstream-output-"
"""Without an ending: a reader may ask for all files with one, hidden or not."""


class FilesKeeper:
    keeps_claims = True

    def __init__(self, place: Files, claim: Claim, ledger: FileLedger) -> None:
        self._folder = Path(place.path).expanduser().absolute()
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
        """The names of files say which run wrote them."""

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
        """Folders that were created for values of the rows."""
        while folder != self._folder:
            with suppress(OSError):
                folder.rmdir()
            folder = folder.parent

    def release(self) -> None:
        with unavailable_if_refused(str(self._folder), self._claim.step):
            self._note.unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing is held open."""


class LedgerKeeper:
    """Of a sink that holds nothing: the console, a function of the user's, or nothing at all."""

    keeps_claims = False

    def __init__(self, place: Any, claim: Claim, ledger: FileLedger) -> None:
        self._place = place
        self._claim = claim
        self._ledger = ledger
        self.where = str(place)

    def look(self) -> Found:
        return Found(there=True, newest=self._ledger.newest())

    def make(self) -> None:
        """There is no place for a claim."""

    def check_clear(self) -> None:
        if isinstance(self._place, Foreach) and self._ledger.newest() is not None:
            raise shared(
                f"what {self._place} did with the rows cannot be undone by Millstream",
                f"step '{self._claim.step}'",
                f"undo it by hand, forget the job (millstream jobs forget {self._claim.job}), and start over again",
            )

    def clear(self) -> None:
        """What was printed stays printed."""

    def release(self) -> None:
        """There is no claim."""

    def close(self) -> None:
        """Nothing is held open."""


class MemoryKeeper:
    """Rows in this process: they go with it, and so would a claim."""

    keeps_claims = False

    def __init__(self, place: Memory, claim: Claim) -> None:
        self._collected = place.collected
        self._claim = claim
        self.where = str(place)

    def look(self) -> Found:
        own = self._claim
        return Found(there=True, newest=self._collected.batches.get((own.job, own.step, own.run)))

    def make(self) -> None:
        """There is no place for a claim."""

    def check_clear(self) -> None:
        own = (self._claim.job, self._claim.step)
        if self._collected.tables and any(key[:2] != own for key in self._collected.batches):
            raise shared(f"{self.where} also holds rows of others", f"step '{own[1]}'", "write to another memory")

    def clear(self) -> None:
        self._collected.tables.clear()
        self._collected.batches.clear()

    def release(self) -> None:
        """There is no claim."""

    def close(self) -> None:
        """The rows stay."""
