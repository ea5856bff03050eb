"""What comes from outside is shown on a terminal and not obeyed; drawings hold no character that XML refuses."""

from __future__ import annotations

import io
import json
import logging
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as some

import millstream as ms
from millstream import terminal as terminals_module
from millstream.connectors.opening import open_sink
from millstream.errors import JobChanged, MillstreamError, NotFound
from millstream.jobs.measuring.job_progress import Progress
from millstream.jobs.shown import display
from millstream.jobs.versions.kept_steps import differences
from millstream.records import Schema
from millstream.terminal import escaped, escaped_bytes, escaped_lines, is_harmless, is_terminal, logger, shown
from millstream.testing import Add, assert_panes, play, print_panes, svg
from terminals import ALL, HOSTILE, MARKUP, TITLE, terminal

ANYTHING = some.text(some.characters())


@given(ANYTHING)
def test_what_is_escaped_is_one_line_that_can_be_encoded_and_read_again(text: str) -> None:
    made = escaped(text)
    made.encode()
    assert len(made.splitlines()) <= 1
    assert is_harmless(made)
    assert escaped(made) == made
    ElementTree.fromstring(svg.group([svg.words(1, 2, text)], title=text, data_name=text))
    assert (made == text) is is_harmless(text)


@given(ANYTHING)
def test_json_stays_json(text: str) -> None:
    document = json.dumps([text], ensure_ascii=False)
    assert json.loads(escaped(document)) == [text]


@given(some.binary())
def test_bytes_that_are_not_text(content: bytes) -> None:
    assert is_harmless(escaped_bytes(content).decode())


def test_what_users_write_is_left_alone() -> None:
    for text in ("Grüße, 世界 👩‍👩‍👧 שלום", "C:\\new", "a  b", "[bold]", ""):
        assert escaped(text) == text
    assert escaped("a\nb\tc\rd\x1b\x9b\u202e\x7f") == r"a\nb\tc\rd\u001b\u009b\u202e\u007f"
    assert escaped_lines("a\x1b\nb") == "a\\u001b\nb"


def test_only_a_terminal_gets_it_escaped() -> None:
    with terminal() as screen:
        assert is_terminal(sys.stdout)
        assert shown(TITLE, sys.stdout) == escaped(TITLE)
    assert screen.text == ""
    assert shown(TITLE, io.StringIO()) == TITLE
    closed = io.StringIO()
    closed.close()
    assert not is_terminal(closed)
    assert not is_terminal(None)


# ---------------------------------------------------------------- errors and logs


def test_an_error_as_text_has_our_lines_alone() -> None:
    error = NotFound(f"there is no\n  next: {ALL}", where=f"a\n{ALL}", next_step=f"b\n{ALL}")
    assert [line[:8] for line in str(error).split("\n")] == ["there is", "  where:", "  next: "]
    assert all(is_harmless(line) for line in str(error).split("\n"))
    assert error.what.endswith(ALL)


def test_the_lines_of_a_changed_flow_stay_lines() -> None:
    changes = differences({"a": {"does": "x\ny" + ALL}}, {"a": {"does": "z"}}, {"a": "a"})
    lines = str(JobChanged(f"it has changed:\n{changes}")).split("\n")
    assert len(lines) == 4
    assert all(map(is_harmless, lines))


def test_a_log_message_is_one_line() -> None:
    made = logger("millstream.example")
    heard: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = heard.append  # type: ignore[method-assign]
    made.addHandler(handler)
    made.propagate = False
    assert logger("millstream.example").filters == made.filters
    made.warning("%s has %d of %.1f", f"a\n{ALL}", 3, 0.5)
    made.warning(f"plain {ALL}")
    made.warning("%(name)s", {"name": ALL})
    made.warning("%s", MillstreamError("what", where=ALL))
    messages = [record.getMessage() for record in heard]
    assert messages[0].endswith("has 3 of 0.5")
    assert all(map(is_harmless, messages[:3]))
    assert [is_harmless(line) for line in messages[3].split("\n")] == [True, True]


def test_every_logger_of_the_package_escapes() -> None:
    """Method: read the source, as the layering test does."""
    root = Path(terminals_module.__file__).parent
    raw = [
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if "logging.getLogger(" in path.read_text() and path.name != "terminal.py"
    ]
    # The first only adds a handler, the second adds filters.
    assert sorted(raw) == ["cli/failures.py", "spark/session/lost_jvm.py"]


# ---------------------------------------------------------------- displays


SCHEMA = "team string, text string"


def sink(tmp_path: Path) -> Any:
    folders = {"broker": tmp_path / "log", "folder": tmp_path / "job"}
    return open_sink(ms.console(), Schema.of(SCHEMA), job="j", step=f"show{MARKUP}", **folders)


def rows() -> pa.Table:
    return pa.table({"team": HOSTILE, "text": ["a\nb\tc"] * len(HOSTILE)})


def test_the_console_sink_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, variables in enumerate([{}, {"TTY_COMPATIBLE": "0"}, {"TERM": "dumb"}, {"NO_COLOR": "1"}]):
        with monkeypatch.context() as patched, terminal("stdout") as screen:
            for name, value in variables.items():
                patched.setenv(name, value)
            made = sink(tmp_path)
            made.write(number, rows(), None)
        text = "".join(screen.calm.split())
        assert all("".join(escaped(each).split()) in text for each in HOSTILE)
        assert r"a\nb\tc" in text


def test_the_console_sink_in_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sink(tmp_path).write(0, rows(), None)
    text = capsys.readouterr().out
    assert "\x1b[2J" in text
    assert MARKUP in text


def test_the_live_line_of_a_job() -> None:
    """Names of jobs, and what a broker answers, are contents."""
    progress = Progress(batch=3, rows_read=1, batch_seconds=1.0, batch_rows=1, waits_for=ALL)
    job = SimpleNamespace(name=f"job{MARKUP}", progress=progress, lag=lambda: 0, promise=None)
    with terminal("stderr") as screen, display.watched(f"job{ALL}", "auto") as live:
        assert isinstance(live, display.Terminal)
        live.phase(f"waits{ALL}")
        live._status._live.refresh()
        live.update(job)  # type: ignore[arg-type]
        live._status._live.refresh()
    text = screen.calm
    assert escaped(ALL) in text
    assert MARKUP in text


def panes() -> list[Any]:
    def build(given: Any) -> Any:
        return given

    added = [{"team": each, "text": "a\nb"} for each in HOSTILE]
    return play(build, [Add(added)], schema=SCHEMA, on="reference")


def test_printed_panes(capsys: pytest.CaptureFixture[str]) -> None:
    out = panes()
    with terminal("stdout") as screen:
        print_panes(out)
    assert len(screen.calm.splitlines()) == len(HOSTILE) + 1
    assert escaped(MARKUP) in screen.calm
    print_panes(out)
    assert TITLE in capsys.readouterr().out


def test_control_sequences_in_failed_assertions_are_escaped() -> None:
    with pytest.raises(AssertionError) as failed:
        assert_panes([{"team": ALL}], [{"team": "a"}])
    assert all(map(is_harmless, str(failed.value).split("\n")))


# ---------------------------------------------------------------- plans


def flow() -> ms.Flow:
    made = ms.Flow("hostile")
    read = made.read(ms.files(f"/in/{ALL}\nx"), f"`{ALL}` string, team string", name="in")
    read.where(f"team = '</text><script>{ALL}\ufffe'").write(ms.files(f"/out/{ALL}\nx"), name="out")
    return made


def test_explained_as_text_and_as_mermaid() -> None:
    text = flow().explain()
    assert all(map(is_harmless, text.split("\n")))
    assert escaped(MARKUP) in text
    drawn = flow().explain("mermaid")
    assert all(map(is_harmless, drawn.split("\n")))
    assert "<script>" not in drawn


def test_explained_as_svg() -> None:
    drawn = flow().explain("svg")
    root = ElementTree.fromstring(drawn)
    assert not [each for each in root.iter() if each.tag.endswith("script")]
    said = " ".join(each.text or "" for each in root.iter())
    assert "</text><script>" in said
    assert r"\u001b" in said


def test_a_figure_of_hostile_keys(tmp_path: Path) -> None:
    def totals(given: Any) -> Any:
        return given.key_by("team").window(ms.fixed("1 minute")).agg(n=ms.count())

    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    added = [{"team": f"{each}</text><script>\0\ufffe", "at": at} for each in HOSTILE[:4]]
    path = tmp_path / "figure.svg"
    play(totals, [Add(added)], schema="team string, at timestamp", event_time="at", on="reference", draw=path)
    root = ElementTree.parse(path).getroot()
    assert not [each for each in root.iter() if each.tag.endswith("script")]
    assert r"\u001b" in path.read_text()
