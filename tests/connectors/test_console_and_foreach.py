"""Batches printed to the console, and passed to a user's function."""

from datetime import UTC, datetime

import pytest

import millstream as ms
from millstream.connectors.opening import open_sink
from millstream.errors import InvalidInput, SinkFailed, SinkUnavailable
from millstream.records import Schema

from .support import SCORES, table, weights

A, B, C = ({"team": "a", "score": 1}, {"team": "b", "score": None}, {"team": "[c]", "score": 3})


def opened(place, tmp_path, schema=SCORES):
    return open_sink(place, Schema.of(schema), job="j", step="show", broker=tmp_path / "log", folder=tmp_path / "job")


def test_a_batch_is_printed_once(tmp_path, capsys):
    for _ in range(2):
        sink = opened(ms.console(rows=2), tmp_path)
        sink.write(3, table(SCORES, [A, C, B]), None)
        sink.write(4, table(SCORES, []), None)
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "show, batch 3, 3 rows",
        "team  score",
        "a     1",
        "[c]   3",
        "… and 1 more",
    ]


def test_panes_and_times_are_short_and_weights_are_shown_if_rows_are_retracted(tmp_path, capsys):
    schema = "window struct<start: timestamp, end: timestamp>, pane struct<timing: string, index: bigint>, weight int"
    noon = datetime(2024, 3, 1, 12, tzinfo=UTC)
    row = {"window": {"start": noon, "end": None}, "pane": {"timing": "early", "index": 2}, "weight": 1}
    sink = opened(ms.console(), tmp_path, schema)
    sink.write(0, table(schema, [row]), weights(1))
    shown = capsys.readouterr().out
    assert "2024-03-01 12:00:00Z to null" in shown
    assert "early 2" in shown
    assert "weight" not in shown
    sink.write(1, table(schema, [{**row, "weight": -1}]), weights(-1))
    assert "-1" in capsys.readouterr().out


def test_a_function_gets_rows_and_batch_once(tmp_path):
    calls = []
    place = ms.foreach_batch(lambda rows, batch: calls.append((batch, rows.to_pylist())))
    for _ in range(2):
        sink = opened(place, tmp_path)
        sink.write(0, table(SCORES, [A]), None)
        sink.write(1, table(SCORES, []), None)
        sink.write(2, table(SCORES, [A]), weights(-1))
    assert calls == [(0, [A]), (2, [{**A, "weight": -1}])]


@pytest.mark.parametrize(("kind", "library"), [("pandas", "pandas"), ("polars", "polars"), ("arrow", "pyarrow")])
def test_a_function_gets_the_kind_of_frame_that_it_wants(tmp_path, kind, library):
    calls = []
    sink = opened(ms.foreach_batch(lambda rows, batch: calls.append(rows), batch=kind), tmp_path)
    sink.write(0, table(SCORES, [A, C]), None)
    assert type(calls[0]).__module__.split(".")[0] == library
    assert list(calls[0]["score"].to_pylist() if kind == "arrow" else calls[0]["score"]) == [1, 3]


def test_a_kind_of_frame_that_does_not_exist_is_refused():
    with pytest.raises(InvalidInput, match="batch='panda' is unknown") as refused:
        ms.foreach_batch(print, batch="panda")
    assert "did you mean 'pandas'?" in refused.value.next_step


@pytest.mark.more
def test_a_function_of_pyspark_gets_a_dataframe(tmp_path, spark):
    calls = []
    place = ms.foreach_batch(lambda df, batch: calls.append(df.agg({"score": "sum"}).first()[0]), batch="spark")
    sink = opened(place, tmp_path)
    sink.write(0, table(SCORES, [A, C]), None)
    assert calls == [4]


def test_a_function_that_raises_is_named_with_its_batch_and_line(tmp_path):
    def store(rows, batch):
        raise ValueError("no room")

    sink = opened(ms.foreach_batch(store), tmp_path)
    with pytest.raises(SinkFailed) as failed:
        sink.write(5, table(SCORES, [A]), None)
    assert failed.value.what == "foreach_batch(store) failed with ValueError: no room"
    assert failed.value.where.startswith(f"step 'show', batch 5, 1 rows, {__file__}:")


def test_a_function_may_say_that_it_should_be_called_again(tmp_path):
    tries = []

    def store(rows, batch):
        tries.append(batch)
        if len(tries) == 1:
            raise SinkUnavailable("the other end is down")

    sink = opened(ms.foreach_batch(store), tmp_path)
    with pytest.raises(SinkUnavailable):
        sink.write(0, table(SCORES, [A]), None)
    sink.write(0, table(SCORES, [A]), None)
    sink.write(0, table(SCORES, [A]), None)
    assert tries == [0, 0]
