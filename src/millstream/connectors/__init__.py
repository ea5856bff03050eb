"""Sources and sinks: one module per external system, and the interfaces that the engine uses.

`docs/connectors.md` shows how to write one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.connectors.catalog import Remembered
    from millstream.connectors.claims import Claim, Found, Keeper
    from millstream.connectors.connector import Connector, Reading, WorkerNeeds, Writing
    from millstream.connectors.lookups import Lookup
    from millstream.connectors.refusals import Refusal, Refuse
    from millstream.connectors.sink import Prepared, Preparer, Sink, TwoPhaseSink
    from millstream.connectors.source import Offsets, Slab, Slice, Source

_HOME = {
    "Claim": "claims",
    "Connector": "connector",
    "Found": "claims",
    "Keeper": "claims",
    "Lookup": "lookups",
    "Offsets": "source",
    "Prepared": "sink",
    "Preparer": "sink",
    "Reading": "connector",
    "Refusal": "refusals",
    "Refuse": "refusals",
    "Remembered": "catalog",
    "Sink": "sink",
    "Slab": "source",
    "Slice": "source",
    "Source": "source",
    "TwoPhaseSink": "sink",
    "WorkerNeeds": "connector",
    "Writing": "connector",
}

__all__ = [
    "Claim",
    "Connector",
    "Found",
    "Keeper",
    "Lookup",
    "Offsets",
    "Prepared",
    "Preparer",
    "Reading",
    "Refusal",
    "Refuse",
    "Remembered",
    "Sink",
    "Slab",
    "Slice",
    "Source",
    "TwoPhaseSink",
    "WorkerNeeds",
    "Writing",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'millstream.connectors' has no attribute '{name}'")
    return getattr(import_module(f"millstream.connectors.{_HOME[name]}"), name)
