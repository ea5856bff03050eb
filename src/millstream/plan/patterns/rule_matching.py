"""`match(rules=table)`: the patterns are rows of a table, which may change while the job runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.expressions.lowered import type_name
from millstream.plan.checks import check_stream, refusal, without_event_time
from millstream.plan.nodes import Node
from millstream.plan.patterns.matching import check_rows
from millstream.plan.patterns.node import (
    MATCH,
    MATCH_END,
    MATCH_START,
    MATCHED_ROWS,
    RULE,
    RULE_VERSION,
    VARIABLE,
    MatchRules,
    rule_match_schema,
)
from millstream.plan.patterns.recognize import event_time_column
from millstream.plan.patterns.rule_text import FILTER, ID, TEXT, VERSION, WEIGHT, CheckedRules, RuleInput
from millstream.plan.stored.checked_matches import CheckedMatches
from millstream.plan.stream import Stream
from millstream.plan.tables import Table
from millstream.records import duration
from millstream.user_lines import AtUsersLine, users_line

if TYPE_CHECKING:
    from millstream.plan.steps.keyed import Keyed

COLUMNS = (ID, VERSION, FILTER, TEXT)
EXAMPLE = "flow.read('rules', 'id string, version int, filter string, pattern string').to_table(key='id')"


class RuleMatches(CheckedMatches):
    """The matches of rules that may change: one row each, with the rule, its version and the matched rows."""


def match_rules(
    keyed: Keyed, rules: Table, history: str | timedelta | None, others: Sequence[str], name: str | None
) -> RuleMatches:
    stream = keyed.stream
    if others:
        raise refusal(
            f"{', '.join(others)} cannot be set besides rules", "the text of a rule has what is to be matched"
        )
    check_stream(stream, "match", "aggregate or join it as it is")
    check_rows(stream)
    types = _checked_types(rules, stream)
    with AtUsersLine():
        held = timedelta(0) if history is None else duration(history)
    taken = [RULE, RULE_VERSION, MATCH, MATCH_START, MATCH_END, MATCHED_ROWS]
    for column in keyed.keys:
        if column.lower() in taken:
            raise refusal(f"the result would have two columns named '{column}'", f"rename it: rename({column}='…')")
    if VARIABLE in {column.lower() for column in stream.schema.names}:
        raise refusal(f"matched rows get a column '{VARIABLE}'", f"rename yours: rename({VARIABLE}='…')")
    given = RuleInput(stream.schema, keyed.keys, event_time_column(stream.node))
    chosen = rules.select(*COLUMNS)
    assert isinstance(chosen, Table)
    changes = chosen.changes()
    columns = pa.schema([*(changes.schema.field(column) for column in COLUMNS), pa.field(WEIGHT, pa.int32())])
    checked = changes.flat_map(CheckedRules(given), columns, name=None if name is None else f"{name}.rules")
    with AtUsersLine():
        result = rule_match_schema(stream.schema, keyed.keys, *types)
    timed = without_event_time(rules.node) is None
    inputs: tuple[Node, ...] = (stream.node, checked.node)
    node = MatchRules("", result, inputs, users_line(), keyed.keys, held, given.event_time, timed)
    return RuleMatches(Stream(stream.flow, stream.flow.named(node, "match", name)), checked)


def _checked_types(rules: object, stream: Stream) -> tuple[pa.DataType, pa.DataType]:
    """The types of a rule's id and version."""
    if not isinstance(rules, Table):
        raise refusal(f"rules is a table, not {type(rules).__name__}", EXAMPLE)
    if rules.flow is not stream.flow:
        raise refusal("the rules are of another flow", "read them in the same flow")
    missing = [column for column in COLUMNS if column not in rules.schema.names]
    if missing:
        raise refusal(f"a table of rules needs a column {', '.join(missing)}", EXAMPLE)
    if rules.key != (ID,):
        raise refusal(f"a table of rules has the key '{ID}'", EXAMPLE)
    for column, kinds in ((ID, "a string or a whole number"), (VERSION, "a string or a whole number"),
                          (FILTER, "a string"), (TEXT, "a string")):  # fmt: skip
        kind = rules.schema.field(column).type
        if not pa.types.is_string(kind) and not (column in (ID, VERSION) and pa.types.is_integer(kind)):
            raise refusal(f"the column {column} of rules is {type_name(kind)}, not {kinds}", EXAMPLE)
    return rules.schema.field(ID).type, rules.schema.field(VERSION).type
