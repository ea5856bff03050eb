"""`process` refuses what makes no sense where it is written; plain values survive being kept."""

from __future__ import annotations

import pickle
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.errors import InvalidInput, InvalidPlan, InvalidWindow
from millstream.plan.flow import Flow
from millstream.plan.nodes import Dead, Process
from millstream.plan.stream import Stream
from millstream.records.python_values import NotPlain, UnreadableValues, decoded, encoded
from step_names import by_kind

COLUMNS = "device string, n int, at timestamp"


def readings(**options: Any) -> Stream:
    options = {"event_time": "at", **options}
    return Flow("f").read("readings", COLUMNS, options.pop("event_time"), **options)


def counted(row: dict[str, Any], key: Any) -> None:
    pass


def gone(tag: str, time: datetime, key: Any) -> None:
    pass


# ---------------------------------------------------------------- what it builds


def test_a_node_with_a_name_columns_and_a_label() -> None:
    made = readings().key_by("device").process(counted, "device string, total long", on_timer=gone, name="alerts")
    assert isinstance(made.node, Process)
    assert made.node.name == "alerts"
    assert made.schema.names == ("device", "total")
    assert made.node.label == "process counted per device, timers to gone, in order of event time"


def test_the_event_time_column_is_named() -> None:
    made = readings().key_by("device").process(counted, "seen timestamp", event_time="seen")
    assert made.node.label == "process counted per device, by seen"


def test_it_is_drawn_as_a_step_with_state() -> None:
    made = readings().key_by("device").process(counted, "device string")
    assert '[["<b>process</b>' in by_kind(made.explain("mermaid"))


def test_it_has_dead_letters() -> None:
    made = readings().key_by("device").process(counted, "device string", name="alerts")
    assert isinstance(made.dead.node, Dead)
    assert made.dead.node.name == "alerts.dead"


def test_windows_come_behind_it() -> None:
    made = readings().key_by("device").process(counted, "device string")
    assert made.window(ms.fixed("1 minute")).agg(n=ms.count()).schema.names[-1] == "event_time"


# ---------------------------------------------------------------- what it refuses


async def waits(row: dict[str, Any], key: Any) -> None:
    pass


async def waits_and_yields(row: dict[str, Any], key: Any) -> Any:
    yield row


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"function": "n > 3"}, "process takes a function, not 'n > 3'"),
        ({"function": waits}, "process takes a synchronous function, but this one is async"),
        ({"function": waits_and_yields}, "process takes a synchronous function, but this one is async"),
        ({"function": lambda row: None}, r"process calls its function with \(row, key\)"),
        ({"function": lambda row, key, more: None}, "does not accept that"),
        ({"schema": None}, "process needs the schema of its function's results"),
        ({"on_timer": 5}, "on_timer takes a function, not 5"),
        ({"on_timer": lambda tag, key: None}, r"on_timer calls its function with \(tag, time, key\)"),
        ({"on_timer": waits}, "on_timer takes a synchronous function"),
        ({"event_time": "at"}, "there is no column 'at'"),
        ({"event_time": "device"}, "event_time 'device' is string, not a timestamp"),
        ({"name": "a b"}, "is not a valid name for a step"),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_is_written(arguments: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"function": counted, "schema": "device string, n int", **arguments}
    with pytest.raises(InvalidPlan, match=said) as refused:
        readings().key_by("device").process(given.pop("function"), given.pop("schema"), **given)
    assert refused.value.where is not None
    assert refused.value.where.startswith(__file__)
    assert refused.value.next_step


def test_an_invalid_schema_is_refused() -> None:
    with pytest.raises(InvalidInput):
        readings().key_by("device").process(counted, "device strng")


def test_functions_without_a_signature_are_accepted() -> None:
    assert readings().key_by("device").process(max, "device string").node.label == "process max per device"


def test_streams_with_retractions_are_refused() -> None:
    panes = readings().key_by("device").window(ms.fixed("1 minute")).retracting().agg(total=ms.sum("n"))
    with pytest.raises(InvalidPlan, match="process needs rows that are never retracted"):
        panes.key_by("device").process(counted, "device string")
    with pytest.raises(InvalidPlan, match="process needs rows that are never retracted"):
        readings(changes=True).where("n > 0").key_by("device").process(counted, "device string")


def test_an_event_time_without_a_watermark_is_refused() -> None:
    with pytest.raises(InvalidPlan, match="have no event time, so there is no watermark"):
        readings(event_time=None).key_by("device").process(counted, "seen timestamp", event_time="seen")


def test_windows_in_event_time_behind_rows_without_one_are_refused() -> None:
    made = readings(event_time=None).key_by("device").process(counted, "device string")
    with pytest.raises(InvalidWindow, match="the rows of 'read_readings' have none"):
        made.window(ms.fixed("1 minute"))


# ---------------------------------------------------------------- plain values

atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=2)), ZoneInfo("Europe/Berlin")])),
    st.datetimes(),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.decimals(allow_nan=False),
)
hashable = st.recursive(atoms, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)
values = st.recursive(
    hashable,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.sets(hashable, max_size=4),
        st.dictionaries(hashable, inner, max_size=4),
    ),
    max_leaves=10,
)


def types_of(value: Any) -> Any:
    """The types in a value, so that 1, 1.0 and True differ."""
    if isinstance(value, dict):
        return dict, sorted(str((types_of(key), types_of(part))) for key, part in value.items())
    if isinstance(value, list | tuple):
        return type(value), [types_of(part) for part in value]
    return (type(value), sorted(map(str, map(types_of, value)))) if isinstance(value, set) else type(value)


@given(st.lists(values, max_size=3))
def test_plain_values_come_back_as_they_were(held: list[Any]) -> None:
    back = decoded(encoded(held))
    assert back == held
    assert types_of(back) == types_of(held)


@pytest.mark.parametrize(
    "value",
    [
        1 << 63,
        -(1 << 63) - 1,
        {1 << 200: [-(1 << 200)]},
        "lone \ud800 surrogate",
        {"\udfff": ["\ud800"]},
        datetime(2026, 10, 25, 2, 30, fold=1),
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=5, microseconds=1), "odd")),
        time(1, 2, 3, 4, tzinfo=timezone(timedelta(hours=-3))),
        Decimal("-0E+400"),
        {(1, ("a", None)): {(2,)}},
    ],
    ids=repr,
)
def test_values_beyond_the_common_come_back_as_they_were(value: Any) -> None:
    (back,) = decoded(encoded([value]))
    assert back == value
    assert types_of(back) == types_of(value)
    if isinstance(value, datetime | time):
        assert (back.fold, back.tzname()) == (value.fold, value.tzname())


class Planted:
    def __reduce__(self) -> tuple[object, ...]:
        return pytest.fail, ("the bytes of state were run",)


@pytest.mark.parametrize(
    "held",
    [
        pickle.dumps(Planted()),
        pickle.dumps([1, 2], 5),
        b"",
        b"\x93",
        b"\xc1",
        b"\xc7\x01\x63\x00",
        b"\x91" * 5000 + b"\x00",
    ],
)
def test_bytes_of_others_are_refused_and_run_nothing(held: bytes) -> None:
    with pytest.raises(UnreadableValues):
        decoded(held)


@given(st.binary(max_size=200))
def test_any_bytes_are_values_or_refused(held: bytes) -> None:
    with suppress(UnreadableValues):
        assert isinstance(decoded(held), list)


def test_a_zone_comes_back() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    (back,) = decoded(encoded([noon]))
    assert back == noon
    assert back.tzinfo == noon.tzinfo


class Point:
    pass


@pytest.mark.parametrize("value", [Point(), [Point()], {"a": (Point(),)}, {Point(): 1}, object, len, frozenset({1})])
def test_values_that_are_not_plain_are_refused(value: Any) -> None:
    with pytest.raises(NotPlain):
        encoded([value])


def test_a_value_that_contains_itself_is_refused() -> None:
    held: list[Any] = []
    held.append(held)
    with pytest.raises(NotPlain, match="deep"):
        encoded([held])


def test_plain_values_round_trip() -> None:
    held = [date(2026, 1, 31), time(12), Decimal("1.50"), timedelta(1), b"x", {1, 2}, {("a", 1): [None, True]}]
    assert decoded(encoded(held)) == held


# ---------------------------------------------------------------- the order of rows


def test_rows_come_by_event_time_where_timers_may_be_in_event_time() -> None:
    def order(*, event_time: str | None = "at", **options: Any) -> str:
        node = readings(event_time=event_time).key_by("device").process(counted, "device string", **options).node
        assert isinstance(node, Process)
        return node.order.value

    assert order(on_timer=gone) == "event_time"
    assert order() == order(on_timer=gone, event_time=None) == order(on_timer=gone, order="arrival") == "arrival"
    assert order(order="event_time") == "event_time"


def test_late_rows_come_only_where_rows_are_in_order() -> None:
    made = readings().key_by("device").process(counted, "device string", on_timer=gone, name="alerts")
    assert made.late.schema.names == ("device", "n", "at", "reason")
    with pytest.raises(InvalidPlan, match=r"has no late rows"):
        _ = readings().key_by("device").process(counted, "device string", on_timer=gone, order="arrival").late


def test_an_order_that_is_unknown_or_needs_event_time_is_refused() -> None:
    with pytest.raises(InvalidPlan, match="order='newest' is unknown") as refused:
        readings().key_by("device").process(counted, "device string", order="newest")  # type: ignore[arg-type]
    assert "event_time" in str(refused.value.next_step)
    with pytest.raises(InvalidPlan, match="order='event_time' needs event time, but the rows of 'read_readings'"):
        readings(event_time=None).key_by("device").process(counted, "device string", order="event_time")
