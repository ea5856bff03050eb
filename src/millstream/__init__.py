"""Millstream: a durable log, the Dataflow model and a live console in one Python package, on Spark."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.errors import MillstreamError
    from millstream.log import Batch, Broker, Message, Record, connect

# What `import millstream as ms` offers, and where it lives: loaded when first used, so that the command line is quick.
_HOME = {
    "Batch": "millstream.log",
    "Broker": "millstream.log",
    "Message": "millstream.log",
    "MillstreamError": "millstream.errors",
    "Record": "millstream.log",
    "connect": "millstream.log",
}

__all__ = ["Batch", "Broker", "Message", "MillstreamError", "Record", "connect"]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'millstream' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
