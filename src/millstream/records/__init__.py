"""Events: their schemas, decoding bytes into rows, and dead letters for bytes that cannot be decoded."""

from millstream.records.codecs import Codec, Decoded, Encoded, codec, codec_names
from millstream.records.columns import Failure
from millstream.records.dead_letters import DEAD_LETTER_SCHEMA, dead_letters
from millstream.records.durations import duration, format_duration, signed_duration
from millstream.records.evolution import align, can_evolve
from millstream.records.kinds import same_kind
from millstream.records.rows import batch_to_rows, rows_to_batch
from millstream.records.schema import Schema, SchemaLike
from millstream.records.sizes import size_bytes
from millstream.records.values import values_or_raw

__all__ = [
    "DEAD_LETTER_SCHEMA",
    "Codec",
    "Decoded",
    "Encoded",
    "Failure",
    "Schema",
    "SchemaLike",
    "align",
    "batch_to_rows",
    "can_evolve",
    "codec",
    "codec_names",
    "dead_letters",
    "duration",
    "format_duration",
    "rows_to_batch",
    "same_kind",
    "signed_duration",
    "size_bytes",
    "values_or_raw",
]
