"""A job whose flow gets new steps continues the old ones exactly; what does not fit is refused before Spark starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.errors import JobChanged
from millstream.jobs import micro_batches
from millstream.jobs.versions.kept_steps import CheckpointProgress, Fit, first_fit, fitted
from millstream.log import EmbeddedLog
from millstream.spark.query.physical_plan import PhysicalPlan
from step_names import by_kind

from .support import CAUGHT_UP, SCHEMA, counted, put, read, scores

USERS = [f"u{n}" for n in range(12)]
TEN, TWENTY = ms.fixed("10 seconds"), ms.fixed("20 seconds")


def rows(first: int, last: int) -> list[tuple[str, int, float]]:
    """Each user once a second."""
    return [(user, n + place, float(n)) for n in range(first, last) for place, user in enumerate(USERS)]


def old_steps(stream: Any, prefix: str = "") -> None:
    """A step behind the first shuffle, and two behind it: one by the same key, one by another."""
    panes = stream.key_by("user").window(TEN).agg(total=ms.sum("n"))
    panes.write(f"{prefix}totals")
    panes.key_by("user").window(TWENTY).agg(total=ms.max("total")).write(f"{prefix}longer")
    panes.window(TWENTY).agg(total=ms.sum("total")).write(f"{prefix}overall")


def before(name: str = "job", prefix: str = "") -> ms.Flow:
    flow = ms.Flow(name)
    old_steps(scores(flow), prefix)
    return flow


def with_more() -> ms.Flow:
    """New steps before the old ones and behind them, by another key, by none, and behind the second shuffle."""
    flow = ms.Flow("job")
    stream = scores(flow)
    scores(flow, "others").key_by("user").window(TEN).agg(total=ms.sum("n")).write("of_others")
    stream.key_by("n").window(TEN).agg(k=ms.count()).write("per_n")
    by_user = stream.key_by("user").window(TEN).agg(k=ms.count())
    by_user.write("counts")
    by_user.window(TWENTY).agg(k=ms.sum("k")).write("all_counts")
    old_steps(stream)
    stream.distinct("user").write("users")
    return flow


@pytest.mark.more
@pytest.mark.usefixtures("spark")
def test_new_steps_start_empty_and_the_others_continue(log: EmbeddedLog, caplog: pytest.LogCaptureFixture) -> None:
    log.create_topic("others", schema=SCHEMA)
    put(log, "others", rows(0, 40))
    put(log, "scores", rows(0, 25))
    before().run(broker=log.path, until=CAUGHT_UP)
    put(log, "scores", rows(25, 47))
    with_more().run(broker=log.path, until=CAUGHT_UP)
    (notice,) = [each.getMessage() for each in caplog.records if "new steps" in each.getMessage()]
    assert notice.count("scores.agg-") == 3
    assert "others.agg-" in notice
    assert "new sources are read from where they are configured to start: read_others" in notice
    caplog.clear()
    put(log, "scores", rows(47, 68))
    with_more().run(broker=log.path, until=CAUGHT_UP)  # from the state of both runs
    assert "new" not in caplog.text
    before("control", "control.").run(broker=log.path, until=CAUGHT_UP)
    for topic in ("totals", "longer", "overall"):
        assert counted(read(log, topic)) == counted(read(log, f"control.{topic}"))
        assert read(log, topic)
    counts = {(each["user"], each["window"]["start"].second): each["k"] for each in read(log, "counts")}
    assert counts == {(user, start): 5 if start == 20 else 10 for user in USERS for start in (20, 30, 40, 50)}
    assert [each["k"] for each in read(log, "all_counts")] == [len(USERS) * 15, len(USERS) * 20]
    assert len(read(log, "of_others")) == 3 * len(USERS)
    assert len(read(log, "users")) == len(USERS)


@pytest.mark.more
@pytest.mark.usefixtures("spark")
def test_a_job_continues_with_a_changed_pattern(log: EmbeddedLog) -> None:
    def run(last: str) -> None:
        flow = ms.Flow("pairs")
        pattern = ms.pattern("a", "n = 1").followed_by("b", last).within("1 hour")
        scores(flow).key_by("user").match(pattern).select("user", a="a.n", b="b.n").write("pairs")
        flow.run(broker=log.path, until=CAUGHT_UP)

    put(log, "scores", [("u", 1, 1.0), ("u", 2, 2.0), ("v", 1, 3.0)])
    run("n = 7")
    put(log, "scores", [("u", 9, 30.0), ("v", 8, 31.0), ("w", 5, 300.0)])
    run("n = 9")
    assert [(each["user"], each["a"], each["b"]) for each in read(log, "pairs")] == [("u", 1, 9)]


# ---------------------------------------------------------------- refused, without Spark


def named(name: str) -> Callable[[Any], None]:
    return lambda stream: stream.key_by("user").window(TEN).agg(total=ms.sum("n"), name=name).write("totals")


def table(stream: Any) -> Any:
    return stream.group_by("user").agg(total=ms.sum("n"), name="sums")


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def refuse() -> None:
        def started(*_: object) -> None:
            raise AssertionError("Spark is started")

        monkeypatch.setattr(micro_batches, "session_of", started)

    return refuse


@pytest.mark.usefixtures("spark")
def test_what_does_not_fit_is_refused_before_spark_is_started(log: EmbeddedLog, no_spark: Callable[[], None]) -> None:
    put(log, "scores", rows(0, 12))

    def flow(*parts: Callable[[Any], Any]) -> ms.Flow:
        made = ms.Flow("tables")
        stream = scores(made)
        for part in parts:
            part(stream)
        return made

    def sums(stream: Any) -> None:
        table(stream).write("sums")

    def best(stream: Any) -> None:
        made = table(stream)
        made.write("sums")
        made.top(1, by="total desc", per="user").write("best")

    def deeper(stream: Any) -> None:
        named("first")(stream)
        stream.distinct("user").group_by().agg(k=ms.count()).write("how_many")

    flow(sums, named("first")).run(broker=log.path, until=CAUGHT_UP)
    no_spark()
    refused: dict[str, tuple[ms.Flow, str]] = {
        "gone": (flow(sums), "- first: total=sum(n) per user"),
        "another": (flow(sums, named("second")), "+ second: total=sum(n) per user"),
        "behind a table": (flow(best, named("first")), "would start empty after 'sums', whose rows are retracted"),
        "a shuffle more": (flow(sums, deeper), "needs 2 shuffles, and the job was started with 1 shuffle"),
    }
    for made, what in refused.values():
        with pytest.raises(JobChanged) as found:
            made.run(broker=log.path, until=CAUGHT_UP)
        assert what in found.value.what
        assert "jobs forget tables" in (found.value.next_step or "")
        several = len(made.outputs) > 1  # which a replay cannot write beside
        way = "give the flow and its outputs other names" if several else "flow.replay(into=…)"
        assert way in (found.value.next_step or "")


# ---------------------------------------------------------------- which step is which

PROGRESS, LATER = (CheckpointProgress(batch, batch, ("read_scores",)) for batch in (4, 5))
Build = Callable[[Any], Any]


def physical_plan(*parts: Build) -> PhysicalPlan:
    flow = ms.Flow("fit")
    stream = scores(flow)
    for number, part in enumerate(parts):
        part(stream).write(f"out{number}")
    return PhysicalPlan(flow.check(), 1)


def fit(kept: dict[str, dict[str, str]], *parts: Build, progress: CheckpointProgress = PROGRESS) -> Fit:
    return fitted("fit", "jobs/fit", physical_plan(*parts), kept, progress)


def total(stream: Any, name: str | None = None) -> Any:
    return stream.key_by("user").window(TEN).agg(total=ms.sum("n"), name=name)


def good(stream: Any) -> Any:
    return total(stream.where("n > 0"))


def better(stream: Any) -> Any:
    return total(stream.where("n > 1").with_column("n", "n * 2"))


def branch(name: str, limit: int) -> Build:
    return lambda stream: total(stream.split({"big": f"n > {limit}"}, rest="small")[name])


def users(stream: Any) -> Any:
    return stream.distinct("user")


def placed(made: Fit) -> list[str]:
    return [each["place"] for each in made.steps.values()]


def test_state_stays_where_it_is_when_steps_are_added_and_reordered() -> None:
    kept = first_fit(physical_plan(total, good)).steps
    assert placed(fit(kept, good, total)) == ["1", "0"]
    more = fit(kept, users, good, total)
    assert placed(more) == ["2", "1", "0"]
    assert [by_kind(name) for name in more.new_steps] == ["distinct"]
    again = fit(more.steps, total, users, good, progress=LATER)
    assert (placed(again), again.new_steps) == (["0", "2", "1"], ())


def test_a_step_whose_rows_are_filtered_otherwise_continues() -> None:
    kept = first_fit(physical_plan(users, good)).steps
    for parts in ([better, users], [total, users], [lambda stream: total(stream, "totals"), users]):
        found = fit(kept, *parts)
        assert (placed(found), found.new_steps) == (["1", "0"], ())
    branches = first_fit(physical_plan(branch("big", 1), branch("small", 1))).steps
    assert placed(fit(branches, branch("small", 2), branch("big", 2))) == ["1", "0"]


@pytest.mark.parametrize("now", [(better, lambda stream: total(stream.where("n > 7"))), (good,), (better,)])
def test_indistinguishable_steps_are_refused(now: tuple[Build, ...]) -> None:
    kept = first_fit(physical_plan(good, lambda stream: total(stream.where("n > 5")))).steps
    with pytest.raises(JobChanged, match=r"- scores\.agg-"):
        fit(kept, *now)


def found(pattern: ms.Pattern, key: str = "user", **options: Any) -> Build:
    return lambda stream: stream.key_by(key).match(pattern, **options)


LOW, HIGH = ms.pattern("a", "n > 1").next("b"), ms.pattern("a", "n > 2").followed_by("b", "n < a.n")


@pytest.mark.parametrize("name", [None, "pairs"])
def test_a_changed_pattern_continues_with_the_rows(name: str | None) -> None:
    kept = first_fit(physical_plan(users, found(LOW, name=name))).steps
    changed = fit(kept, found(HIGH, skip="to next", name=name), users)
    assert (placed(changed), changed.new_steps) == (["1", "0"], ())
    assert placed(fit(changed.steps, found(LOW, name=name), users, progress=LATER)) == ["1", "0"]


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (found(LOW, name="pairs"), found(LOW, key="n", name="pairs")),
        (found(LOW, early=True, name="pairs"), found(HIGH, early=True, name="pairs")),
        (found(LOW, name="pairs"), found(LOW, matches="preferred", name="pairs")),
        (found(LOW, name="pairs"), found(LOW.within("1 hour"), name="pairs")),
        (
            lambda stream: stream.match_recognize("measures A.n as n pattern (A) define A as n > 1", name="pairs"),
            lambda stream: stream.match_recognize("measures A.n as n pattern (^ A) define A as n > 1", name="pairs"),
        ),
    ],
    ids=["another key", "early", "preferred", "limit", "from the first row"],
)
def test_a_pattern_whose_state_means_something_else_is_refused(then: Build, now: Build) -> None:
    kept = first_fit(physical_plan(then)).steps
    with pytest.raises(JobChanged, match="has changed"):
        fit(kept, now)


def test_a_job_that_recorded_only_its_pattern_continues_with_the_same_one() -> None:
    kept = {
        name: {part: text for part, text in each.items() if part != "holds"}
        for name, each in first_fit(physical_plan(found(LOW, name="pairs"))).steps.items()
    }
    assert placed(fit(kept, found(LOW, name="pairs"))) == ["0"]
    with pytest.raises(JobChanged, match="pairs, does"):
        fit(kept, found(HIGH, name="pairs"))


def test_what_was_added_in_a_run_that_failed_may_be_removed() -> None:
    kept = fit(first_fit(physical_plan(total)).steps, total, users).steps
    assert list(fit(kept, total).steps) == [physical_plan(total).chain[0].name]
    with pytest.raises(JobChanged, match=r"- scores\.distinct-"):
        fit(kept, total, progress=LATER)


def test_a_job_that_noted_no_places_had_its_steps_in_order() -> None:
    kept = {
        name: {part: text for part, text in each.items() if part not in ("place", "since", "from", "way")}
        for name, each in zip(("distinct", "agg"), first_fit(physical_plan(users, total)).steps.values(), strict=True)
    }
    assert placed(fit(kept, total, users)) == ["1", "0"]


def test_the_next_step_names_the_chosen_folder() -> None:
    with pytest.raises(JobChanged) as found:
        fitted("fit", "/data/elsewhere", physical_plan(users), first_fit(physical_plan(total)).steps, PROGRESS)
    assert "flow.replay(into=…, folder=…)" in (found.value.next_step or "")
    assert "remove /data/elsewhere" in (found.value.next_step or "")
