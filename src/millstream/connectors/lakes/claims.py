"""The claim of a lake table: a property of the table, one per job and step that writes it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from millstream.connectors.claims import Claim, Found, shared
from millstream.connectors.file_ledger import FileLedger, replace_durably
from millstream.connectors.lakes.store import OWNER, Run, Store
from millstream.errors import MillstreamError, SinkUnavailable

NOTE = "claim.json"


def property_of(claim: Claim, *, created: bool) -> str:
    return json.dumps({**claim.document(), "created": created})


def recorded_claim(ledger: FileLedger, default: Claim) -> Claim:
    """The claim of a table that does not exist yet: `make` leaves it to the sink, which knows the columns."""
    try:
        found = Claim.read(json.loads(ledger.path.with_name(NOTE).read_bytes()))
    except (FileNotFoundError, ValueError):
        return default
    return found if found is not None and found.run == default.run else default


class LakeKeeper:
    keeps_claims = True

    def __init__(self, store: Store, claim: Claim, ledger: FileLedger) -> None:
        self._store = store
        self._claim = claim
        self._ledger = ledger
        self._run = Run.of(claim)
        self.where = store.where

    def look(self) -> Found:
        with self._explained():
            if not self._store.refresh():
                return Found(there=False)
            noted = (self._store.newest(self._run), self._ledger.newest())
            newest = max((batch for batch in noted if batch is not None), default=None)
            return Found(True, Claim.read(self._own()), newest)

    def make(self) -> None:
        with self._explained():
            if self._store.refresh():
                own = self._own()
                if Claim.read(own) != self._claim:
                    created = bool(own.get("created")) or self._store.is_empty()
                    self._store.set_property(self._run.claim_property, property_of(self._claim, created=created))
            else:
                note = self._ledger.path.with_name(NOTE)
                replace_durably(note, json.dumps(self._claim.document()).encode())

    def check_clear(self) -> None:
        with self._explained():
            if not self._store.refresh() or self._store.is_empty():
                return
            own = self._own()
            documents = [
                _document(value)
                for name, value in self._store.properties.items()
                if name.startswith(OWNER) and name != self._run.claim_property
            ]
        others = sorted({str(each["job"]) for each in documents if each.get("run")})
        if others:
            listed = ", ".join(f"the job '{job}'" for job in others)
            raise shared(
                f"the table is also written by {listed}, so it is not emptied",
                self.where,
                f"delete the rows of '{self._claim.job}' and its table property {self._run.claim_property} by hand, "
                "and run the job again",
            )
        if not own.get("created"):
            raise shared(
                f"the table was not created by the job '{self._claim.job}', so it is not emptied",
                self.where,
                "empty or drop the table by hand, and start over again",
            )

    def clear(self) -> None:
        with self._explained():
            if self._store.refresh():
                if not self._store.is_empty():
                    self._store.clear()
                self._let_go()

    def release(self) -> None:
        with self._explained():
            if self._store.refresh():
                self._let_go()

    def _let_go(self) -> None:
        own = self._own()
        if own.get("run"):
            self._store.set_property(self._run.claim_property, json.dumps({**own, "run": ""}))

    def _own(self) -> dict[str, Any]:
        return _document(self._store.properties.get(self._run.claim_property, "{}"))

    def close(self) -> None:
        """There is nothing to close."""

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except MillstreamError:
            raise
        except Exception as error:
            found = self._store.explained(error)
            if found is None:
                raise
            raise SinkUnavailable(
                f"the table cannot be reached: {found[0]}",
                where=self.where,
                next_step="check the address, the permissions, and that its storage is up",
            ) from error


def _document(value: str) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except ValueError:
        return {}
    return dict(found) if isinstance(found, Mapping) else {}
