"""What tasks send beside rows arrives as it was sent, and nothing else is taken for it."""

from __future__ import annotations

import msgspec
import pytest

from millstream.spark.query.task_messages import (
    ClockControl,
    Control,
    DiscardReport,
    PreparedReport,
    Report,
    RowsReport,
    SourceControl,
    SourceReport,
    StepControl,
    StepReport,
    control_from_bytes,
    report_from_bytes,
    to_bytes,
)

CONTROLS: list[Control] = [
    ClockControl(7),
    SourceControl("read", 7),
    SourceControl("read", 7, {"0": (5, True), "1": (None, False)}, ("1",), 1 << 62),
    StepControl("agg", 3, -(1 << 62), True, 7),
]
REPORTS: list[Report] = [
    SourceReport("read", 10),
    SourceReport("read", 10, 1, 7, {"0": 10}, {"0": 5, "1": None}, ("the clock is behind",)),
    StepReport("agg", 5, 100, 2, 7),
    StepReport("agg", 5, 100, 2, 7, ("note",), 4, 1000),
    RowsReport({"agg": 3, "where": 100}),
    DiscardReport({"out": 3}),
    PreparedReport("out", 3, [["a", 1]]),
]


@pytest.mark.parametrize("control", CONTROLS, ids=repr)
def test_a_control_arrives_as_it_was_sent(control: Control) -> None:
    assert control_from_bytes(to_bytes(control)) == control


@pytest.mark.parametrize("report", REPORTS, ids=repr)
def test_a_report_arrives_as_it_was_sent(report: Report) -> None:
    assert report_from_bytes(to_bytes(report)) == report


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        to_bytes(CONTROLS[0])[:-1],
        to_bytes(REPORTS[0]),
        msgspec.msgpack.encode(["SourceControl", "read", "seven"]),
        msgspec.msgpack.encode({"origin": "read", "now": 7}),
    ],
)
def test_bytes_that_are_not_a_control_are_refused(blob: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        control_from_bytes(blob)


def test_a_message_is_no_longer_than_its_fields_with_names() -> None:
    """Goal: one is sent for every key group of every step in each batch."""
    control = CONTROLS[3]
    assert len(to_bytes(control)) <= len(msgspec.msgpack.encode(msgspec.structs.asdict(control)))
