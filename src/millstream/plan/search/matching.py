"""`match_queries(queries)`: the documents of a stream and stored queries, which may change while the job runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from millstream.expressions.lowered import type_name
from millstream.plan.checks import check_stream, refusal, without_event_time
from millstream.plan.flow import Flow
from millstream.plan.nodes import INSTANT, Read
from millstream.plan.search.node import (
    CONDITION,
    CONTENT,
    FIELD,
    FRAGMENT,
    FRAGMENTS,
    ID,
    OWNER,
    PROBLEM,
    QUERY,
    SCORE,
    SINCE,
    WEIGHT,
    CheckedQueries,
    MatchQueries,
    refuse_query,
)
from millstream.plan.stored.checked_matches import CheckedMatches
from millstream.plan.stream import Stream
from millstream.plan.tables import Table, unweighted
from millstream.plan.walking import in_order
from millstream.records import Schema, duration
from millstream.search.analysis import STANDARD, check_analyser
from millstream.search.fields import NoSuchField, Searched, is_text
from millstream.user_lines import AtUsersLine, users_line

LOG = "log"
"""As the history of documents: they are read from their topics again."""
OPTIONAL = {CONDITION: "string", OWNER: "string", SINCE: "timestamp"}
EXAMPLE = "flow.read('alerts', 'id string, query string, at timestamp', event_time='at').to_table(key='id')"


class Queries(Protocol):
    """Stored queries outside of a flow, such as those of `ms.queries(…)`."""

    def as_table(self, flow: Flow) -> Table:
        """The queries as a table of a flow."""


class QueryMatches(CheckedMatches):
    """The matches of stored queries: one row for each document and query."""


def match_queries(
    stream: Stream,
    queries: Table | Queries,
    text: str | Sequence[str],
    analysers: str | Mapping[str, str],
    history: str | timedelta | None,
    name: str | None,
    *,
    score: bool,
    highlight: bool,
) -> QueryMatches:
    check_stream(stream, "match_queries", "queries are matched with the rows of a stream")
    source = without_event_time(stream.node)
    if source is not None:
        raise refusal(
            f"match_queries needs event time, but the rows of '{source.name}' have none",
            "set it with read(…, event_time='…')",
        )
    stream = unweighted(stream)
    table = queries if isinstance(queries, Table) else _table_of(queries, stream.flow)
    _check_table(table, stream)
    searched = _searched(stream.schema, text, analysers)
    from_log = history == LOG
    if from_log:
        _check_log(stream)
    with AtUsersLine():
        held = timedelta(0) if history is None or from_log else duration(history, what="history")
    added = [pa.field(QUERY, pa.string()), pa.field(OWNER, pa.string())]
    added += [pa.field(SCORE, pa.float64())] if score else []
    added += [pa.field(FRAGMENTS, pa.list_(pa.struct([(FIELD, pa.string()), (FRAGMENT, pa.string())])))] * highlight
    for column in stream.schema.names:
        if column.lower() in [field.name for field in added]:
            raise refusal(f"the result would have two columns named '{column}'", f"rename it: rename({column}='…')")
    missing = {column: f"cast(null as {kind})" for column, kind in OPTIONAL.items() if column not in table.schema}
    chosen = table.select(*(column for column in CONTENT if column not in missing), **missing).select(*CONTENT)
    assert isinstance(chosen, Table)
    checked = _checked(chosen.changes(), searched, name)
    with AtUsersLine():
        result = Schema.from_arrow(pa.schema([*added, *stream.schema.arrow]))
    timed = without_event_time(table.node) is None
    inputs = (stream.node, checked.good.union(checked.bad).node)
    node = MatchQueries("", result, inputs, users_line(), searched, score, highlight, held, timed, from_log)
    return QueryMatches(Stream(stream.flow, stream.flow.named(node, "match_queries", name)), checked.bad)


class _Checked(NamedTuple):
    """The changes of queries that are right, and nothing but the dead letters of the others."""

    good: Stream
    bad: Stream


def _checked(changes: Stream, searched: Searched, name: str | None) -> _Checked:
    changes = changes.select(*CONTENT, WEIGHT)
    columns = pa.schema([*changes.schema.arrow, pa.field(PROBLEM, pa.string())])
    checked = changes.map(CheckedQueries(searched), columns, batch=True)
    bad = checked.where(f"`{PROBLEM}` <> ''").flat_map(
        refuse_query, changes.schema, name=None if name is None else f"{name}.queries"
    )
    return _Checked(checked.where(f"`{PROBLEM}` is null").drop(PROBLEM), bad)


def _table_of(queries: Any, flow: Flow) -> Table:
    if not hasattr(queries, "as_table"):
        raise refusal(f"queries are a table or ms.queries(…), not {type(queries).__name__}", EXAMPLE)
    made: Table = queries.as_table(flow)
    return made


def _check_table(table: Table, stream: Stream) -> None:
    if table.flow is not stream.flow:
        raise refusal("the queries are of another flow", "read them in the same flow")
    missing = [column for column in (ID, QUERY) if column not in table.schema.names]
    if missing:
        raise refusal(f"a table of queries needs a column {', '.join(missing)}", EXAMPLE)
    if table.key != (ID,):
        raise refusal(f"a table of queries has the key '{ID}'", EXAMPLE)
    wanted = {column: INSTANT if column == SINCE else pa.string() for column in CONTENT}
    for column in CONTENT:
        if column in table.schema.names and table.schema.field(column).type != wanted[column]:
            kind = type_name(table.schema.field(column).type)
            raise refusal(f"the column {column} of queries is {kind}, not {type_name(wanted[column])}", EXAMPLE)


def _check_log(stream: Stream) -> None:
    """Documents can be read again only if they come from topics, through steps that keep nothing of other rows."""
    for node in in_order([stream.node]):
        if isinstance(node, Read) and not node.source.is_topic:
            why = f"those of '{node.name}' are not in a topic"
        elif node.keeps_state:
            why = f"the step '{node.name}' before it keeps state ({node.label})"
        else:
            continue
        raise refusal(
            f"history='{LOG}' reads the documents of the past from their topics again, but {why}",
            "hold them in the state of the job: history='7 days'",
        )


def _searched(schema: Schema, text: str | Sequence[str], analysers: str | Mapping[str, str]) -> Searched:
    names = (text,) if isinstance(text, str) else tuple(text)
    if not names:
        raise refusal("match_queries needs the fields to search", "for example text=['title', 'body']")
    for name in names:
        try:
            if not is_text(schema, name):
                raise refusal(f"the field '{name}' is not a string", "name fields of strings in text=")
        except NoSuchField as error:
            raise refusal(f"there is no field '{name}' to search", str(error)) from None
    chosen = dict.fromkeys(names, analysers) if isinstance(analysers, str) else dict(analysers)
    for name in chosen:
        if name not in names:
            raise refusal(f"'{name}' is not a field of text=", f"fields of text: {', '.join(names)}")
    with AtUsersLine():
        checked = {name: check_analyser(each) for name, each in chosen.items()}
    return Searched(schema, names, tuple((name, each) for name, each in checked.items() if each != STANDARD))
