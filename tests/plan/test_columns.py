"""Steps on columns: what they keep, and what is refused with the name of the right step."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import polars as pl
import pytest

import millstream as ms
from millstream.errors import InvalidInput, InvalidPlan, UnknownStep
from millstream.plan.on_spark.hints import OF_STREAMS
from millstream.testing import Add, play

SCHEMA = "id int, name string, price double, at timestamp"


def stream(flow: ms.Flow | None = None, topic: str = "in", schema: str = SCHEMA) -> Any:
    return (flow or ms.Flow("f")).read(topic, schema, event_time="at")


def test_select_every_column_and_more() -> None:
    assert stream().select("*", twice="id * 2").schema.names == ("id", "name", "price", "at", "twice")
    assert stream().select("*", ID="id * 2").schema.names == ("ID", "name", "price", "at")
    assert stream().select("at", "*").schema.names == ("at", "id", "name", "price")


NESTED = "id int, data struct<user: string, place: struct<x: int, y: int>>, at timestamp"


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        (["id", "data.*"], ["id", "user", "place"]),
        (["data.place.*"], ["x", "y"]),
        (["data.user", "id as number", "id * 2 AS `twice as much`"], ["user", "number", "twice as much"]),
        ([["id", "at"]], ["id", "at"]),
        (["*", "id + 1 as id", "data.user"], ["id", "data", "at", "user"]),
        (["cast(id as string) as text", "explode(array(id)) as each"], ["text", "each"]),
    ],
)
def test_select_takes_columns_as_pyspark_does(columns: list[Any], names: list[str]) -> None:
    assert list(stream(schema=NESTED).select(*columns).schema.names) == names


def test_selected_fields_have_their_values() -> None:
    row = {"id": 1, "data": {"user": "ann", "place": {"x": 2, "y": 3}}, "at": None}
    for on in ("reference", "local"):
        (rows,) = play(
            lambda rows: rows.select("data.*", "data.place.x", "id + 1 as next"), [Add([row])], schema=NESTED, on=on
        )
        assert rows == [{"user": "ann", "place": {"x": 2, "y": 3}, "x": 2, "next": 2}]


def test_keys_may_be_made() -> None:
    rows = stream(schema=NESTED)
    grouped = rows.group_by("data.user", day="to_date(at)").agg(n=ms.count())
    assert grouped.key == ("user", "day")
    panes = rows.key_by(["id", "id % 2 as odd"]).window(ms.fixed("1 minute")).agg(n=ms.count())
    assert panes.schema.names[:2] == ("id", "odd")
    assert stream().distinct(["id", "name"]).schema.names == stream().schema.names


def test_with_columns_adds_and_replaces() -> None:
    made = stream().with_columns({"name": "upper(name)"}, total="id * price", id="id + 1")
    assert made.schema.names == ("id", "name", "price", "at", "total")
    assert str(made.schema.field("total").type) == "double"


def test_drop_and_rename() -> None:
    assert stream().drop("id", "price").schema.names == ("name", "at")
    assert stream().rename({"name": "user"}, id="number").schema.names == ("number", "user", "price", "at")
    assert stream().rename({"id": "name", "name": "id"}).schema.names == ("name", "id", "price", "at")


def test_a_table_keeps_its_key_unless_a_step_removes_it() -> None:
    table = stream().to_table(key="id")
    assert table.drop("price").key == ("id",)
    assert table.with_columns(price="price * 2").key == ("id",)
    assert table.sample(0.5, by="id").key == ("id",)
    assert table.drop("id").key == ()


REFUSED: list[tuple[Any, str, str]] = [
    (lambda: stream().with_columns(), "with_columns needs at least one column", "with_columns(total="),
    (lambda: stream().with_columns(x="prise"), "prise", "price"),
    (lambda: stream().select("name.*"), "'name.*' are the fields of a struct, but 'name' is string", ""),
    (lambda: stream().select("nome as x"), "there is no column 'nome'", "did you mean 'name'?"),
    (lambda: stream().select("uper(name)"), "there is no function uper", "did you mean 'upper'?"),
    (lambda: stream().select("posexplod(x) as (a, b)"), "there is no function posexplod", "did you mean 'posexplode'?"),
    (lambda: stream().select("upper(name)"), "the column 'upper(name)' has no name", "select('upper(name) as …')"),
    (lambda: stream().select("id", name="upper(name)"), "not a valid name for a step", "'upper(name) as name'"),
    (lambda: stream().key_by("nome"), "there is no column 'nome'", "did you mean 'name'?"),
    (lambda: stream().key_by("id").window("5 minutes"), "'5 minutes' is not a window", "window(ms.fixed('5 minutes'))"),
    (lambda: stream().join(pl.DataFrame({"id": [1]}), on="id"), "join takes a stream or a table", "flow.table(frame)"),
    (lambda: stream()["name"], "a stream has no step 'name'", "where('name is not null')"),
    (lambda: stream().name, "a stream has no step 'name'", "where('name is not null')"),
    (lambda: stream().drop(), "drop needs at least one column", "name"),
    (lambda: stream().drop("nome"), "there is no column 'nome'", "did you mean 'name'?"),
    (lambda: stream().drop("id", "name", "price", "at"), "every column", "at least one"),
    (lambda: stream().rename(), "rename takes new names by old ones", "rename(id='user')"),
    (lambda: stream().rename(nome="x"), "there is no column 'nome'", "did you mean 'name'?"),
    (lambda: stream().rename(id="NAME"), "two columns named", "drop(…)"),
    (lambda: stream().rename(id=""), "a column name is a string", "rename(old='new')"),
    (lambda: stream().sample(2), "a fraction from 0 to 1, not 2", "sample(0.01)"),
    (lambda: stream().sample(0.1, seed="x"), "seed is an integer", "seed=7"),
    (lambda: stream().sample(0.1, by="price"), "sample cannot use 'price', which is double", "by='user'"),
    (lambda: stream().sample(0.1, by="prise"), "there is no column 'prise'", "did you mean 'price'?"),
    (lambda: stream().parse("nome", "x int"), "there is no column 'nome'", "did you mean 'name'?"),
    (lambda: stream().parse("id", "x int"), "parse takes a string or binary column", "encoded column"),
    (lambda: stream().parse("name"), "the codec 'json' needs a schema", "user string"),
    (lambda: stream().parse("name", "Price double"), "already a column 'Price' beside 'name'", "rename(Price="),
    (
        lambda: stream().parse("name", "x int", format="xml"),
        "there is no format 'xml'",
        "csv, avro, protobuf",
    ),
    (lambda: stream().parse("name", "x int", delimiter=","), "has no option 'delimiter'", "it has none"),
    (lambda: stream().parse("name", format="regex"), "takes one option, pattern", "pattern="),
    (lambda: stream().parse("name", pattern="(?P<a>.)"), "'json' has no option 'pattern'", "format='regex'"),
    (lambda: stream().parse("name", format="regex", pattern="("), "not a regular expression", "re module"),
    (lambda: stream().parse("name", format="regex", pattern="x"), "has no named groups", "%{WORD:user}"),
    (lambda: stream().parse("name", format="regex", pattern="%{NUM:x}"), "no pattern 'NUM'", "NUMBER"),
    (lambda: stream().parse("name", "y int", format="regex", pattern="(?P<x>.)"), "no group named 'y'", "groups: x"),
    (lambda: stream().map_async("x"), "map_async takes a function", "async def"),
    (lambda: stream().map_async(lambda: None), "does not accept", "def function(row)"),
    (lambda: stream().map_async(len, concurrency=0), "concurrency is a whole number from 1, not 0", "concurrency=8"),
    (lambda: stream().map_async(len, retries=-1), "retries is a whole number from 0, not -1", "retries=8"),
    (lambda: stream().map_async(len, timeout="0 s"), "timeout must be longer than 0", "None"),
    (lambda: stream().map_async(len, ordered=1), "ordered is True or False, not 1", "ready"),
    (lambda: ms.Flow("f").read("t", "x double").sample(0.1), "no column to choose rows by", "by="),
]


@pytest.mark.parametrize(("build", "what", "hint"), REFUSED)
def test_a_mistake_is_refused_at_the_users_line(build: Any, what: str, hint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        build()
    assert what in caught.value.what
    assert hint in (caught.value.next_step or "")
    assert __file__ in (caught.value.where or "")


def test_union_matches_columns_by_name() -> None:
    flow = ms.Flow("f")
    joined = stream(flow).union(stream(flow, "more", "at timestamp, price double, name string, id int"))
    assert joined.schema.names == ("id", "name", "price", "at")


def test_union_with_missing_columns() -> None:
    flow = ms.Flow("f")
    one = stream(flow, "one", "id int not null, at timestamp, a string")
    two = stream(flow, "two", "at timestamp, id int, b decimal(5,2)")
    with pytest.raises(InvalidPlan, match="'a' is missing in one"):
        one.union(two)
    joined = one.union(two, missing=True)
    assert joined.schema.names == ("id", "at", "a", "b")
    assert joined.schema.field("id").nullable
    with pytest.raises(InvalidPlan, match="'id' is int and string"):
        one.union(stream(flow, "three", "id string, at timestamp"), missing=True)


# ---------------------------------------------------------------- names of PySpark


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("groupBy", "group_by("),
        ("filter", "where("),
        ("withColumn", "with_column("),
        ("selectExpr", "select("),
        ("orderBy", "top("),
        ("withColumnRenamed", "rename("),
        ("wher", "did you mean 'where'?"),
    ],
)
def test_a_name_of_pyspark_gives_the_name_here(name: str, hint: str) -> None:
    for each in (stream(), stream().to_table(key="id")):
        with pytest.raises(UnknownStep) as caught:
            getattr(each, name)
        assert hint in (caught.value.next_step or "")
        assert __file__ in (caught.value.where or "")


def test_no_hint_is_for_a_step_that_exists() -> None:
    assert not [name for name in OF_STREAMS if hasattr(ms.Stream, name)]


def test_hints_of_groups() -> None:
    keyed = stream().key_by("id")
    for each in (keyed, keyed.window(ms.fixed("1 minute")), stream().group_by("id")):
        with pytest.raises(AttributeError, match=r"\.agg\(n=ms.count\(\)"):
            each.count()
    with pytest.raises(AttributeError, match="key_by already groups"):
        _ = keyed.groupBy


def test_python_protocols_see_an_ordinary_object() -> None:
    assert not hasattr(stream(), "groupBy")
    assert not hasattr(stream(), "__array__")
    assert copy.copy(stream()).schema.names == ("id", "name", "price", "at")
    with pytest.raises(AttributeError):
        _ = ms.Stream.__new__(ms.Stream).nothing
    assert isinstance(pickle.loads(pickle.dumps(UnknownStep("what"))), UnknownStep)
