"""Assertions over rows: an expectation names some fields; a failure shows which rows and fields differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millstream.errors import InvalidInput
from millstream.testing.table import Fields, aligned, is_pane, is_span
from millstream.testing.times import ShortTimes, times_in
from millstream.user_lines import users_line

Row = Mapping[str, Any]
ABSENT = "no such field"
AS_EXPECTED = "·"


@dataclass(frozen=True)
class Pair:
    """An expected row and the one that was emitted for it; one of them may be missing."""

    expected: Row | None
    sent: Row | None

    @property
    def is_same(self) -> bool:
        return self.expected is not None and self.sent is not None and not differences(self.expected, self.sent)


def assert_panes(sent: Sequence[Row], expected: Sequence[Row], *, ordered: bool = True) -> None:
    """Asserts that the emitted rows are exactly the expected ones.

    An expected row names the fields that matter, including nested ones: `{"total": 14, "pane": {"timing": "on_time"}}`.
    `ordered=False` allows any order. Works for panes and for any other rows, such as those of `.late`.
    """
    __tracebackhide__ = True
    _check(sent, "sent")
    _check(expected, "expected")
    pairs = in_order(sent, expected) if ordered else in_any_order(sent, expected)
    if not all(pair.is_same for pair in pairs):
        raise AssertionError(difference(pairs, sent, expected))


def assert_steps(out: Sequence[Any], expected: Mapping[int, Any], *, ordered: bool = True) -> None:
    """Asserts what each step of a script emitted, by its number; steps that are not named must have emitted nothing."""
    __tracebackhide__ = True
    if not isinstance(expected, Mapping):
        raise _refuse("assert_steps takes a dict of rows by the number of the step", "write {3: [{'total': 14}]}")
    unknown = [number for number in expected if number not in range(len(out))]
    if unknown:
        raise _refuse(f"there is no step {unknown[0]}", f"the script has steps 0 to {len(out) - 1}")
    failures = []
    for number, step in enumerate(out):
        wanted = expected.get(number, {} if isinstance(step, Mapping) else [])
        streams = step if isinstance(step, Mapping) else {None: step}
        wanted_streams = wanted if isinstance(step, Mapping) else {None: wanted}
        for name, rows in streams.items():
            try:
                assert_panes(rows, wanted_streams.get(name, []), ordered=ordered)
            except AssertionError as failure:
                where = f"step {number}" if name is None else f"step {number}, stream '{name}'"
                failures.append(f"{where}: {failure}")
    if failures:
        raise AssertionError("\n\n".join(failures))


def _check(rows: Any, what: str) -> None:
    if isinstance(rows, Mapping | str) or not isinstance(rows, Sequence):
        raise _refuse(f"'{what}' is a {type(rows).__name__}, not a list of rows", "compare one step: out[i]")
    if not all(isinstance(row, Mapping) for row in rows):
        raise _refuse(
            f"'{what}' has something other than rows", "compare one step, out[i], or use assert_steps(out, …)"
        )


def _refuse(what: str, next_step: str) -> InvalidInput:
    return InvalidInput(what, where=users_line(), next_step=next_step)


# ---------------------------------------------------------------- matching rows


def differences(expected: Row, sent: Row) -> dict[str, tuple[Any, Any]]:
    """The fields, by dotted name, that differ: the expected and the actual value."""
    found: dict[str, tuple[Any, Any]] = {}
    for name, value in expected.items():
        given = sent.get(name, ABSENT)
        if isinstance(value, Mapping) and isinstance(given, Mapping):
            found |= {f"{name}.{inner}": pair for inner, pair in differences(value, given).items()}
        elif given != value:
            found[name] = (value, given)
    return found


def in_order(sent: Sequence[Row], expected: Sequence[Row]) -> list[Pair]:
    """The cheapest alignment of two lists, where a gap costs 1 and a pair `_cost`."""
    table = [[0.0] * (len(sent) + 1) for _ in range(len(expected) + 1)]
    for i in reversed(range(len(expected) + 1)):
        for j in reversed(range(len(sent) + 1)):
            ways = []
            if i < len(expected):
                ways.append(1 + table[i + 1][j])
            if j < len(sent):
                ways.append(1 + table[i][j + 1])
            if i < len(expected) and j < len(sent):
                ways.append(_cost(expected[i], sent[j]) + table[i + 1][j + 1])
            table[i][j] = min(ways, default=0.0)
    pairs, i, j = [], 0, 0
    while i < len(expected) or j < len(sent):
        left = table[i][j]
        if i < len(expected) and j < len(sent) and left == _cost(expected[i], sent[j]) + table[i + 1][j + 1]:
            pairs.append(Pair(expected[i], sent[j]))
            i, j = i + 1, j + 1
        elif i < len(expected) and left == 1 + table[i + 1][j]:
            pairs.append(Pair(expected[i], None))
            i += 1
        else:
            pairs.append(Pair(None, sent[j]))
            j += 1
    return pairs


def in_any_order(sent: Sequence[Row], expected: Sequence[Row]) -> list[Pair]:
    """As many exact pairs as possible; of the rest, those that differ least; what is left is unpaired."""
    partner = _exact_pairs(sent, expected)
    free = [j for j in range(len(sent)) if j not in partner.values()]
    alike = [(_cost(row, sent[j]), i, j) for i, row in enumerate(expected) if i not in partner for j in free]
    for cost, i, j in sorted(alike):
        if cost < 2 and i not in partner and j in free:
            partner[i] = j
            free.remove(j)
    pairs = [Pair(row, sent[partner[i]] if i in partner else None) for i, row in enumerate(expected)]
    return pairs + [Pair(None, sent[j]) for j in free]


def _exact_pairs(sent: Sequence[Row], expected: Sequence[Row]) -> dict[int, int]:
    """The emitted row of each expected one: one that names few fields yields to one that fits a single row."""
    fits = [[j for j, row in enumerate(sent) if not differences(wanted, row)] for wanted in expected]
    taken: dict[int, int] = {}

    def place(i: int, tried: set[int]) -> bool:
        for j in fits[i]:
            if j not in tried:
                tried.add(j)
                if j not in taken or place(taken[j], tried):
                    taken[j] = i
                    return True
        return False

    for i in range(len(expected)):
        place(i, set())
    return {i: j for j, i in taken.items()}


def _cost(expected: Row, sent: Row) -> float:
    """0 for an exact match, below 2 if a row is better shown next to the expected one than on its own."""
    wrong = differences(expected, sent)
    if not wrong:
        return 0.0
    another_window = any(name.split(".")[0] == "window" for name in wrong) and len(wrong) > 1
    return 1.9 * len(wrong) / len(flat(expected)) + another_window


# ---------------------------------------------------------------- describing differences


def difference(pairs: Sequence[Pair], sent: Sequence[Row], expected: Sequence[Row]) -> str:
    times = ShortTimes(times_in([_shown(row) for row in (*sent, *expected)]))
    names = _columns(pairs, sent)
    lines: list[Fields] = []
    for pair in pairs:
        lines += _lines(pair, names)
    heading, *rest = aligned(lines, times=times)
    day = f" (times of {times.day}, UTC)" if times.day else ""
    return "\n".join([f"{_summary(pairs, sent, expected)}{day}", "", *(f"  {line}" for line in (heading, *rest))])


def _summary(pairs: Sequence[Pair], sent: Sequence[Row], expected: Sequence[Row]) -> str:
    if all(pair.is_same for pair in in_any_order(sent, expected)):
        return "the expected rows were sent in another order"
    missing = sum(pair.sent is None for pair in pairs)
    surplus = sum(pair.expected is None for pair in pairs)
    differ = sum(not pair.is_same for pair in pairs) - missing - surplus
    counts = {"other": differ, "missing": missing, "surplus": surplus}
    summary = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return f"expected {len(expected)}, sent {len(sent)}: {summary}"


def _lines(pair: Pair, names: Sequence[str]) -> list[Fields]:
    if pair.sent is None:
        return [_line("missing", flat(pair.expected or {}), names)]
    shown = flat(pair.sent)
    if pair.expected is None:
        return [_line("surplus", shown, names)]
    if pair.is_same:
        return [_line("", flat(pair.expected), names)]
    wanted, wrong = flat(pair.expected), differences(pair.expected, pair.sent)
    marked = {name: _at(pair.sent, name) if _is_in(name, wrong) else AS_EXPECTED for name in wanted}
    return [_line("expected", wanted, names), _line("sent", marked, names)]


def _is_in(name: str, wrong: Mapping[str, Any]) -> bool:
    return any(field == name or field.startswith(f"{name}.") for field in wrong)


def _at(row: Row, name: str) -> Any:
    """The field with a dotted name."""
    if name in row:
        return row[name]
    head, _, rest = name.partition(".")
    inner = row.get(head)
    return _at(inner, rest) if rest and isinstance(inner, Mapping) else ABSENT


def _line(mark: str, fields: Fields, names: Sequence[str]) -> Fields:
    return {"": mark} | {name: fields.get(name, "") for name in names}


def _columns(pairs: Sequence[Pair], sent: Sequence[Row]) -> list[str]:
    """The fields that expectations name, in the order of the rows; for a surplus row also those that identify it."""
    named = dict.fromkeys(name for pair in pairs for name in flat(pair.expected or {}))
    surplus = [pair.sent for pair in pairs if pair.expected is None and pair.sent is not None]
    identifying = dict.fromkeys(name for row in surplus for name in flat(_shown(row)))
    order = list(dict.fromkeys(name for row in sent for name in flat(row)))
    return [name for name in order if name in named or name in identifying] + [
        name for name in named if name not in order
    ]


def _shown(row: Row) -> Row:
    """A row without redundant fields."""
    shown = {name: value for name, value in row.items() if name != "event_time" and (name, value) != ("weight", 1)}
    if is_pane(shown.get("pane")):
        shown["pane"] = {name: shown["pane"][name] for name in ("timing", "index")}
    return shown


def flat(row: Row) -> Fields:
    """Nested fields by dotted name; a window stays one field, unless only one of its ends is named."""
    found: Fields = {}
    for name, value in row.items():
        if isinstance(value, Mapping) and value and not is_span(value):
            found |= {f"{name}.{inner}": part for inner, part in flat(value).items()}
        else:
            found[name] = value
    return found
