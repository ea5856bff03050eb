"""Rows sent to a push or SMS gateway: with its own fields, within its rate limit, and rejected rows as dead letters."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pyarrow as pa
import pytest

import millstream as ms
from millstream.bridges.http.push_sink import PushSink
from millstream.connectors.connector import Writing
from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.opening import open_sink
from millstream.connectors.refusals import Refusal
from millstream.errors import InvalidInput, InvalidPlan
from millstream.records import Schema, rows_to_batch
from millstream.webhooks.pacing import Pace, RateLimit

from .receiver import Receiver, receiving

DUE = Schema.of("phone string, amount double")
MESSAGE = {"to": "{phone}", "text": "{amount} are due {{soon}}"}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


def rows(*phones: str | None) -> pa.Table:
    batch, _ = rows_to_batch([{"phone": phone, "amount": 1.5} for phone in phones], DUE)
    return pa.Table.from_batches([batch])


def sink(endpoint: Any, folder: Path) -> Any:
    return open_sink(endpoint, DUE, job="j", step="out", broker=folder / "log", folder=folder / "job")


def test_rows_are_sent_with_the_fields_of_the_gateway(receiver: Receiver, tmp_path: Path) -> None:
    endpoint = ms.push(receiver.url, MESSAGE, headers={"Authorization": "Bearer hush"})
    assert "hush" not in f"{endpoint} {endpoint!r}"
    sink(pickle.loads(pickle.dumps(endpoint)), tmp_path).write(0, rows("+49 1", None), None)
    assert [json.loads(body) for _, body in receiver.got] == [
        {"to": "+49 1", "text": "1.5 are due {soon}"},
        {"to": "", "text": "1.5 are due {soon}"},
    ]
    assert receiver.got[0][0]["authorization"] == "Bearer hush"


def test_a_form_rejections_and_retractions(receiver: Receiver, tmp_path: Path) -> None:
    receiver.answer([200, 400])
    refused: list[Refusal] = []
    opened = sink(ms.push(receiver.url, MESSAGE, encoding="form"), tmp_path)
    opened.write(0, rows("a", "b", "c"), pa.array([-1, 1, 1], pa.int64()), refused.extend)
    assert [parse_qs(body.decode())["to"] for _, body in receiver.got] == [["b"], ["c"]]
    assert receiver.got[0][0]["content-type"] == "application/x-www-form-urlencoded"
    assert [each.row for each in refused] == [2]


def test_rows_wait_for_the_rate_limit(receiver: Receiver, tmp_path: Path) -> None:
    clock = [0.0]
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        clock[0] += seconds

    endpoint = ms.push(receiver.url, MESSAGE, limit="2 per minute")
    opened = endpoint.open_sink(Writing(DUE, "j", "out", FileLedger(tmp_path / "job", "out"), str(tmp_path / "log")))
    assert isinstance(opened, PushSink)
    opened._pace, opened._sleep = Pace(endpoint.limit, lambda: clock[0]), sleep
    opened.write(0, rows(*"abcde"), None)
    assert waited == [0, 0, 60, 0, 60]
    assert len(receiver.got) == 5


def test_a_pace_holds_in_any_span() -> None:
    clock = [0.0]
    pace = Pace(RateLimit(2, 10.0), lambda: clock[0])
    for at, expected in [(0, 0), (9, 0), (9, 1), (10, 0), (18, 1), (19, 0)]:
        clock[0] = at
        assert pace.wait_s() == expected
        if not expected:
            pace.note()


@pytest.mark.parametrize(
    ("message", "more"),
    [
        ("text", {}),
        ({"a": "b"}, {"encoding": "text"}),
        ({"a": "{}"}, {}),
        ({"a": "{b"}, {}),
        ({"a": "b"}, {"encoding": "xml"}),
        ({"a": "b"}, {"limit": "often"}),
    ],
)
def test_what_cannot_be_a_message(message: Any, more: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refused:
        ms.push("https://example.org/send", message, **more)
    assert refused.value.next_step


def test_a_column_that_is_missing() -> None:
    stream = ms.Flow("f").read("due", "phone string")
    with pytest.raises(InvalidPlan, match="no column 'amount'"):
        stream.write(ms.push("https://example.org/send", MESSAGE))
