"""Small models that learn from each row of a key, in order of event time: averages that forget, and clusters.

A model is a value; what it has learned is the state of the key. So it does not depend on batches, and a replay learns
the same.
"""

from __future__ import annotations

import math
import random
import sys
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.errors import InvalidInput
from millstream.expressions.lowered import type_name
from millstream.plan.checks import check_never_retracted, refusal, without_event_time
from millstream.plan.steps.process import Key
from millstream.user_lines import users_line, what_exists

if TYPE_CHECKING:
    from millstream.plan.steps.keyed import Keyed
    from millstream.plan.stream import Stream

STATE = "learned"
Point = list[float]


class Learner:
    """A model of one key: the columns it reads, those it adds, and how it learns."""

    @property
    def __name__(self) -> str:
        """What the step of a plan is called by."""
        return str(self)

    @property
    @abstractmethod
    def inputs(self) -> tuple[str, ...]:
        """The columns of numbers that it reads."""

    @property
    @abstractmethod
    def added(self) -> pa.Schema:
        """The columns that it adds to each row."""

    @abstractmethod
    def learn(self, held: Any, values: Sequence[float]) -> tuple[Any, dict[str, Any]]:
        """What it has learned with a row (`held` is None at first), and the columns of the row."""

    def __call__(self, row: dict[str, Any], key: Key) -> dict[str, Any]:
        given = [row[name] for name in self.inputs]
        values = [float(value) for value in given if value is not None]
        if len(values) < len(given) or not all(map(math.isfinite, values)):
            return {**row, **dict.fromkeys(self.added.names)}
        key.state[STATE], made = self.learn(key.state.get(STATE), values)
        return {**row, **made}


SCORES = pa.schema([("expected", pa.float64()), ("spread", pa.float64()), ("z", pa.float64()), ("anomaly", pa.bool_())])
ROUNDING = 8 * sys.float_info.epsilon
"""What is smaller than this fraction of the numbers computed with is a rounding error. In regular series of up to 168
places, errors stay below six epsilons of the largest number."""


@dataclass(frozen=True)
class Scored(Learner):
    """How far each value is from what was expected, in standard deviations."""

    column: str
    threshold: float
    warm_up: int

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def added(self) -> pa.Schema:
        return SCORES

    def _scored(
        self, value: float, count: int, mean: float, variance: float, parts: Sequence[float] = ()
    ) -> dict[str, Any]:
        """The columns of a value, given what came before it.

        `parts` are the numbers that the mean was computed from, if they can be much larger than it: a rounding error is
        relative to them. A value that is off by no more than that, in a series that varies by no more, is not off.
        """
        if count < self.warm_up:
            return dict.fromkeys(SCORES.names) | {"anomaly": False}
        spread = math.sqrt(max(variance, 0.0))
        off = value - mean
        if off == 0 or max(abs(off), spread) <= ROUNDING * math.hypot(value, mean, *parts) < math.inf:
            z = 0.0
        else:
            z = off / spread if spread > 0 else math.copysign(math.inf, off)
        return {"expected": mean, "spread": spread, "z": z, "anomaly": abs(z) > self.threshold}


@dataclass(frozen=True)
class Ewma(Scored):
    alpha: float

    def __str__(self) -> str:
        return f"ewma({self.column}, alpha={self.alpha:g}, threshold={self.threshold:g})"

    def learn(self, held: Any, values: Sequence[float]) -> tuple[Any, dict[str, Any]]:
        (value,) = values
        count, mean, variance = held or (0, value, 0.0)
        made = self._scored(value, count, mean, variance)
        step = value - mean
        mean += self.alpha * step
        variance = (1 - self.alpha) * (variance + self.alpha * step * step)
        return [count + 1, mean, variance], made


@dataclass(frozen=True)
class ZScore(Scored):
    rows: int

    def __str__(self) -> str:
        return f"zscore({self.column}, rows={self.rows}, threshold={self.threshold:g})"

    def learn(self, held: Any, values: Sequence[float]) -> tuple[Any, dict[str, Any]]:
        (value,) = values
        last: Point = held or []
        count = len(last)
        mean = math.fsum(last) / count if count else 0.0
        variance = math.fsum((each - mean) ** 2 for each in last) / (count - 1) if count > 1 else 0.0
        made = self._scored(value, count, mean, variance)
        return [*last[-(self.rows - 1) :], value], made


@dataclass(frozen=True)
class Seasonal(Scored):
    """Exponential smoothing of a level, a trend and a season (Holt and Winters, additive).

    The first season is only remembered; then each value is compared with the sum of the three, and corrects them.
    """

    period: int
    alpha: float
    beta: float
    gamma: float

    def __str__(self) -> str:
        rates = f"alpha={self.alpha:g}, beta={self.beta:g}, gamma={self.gamma:g}"
        return f"seasonal({self.column}, period={self.period}, {rates}, threshold={self.threshold:g})"

    def learn(self, held: Any, values: Sequence[float]) -> tuple[Any, dict[str, Any]]:
        (value,) = values
        state: dict[str, Any] = held or {"season": [], "n": 0}
        if "level" not in state:
            season = [*state["season"], value]
            if len(season) == self.period:
                level = math.fsum(season) / self.period
                return self._begun([each - level for each in season], level), self._scored(value, 0, 0.0, 0.0)
            return {**state, "season": season}, self._scored(value, 0, 0.0, 0.0)
        count, level, trend, season = state["n"], state["level"], state["trend"], list(state["season"])
        place = count % self.period
        expected = level + trend + season[place]
        made = self._scored(value, count, expected, state["variance"], [level, trend, *season])
        error = value - expected
        moved = self.alpha * (value - season[place]) + (1 - self.alpha) * (level + trend)
        trend = self.beta * (moved - level) + (1 - self.beta) * trend
        season[place] = self.gamma * (value - moved) + (1 - self.gamma) * season[place]
        rate = max(self.alpha, 1 / (count + 1))
        variance = state["variance"] + rate * (error * error - state["variance"])
        after = {"season": season, "n": count + 1, "level": moved, "trend": trend, "variance": variance}
        return after, made

    def _begun(self, season: Point, level: float) -> dict[str, Any]:
        return {"season": season, "n": 0, "level": level, "trend": 0.0, "variance": 0.0}


FIRST_ROWS = 25
"""How many rows for each cluster come before the first centres are chosen."""
TRIES = 3
ROUNDS = 10
CHECKED_EVERY = 50
DYING = 0.02
"""A cluster with less than this fraction of the average weight is given up, and the widest one is split."""


@dataclass(frozen=True)
class KMeans(Learner):
    count: int
    features: tuple[str, ...]
    decay: float
    seed: int

    def __str__(self) -> str:
        return f"kmeans({self.count}, {', '.join(self.features)}, decay={self.decay:g})"

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.features

    @property
    def added(self) -> pa.Schema:
        return pa.schema([("cluster", pa.int32()), ("distance", pa.float64()), ("centre", pa.list_(pa.float64()))])

    def learn(self, held: Any, values: Sequence[float]) -> tuple[Any, dict[str, Any]]:
        point = list(values)
        state: dict[str, Any] = held or {"first": [], "centres": [], "weights": [], "spreads": [], "n": 0}
        if not state["centres"]:
            first = [*state["first"], point]
            if len(first) < self.count * FIRST_ROWS:
                return {**state, "first": first}, dict.fromkeys(self.added.names)
            state = self._started(first)
        nearest, square = _nearest(state["centres"], point)
        made = {"cluster": nearest, "distance": math.sqrt(square), "centre": list(state["centres"][nearest])}
        return self._moved(state, nearest, point, square), made

    def _started(self, first: list[Point]) -> dict[str, Any]:
        """The first centres, the best of some tries: a bad choice would stay, as centres hardly change places later."""
        draw = random.Random(self.seed)
        tries = [_settled(first, _far_apart(first, self.count, draw)) for _ in range(TRIES)]
        return {"first": [], "n": 0, **min(tries, key=lambda each: math.fsum(each["spreads"]))}

    def _moved(self, state: dict[str, Any], nearest: int, point: Point, square: float) -> dict[str, Any]:
        """The centre of a row moves towards it, by less the more rows it stands for; older rows are forgotten."""
        weights = [weight * self.decay for weight in state["weights"]]
        spreads = [spread * self.decay for spread in state["spreads"]]
        weights[nearest] += 1
        spreads[nearest] += square
        centres = list(state["centres"])
        step = 1 / weights[nearest]
        centres[nearest] = [own + step * (value - own) for own, value in zip(centres[nearest], point, strict=True)]
        made = {"first": [], "centres": centres, "weights": weights, "spreads": spreads, "n": state["n"] + 1}
        return self._split(made) if made["n"] % CHECKED_EVERY == 0 else made

    def _split(self, state: dict[str, Any]) -> dict[str, Any]:
        """Gives up a cluster that hardly any row belongs to, and splits the one whose rows are furthest apart."""
        weights, spreads, centres = state["weights"], state["spreads"], state["centres"]
        dying = min(range(self.count), key=weights.__getitem__)
        widest = max(range(self.count), key=spreads.__getitem__)
        if weights[dying] >= DYING * math.fsum(weights) / self.count or dying == widest:
            return state
        shift = math.sqrt(spreads[widest] / weights[widest] / len(self.features)) / 2
        draw = random.Random(f"{self.seed} {state['n']}")
        direction = [draw.choice((-shift, shift)) for _ in self.features]
        middle = centres[widest]
        centres[widest] = [value + change for value, change in zip(middle, direction, strict=True)]
        centres[dying] = [value - change for value, change in zip(middle, direction, strict=True)]
        for values in (weights, spreads):
            values[widest] = values[dying] = values[widest] / 2
        return state


def _square(one: Point, other: Point) -> float:
    return math.fsum((a - b) ** 2 for a, b in zip(one, other, strict=True))


def _nearest(centres: Sequence[Point], point: Point) -> tuple[int, float]:
    squares = [_square(centre, point) for centre in centres]
    nearest = min(range(len(squares)), key=squares.__getitem__)
    return nearest, squares[nearest]


def _far_apart(points: list[Point], count: int, draw: random.Random) -> list[Point]:
    """Centres as greedy k-means++ chooses them: of some rows that are far from the others, the one that helps most."""
    centres = [draw.choice(points)]
    squares = [_square(centres[0], point) for point in points]
    while len(centres) < count:
        offered = draw.choices(points, squares, k=2 + int(math.log(count))) if any(squares) else [draw.choice(points)]
        left = [
            [min(near, _square(each, point)) for near, point in zip(squares, points, strict=True)] for each in offered
        ]
        best = min(range(len(offered)), key=lambda place: math.fsum(left[place]))
        centres.append(offered[best])
        squares = left[best]
    return centres


def _settled(points: list[Point], centres: list[Point]) -> dict[str, Any]:
    """The centres in the middle of their rows, how many rows each has, and how far apart these are."""
    groups: list[list[Point]] = []
    for _ in range(ROUNDS):
        groups = [[] for _ in centres]
        for point in points:
            groups[_nearest(centres, point)[0]].append(point)
        centres = [_middle(group) if group else centre for group, centre in zip(groups, centres, strict=True)]
    pairs = list(zip(groups, centres, strict=True))
    spreads = [math.fsum(_square(centre, point) for point in group) for group, centre in pairs]
    return {"centres": centres, "weights": [float(len(group)) for group in groups], "spreads": spreads}


def _middle(points: Sequence[Point]) -> Point:
    return [math.fsum(values) / len(points) for values in zip(*points, strict=True)]


# ---------------------------------------------------------------- public functions


def ewma(column: str, *, alpha: float = 0.1, threshold: float = 3.0, warm_up: int = 10) -> Learner:
    """For `key_by(…).learn(…)`: an exponentially weighted average of a column, and how far each row is from it.

    `alpha` is the weight of the newest row. It adds `expected`, `spread`, `z`, the distance in standard deviations, and
    `anomaly`, which is true beyond `threshold`. The first `warm_up` rows of a key have no score.
    """
    _check(0 < _number(alpha) <= 1, f"alpha is between 0 and 1, not {alpha!r}", "ewma('temperature', alpha=0.1)")
    return Ewma(*_scored("ewma", column, threshold, warm_up), float(alpha))


def zscore(column: str, *, rows: int = 100, threshold: float = 3.0, warm_up: int = 10) -> Learner:
    """For `key_by(…).learn(…)`: the mean of the last `rows` values of a column, and how far each row is from it.

    It adds the columns of `ewma`.
    """
    _check(_whole(rows) and rows > 1, f"rows is a whole number from 2, not {rows!r}", "zscore('temperature', rows=100)")
    return ZScore(*_scored("zscore", column, threshold, warm_up), rows)


def seasonal(
    column: str,
    *,
    period: int,
    alpha: float = 0.1,
    beta: float = 0.01,
    gamma: float = 0.2,
    threshold: float = 3.0,
    warm_up: int | None = None,
) -> Learner:
    """For `key_by(…).learn(…)`: a column with a season of `period` rows, such as 24 hours, and how far each row is off.

    The level, the trend and the season are smoothed with the weights `alpha`, `beta` and `gamma` of the newest row
    (Holt-Winters). It adds the columns of `ewma`. The first season is only learned from, and the next `warm_up` rows,
    one season by default, have no score.
    """
    example = "seasonal('load', period=24)"
    _check(_whole(period) and 2 <= period <= 10_000, f"period is from 2 to 10,000 rows, not {period!r}", example)
    for what, rate in (("alpha", alpha), ("beta", beta), ("gamma", gamma)):
        _check(0 <= _number(rate) <= 1, f"{what} is between 0 and 1, not {rate!r}", example)
    chosen = _scored("seasonal", column, threshold, period if warm_up is None else warm_up)
    return Seasonal(*chosen, period, float(alpha), float(beta), float(gamma))


def kmeans(k: int, features: Sequence[str], *, decay: float = 0.999, seed: int = 0) -> Learner:
    """For `key_by(…).learn(…)`: the cluster of each row, its distance to the centre, and the centre as it was.

    Centres move with each row; `decay` is the weight that all earlier rows keep with a new one, 1 to forget nothing.
    The first 25 rows for each cluster choose the centres, and have no cluster. A cluster that gets no rows any more is
    given up, and the widest one is split.
    """
    _check(_whole(k) and 1 <= k <= 1000, f"k is a whole number from 1 to 1000, not {k!r}", "kmeans(3, ['x', 'y'])")
    names = tuple(features)
    _check(bool(names) and not isinstance(features, str), "kmeans needs a list of columns", "kmeans(3, ['x', 'y'])")
    _check(0 < _number(decay) <= 1, f"decay is between 0 and 1, not {decay!r}", "decay=0.999")
    return KMeans(k, names, float(decay), seed)


def _scored(what: str, column: object, threshold: object, warm_up: object) -> tuple[str, float, int]:
    example = f"{what}('temperature', threshold=3)"
    if not isinstance(column, str):
        raise InvalidInput(f"{what} takes the name of a column, not {column!r}", where=users_line(), next_step=example)
    _check(_number(threshold) > 0, f"threshold is a number above 0, not {threshold!r}", example)
    _check(_whole(warm_up) and _number(warm_up) >= 1, f"warm_up is a whole number from 1, not {warm_up!r}", example)
    return column, _number(threshold), int(_number(warm_up))


def _whole(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool)


def _number(given: object) -> float:
    return float(given) if isinstance(given, int | float) and not isinstance(given, bool) else math.nan


def _check(holds: bool, what: str, example: str) -> None:
    if not holds:
        raise InvalidInput(what, where=users_line(), next_step=f"for example {example}")


def learned(keyed: Keyed, model: object, name: str | None) -> Stream:
    if not isinstance(model, Learner):
        raise refusal(
            f"learn takes a model, not {model!r}", "learn(ms.ewma('temperature')), ms.zscore, ms.seasonal or ms.kmeans"
        )
    stream = keyed.stream
    check_never_retracted("learn", stream.node)
    for column in model.inputs:
        if column not in stream.schema.names:
            raise refusal(f"there is no column '{column}'", what_exists(column, stream.schema.names))
        kind = stream.schema.field(column).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            raise refusal(f"the column '{column}' is {type_name(kind)}, not a number", "cast it with with_column(…)")
    taken = {column.lower() for column in stream.schema.names}
    for column in model.added.names:
        if column in taken:
            raise refusal(f"the result would have two columns named '{column}'", f"rename it: rename({column}='…')")
    columns = pa.schema([*stream.schema.arrow, *model.added])
    in_order = without_event_time(stream.node) is None
    return keyed.process(model, columns, order="event_time" if in_order else "arrival", name=name)
