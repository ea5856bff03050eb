"""Questions to a running flow: a request is a row with an id, and is answered in the batch that reads it.

Every row between a request and its answer has the id of the request. Steps that keep state forget it after the batch,
so that nothing is left of a request once it is answered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from millstream.errors import InvalidPlan
from millstream.expressions.spark_types import backquoted
from millstream.plan.aggregates.basic import collect
from millstream.plan.aggregates.basic import min as smallest
from millstream.plan.checks import NAME, check_function, refusal, schema_of
from millstream.plan.nodes import MapAsync, MapRows, Node, Project, StreamNode, Union, Where, Write
from millstream.plan.table_nodes import Distinct, Grouped, LookupJoin, SideJoin, Take, Top
from millstream.plan.walking import in_order
from millstream.records import Schema, SchemaLike
from millstream.user_lines import AtUsersLine

if TYPE_CHECKING:
    from millstream.plan.flow import Flow
    from millstream.plan.stream import Stream

REQUEST, EXPIRES, FOUND, ROWS, ERROR = "request", "expires", "found", "rows", "error"
RESERVED = (REQUEST, EXPIRES, "timeout")
REQUESTS_TOPIC, ANSWERS_TOPIC = "requests", "answers"
KEPT_PER_REQUEST = (Grouped, Distinct, Take, Top)
ROW_BY_ROW = (MapRows, MapAsync, Where, Project, SideJoin)
"""Steps whose dead letters have the whole row, so that the request of one is known."""
ID = re.compile(rb"\{'request': '([^']+)'|.*'request': '([^']+)'")
"""The id of a request in the dead letter of a row, in which it is the first column, unless a step has moved it."""
AnyNode = TypeVar("AnyNode", bound=Node)


@dataclass(frozen=True)
class Ask:
    """A question that callers may ask a running flow: made by `flow.ask(…)`."""

    flow: str
    name: str
    schema: Schema
    """The columns of a request, without its id."""
    answer: Schema
    """The columns of the rows of an answer."""

    @property
    def requests_topic(self) -> str:
        return topic_of(self.flow, self.name, REQUESTS_TOPIC)

    @property
    def answers_topic(self) -> str:
        return topic_of(self.flow, self.name, ANSWERS_TOPIC)

    @property
    def requests_schema(self) -> Schema:
        return stored_requests(self.schema)

    @property
    def answers_schema(self) -> Schema:
        rows = pa.list_(pa.struct(list(self.answer.arrow)))
        return Schema.from_arrow(pa.schema([(REQUEST, pa.string()), (ROWS, rows), (ERROR, pa.string())]))


def topic_of(flow: str, ask: str, kind: str) -> str:
    """The topic of the requests or of the answers."""
    return f"{flow}.{ask}.{kind}"


def stored_requests(schema: Schema) -> Schema:
    """The columns of the topic of requests: the id, when its caller gives up, and the columns of the question."""
    own = Schema.of(f"{REQUEST} string, {EXPIRES} timestamp")
    return Schema.from_arrow(pa.schema([*own.arrow, *schema.arrow]))


def ask(flow: Flow, name: str, schema: SchemaLike, function: Callable[[Stream], Stream]) -> Ask:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise refusal(f"{name!r} is not a valid name for a question", "use letters, digits and . _ -")
    if name in flow.asks:
        raise refusal(f"there are two questions named '{name}'", "choose another name")
    columns = schema_of(schema)
    for column in columns.names:
        if column.lower() in RESERVED:
            raise refusal(f"a question cannot have a column '{column}'", "choose another name")
    check_function("ask", function, ("requests",), "flow.ask('reach', 'url string', function)")
    with AtUsersLine():
        stored = stored_requests(columns)
    sent = flow.read(topic_of(flow.name, name, REQUESTS_TOPIC), stored, on_lost="earliest")
    # Whatever else is in the topic is no request of a client.
    waiting = sent.where(f"{EXPIRES} > current_timestamp() and {REQUEST} rlike '^[0-9a-f]{{32}}$'")
    waiting = waiting.select(REQUEST, *columns.names)
    answers = answered(waiting, function)
    answers.write(topic_of(flow.name, name, ANSWERS_TOPIC))
    rows = answers.schema.field(ROWS).type.value_type
    made = flow.asks[name] = Ask(flow.name, name, columns, Schema.from_arrow(pa.schema(list(rows))))
    return made


def answered(requests: Stream, function: Callable[[Stream], Stream]) -> Stream:
    """One row for each request: the rows of its answer, or the first error of a step on the way."""
    flow = requests.flow
    flow.requests.add(requests.node)
    found = _checked(function(requests), flow)
    columns = [column for column in found.schema.names if column != REQUEST]
    row = f"struct({', '.join(map(backquoted, columns))})"
    results = found.select(REQUEST, **{FOUND: row, ERROR: "cast(null as string)"})
    failures = [
        _of_requests(failed.map(_failed, results.schema), flow) for failed in _dead_letters(flow, found.node, requests)
    ]
    parts = requests.map(_asked, results.schema).union(results, *failures)
    answers = parts.group_by(REQUEST).agg(rows=collect(FOUND), error=smallest(ERROR))
    flow.answers[answers.node] = requests.node, found.node
    return answers


@dataclass(frozen=True, eq=False)
class AnswerByRow(StreamNode):
    """Answers each request from the rows that the steps before made of it alone; for real-time mode."""

    @property
    def label(self) -> str:
        return "answer each request"


def answered_by_row(flow: Flow, outputs: Iterable[Write]) -> tuple[Write, ...]:
    """The outputs of a flow whose steps see one row at a time, so that answers need not be collected."""
    return tuple(_by_row(flow, output) for output in outputs)


def _by_row(flow: Flow, output: Write) -> Write:
    collected = output.inputs[0]
    if collected not in flow.answers:
        return output
    made = AnswerByRow(f"{output.name}.by-row", output.schema, flow.answers[collected], output.user_line)
    return replace(output, inputs=(made,))


def _asked(request: dict[str, Any]) -> dict[str, Any]:
    """Part of an answer that every request has, even if no row is found for it."""
    return {REQUEST: request[REQUEST], FOUND: None, ERROR: None}


def _failed(letter: dict[str, Any]) -> dict[str, Any]:
    """The error of a request, given the dead letter of one of its rows."""
    found = ID.match(letter["value"])
    if found is None:
        raise ValueError(f"a step has changed the column '{REQUEST}', so the request of a dead letter is not known")
    return {REQUEST: (found[1] or found[2]).decode(), FOUND: None, ERROR: letter["reason"]}


def _of_requests(stream: Stream, flow: Flow) -> Stream:
    flow.requests.add(stream.node)
    return stream


def _dead_letters(flow: Flow, end: Node, requests: Stream) -> list[Stream]:
    """Of every step on the way to the answers. A step that has none stops the job if it fails, as in any flow."""
    from millstream.plan.stream import Stream

    steps = [node for node in in_order([end]) if node in flow.requests and node is not requests.node]
    found = []
    for node in steps:
        if isinstance(node, ROW_BY_ROW):
            with suppress(InvalidPlan):
                found.append(Stream(flow, node).dead)
    return found


def _checked(found: Any, flow: Flow) -> Stream:
    from millstream.plan.stream import Stream

    if not isinstance(found, Stream) or found.flow is not flow or found.node not in flow.requests:
        raise refusal(
            f"the function of a question returned {found!r}, which is no stream made of its requests",
            "return the rows of the answers: requests.join(table, on=…, as_of='now')",
        )
    if len(found.schema.names) < 2:
        raise refusal(f"the answers have only the column '{REQUEST}'", "add a column that answers the question")
    return found


def of_requests(node: AnyNode, requests: set[Node]) -> AnyNode:
    """A step of rows that belong to requests, which keeps no state beyond a batch; any other is refused."""
    if REQUEST not in node.schema.names:
        raise refusal(
            f"a step of requests drops the column '{REQUEST}' ({node.label})", f"keep it: select('{REQUEST}', …)"
        )
    sides = [given in requests for given in node.inputs]
    if isinstance(node, KEPT_PER_REQUEST):
        if REQUEST not in node.keys or getattr(node, "within", None) is not None:
            raise refusal(
                f"a step would mix the rows of several requests ({node.label})",
                f"group by the request as well: group_by('{REQUEST}', …), distinct('{REQUEST}', …), "
                f"top(…, per='{REQUEST}') or take(…, per='{REQUEST}')",
            )
        return replace(node, per_batch_state=True)
    if isinstance(node, LookupJoin) and sides[:2] == [True, False] and not node.at_event_time:
        return node
    if isinstance(node, ROW_BY_ROW) or (isinstance(node, Union) and all(sides)):
        return node
    raise refusal(
        f"a request is answered in one batch, and this step would keep it for longer ({node.label})",
        "requests can be filtered, mapped, joined with a table as_of='now', and aggregated per request",
    )
