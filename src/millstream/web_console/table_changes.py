"""The newest changes of a table in a database over HTTP, as the job that writes it has recorded them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import orjson
import pyarrow as pa
from starlette.requests import Request

from millstream.connectors.catalog import TOPIC, Remembered, jobs_folder
from millstream.connectors.lookups import Key
from millstream.errors import InvalidInput
from millstream.jobs.results.table_changes import KEPT, Change, key_of, read_changes
from millstream.plan.steps.flat_columns import flat_columns
from millstream.records import Schema
from millstream.supervision.http import MoreRoute, number_of
from millstream.supervision.mask import Mask
from millstream.supervision.masking import Masking
from millstream.web_console.topics import Topics

SHOWN, SHOWN_MAX = 100, 200
KEY = "key."
"""In front of the name of a key column."""


class ShownChanges:
    def __init__(self, topics: Topics, masking: Masking) -> None:
        self._topics, self._masking = topics, masking

    def route(self) -> MoreRoute:
        does = "the newest changes of a table in a database: of a key, with a text"
        path = f"GET /v1/tables/NAME/changes?{KEY}COLUMN=VALUE&text=TEXT&limit=N"
        return MoreRoute("/tables/{table}/changes", {path: does}, self._answer)

    def _answer(self, request: Request, body: dict[str, Any]) -> Any:
        given, mask = request.query_params, self._masking.now()
        table = self._topics.tables.find(request.path_params["table"])
        if table.kind == TOPIC:
            raise InvalidInput(
                f"the changes of '{table.name}' are the records of its topic",
                next_step=f"GET /v1/topics/{table.name}/records",
            )
        if table.job is None:
            return {"changes": [], "complete": True, "scanned": 0}
        asked = {
            name.removeprefix(KEY): self._masking.meant(each) for name, each in given.items() if name.startswith(KEY)
        }
        key = _key(table, asked) if asked else None
        folder = jobs_folder(self._topics.log) / table.job
        limit = max(1, min(number_of(request, "limit") or SHOWN, SHOWN_MAX))
        text = given.get("text", "").lower()
        found = list(islice(read_changes(folder, table, key=key), KEPT if text else limit + 1))
        documents = [self._document(each, mask) for each in reversed(list(_with_replaced(found[::-1])))]
        wanted = [each for each in documents if text in _searched(each)]
        is_complete = len(wanted) <= limit and (not found or found[-1].number == 1)
        return {"changes": wanted[:limit], "complete": is_complete, "scanned": len(found)}

    def _document(self, change: Change, mask: Mask) -> dict[str, Any]:
        made = {
            "number": change.number,
            "batch": change.batch,
            "at": datetime.fromtimestamp(change.at, UTC).isoformat(),
            "weight": change.weight,
        }
        if change.weight == 0:
            return {**made, "key": None, "row": None, "left_out": int(change.row or 0)}
        key = orjson.loads(change.key or "{}")
        signed = {
            name: self._masking.remembered(mask, each) if mask.hides(name) else each for name, each in key.items()
        }
        row = None if change.row is None else mask.row(orjson.loads(change.row))
        return {**made, "key": mask.document(signed, ()), "row": row, "left_out": 0}


def _key(table: Remembered, asked: dict[str, Any]) -> str:
    columns = {column.name: column.type for column in flat_columns(Schema.of(table.schema or ""))}
    key = Key(table.name, pa.schema([(name, columns[name]) for name in table.key]))
    return key_of(key.batch(asked))


def _with_replaced(changes: Iterable[Change]) -> Iterator[Change]:
    """Oldest first. Before a row that replaces a known one comes that one, where the job wrote only what is new."""
    held: dict[str | None, Change] = {}
    for change in changes:
        before = held.pop(change.key, None)
        if change.weight == 0:
            held.clear()  # what came in between is not known
        elif change.weight > 0:
            if before is not None:
                yield Change(change.number, change.batch, change.at, before.key, before.row, -1)
            held[change.key] = change
        yield change


def _searched(document: dict[str, Any]) -> str:
    """As the page shows it."""
    return orjson.dumps(document["row"] or document["key"]).decode().lower()
