"""An app holds flows that fit together; what does not is refused where the user wrote it."""

from __future__ import annotations

import pytest

import millstream as ms
from millstream.errors import InvalidInput
from millstream.plan.apps import flow_of

SCHEMA = "user string, n int, at timestamp"


def flow(name: str, topic: str | None = None, **options: str) -> ms.Flow:
    made = ms.Flow(name, **options)
    made.read("scores", SCHEMA).where("n > 1", name="big").write(topic or f"of_{name}", name="out")
    return made


def test_steps_are_named_after_their_flow() -> None:
    app = ms.app([flow("north"), flow("south")], name="both")
    assert [output.name for output in app.check()] == ["north:out", "south:out"]
    assert [output.inputs[0].name for output in app.check()] == ["north:big", "south:big"]
    assert [flow_of(name) for name in ("north:big", "big")] == ["north", ""]
    assert "north:big" in app.explain()


def test_the_steps_of_the_flows_keep_their_own_names() -> None:
    north = flow("north")
    ms.app([north])
    assert [output.name for output in north.check()] == ["out"]


@pytest.mark.parametrize(
    ("flows", "why"),
    [
        (list, "at least one flow"),
        (lambda: [flow("a"), flow("a", "other")], "two flows of the app are named 'a'"),
        (lambda: [flow("a", log="one"), flow("b", log="two")], "one log"),
        (lambda: [flow("a", "same"), flow("b", "same")], "both write to same"),
        (lambda: [ms.Flow("a")], "no output"),
        (lambda: ["a"], "'a' is none"),
        (lambda: [ms.app([flow("a")])], "is none"),
    ],
)
def test_flows_that_do_not_fit_together_are_refused(flows, why) -> None:
    with pytest.raises(InvalidInput, match=why) as refused:
        ms.app(flows())
    assert refused.value.where is not None
    assert "test_apps.py" in refused.value.where


def test_flows_are_added_and_removed() -> None:
    app = ms.app([flow("a")])
    app.add(flow("b"))
    assert [each.name for each in app.flows] == ["a", "b"]
    app.remove("a")
    assert [output.name for output in app.outputs] == ["b:out"]
    with pytest.raises(InvalidInput, match="at least one flow"):
        app.remove("b")
    with pytest.raises(InvalidInput, match="no flow 'c'"):
        app.remove("c")
    with pytest.raises(InvalidInput, match="both write to of_b"):
        app.add(flow("c", "of_b"))
    assert [each.name for each in app.flows] == ["b"]


def test_an_app_has_no_steps_of_its_own() -> None:
    app = ms.app([flow("a")])
    with pytest.raises(InvalidInput, match="no steps of its own"):
        app.read("scores", SCHEMA)
    with pytest.raises(InvalidInput, match="no steps of its own"):
        app.table([{"user": "a"}], "user string")


def test_the_log_is_that_of_its_flows() -> None:
    assert ms.app([flow("a"), flow("b", log="somewhere")]).log == "somewhere"


def test_an_app_takes_other_flows_and_keeps_those_it_has() -> None:
    app = ms.app([flow("a"), flow("b")])
    (_, kept), taken = app.flows, []
    app.running_as(taken.append)
    app.take([flow("b"), flow("c")])
    assert [each.name for each in app.flows] == ["b", "c"]
    assert app.flows[0] is kept
    assert taken == [app.flows], "one change for all"
    with pytest.raises(InvalidInput, match="at least one flow"):
        app.take([])
