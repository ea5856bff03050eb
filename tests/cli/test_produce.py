"""Goal: every line is stored or a dead letter, whatever the topic and the options. Method: read it back."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest

from millstream.log import EmbeddedLog, Record
from millstream.records import DEAD_LETTER_SCHEMA

from .conftest import SCHEMA, Run

GOOD = b'{"user":"a","team":"x","score":1}\n{"user":"b","team":"y","score":2}\n'
MIXED = b'{"user":"a","team":"x","score":1}\nnot json\n\n{"user":"b","score":"much"}\n{"user":"c","team":"x","score":3}'


def records(log: EmbeddedLog, topic: str) -> list[Record]:
    with log.consumer(topic) as consumer:
        return sorted(consumer.until_caught_up(), key=lambda record: (record.partition, record.offset))


def values(log: EmbeddedLog, topic: str) -> list[Any]:
    return [record.value for record in records(log, topic)]


# ---------------------------------------------------------------- the sentence of the README


def test_the_pipe_of_the_readme(process: Run, log: EmbeddedLog) -> None:
    """cat events.jsonl | millstream produce scores --key team"""
    log.create_topic("scores", partitions=4, schema=SCHEMA)
    done = process("produce", "scores", "--key", "team", stdin=GOOD)
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith("stored 2 records in ")
    assert {record.key: record.value["score"] for record in records(log, "scores")} == {b"x": 1, b"y": 2}


# ---------------------------------------------------------------- topics with a schema


def test_lines_that_do_not_decode_become_dead_letters(ms: Run, log: EmbeddedLog, tmp_path: Path) -> None:
    log.create_topic("scores", schema=SCHEMA)
    (tmp_path / "mixed.jsonl").write_bytes(MIXED)
    done = ms("produce", "scores", tmp_path / "mixed.jsonl", "--key", "team")
    assert done.code == 6
    assert done.err == (
        "stored 2 records in 1 partition of 'scores' (2 dead letters in 'scores.dead'; 1 empty line skipped)\n"
    )
    assert [value["score"] for value in values(log, "scores")] == [1, 3]
    letters = values(log, "scores.dead")
    assert [(letter["value"], letter["offset"]) for letter in letters] == [
        (b"not json", 2),
        (b'{"user":"b","score":"much"}', 4),
    ]
    assert [(letter["topic"], letter["partition"]) for letter in letters] == [("scores", -1)] * 2
    assert "mixed.jsonl: line 4: column 'score'" in letters[1]["reason"]


def test_dead_letters_are_printed_as_the_text_that_came(ms: Run, log: EmbeddedLog) -> None:
    """Bytes that are no text have another name, so that nothing is taken for what it is not."""
    log.create_topic("scores", schema="team string, score int")
    with log.producer() as producer:
        log.create_topic("bad", schema=DEAD_LETTER_SCHEMA)
        for number, value in enumerate([b"not json \xc3\xa9", b"\xff\xfe", None]):
            letter = {"value": value, "topic": "scores", "partition": 0, "offset": number, "reason": "r", "at": None}
            producer.send("bad", letter)
    for option in ("--format=value", "--json"):
        lines = [json.loads(line) for line in ms("consume", "bad", option).out.splitlines()]
        found = lines if option != "--json" else [line["value"] for line in lines]
        shown = [{name: row[name] for name in row if name.startswith("value")} for row in found]
        assert shown == [{"value": "not json é"}, {"value_base64": "//4="}, {"value": None}]
        assert [row["offset"] for row in found] == [0, 1, 2]


def test_dead_letters_go_where_they_are_sent(ms: Run, log: EmbeddedLog) -> None:
    log.create_topic("scores", schema=SCHEMA)
    done = ms("produce", "scores", "--dead-letters", "bad", "--json", stdin=MIXED)
    assert (done.code, done.json["stored"], done.json["dead_letters"]) == (6, 2, 2)
    assert done.json["dead_letter_topic"] == "bad"
    assert len(values(log, "bad")) == 2


def test_dead_letters_cannot_go_to_a_topic_with_another_schema(ms: Run, log: EmbeddedLog) -> None:
    log.create_topic("scores", schema=SCHEMA)
    log.create_topic("scores.dead")
    assert ms("produce", "scores", stdin=GOOD).code == 2
    assert ms("produce", "scores", "--dead-letters", "scores", stdin=GOOD).code == 2
    assert values(log, "scores") == []


def test_on_error_stop_stores_what_precedes_the_error(ms: Run, log: EmbeddedLog) -> None:
    log.create_topic("scores", schema=SCHEMA)
    done = ms("produce", "scores", "--on-error", "stop", stdin=MIXED)
    assert done.code == 2
    assert "error: line 2: not valid JSON" in done.err
    assert "1 record before it stored" in done.err
    assert [value["user"] for value in values(log, "scores")] == ["a"]
    assert log.topics() == ["scores"]


def test_a_column_is_the_timestamp(ms: Run, log: EmbeddedLog) -> None:
    log.create_topic("visits", schema="user string, at timestamp")
    lines = b'{"user":"a","at":"2025-06-01T12:00:00Z"}\n{"user":"b"}\n'
    assert ms("produce", "visits", "--timestamp", "at", stdin=lines).code == 6
    assert [record.timestamp for record in records(log, "visits")] == [datetime(2025, 6, 1, 12, tzinfo=UTC)]
    assert "'at' is the timestamp" in values(log, "visits.dead")[0]["reason"]
    assert ms("produce", "visits", "--timestamp", "user", stdin=lines).code == 2


def test_typed_lines_take_headers_keys_and_tombstones(ms: Run, log: EmbeddedLog) -> None:
    log.create_topic("scores", schema=SCHEMA, compaction=True)
    lines = b'k:{"score":1}\nk:NULL\nno separator\n'
    arguments = ["--key-separator", ":", "--null-value", "NULL", "--header", "from=test", "--header", "n=1"]
    assert ms("produce", "scores", *arguments, stdin=lines).code == 6
    first, second = records(log, "scores")
    assert (first.key, first.value["score"], second.key, second.value) == (b"k", 1, b"k", None)
    assert first.headers == (("from", b"test"), ("n", b"1"))
    assert values(log, "scores.dead")[0]["value"] == b"no separator"


def test_a_column_key_is_the_same_with_and_without_headers(ms: Run, log: EmbeddedLog) -> None:
    log.create_topic("scores", schema=SCHEMA)
    ms("produce", "scores", "--key", "score", stdin=GOOD)
    ms("produce", "scores", "--key", "score", "--header", "a=b", stdin=GOOD)
    assert [record.key for record in records(log, "scores")] == [b"1", b"2", b"1", b"2"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--key", "nobody"],
        ["--key", "team", "--key-separator", ":"],
        ["--key-separator", ""],
        ["--header", "no equals sign"],
        ["--partitions", "3"],
        ["--acks", "some"],
    ],
)
def test_options_that_make_no_sense_store_nothing(ms: Run, log: EmbeddedLog, arguments: list[str]) -> None:
    log.create_topic("scores", schema=SCHEMA)
    done = ms("produce", "scores", *arguments, stdin=GOOD)
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert values(log, "scores") == []


def test_a_nested_column_cannot_be_the_key(ms: Run, log: EmbeddedLog) -> None:
    log.create_topic("nested", schema="a struct<b: int>")
    assert ms("produce", "nested", "--key", "a", stdin=b'{"a":{"b":1}}').code == 2


def test_a_compacted_topic_wants_keys(ms: Run, log: EmbeddedLog) -> None:
    log.create_topic("scores", schema=SCHEMA, compaction=True)
    assert ms("produce", "scores", stdin=GOOD).code == 2
    assert ms("produce", "scores", "--key", "team", stdin=GOOD + b'{"score":3}\n').code == 6
    assert [record.key for record in records(log, "scores")] == [b"x", b"y"]


# ---------------------------------------------------------------- topics without a schema


def test_lines_are_stored_as_they_are(ms: Run, log: EmbeddedLog) -> None:
    log.create_topic("raw")
    assert ms("produce", "raw", stdin=b"one\r\n\n\xff\xfe\nlast").code == 0
    assert values(log, "raw") == [b"one", b"", b"\xff\xfe", b"last"]


def test_a_field_of_json_lines_is_the_key(ms: Run, log: EmbeddedLog) -> None:
    log.create_topic("raw")
    lines = b"""{"id":"a","at":"2025-06-01T12:00:00Z"}
{"id":7,"at":"2025-06-01T12:00:01Z"}
{"at":"2025-06-01T12:00:02Z"}
[]
{
{"id":"b"}
"""
    assert ms("produce", "raw", "--key", "id", "--timestamp", "at", stdin=lines).code == 6
    assert [(record.key, record.timestamp.second) for record in records(log, "raw")] == [(b"a", 0), (b"7", 1)]
    assert [letter["offset"] for letter in values(log, "raw.dead")] == [3, 4, 5, 6]


def test_keys_before_a_separator_headers_and_tombstones(ms: Run, log: EmbeddedLog) -> None:
    log.create_topic("raw", partitions=2)
    arguments = ["--key-separator", ":", "--null-value", "", "--header", "a=b=c", "--partition", "1"]
    assert ms("produce", "raw", *arguments, stdin=b"k:1:2\nk:\n").code == 0
    found = records(log, "raw")
    assert [(record.partition, record.key, record.value) for record in found] == [(1, b"k", b"1:2"), (1, b"k", None)]
    assert found[0].headers == (("a", b"b=c"),)


def test_round_robin(ms: Run, log: EmbeddedLog) -> None:
    log.create_topic("raw", partitions=3)
    ms("produce", "raw", "--partition-by", "round_robin", "--acks", "0", stdin=b"\n".join([b"x"] * 6))
    assert [record.partition for record in records(log, "raw")] == [0, 0, 1, 1, 2, 2]


def test_create_makes_the_topic_once(ms: Run, log: EmbeddedLog) -> None:
    assert ms("produce", "scores", stdin=GOOD).code == 3
    for _ in range(2):
        assert ms("produce", "scores", "--create", "--partitions", 2, "--schema", SCHEMA, stdin=GOOD).code == 0
    assert log.topic("scores").settings.partitions == 2
    assert len(values(log, "scores")) == 4


def test_a_missing_file_a_folder_and_a_missing_partition(ms: Run, log: EmbeddedLog, tmp_path: Path) -> None:
    log.create_topic("raw")
    assert ms("produce", "raw", tmp_path / "none").code == 3
    assert ms("produce", "raw", tmp_path).code == 2
    assert ms("produce", "raw", "--partition", 5, stdin=b"x").code == 3


# ---------------------------------------------------------------- files of columns

FRAME = pl.DataFrame({"team": ["x", "y", None], "n": [1, 2, 3], "at": [datetime(2025, 6, 1, tzinfo=UTC)] * 3})


@pytest.mark.parametrize("name", ["f.parquet", "f.arrow", "f.ipc", "f.csv"])
def test_columnar_files_bring_their_schema(ms: Run, log: EmbeddedLog, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    match file.suffix:
        case ".parquet":
            FRAME.write_parquet(file)
        case ".arrow":
            FRAME.write_ipc(file)
        case ".ipc":
            FRAME.write_ipc_stream(file)
        case ".csv":
            file.write_text(
                "at,team,n\n" + "".join(f"2025-06-01T00:00:00Z,{t},{n}\n" for t, n in (("x", 1), ("y", 2), ("", 3)))
            )
    assert ms("produce", "t", file, "--create", "--key", "team", "--timestamp", "at").code == 0
    found = records(log, "t")
    assert [(record.key, record.value["n"]) for record in found] == [(b"x", 1), (b"y", 2), (None, 3)]
    assert {record.timestamp for record in found} == {datetime(2025, 6, 1, tzinfo=UTC)}


def test_csv_records_are_checked_one_by_one(ms: Run, log: EmbeddedLog) -> None:
    """A line break in quotes belongs to its record; a quote never closed costs only its own line."""
    log.create_topic("t", schema="n int, name string, more string")
    lines = 'name,n\n"a\nb",1\n"open,2\nc,3\nd,x\n5" pipe,4\n\n"say ""hi""",5\n'
    assert ms("produce", "t", "--format", "csv", stdin=lines).code == 6
    assert [(v["name"], v["n"]) for v in values(log, "t")] == [("a\nb", 1), ("c", 3), ('say "hi"', 5)]
    assert [letter["offset"] for letter in values(log, "t.dead")] == [4, 6, 7]


def test_csv_needs_columns_it_knows(ms: Run, log: EmbeddedLog) -> None:
    log.create_topic("t", schema="n int not null, name string")
    log.create_topic("raw")
    for topic, header in [("t", "n,nobody"), ("t", "name"), ("t", "n,n"), ("t", ""), ("raw", "n")]:
        assert ms("produce", topic, "--format", "csv", stdin=header + "\n1\n").code == 2, header


def test_a_columnar_file_that_does_not_fit_is_refused(ms: Run, log: EmbeddedLog, tmp_path: Path) -> None:
    FRAME.write_parquet(tmp_path / "f.parquet")
    log.create_topic("t", schema="team string")
    log.create_topic("raw")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 is not enough")
    assert ms("produce", "t", tmp_path / "f.parquet").code == 2
    assert ms("produce", "raw", tmp_path / "f.parquet").code == 2
    assert ms("produce", "t", tmp_path / "broken.parquet").code == 2
    assert ms("produce", "t", tmp_path / "f.parquet", "--header", "a=b").code == 2


def test_a_parquet_file_of_many_batches(ms: Run, log: EmbeddedLog, tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"n": range(200_000)}), tmp_path / "many.parquet")
    done = ms("produce", "t", tmp_path / "many.parquet", "--create", "--partitions", 2, "--json")
    assert (done.code, done.json["stored"]) == (0, 200_000)


def test_an_arrow_file_that_stands_for_very_many_rows_is_refused(ms: Run, log: EmbeddedLog, tmp_path: Path) -> None:
    """A column of type null has no bytes, however many rows it has."""
    batch = pa.RecordBatch.from_arrays([pa.nulls(2**31 - 1)], names=["n"])
    for name, opened in (("s.arrow", pa.ipc.new_stream), ("f.arrow", pa.ipc.new_file)):
        with opened(tmp_path / name, batch.schema) as writer:
            writer.write_batch(batch)
        log.create_topic(name, schema="n int")
        done = ms("produce", name, tmp_path / name)
        assert done.code == 2
        assert "unpacks to more than 1 GiB and more than 1000 times its size" in done.err
        assert "--max-expansion" in done.err
        assert records(log, name) == []


def test_a_parquet_file_of_one_long_text_in_very_many_rows(
    ms: Run, log: EmbeddedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.connectors.files.bounds.EXPANDED_BYTES_MIN", 10 << 20)
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), pa.array(["x" * (1 << 20)]))
    pa.parquet.write_table(pa.table({"s": texts}), tmp_path / "t.parquet", compression="zstd", write_statistics=False)
    log.create_topic("t", schema="s string")
    done = ms("produce", "t", tmp_path / "t.parquet")
    assert done.code == 2
    assert "--max-expansion" in done.err


def test_categories_of_polars_are_texts(ms: Run, log: EmbeddedLog, tmp_path: Path) -> None:
    FRAME.with_columns(pl.col("team").cast(pl.Categorical)).write_ipc(tmp_path / "f.arrow")
    assert ms("produce", "t", tmp_path / "f.arrow", "--create").code == 0
    assert [value["team"] for value in values(log, "t")] == ["x", "y", None]


# ---------------------------------------------------------------- lines in chunks


def test_lines_across_chunks_keep_their_numbers(ms: Run, log: EmbeddedLog, tmp_path: Path) -> None:
    """Method: 9 MB of lines, which is three chunks, with one bad line in each."""
    log.create_topic("t", schema="n int, filler string")
    lines = [json.dumps({"n": n, "filler": "x" * 1000}) for n in range(9000)]
    bad = [100, 5000, 8999]
    for number in bad:
        lines[number - 1] = "{"
    (tmp_path / "lines").write_text("\n".join(lines))
    assert ms("produce", "t", tmp_path / "lines").code == 6
    assert [letter["offset"] for letter in values(log, "t.dead")] == bad
    assert [value["n"] for value in values(log, "t")] == [n for n in range(9000) if n + 1 not in bad]
