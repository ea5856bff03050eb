"""Matches of rules as columns: one row per match, with the rows of the match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from millstream.operators.aggregates.accumulators import ROW, TIME, WEIGHT
from millstream.operators.elementwise import types_of
from millstream.operators.patterns.results import instants, listed
from millstream.plan.patterns.found import Complete
from millstream.plan.patterns.node import (
    MATCH,
    MATCH_END,
    MATCH_START,
    MATCHED_ROWS,
    RULE,
    RULE_VERSION,
    VARIABLE,
    MatchRules,
)
from millstream.plan.stored.versions import Version


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """A match of a version of a rule, by places in the rows of the step, and its number."""

    version: Version
    match: Complete
    number: int


class RuleResults:
    def __init__(self, node: MatchRules) -> None:
        self._keys = node.keys
        self._given = node.inputs[0].schema.names
        self._types: Any = types_of(node.schema)
        self._nothing = pl.DataFrame(schema={**self._types, TIME: pl.Int64, WEIGHT: pl.Int32})

    def sent(self, found: Sequence[RuleMatch], rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
        """The matches by key, then in the order given: by rule, version and number."""
        if not found:
            return self._nothing
        firsts = rows[[each.match.first for each in found]]
        order = firsts.select(keys).with_row_index("__at").sort(keys, nulls_last=False, maintain_order=True)["__at"]
        found, firsts = [found[at] for at in order], firsts[order]
        shown = [[row for row in each.match.path if not row[2]] for each in found]
        places = [place for path in shown for place, *_ in path]
        matched = rows[ROW][places].struct.unnest().select(self._given)
        variables = pl.Series(VARIABLE, [variable for path in shown for _, variable, _ in path], pl.String)
        flat = pl.DataFrame([variables, *matched.get_columns()]).to_struct(MATCHED_ROWS)
        whole = firsts[ROW].struct.unnest()
        ends = pl.Series(TIME, [each.match.end for each in found], pl.Int64)
        columns = {
            RULE: pl.Series([each.version.content[0] for each in found], dtype=self._types[RULE]),
            RULE_VERSION: pl.Series([each.version.content[1] for each in found], dtype=self._types[RULE_VERSION]),
            **{name: whole[name] for name in self._keys},
            MATCH: pl.Series([each.number for each in found], dtype=pl.Int64),
            MATCH_START: instants(firsts[TIME]),
            MATCH_END: instants(ends),
            MATCHED_ROWS: listed(MATCHED_ROWS, [len(path) for path in shown], flat),
        }
        made = [columns[name].cast(kind).alias(name) for name, kind in self._types.items()]
        return pl.DataFrame([*made, ends]).with_columns(pl.lit(1, pl.Int32).alias(WEIGHT))
