"""Goal: a dead letter keeps the original bytes and says where they stood and why they failed."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from millstream.errors import InvalidInput
from millstream.records import DEAD_LETTER_SCHEMA, Failure, batch_to_rows, codec, dead_letters

NOW = datetime(2024, 5, 1, tzinfo=UTC)


@pytest.mark.parametrize("as_given", [list, pa.array])
def test_failures_become_rows_with_their_bytes_and_offsets(as_given):
    values = [b'{"n": 1}', b"\xff", None, b'{"n": "x"}']
    failures = codec("json", "n int").decode(values).failures
    letters = dead_letters(as_given(values), as_given([10, 11, 12, 15]), failures, topic="t", partition=3, at=NOW)
    assert letters.schema == DEAD_LETTER_SCHEMA.arrow
    assert batch_to_rows(letters) == [
        {"value": b"\xff", "topic": "t", "partition": 3, "offset": 11, "reason": failures[0].reason, "at": NOW},
        {"value": b'{"n": "x"}', "topic": "t", "partition": 3, "offset": 15, "reason": failures[1].reason, "at": NOW},
    ]


def test_no_failures_give_no_dead_letters():
    assert dead_letters([b"x"], [0], [], topic="t", partition=0, at=NOW).num_rows == 0


def test_mistakes_are_refused():
    with pytest.raises(InvalidInput, match="1 values, but 2 offsets"):
        dead_letters([b"x"], [0, 1], [Failure(0, "bad")], topic="t", partition=0, at=NOW)
    with pytest.raises(InvalidInput, match="time zone"):
        dead_letters([b"x"], [0], [Failure(0, "bad")], topic="t", partition=0, at=datetime(2024, 5, 1))
