"""Places: what they check, how they are shown, and which columns rows have in a table."""

from pathlib import Path

import pytest

import millstream as ms
from millstream.errors import InvalidInput, InvalidPlan
from millstream.plan.steps.flat_columns import flat_columns
from millstream.postgres_address import without_password
from millstream.records import Schema

PANES = Schema.of(
    "team string, window struct<start: timestamp, end: timestamp>, "
    "pane struct<timing: string, index: bigint>, weight int, total bigint"
)


@pytest.mark.parametrize(
    ("place", "name", "text"),
    [
        (ms.files("data/in"), "files in", "files(data/in, parquet)"),
        (ms.files(Path("out/"), "csv"), "files out", "files(out, csv)"),
        (ms.files("out", partition_by="dt"), "files out", "files(out, parquet, by dt)"),
        (ms.files("out", partition_by=["dt", "hm"]), "files out", "files(out, parquet, by dt, hm)"),
        (ms.sqlite("s.db", "totals"), "sqlite totals", "sqlite(s.db, totals, append)"),
        (
            ms.sqlite("s.db", "totals", key=["team", "window"]),
            "sqlite totals",
            "sqlite(s.db, totals, upsert by team, window)",
        ),
        (
            ms.postgres("postgresql://ann:s3cret@db/games?sslpassword=s3cret", "g.totals", key="team"),
            "postgres g.totals",
            "postgres(postgresql://ann@db/games?sslpassword=…, g.totals, upsert by team)",
        ),
        (ms.console(), "console", "console()"),
        (ms.memory("kept"), "memory kept", "memory(kept)"),
        (ms.foreach_batch(print), "foreach print", "foreach_batch(print)"),
        (ms.discard(), "discard", "discard()"),
        (ms.rate(10), "rate", "rate(10 rows a second)"),
        (ms.socket("localhost", 9999), "socket 9999", "socket(localhost:9999)"),
    ],
)
def test_an_endpoint_has_a_name_and_a_text(place, name, text):
    assert (place.name, str(place)) == (name, text)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://ann:s3cret@db/games",
        "postgres://ann:s3%40cret@[::1]:5432/games",
        "host=db user=ann password=s3cret dbname=games",
        "host=db password = 's3cret \\' s3cret' user=ann",
        "postgresql://db/games?user=ann&password=s3cret&sslmode=require",
        "host=db PASSWORD=s3cret",
    ],
)
def test_a_password_is_never_shown(dsn):
    place = ms.postgres(dsn, "t")
    for shown in (str(place), repr(place), without_password(dsn)):
        assert "s3" not in shown
        assert "cret" not in shown


@pytest.mark.parametrize("dsn", ["postgresql://ann:s3cret@x@db/games", "postgresql://ann:s3/cret@db/games"])
def test_a_password_that_must_be_escaped_is_refused_and_not_shown(dsn):
    with pytest.raises(InvalidInput, match="has an extra '@'") as refused:
        ms.postgres(dsn, "t")
    assert "cret" not in str(refused.value)
    assert "cret" not in without_password(dsn)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ms.files("x", "parket"), "there is no file format 'parket'"),
        (lambda: ms.files(""), "a path must be a string or a Path"),
        (lambda: ms.files(7), "a path must be a string or a Path"),
        (lambda: ms.files("x", files_per_batch=0), "files_per_batch must be a positive integer"),
        (lambda: ms.files("x", partition_by=["dt", "hm", "dt"]), "duplicate column in partition_by: dt, hm, dt"),
        (lambda: ms.files("x", partition_by=""), "partition_by takes column names, not ''"),
        (lambda: ms.files("x", partition_by=7), "partition_by takes column names, not 7"),
        (lambda: ms.files("x", partition_by={"dt": 1}), "partition_by takes column names"),
        (lambda: ms.files("x", partition_by=["dt", None]), "partition_by takes column names"),
        (lambda: ms.sqlite("s.db", ""), "a table name must be a string"),
        (lambda: ms.sqlite("s.db", "_millstream_batches"), "is reserved"),
        (lambda: ms.sqlite("s.db", "t", mode="replace"), "there is no mode 'replace'"),
        (lambda: ms.sqlite("s.db", "t", mode="upsert"), "but there is no key="),
        (lambda: ms.sqlite("s.db", "t", mode="append", key="a"), "does not use a key"),
        (lambda: ms.sqlite("s.db", "t", key=[1]), "key takes column names"),
        (lambda: ms.postgres("mysql://x", "t"), "'mysql://' is not a Postgres address"),
        (lambda: ms.postgres("localhost", "t"), "cannot be read"),
        (lambda: ms.postgres("postgresql://x", "a.b.c"), "is not a table name"),
        (lambda: ms.console(rows=True), "rows must be a positive integer"),
        (lambda: ms.memory(None), "memory takes a name"),
        (lambda: ms.foreach_batch("print"), "foreach_batch takes a function"),
        (lambda: ms.rate(0), "rows_per_second must be a positive integer"),
        (lambda: ms.socket("localhost", 70000), "a port must be at most 65535"),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_was_written(make, said):
    with pytest.raises(InvalidInput) as refused:
        make()
    assert said in refused.value.what
    assert refused.value.where.startswith(f"{__file__}:")


def test_the_mode_follows_from_the_key():
    assert ms.sqlite("s.db", "t").mode == "append"
    assert ms.sqlite("s.db", "t", key="a").mode == "upsert"
    assert ms.sqlite("s.db", "t", key="a") == ms.sqlite("s.db", "t", mode="upsert", key=("a",))
    assert ms.console() != ms.console()


def test_structs_are_flattened():
    assert [column.name for column in flat_columns(PANES)] == [
        "team",
        "window_start",
        "window_end",
        "pane_timing",
        "pane_index",
        "weight",
        "total",
    ]
    deep = Schema.of("a struct<b: struct<c: int, d: array<int>>>")
    assert [(column.name, column.path) for column in flat_columns(deep)] == [
        ("a_b_c", ("a", "b", "c")),
        ("a_b_d", ("a", "b", "d")),
    ]


def test_a_struct_in_a_key_stands_for_its_parts():
    place = ms.sqlite("s.db", "t", key=["team", "window", "window_start", "pane_index"])
    assert place.key_columns(PANES) == ("team", "window_start", "window_end", "pane_index")
    deep = Schema.of("a struct<b: struct<c: int, d: int>>")
    assert ms.sqlite("s.db", "t", key="a").key_columns(deep) == ("a_b_c", "a_b_d")
    assert ms.sqlite("s.db", "t", key="a_b").key_columns(deep) == ("a_b_c", "a_b_d")


def test_a_key_that_the_rows_lack_is_refused_with_what_exists():
    with pytest.raises(InvalidPlan) as refused:
        ms.sqlite("s.db", "t", key="windw").check_written(PANES)
    assert "the key names 'windw'" in refused.value.what
    assert "did you mean 'window'?" in refused.value.next_step


def test_two_columns_of_one_name_are_refused():
    with pytest.raises(InvalidPlan, match=r"'window.start' and 'Window_Start' would both become the column"):
        flat_columns(Schema.of("window struct<start: int>, Window_Start int"))


@pytest.mark.parametrize("place", [ms.console(), ms.memory("x"), ms.foreach_batch(print), ms.sqlite("s.db", "t")])
def test_what_is_only_written_cannot_be_read(place):
    place.check_written(PANES)
    with pytest.raises(InvalidPlan, match="not read"):
        place.check_read()


@pytest.mark.parametrize("place", [ms.rate(1), ms.socket("h", 1), ms.files("x", "avro")])
def test_what_is_only_read_cannot_be_written(place):
    place.check_read()
    with pytest.raises(InvalidPlan, match="not written"):
        place.check_written(PANES)


def test_endpoints_in_flows_name_their_steps():
    flow = ms.Flow("games")
    scores = flow.read(ms.files("in", "json"), schema="team string, score int")
    scores.write(ms.sqlite("s.db", "totals", key="team"))
    scores.write(ms.console())
    scores.write(ms.console(), name="again")
    shown = flow.explain()
    assert "read_files_in\n    read files(in, json)" in shown
    assert "write_sqlite_totals\n    write sqlite(s.db, totals, upsert by team)" in shown
    assert "write_console\n    write console()" in shown


def test_topics_may_have_a_number_of_partitions_and_other_sinks_none():
    flow = ms.Flow("games")
    scores = flow.read("scores", schema="team string, score int")
    scores.write("copy", partitions=6)
    scores.write(ms.kafka("host", topic="other"), partitions=1)
    scores.to_table(key="team").write("newest", partitions=2)
    assert [output.partitions for output in flow.outputs] == [6, 1, 2]
    assert [output.label for output in flow.outputs[:2]] == [
        "write copy, 6 partitions",
        "write kafka(host, other), 1 partition",
    ]
    for place in (ms.console(), ms.sqlite("s.db", "totals"), ms.files("out"), ms.memory("x")):
        with pytest.raises(InvalidPlan, match="is not a topic") as refused:
            scores.write(place, partitions=2)
        assert __file__ in str(refused.value.where)
    for number in (0, -1, True, 1.5, "2"):
        with pytest.raises(InvalidPlan, match="partitions must be a positive integer"):
            scores.write("more", partitions=number)
    assert len(flow.outputs) == 3
