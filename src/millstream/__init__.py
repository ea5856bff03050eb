"""Millstream: a durable log, the Dataflow model and a live console in one Python package, on Spark."""

from millstream.log import Batch, Message, Record, connect

__all__ = ["Batch", "Message", "Record", "connect"]
