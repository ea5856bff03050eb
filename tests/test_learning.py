"""Models that learn from rows, and models that score them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import polars as pl
import pytest

import millstream as ms
from millstream.errors import InvalidInput, MillstreamError
from millstream.testing import Add, Watermark, play
from times import t

SCHEMA = "machine string, x double, y double, at timestamp"
RUNNERS = ["reference", "local", pytest.param("spark", marks=pytest.mark.more)]


def rows(count: int, *, odd_at: int = -1, seed: int = 1) -> list[dict[str, Any]]:
    """Values around 10, and one that is far off."""
    draw = random.Random(seed)
    return [
        {"machine": "ab"[n % 2], "x": 10 + draw.gauss(0, 1) + 20 * (n == odd_at), "y": float(n), "at": t(n)}
        for n in range(count)
    ]


def learned(steps: list[Any], model: Any, on: str = "local", keys: tuple[str, ...] = ("machine",)) -> list[Any]:
    out = play(lambda given: given.key_by(*keys).learn(model), steps, schema=SCHEMA, event_time="at", on=on)
    return [row for step in out for row in step]


@pytest.mark.parametrize("on", RUNNERS)
def test_a_value_that_is_far_off_is_an_anomaly(on: str) -> None:
    given = rows(120, odd_at=100)
    for model in (ms.ewma("x", threshold=6), ms.zscore("x", rows=40, threshold=6)):
        found = learned([Add(given[:33]), Add(given[33:]), Watermark(None)], model, on)
        assert len(found) == 120
        assert [row["y"] for row in found if row["anomaly"]] == [100.0]
        assert all(row["z"] is None for row in found if row["y"] < 20)  # ten rows of each machine


def test_the_score_is_that_of_the_formulas() -> None:
    given = [{"machine": "a", "x": x, "y": None, "at": t(n)} for n, x in enumerate([1.0, 3.0, 5.0, 4.0])]
    last = learned([Add(given), Watermark(None)], ms.zscore("x", rows=2, warm_up=2))[-1]
    assert (last["expected"], last["spread"]) == (4.0, pytest.approx(2**0.5))
    last = learned([Add(given), Watermark(None)], ms.ewma("x", alpha=0.5, warm_up=2))[-1]
    # 1, then 1 + 2/2 = 2, then 2 + 3/2 = 3.5; the variance is 1, then (1 + 9/2)/2.
    assert (last["expected"], last["spread"]) == (3.5, pytest.approx(2.75**0.5))


def daily(days: int, odd_at: int = -1) -> list[dict[str, Any]]:
    """A load that rises slowly, with a peak in the middle of each day of eight rows."""
    peaks = [0, 1, 4, 9, 10, 8, 3, 1]
    draw = random.Random(2)
    loads = [50 + n / 16 + 2 * peaks[n % 8] + draw.gauss(0, 0.3) for n in range(8 * days)]
    return [{"machine": "a", "x": load - 12 * (n == odd_at), "y": float(n), "at": t(n)} for n, load in enumerate(loads)]


@pytest.mark.parametrize("on", RUNNERS)
def test_a_value_that_is_odd_for_its_time_of_day_is_an_anomaly(on: str) -> None:
    given = daily(20, odd_at=124)  # at its peak, the load is what it is at night
    found = learned([Add(given), Watermark(None)], ms.seasonal("x", period=8, threshold=6), on)
    assert [row["y"] for row in found if row["anomaly"]] == [124.0]
    assert [row["z"] is None for row in found] == [n < 16 for n in range(160)]
    assert all(abs(row["expected"] - row["x"]) < 3 for row in found[40:] if row["y"] != 124)
    plain = learned([Add(given), Watermark(None)], ms.ewma("x", threshold=6), on)
    assert not any(row["anomaly"] for row in plain)  # without a season, it is nothing special


def test_the_season_is_that_of_the_formulas() -> None:
    given = [{"machine": "a", "x": x, "y": None, "at": t(n)} for n, x in enumerate([1.0, 5.0, 3.0, 6.0])]
    model = ms.seasonal("x", period=2, alpha=0.5, beta=0.5, gamma=0.5, warm_up=1)
    last = learned([Add(given), Watermark(None)], model)[-1]
    # A season of -2 and 2 around 3. Expected is 1; with 3 the level becomes 4, the trend 0.5, and the error was 2.
    assert (last["expected"], last["spread"], last["z"]) == (6.5, 2.0, -0.25)


def regular(season: list[float], seasons: int, odd: float = 0.0) -> list[dict[str, Any]]:
    """The same values again and again, and a last one that is `odd` more."""
    values = season * seasons
    values[-1] += odd
    return [{"machine": "a", "x": x, "y": None, "at": t(n)} for n, x in enumerate(values)]


REGULAR = {
    "the expected value is an ulp off": (ms.seasonal("x", period=2, threshold=20, warm_up=1), [3.5, 3.0]),
    "later errors are larger than the first": (ms.seasonal("x", period=7, alpha=0.01), [0.1, 0.2, 0.7] * 2 + [1.1]),
    "parts are larger than their sum": (ms.seasonal("x", period=4), [1e6, -1e6, 0.1, 0.0]),
    "a mean is an ulp off": (ms.zscore("x", rows=6, threshold=0.5, warm_up=3), [0.1]),
    "a mean that follows": (ms.ewma("x", threshold=3, warm_up=3), [0.1]),
}  # fmt: skip


@pytest.mark.parametrize("on", RUNNERS)
@pytest.mark.parametrize("case", REGULAR)
def test_rounding_errors_are_no_anomalies(case: str, on: str) -> None:
    """Method: a series that repeats exactly, and its last value a billionth off, which is a real deviation."""
    model, season = REGULAR[case]
    given = regular(season, 40, odd=1e-9 * max(season))
    *before, last = learned([Add(given), Watermark(None)], model, on)
    assert {row["z"] for row in before} == {None, 0.0}
    assert not any(row["anomaly"] for row in before)
    assert last["anomaly"]
    assert last["z"] > 20


@pytest.mark.parametrize("seed", range(20))
def test_rounding_errors_stay_none_whatever_the_numbers(seed: int) -> None:
    """Method: seasons of random length, size and number of digits, for a thousand rows and two seasons."""
    draw = random.Random(seed)
    size, digits, mean = 10 ** draw.uniform(-6, 9), draw.choice([1, 3, 16]), draw.choice([0, 100])
    season = [size * (mean + round(draw.uniform(-1, 1), digits)) for _ in range(draw.choice([2, 3, 7, 24, 168]))]
    rates = draw.choice([(0.1, 0.01, 0.2), (0.01, 0.01, 0.01), (0.5, 0.5, 0.5), (1, 0, 1)])
    model = ms.seasonal("x", period=len(season), **dict(zip(("alpha", "beta", "gamma"), rates, strict=True)))
    held: Any = None
    for n in range(1000 + 2 * len(season)):
        held, made = model.learn(held, [season[n % len(season)]])
        assert made["z"] in (None, 0.0)


def test_a_series_of_the_largest_numbers_is_scored() -> None:
    """The sum of their squares is more than a float holds."""
    found = learned([Add(regular([1.7e308], 20, odd=-1e300)), Watermark(None)], ms.ewma("x"))
    assert [row["z"] for row in found[10:]] == [0.0] * 9 + [float("-inf")]


@pytest.mark.parametrize(
    "model",
    [
        ms.ewma("x", warm_up=2),
        ms.zscore("x", rows=5, warm_up=2),
        ms.seasonal("x", period=3),
        ms.kmeans(2, ["x", "y"], decay=0.9, seed=4),
    ],
    ids=["ewma", "zscore", "seasonal", "kmeans"],
)
def test_order_of_arrival_and_bundles_make_no_difference(model: Any) -> None:
    given = rows(160)
    expected = learned([Add(given), Watermark(None)], model)
    shuffled = random.Random(3).sample(given, len(given))
    assert learned([Add(shuffled[:13]), Add(shuffled[13:]), Watermark(None)], model) == expected


def test_a_row_without_a_value_teaches_nothing() -> None:
    given = rows(30)
    holes = [*given[:15], {**given[15], "x": None}, {**given[15], "x": float("nan")}, *given[15:]]
    model = ms.ewma("x", warm_up=2)
    found = learned([Add(holes), Watermark(None)], model)
    assert next(row for row in found if row["x"] is None)["anomaly"] is None
    known = [row for row in found if row["x"] is not None and row["x"] == row["x"]]
    assert known == learned([Add(given), Watermark(None)], model)


# ---------------------------------------------------------------- clusters

CENTRES = np.array([[0, 0], [8, 1], [3, 9], [12, 12], [-6, 7]])


def points(count: int, centres: Any = CENTRES, seed: int = 3) -> Any:
    draw = np.random.default_rng(seed)
    return centres[draw.integers(0, len(centres), count)] + draw.normal(0, 1.2, (count, 2))


def inertia(given: Any, centres: Any) -> float:
    return float(((given[:, None, :] - np.asarray(centres)[None]) ** 2).sum(2).min(1).sum())


def centres_after(given: Any, model: Any) -> Any:
    held: Any = None
    for point in given.tolist():
        held, _ = model.learn(held, point)
    return held["centres"]


@pytest.mark.parametrize("seed", range(8))
def test_clusters_are_as_good_as_those_of_scikit_learn(seed: int) -> None:
    """Method: eight sets of points, some with clusters that are far apart or near, and the seeds of both differ."""
    from sklearn.cluster import MiniBatchKMeans

    given = points(1500, np.random.default_rng(seed).uniform(-15, 15, (5, 2)) if seed % 2 else CENTRES, seed)
    other = MiniBatchKMeans(5, random_state=seed, n_init=3)
    for start in range(0, len(given), 100):
        other.partial_fit(given[start : start + 100])
    own = centres_after(given, ms.kmeans(5, ["x", "y"], decay=0.9995, seed=seed))
    assert inertia(given, own) <= 1.1 * inertia(given, other.cluster_centers_)


def test_clusters_follow_rows_that_move_away() -> None:
    """Method: after a while, rows come from other places; each of the old centres would be far from all of them."""
    model = ms.kmeans(5, ["x", "y"], decay=0.99)
    later = points(3000, CENTRES + np.array([100, -50]))
    own = centres_after(np.concatenate([points(2000), later]), model)
    assert inertia(later, own) <= 2 * inertia(later, CENTRES + np.array([100, -50]))


@pytest.mark.parametrize("on", RUNNERS)
def test_each_row_has_its_cluster_and_distance(on: str) -> None:
    given = [
        {"machine": "a", "x": x + n % 3 / 10, "y": 0.0, "at": t(n)} for n, x in enumerate([0.0, 50.0] * 40)
    ]  # fmt: skip
    found = learned([Add(given[:30]), Add(given[30:]), Watermark(None)], ms.kmeans(2, ["x", "y"]), on, keys=())
    chosen = [row for row in found if row["cluster"] is not None]
    assert len(chosen) == 80 - 2 * 25 + 1
    assert {row["cluster"] for row in chosen} == {0, 1}
    assert len({(row["cluster"], row["x"] > 25) for row in chosen}) == 2
    assert all(row["distance"] < 1 for row in chosen)


def test_rows_that_may_be_retracted_are_not_learned_from() -> None:
    table = ms.Flow("wrong").read("rows", SCHEMA, event_time="at").to_table(key="machine")
    with pytest.raises(MillstreamError, match="learn needs rows that are never retracted"):
        table.key_by("machine").learn(ms.ewma("x"))


def test_wrong_models_are_refused_where_they_are_written() -> None:
    for wrong in (
        lambda: ms.ewma("x", alpha=2),
        lambda: ms.ewma("x", threshold=-1),
        lambda: ms.zscore("x", rows=1),
        lambda: ms.zscore(3),  # type: ignore[arg-type]
        lambda: ms.kmeans(0, ["x"]),
        lambda: ms.kmeans(2, "x"),
        lambda: ms.kmeans(2, ["x"], decay=0),
    ):
        with pytest.raises(InvalidInput) as refused:
            wrong()
        assert __file__ in str(refused.value.where)
    keyed = ms.Flow("wrong").read("rows", SCHEMA, event_time="at").key_by("machine")
    for model, mistake in ((ms.ewma("z"), "no column 'z'"), (ms.ewma("machine"), "not a number"), ("x", "a model")):
        with pytest.raises(InvalidInput, match=mistake):
            keyed.learn(model)  # type: ignore[arg-type]


# ---------------------------------------------------------------- models that score


def twice(given: pl.DataFrame) -> pl.Series:
    return given["x"] * 2 + given["y"]


def onnx_model() -> bytes:
    """2 x + y, as ONNX."""
    from onnx import TensorProto, helper, numpy_helper

    weights = numpy_helper.from_array(np.array([[2.0], [1.0]], np.float32), "weights")
    node = helper.make_node("MatMul", ["given", "weights"], ["found"])
    given = helper.make_tensor_value_info("given", TensorProto.FLOAT, [None, 2])
    found = helper.make_tensor_value_info("found", TensorProto.FLOAT, [None, 1])
    graph = helper.make_graph([node], "twice", [given], [found], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    made: bytes = model.SerializeToString()
    return made


def sklearn_model() -> Any:
    from sklearn.linear_model import LinearRegression

    given = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [3.0, 2.0]])
    return LinearRegression().fit(given, given @ [2.0, 1.0])


@pytest.mark.parametrize("on", RUNNERS)
@pytest.mark.parametrize("kind", ["function", "sklearn", "onnx"])
def test_a_model_scores_rows(kind: str, on: str) -> None:
    model = {"function": lambda: twice, "sklearn": sklearn_model, "onnx": onnx_model}[kind]()
    out = play(
        lambda given: given.predict(model, ["x", "y"], into="score"),
        [Add(rows(5))],
        schema=SCHEMA,
        event_time="at",
        on=on,
    )
    assert [row["score"] for row in out[0]] == pytest.approx([2 * row["x"] + row["y"] for row in rows(5)], rel=1e-5)


@pytest.mark.parametrize("on", RUNNERS)
def test_the_score_of_a_row_that_is_taken_back_is_taken_back(on: str) -> None:
    def build(given: Any) -> Any:
        latest = given.to_table(key="machine").predict(twice, ["x", "y"], into="score")
        return latest.group_by().agg(total=ms.sum("score")).changes()

    steps = [Add([{"machine": name, "x": x, "y": 0.0, "at": t(1)}]) for name, x in (("a", 1.0), ("b", 2.0), ("a", 5.0))]
    out = play(build, steps, schema=SCHEMA, event_time="at", on=on)
    assert [[row["total"] for row in step if row["weight"] > 0] for step in out] == [[2.0], [6.0], [14.0]]


def test_rows_that_a_model_fails_on_are_dead_letters() -> None:
    def picky(given: pl.DataFrame) -> pl.Series:
        if (given["y"] == 2).any():
            raise ValueError("not two")
        return given["y"]

    def build(given: Any) -> Any:
        made = given.predict(picky, "y", type="int")
        return {"made": made, "dead": made.dead}

    (out,) = play(build, [Add(rows(4))], schema=SCHEMA, event_time="at")
    assert [row["prediction"] for row in out["made"]] == [0, 1, 3]
    assert "not two" in out["dead"][0]["reason"]


def test_what_is_not_a_model_is_refused(tmp_path: Any) -> None:
    stream = ms.Flow("wrong").read("rows", SCHEMA, event_time="at")
    (tmp_path / "model.pkl").write_bytes(b"\x80\x04N.")
    for model, mistake in (
        (3, "not a model"),
        (tmp_path / "missing.onnx", "cannot be read"),
        (tmp_path / "model.pkl", "not a model in ONNX"),
    ):
        with pytest.raises(InvalidInput, match=mistake) as refused:
            stream.predict(model, ["x"])
        assert __file__ in str(refused.value.where)
    with pytest.raises(InvalidInput, match="no column 'z'"):
        stream.predict(twice, ["z"])
    with pytest.raises(InvalidInput, match="already"):
        stream.predict(twice, ["x"], into="y")
