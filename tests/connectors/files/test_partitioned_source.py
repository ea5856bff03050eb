"""Folders named by values, `dt=2024-03-01/hour=7`, as a source: their values fill the columns that files lack."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream as ms
from connectors.reading import dead, offsets, rows
from millstream.connectors.files.endpoint import files
from millstream.connectors.opening import open_sink
from millstream.connectors.static_rows import load
from millstream.errors import InvalidInput, InvalidPlan
from millstream.records import Schema, rows_to_batch

FORMATS = ["json", "csv", "parquet", "avro"]
KINDS = {"n": "int", "team": "string"}


@pytest.fixture
def inbox(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    return folder


def write(path: Path, values, format):
    path.parent.mkdir(parents=True, exist_ok=True)
    names = list(values[0])
    if format == "json":
        path.write_text("".join(json.dumps(value) + "\n" for value in values))
    elif format == "csv":
        lines = [names, *([str(value[name]) for name in names] for value in values)]
        path.write_text("".join(",".join(line) + "\n" for line in lines))
    elif format == "parquet":
        types = {"n": pa.int32(), "team": pa.string()}
        pq.write_table(pa.Table.from_pylist(values, pa.schema([(name, types[name]) for name in names])), path)
    else:
        fields = [{"name": name, "type": KINDS[name]} for name in names]
        with path.open("wb") as file:
            fastavro.writer(file, {"type": "record", "name": "Row", "fields": fields}, values)


def by_n(found):
    return sorted(found, key=lambda row: row["n"])


@pytest.mark.parametrize("format", FORMATS)
def test_folders_fill_columns_by_their_type(inbox, open_, format):
    write(inbox / "dt=2024-03-01/hour=7/a", [{"n": 1}, {"n": 2}], format)
    write(inbox / "dt=2024-03-02/hour=__HIVE_DEFAULT_PARTITION__/b", [{"n": 3}], format)
    write(inbox / "c", [{"n": 4}], format)
    source = open_(files(inbox, format), "hour int, n int, dt date")
    assert by_n(rows(source)) == [
        {"n": 1, "dt": date(2024, 3, 1), "hour": 7},
        {"n": 2, "dt": date(2024, 3, 1), "hour": 7},
        {"n": 3, "dt": date(2024, 3, 2), "hour": None},
        {"n": 4, "dt": None, "hour": None},
    ]
    assert offsets(source) == sorted(set(offsets(source)))


@pytest.mark.parametrize("format", FORMATS)
def test_what_a_file_has_itself_goes_first(inbox, open_, format):
    write(inbox / "team=red/a", [{"n": 1, "team": "blue"}], format)
    assert rows(open_(files(inbox, format), "n int, team string")) == [{"n": 1, "team": "blue"}]


@pytest.mark.parametrize("format", FORMATS)
def test_a_not_null_column_may_come_from_a_folder(inbox, open_, format):
    write(inbox / "team=red/a", [{"n": 1}], format)
    write(inbox / "team=__HIVE_DEFAULT_PARTITION__/b", [{"n": 2}], format)
    source = open_(files(inbox, format), "n int, team string not null")
    assert rows(source) == [{"n": 1, "team": "red"}]
    (letter,) = dead(source)
    assert (letter["topic"], letter["value"]) == ("team=__HIVE_DEFAULT_PARTITION__/b", b'{"n":2,"team":null}')


@pytest.mark.parametrize("format", FORMATS)
def test_a_value_of_another_type_is_one_dead_letter_for_the_file(inbox, open_, format):
    write(inbox / "hour=noon/a", [{"n": 1}, {"n": 2}], format)
    write(inbox / "hour=12/b", [{"n": 3}], format)
    source = open_(files(inbox, format), "n int, hour int")
    assert rows(source) == [{"n": 3, "hour": 12}]
    (letter,) = dead(source)
    assert (letter["topic"], letter["offset"], letter["value"]) == ("hour=noon/a", 0, None)
    assert letter["reason"] == "column 'hour': expected int, found 'noon' in the folder name"


def test_a_large_file_in_a_wrong_folder_is_one_letter_however_it_is_shared_out(inbox, open_):
    (inbox / "hour=noon").mkdir()
    numbers = pa.table({"n": pa.array(range(400_000), pa.int32())})
    pq.write_table(numbers, inbox / "hour=noon/a", row_group_size=50_000)
    source = open_(files(inbox), "n int, hour int")
    assert len(source.slices({"files": 0}, source.latest(), 4)) == 4
    assert len(dead(source, tasks=4)) == 1
    assert rows(source, tasks=4) == []


def test_a_large_file_has_its_value_in_all_parts(inbox, open_):
    (inbox / "hour=7").mkdir()
    numbers = pa.table({"n": pa.array(range(400_000), pa.int32())})
    pq.write_table(numbers, inbox / "hour=7/a", row_group_size=50_000)
    source = open_(files(inbox), "n int, hour int", columns=Schema.of("hour int"))
    assert rows(source, tasks=4) == [{"hour": 7}] * 400_000


def test_unused_columns_are_not_computed(inbox, open_):
    write(inbox / "hour=noon/a", [{"n": 1}], "parquet")
    source = open_(files(inbox), "n int, hour int", columns=Schema.of("n int"))
    assert rows(source) == [{"n": 1}]
    assert dead(source) == []


def test_nested_columns_are_not_read_from_folders(inbox, open_):
    write(inbox / "a=1/a", [{"n": 1}], "parquet")
    (letter,) = dead(open_(files(inbox), "n int, a array<int>"))
    assert "array<int> cannot be read from a folder name" in letter["reason"]


def test_other_folders_and_hidden_ones_are_not_looked_into(inbox, open_):
    kept = ["a", "x=1/a", "x=1/y=2/a", "_x=1/a", "x=2.tmp/a"]
    for path in [*kept, "sub/a", "sub/x=1/a", "x=1/sub/a", ".x=1/a", "_temporary/x=1/a", "x=1/_a", "x=1/.a.tmp"]:
        write(inbox / path, [{"n": 1}], "json")
    source = open_(files(inbox, "json"), "n int")
    assert source.latest() == {"files": len(kept)}


def test_a_link_to_a_folder_above_is_not_followed_for_ever(inbox, open_):
    write(inbox / "x=1/a", [{"n": 1}], "json")
    (inbox / "x=1/x=2").symlink_to(inbox)
    (inbox / "y=1").symlink_to(inbox / "nowhere")
    assert rows(open_(files(inbox, "json"), "n int, x int")) == [{"n": 1, "x": 1}]


def test_folders_above_the_given_one_are_ignored(tmp_path, open_):
    folder = tmp_path / "team=red"
    write(folder / "hour=7/a", [{"n": 1}], "json")
    source = open_(files(folder, "json"), "n int, team string, hour int")
    assert rows(source) == [{"n": 1, "team": None, "hour": 7}]
    (single,) = rows(open_(files(folder / "hour=7/a", "json"), "n int, hour int", name="one"))
    assert single == {"n": 1, "hour": None}


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("*/*/a", {"team": "red", "hour": 7}),
        ("**/a", {"team": "red", "hour": 7}),
        ("team=red/*/a", {"team": None, "hour": 7}),
        ("team=r*/**/*", {"team": "red", "hour": 7}),
        ("team=red/hour=7/*", {"team": None, "hour": None}),
    ],
)
def test_folders_of_a_glob_count_from_its_first_wildcard(inbox, open_, pattern, wanted):
    write(inbox / "team=red/hour=7/a", [{"n": 1}], "json")
    source = open_(files(f"{inbox}/{pattern}", "json"), "n int, team string, hour int")
    assert rows(source) == [{"n": 1, **wanted}]


@pytest.mark.parametrize(
    ("name", "found"),
    [("22%3A13", "22:13"), ("a%2Fb%25", "a/b%"), ("%C3%A4", "ä"), ("a+b", "a+b"), ("", ""), ("100%", "100%")],
)
def test_names_are_decoded(inbox, open_, name, found):
    write(inbox / f"team={name}/a", [{"n": 1}], "json")
    assert rows(open_(files(inbox, "json"), "n int, team string")) == [{"n": 1, "team": found}]


def test_a_name_that_is_not_text_is_a_dead_letter(inbox, open_):
    write(inbox / "team=%FF/a", [{"n": 1}], "json")
    assert "is not valid text" in dead(open_(files(inbox, "json"), "n int, team string"))[0]["reason"]


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_what_the_sink_wrote_is_read_back(tmp_path, open_, format):
    schema = Schema.of(
        "n int, flag boolean, day date, at timestamp, clock timestamp_ntz, cents decimal(10,2), small tinyint, "
        "name string"
    )
    at = datetime(2024, 3, 1, 12, 0, 0, 5, tzinfo=UTC)
    given = [
        {"n": 0, **dict.fromkeys(schema.names[1:])},
        *(
            {
                "n": n,
                "flag": n % 2 == 0,
                "day": date(1969, 12, n),
                "at": at,
                "clock": at.replace(tzinfo=None),
                "cents": Decimal(f"-{n}.50"),
                "small": -n,
                "name": name,
            }
            for n, name in enumerate(["a/b", "..", "%", "ä=ö", "__HIVE_DEFAULT_PARTITION__", " ", "x" * 200], start=1)
        ),
    ]
    place = ms.files(tmp_path / "out", format, partition_by=schema.names[1:])
    sink = open_sink(place, schema, job="j", step="s", broker=tmp_path / "log", folder=tmp_path / "job")
    batch, _ = rows_to_batch(given, schema)
    sink.write(0, pa.Table.from_batches([batch]), None)
    assert by_n(rows(open_(files(tmp_path / "out", format), schema))) == given


def test_a_lookup_table_is_read_the_same_way(inbox):
    write(inbox / "hour=7/a", [{"n": 1}], "csv")
    assert load(files(inbox, "csv"), Schema.of("n int, hour int")).to_pylist() == [{"n": 1, "hour": 7}]
    write(inbox / "hour=noon/a", [{"n": 1}], "csv")
    with pytest.raises(InvalidInput, match="hour=noon/a does not fit"):
        load(files(inbox, "csv"), Schema.of("n int, hour int"))


def test_partition_by_is_not_for_reading():
    flow = ms.Flow("f")
    with pytest.raises(InvalidPlan, match="partition_by applies to writing") as refused:
        flow.read(ms.files("in", partition_by="dt"), "n int, dt date")
    assert refused.value.where.startswith(f"{__file__}:")
    with pytest.raises(InvalidPlan, match="partition_by applies to writing"):
        load(ms.files("in", partition_by="dt"), Schema.of("n int, dt date"))
