"""A copy in OpenSearch: an alias of one index, in which each row is a document.

Every write has a number that no other write has, as the external version of its documents: what a process sends too
late is older than what is there, and is refused. The index that replaces another one is switched by the alias.

apply: claim the next number, if the mark is the expected one; send the documents; note the mark, if the claim holds
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from millstream.copies.opensearch_http import OpenSearch
from millstream.copies.ports import Changes, Mark
from millstream.errors import AlreadyExists, SinkFailed, SinkUnavailable
from millstream.webhooks.sender import PASSING_STATUSES

MARKS = "millstream-marks"
"""The index with a document for each generation of each copy."""
WRITE = ".write"
"""Of the alias by which a generation is written to: a write to one that is gone must not create it."""
FIRST = "0" * 12
REQUEST_BYTES = 5_000_000
ID_BYTES_MAX = 512
KEEP_DELETES = "1h"
"""For so long, a row that was deleted has its version, so that a late write does not bring it back."""


@dataclass(frozen=True)
class Noted:
    """What is known of a generation: the number of the newest write, and the marks of its writers."""

    number: int = 0
    marks: dict[str, Mark] = field(default_factory=dict)
    place: dict[str, int] = field(default_factory=dict, compare=False)
    """Of the stored document: it is replaced only if nobody else has replaced it."""

    @property
    def content(self) -> dict[str, str]:
        return {"content": json.dumps({"number": self.number, "marks": self.marks})}


class OpenSearchStore:
    def __init__(self, url: str, name: str, properties: str = "{}", *, own: str | None = None) -> None:
        """`properties` are those of the mapping, as JSON; `own` is a generation that readers do not see yet."""
        self._url, self._name, self._properties = url, name, properties
        self._own = own
        self._server = OpenSearch(url, f"'{name}' in OpenSearch")

    @property
    def where(self) -> str:
        return self._server.where

    # ------------------------------------------------------------ generations

    def _generation(self) -> str:
        """The index with the rows. Looked up each time: another process may have switched."""
        if self._own is not None:
            return self._own
        indices = list(self._server.ask("GET", f"/_alias/{self._name}", absent=()))
        if not indices and not self._server.ask("GET", f"/{self._name}", absent=()):
            self._create(self._named(FIRST), is_seen=True)  # of several processes, one succeeds
            indices = list(self._server.ask("GET", f"/_alias/{self._name}", absent=()))
        if len(indices) != 1 or not self._is_own(indices[0]):
            raise self._foreign()
        return str(indices[0])

    def _foreign(self) -> AlreadyExists:
        return AlreadyExists(
            "there is an index that is not a copy of Millstream",
            where=self.where,
            next_step="choose another name: it becomes an alias of an index",
        )

    def _named(self, suffix: str) -> str:
        return f"{self._name}-{suffix}"

    def _is_own(self, index: str) -> bool:
        return re.fullmatch(re.escape(self._name) + "-[0-9a-f]{12}", index) is not None

    def _create(self, index: str, *, is_seen: bool) -> None:
        aliases: dict[str, Any] = {index + WRITE: {}, **({self._name: {}} if is_seen else {})}
        mappings = {"date_detection": False, "properties": json.loads(self._properties)}
        settings = {"index.gc_deletes": KEEP_DELETES}
        made = {"settings": settings, "mappings": mappings, "aliases": aliases}
        self._server.ask("PUT", f"/{index}", made, exists=True)

    def _created(self) -> str:
        index = self._named(uuid.uuid4().hex[:12])
        self._create(index, is_seen=False)
        return index

    def _remove(self, index: str) -> None:
        self._server.ask("DELETE", f"/{index}", absent=None)
        self._server.ask("DELETE", f"/{MARKS}/_doc/{index}", absent=None)

    def _show(self, index: str, old: str) -> bool:
        """Readers see this generation from now on; False if another process has switched before."""
        self._server.ask("POST", f"/{index}/_refresh")
        actions = [{"remove_index": {"index": old}}, {"add": {"index": index, "alias": self._name}}]
        if self._server.ask("POST", "/_aliases", {"actions": actions}, absent=False) is False:
            return False
        self._server.ask("DELETE", f"/{MARKS}/_doc/{old}", absent=None)
        return True

    # ------------------------------------------------------------ marks

    def _noted(self, index: str) -> Noted:
        found = self._server.ask("GET", f"/{MARKS}/_doc/{index}", absent=None)
        if not found or not found.get("found"):
            return Noted()
        content = json.loads(found["_source"]["content"])
        place = {"if_seq_no": found["_seq_no"], "if_primary_term": found["_primary_term"]}
        return Noted(content["number"], content["marks"], place)

    def _note(self, index: str, noted: Noted) -> Noted | None:
        """Stores it; None if another process has stored something since it was read."""
        condition: dict[str, Any] = noted.place or {"op_type": "create"}
        query = "&".join(f"{name}={value}" for name, value in condition.items())
        path = f"/{MARKS}/_doc/{index}?{query}"
        stored = self._server.ask("PUT", path, noted.content, conflict=None)
        if stored is None:
            return None
        return replace(noted, place={"if_seq_no": stored["_seq_no"], "if_primary_term": stored["_primary_term"]})

    def mark(self, writer: str) -> Mark | None:
        return self._noted(self._generation()).marks.get(writer)

    def writers(self) -> list[str]:
        return sorted(self._noted(self._generation()).marks)

    # ------------------------------------------------------------ writing

    def apply(self, changes: Changes, writer: str, mark: Mark, before: Mark | None, *, clear: bool = False) -> bool:
        index = self._generation()
        noted = self._noted(index)
        if noted.marks.get(writer) != before:
            return False
        if clear:
            return self._replace(index, changes, {**noted.marks, writer: mark})
        claimed = self._note(index, replace(noted, number=noted.number + 1))
        if claimed is None or not self._send(index, changes, claimed.number):
            return False
        return self._note(index, replace(claimed, marks={**claimed.marks, writer: mark})) is not None

    def _replace(self, old: str, changes: Changes, marks: dict[str, Mark]) -> bool:
        """Has only these rows from now on, in a new generation."""
        made = self._created()
        self._send(made, changes, 1)
        self._note(made, Noted(1, marks))
        if self._own is not None:
            self._own = made
            self._remove(old)
            return True
        if self._show(made, old):
            return True
        self._remove(made)
        return False

    def _send(self, index: str, changes: Changes, number: int) -> bool:
        """Whether the generation is still there."""
        keys = list(changes)
        for lines, count in _requests(changes, number):
            sent, keys = keys[:count], keys[count:]
            answer = self._server.ask("POST", f"/{index}{WRITE}/_bulk?require_alias=true", lines)
            for key, item in zip(sent, answer["items"], strict=True):
                (done,) = item.values()
                if done.get("error", {}).get("type") == "index_not_found_exception":
                    return False
                self._check(key, done)
        return True

    def _check(self, key: str, done: dict[str, Any]) -> None:
        status = done["status"]
        if status < 300 or status in (404, 409):  # deleted before; or it has a newer row
            return
        is_passing = status >= 500 or status in PASSING_STATUSES
        raise (SinkUnavailable if is_passing else SinkFailed)(
            f"OpenSearch refuses the row of key {json.dumps(key)}: {_reason(done['error'])}",
            where=self.where,
            next_step="it is tried again"
            if is_passing
            else "give its column a type that fits all rows, with properties=, and rebuild the copy",
        )

    def holds(self, key: str, row: bytes) -> bool:
        found = self._server.ask("POST", f"/{self._generation()}/_mget", {"ids": [id_of(key)]})["docs"][0]
        return bool(found.get("found")) and found["_source"] == json.loads(row)

    def empty(self) -> None:
        self._replace(self._generation(), {}, {})

    # ------------------------------------------------------------ rebuilding

    def replacement(self) -> OpenSearchStore:
        seen = self._generation()
        for index in self._server.ask("GET", f"/{self._name}-*", absent={}):
            if self._is_own(index) and index != seen:
                self._remove(index)  # of a rebuild that was killed
        return OpenSearchStore(self._url, self._name, self._properties, own=self._created())

    def switch(self) -> None:
        assert self._own is not None
        made, self._own = self._own, None
        if not self._show(made, self._generation()):
            raise SinkFailed(
                "another process replaces the same copy", where=self.where, next_step="let it finish first"
            )

    def close(self) -> None:
        self._server.close()


def id_of(key: str) -> str:
    """The key itself, if it can be the id of a document; else a digest of it."""
    content = key.encode(errors="surrogatepass")
    if not key or key.startswith("~") or len(content) > ID_BYTES_MAX:
        return f"~{hashlib.sha256(content).hexdigest()}"
    return key


def _requests(changes: Changes, number: int) -> Iterator[tuple[bytes, int]]:
    """The lines of each request, and how many rows it has."""
    lines, count = bytearray(), 0
    for key, row in changes.items():
        about = {"_id": id_of(key), "version": number, "version_type": "external_gte"}
        lines += json.dumps({"delete" if row is None else "index": about}).encode() + b"\n"
        if row is not None:
            lines += (row if b"\n" not in row else json.dumps(json.loads(row)).encode()) + b"\n"
        count += 1
        if len(lines) >= REQUEST_BYTES:
            yield bytes(lines), count
            lines, count = bytearray(), 0
    if count:
        yield bytes(lines), count


def _reason(error: dict[str, Any]) -> str:
    cause = error.get("caused_by", {}).get("reason")
    return f"{error.get('reason')}" + (f": {cause}" if cause else "")
