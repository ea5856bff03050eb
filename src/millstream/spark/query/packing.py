"""Rows travel packed: a Spark row holds a whole frame of ours, for one key group of one step.

`label` is the key group's name to Spark, `step` the number of a step of the chain or of an output, `kind` what the blob
is, `task` where it comes from, so that a step can take frames in the same order every time.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from millstream.connectors.files.drafts import Drafting
from millstream.connectors.refusals import kept
from millstream.operators.accumulators import TIME, WEIGHT
from millstream.operators.elementwise import OFFSET
from millstream.operators.stateful import Stateful
from millstream.plan.bundles import END
from millstream.plan.nodes import Node, Write
from millstream.spark.query.physical_plan import Frames, Layout, Place, evaluated
from millstream.state.arrow_bytes import from_stream, to_stream
from millstream.state.hashing import key_groups

ARROW = pa.schema(
    [
        ("label", pa.int32()),
        ("step", pa.int32()),
        ("kind", pa.int32()),
        ("task", pa.int32()),
        ("blob", pa.binary()),
    ]
)
ROWS, OTHERS, PARTIALS, CONTROL, REPORT = range(5)
SIDES = (ROWS, OTHERS)
PARTITION = "__partition"
"""Where rows of an output came from, beside their offset, if its sink may refuse some."""
DRIVER = -1
"""The step of what is for the driver alone: reports."""
BLOB_BYTES_MAX = 4 << 20
"""Larger frames travel in pieces: the next is packed while one is on its way."""

Content = bytes | pl.DataFrame
"""A frame that is for a step of the same stage is handed on as it is, everything else as bytes."""
Packed = tuple[int, int, int, int, Content]


def to_bytes(frame: pl.DataFrame) -> bytes:
    """A frame as Arrow, compressed: panes shrink to a tenth, and that is quicker than to move them about."""
    return to_stream(frame, compressed=True)


def from_bytes(blob: bytes) -> pl.DataFrame:
    return from_stream(blob)


def control_to_bytes(control: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode(control)


def control_from_bytes(blob: bytes) -> dict[str, Any]:
    return msgspec.msgpack.decode(blob, type=dict[str, Any])


def to_batch(rows: Sequence[Packed]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else ([] for _ in ARROW)
    return pa.RecordBatch.from_arrays(
        [pa.array(list(column), kind.type) for column, kind in zip(columns, ARROW, strict=True)], schema=ARROW
    )


@dataclass
class Packer:
    """Gathers what a region makes, and packs it for the steps and outputs it goes to."""

    layout: Layout
    origin: Node
    labels: Sequence[int]
    steps: Sequence[Stateful]
    task: int
    own_label: int
    """Where rows ride along that are for no key group: those of outputs."""
    reached: int = END
    """The watermark of the steps that come next is not beyond this."""
    entry: Node | None = None
    """The step behind the origin whose rows are added, if not the origin's own."""
    near: Container[int] = ()
    """The steps that are done right here, for the same key group."""
    drafting: Mapping[str, Drafting] = field(default_factory=dict)
    """How rows of an output become files, where many of them are written right here."""
    _fed: dict[tuple[int, int], list[pl.DataFrame]] = field(default_factory=dict)
    _partials: dict[int, list[pl.DataFrame]] = field(default_factory=dict)
    _outputs: dict[int, list[pl.DataFrame]] = field(default_factory=dict)
    _discarded: dict[str, int] = field(default_factory=dict)
    _counts: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._region = self.layout.region(self.origin)
        self._ends = self.layout.ends(self.origin)

    def add(self, sent: Frames, now: int, place: Place | None = None) -> None:
        """Runs the steps of the region on what the origin sent."""
        made = self._region.run(sent, now, self.entry, place)
        for end in self._ends:
            number, rows = end.number, made[end.node]
            if rows.is_empty():
                continue
            if isinstance(end.node, Write) and end.node.is_discarded:
                self._discarded[end.node.name] = self._discarded.get(end.node.name, 0) + len(rows)
                continue
            if end.side is None:
                self._outputs.setdefault(number, []).append(self._written(rows, end.node, place))
                continue
            step, count = self.steps[number], self._counts.get(number, 0)
            fold = partial(step.folded, first=count, watermark=self.reached, side=end.side)
            partials, fed = evaluated(self.layout.chain[number], rows, fold, place)
            if partials is not None and len(partials):
                self._partials.setdefault(number, []).append(partials)
            if len(fed):
                self._fed.setdefault((number, end.side), []).append(fed)
                self._counts[number] = count + len(fed)

    def pack(self, control: dict[str, Any]) -> Iterable[Packed]:
        """Everything that was added; every key group of the steps that come next is told the control."""
        said = control_to_bytes({**control, "origin": self.origin.name})
        for number in self.layout.steps_after(self.origin):
            alone = self.layout.shares_key_group(self.origin, self.layout.chain[number])
            for label in [self.own_label] if alone else self.labels:
                yield label, number, CONTROL, self.task, said
        for (number, side), frames in self._fed.items():
            yield from self._sent(number, SIDES[side], pl.concat(frames))
        for number, frames in self._partials.items():
            yield from self._sent(number, PARTIALS, self.steps[number].joined(frames))
        for number, frames in self._outputs.items():
            rows = pl.concat(frames, how="diagonal")
            report, rows = self._drafted(number, rows)
            if report is not None:
                yield self.own_label, DRIVER, REPORT, self.task, control_to_bytes(report)
            for part in _moderate(rows):
                yield self.own_label, number, ROWS, self.task, to_bytes(part)
        if self._discarded:
            yield self.own_label, DRIVER, REPORT, self.task, control_to_bytes({"discarded": self._discarded})

    def _written(self, rows: pl.DataFrame, output: Node, place: Place | None) -> pl.DataFrame:
        """What a sink is given of rows: whether they are taken back, if they can be, but not what only steps need."""
        if not isinstance(output, Write):
            return rows
        if OFFSET in rows.columns and place is not None and self.layout.traces(output):
            rows = rows.with_columns(pl.lit(place.number, pl.Int32).alias(PARTITION))
        else:
            rows = rows.drop(OFFSET, strict=False)
        return rows.drop(TIME, *([] if output.is_changing else [WEIGHT]), strict=False)

    def _drafted(self, number: int, rows: pl.DataFrame) -> tuple[dict[str, Any] | None, pl.DataFrame]:
        """What the driver is told of rows that were drafted as files here, and those that have to travel."""
        output = self.layout.outputs[number - len(self.layout.chain)]
        drafting = self.drafting.get(output.name)
        if drafting is None or rows.estimated_size() <= BLOB_BYTES_MAX:
            return None, rows
        assert isinstance(output, Write)
        try:
            if not drafting.folder.is_dir():
                return None, rows
            table, weights = as_written(rows, output)
            unfit = list(drafting.unfit(table))
            chosen = kept(len(rows), dict.fromkeys(unfit, ""))
            drafts = drafting.draft(table.filter(chosen), None if weights is None else weights.filter(chosen))
        except Exception:  # the driver tries the same, waits if that may help, and says what is wrong
            return None, rows
        # What cannot be in a file is refused by the sink itself, in the driver.
        return {"drafted": output.name, "rows": len(rows) - len(unfit), "drafts": drafts}, rows[sorted(unfit)]

    def _sent(self, number: int, kind: int, rows: pl.DataFrame) -> Iterable[Packed]:
        if number in self.near:
            yield self.own_label, number, kind, self.task, rows
            return
        for group, blob in self._split(rows, self.steps[number].keys):
            yield self.labels[group], number, kind, self.task, blob

    def _split(self, rows: pl.DataFrame, keys: list[str]) -> Iterable[tuple[int, bytes]]:
        count = len(self.labels)
        if count == 1 or not keys:
            group = int(key_groups(rows.head(1), keys, count)[0])
            yield from ((group, to_bytes(part)) for part in _moderate(rows))
            return
        groups = key_groups(rows, keys, count)
        order = np.argsort(groups, kind="stable")
        rows, bounds = rows[order], np.searchsorted(groups[order], np.arange(count + 1))
        for group, (start, end) in enumerate(pairwise(bounds)):
            if end > start:
                yield from ((group, to_bytes(part)) for part in _moderate(rows.slice(int(start), int(end - start))))


def as_written(rows: pl.DataFrame, output: Write) -> tuple[pa.Table, pa.Array | None]:
    """The rows as a sink takes them, and their weights if any of them may be taken back."""
    table = rows.select(output.schema.names).to_arrow().cast(output.schema.arrow)
    return table, rows[WEIGHT].to_arrow() if output.is_changing else None


def _moderate(rows: pl.DataFrame) -> Iterable[pl.DataFrame]:
    """Frames that Spark can carry as one value."""
    pieces = max(1, -(-int(rows.estimated_size()) // BLOB_BYTES_MAX))
    return rows.iter_slices(max(1, -(-len(rows) // pieces)))
