"""Which step of a flow a figure shows, and its picture."""

from __future__ import annotations

from collections.abc import Iterable

from millstream.errors import InvalidInput
from millstream.plan.flow import Flow
from millstream.plan.nodes import Node, WindowedAggregate
from millstream.plan.patterns.node import Match
from millstream.plan.walking import derived
from millstream.testing.figure import drawn
from millstream.testing.match_figure import drawn_matches
from millstream.testing.match_recording import MatchRecording, with_rows
from millstream.testing.recording import Recording
from millstream.user_lines import users_line


def recording_of(flow: Flow, observed: Iterable[Node]) -> Recording | MatchRecording:
    """Records the last windowed aggregation, or match, before the first observed stream that has one."""
    for node in observed:
        found = derived(node, _nearest)
        if isinstance(found, Match):
            return MatchRecording(flow, with_rows(found))
        if found is not None:
            return Recording(flow, found)
    raise InvalidInput(
        "there is nothing to draw: no stream that build returned has windows or matches",
        where=users_line(),
        next_step="a figure shows panes or matches: use .window(…).agg(…) or .match(…)",
    )


def figure_of(recording: Recording | MatchRecording) -> str:
    """A recording as SVG."""
    return drawn_matches(recording) if isinstance(recording, MatchRecording) else drawn(recording)


def _nearest(node: Node, before: list[WindowedAggregate | Match | None]) -> WindowedAggregate | Match | None:
    return node if isinstance(node, WindowedAggregate | Match) else next((found for found in before if found), None)
