"""Goal: the command is a good citizen of pipes and terminals. Method: real processes, pipes, signals, terminals."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest

from millstream.log import EmbeddedLog

from .conftest import COMMAND, SCHEMA, Run, on_terminal, start

PIPE_BYTES = 1 << 16
ESCAPE, BOX = "\x1b", set("│─┃━┏┓┗┛╭╮╰╯━┡┩")


@pytest.fixture
def many(log: EmbeddedLog) -> EmbeddedLog:
    """More than a pipe holds."""
    log.create_topic("many")
    with log.producer() as producer:
        for n in range(50_000):
            producer.send("many", b"value %d" % n)
    return log


def committed(log: EmbeddedLog, group: str) -> list[int]:
    offsets = (part.next_offset for part in log.describe_group(group).partitions)
    return [offset for offset in offsets if offset is not None]


# ---------------------------------------------------------------- pipes


def test_a_closed_pipe_prints_no_error(many: EmbeddedLog) -> None:
    with start("consume", "many", "--group", "g") as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"value 0\n"
        reader.stdout.close()
        assert reader.stderr is not None
        assert reader.stderr.read() == b""
    assert reader.returncode == 141
    [count] = committed(many, "g")  # what the pipe had taken, and no more
    size = sum(len(b"value %d\n" % n) for n in range(count))
    assert 0 < size <= PIPE_BYTES + io.DEFAULT_BUFFER_SIZE


def test_head_in_a_shell(many: EmbeddedLog) -> None:
    line = f"{' '.join(COMMAND)} consume many | head -2"
    done = subprocess.run(line, shell=True, capture_output=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"value 0\nvalue 1\n", b"")


def test_a_full_device_is_reported(many: EmbeddedLog) -> None:
    with Path("/dev/full").open("wb") as full, start("consume", "many", stdout=full) as reader:
        _, err = reader.communicate(timeout=60)
    assert (reader.returncode, err) == (1, b"error: No space left on device\n")


def test_what_was_not_written_is_not_committed(many: EmbeddedLog) -> None:
    """Method: the reader takes nothing, so the command hangs in its write until it is killed."""
    with start("consume", "many", "--group", "g") as reader:
        assert reader.stdout is not None
        os.read(reader.stdout.fileno(), 1)
        time.sleep(0.3)
        reader.kill()
    assert not committed(many, "g")


def test_lines_that_trickle_in_are_stored_at_once(log: EmbeddedLog) -> None:
    log.create_topic("raw")
    with start("produce", "raw") as writer, log.consumer("raw") as consumer:
        assert writer.stdin is not None
        for word in (b"one", b"two"):
            writer.stdin.write(word + b"\n")
            writer.stdin.flush()
            assert [record.value for record in consumer.poll(timeout=20)] == [word]
        writer.communicate(timeout=20)
    assert writer.returncode == 0


# ---------------------------------------------------------------- following


@pytest.mark.parametrize("command", [["consume", "raw", "--follow"], ["tail", "raw", "-f"]])
def test_following_prints_each_record_and_ends_with_ctrl_c(log: EmbeddedLog, command: list[str]) -> None:
    log.create_topic("raw", partitions=2)
    with log.producer() as producer, start(*command) as reader:
        assert reader.stdout is not None
        producer.send("raw", b"before").wait()
        assert reader.stdout.readline() == b"before\n"
        producer.send("raw", b"after").wait()
        assert reader.stdout.readline() == b"after\n"
        reader.send_signal(signal.SIGINT)
        out, err = reader.communicate(timeout=20)
    assert (reader.returncode, out, err) == (130, b"", b"")


def test_ctrl_c_commits_what_was_printed(log: EmbeddedLog) -> None:
    log.create_topic("raw")
    with log.producer() as producer, start("consume", "raw", "--follow", "--group", "g") as reader:
        assert reader.stdout is not None
        for n in range(3):
            producer.send("raw", b"%d" % n).wait()
            assert reader.stdout.readline() == b"%d\n" % n
        time.sleep(0.1)
        reader.send_signal(signal.SIGINT)
        reader.communicate(timeout=20)
    assert log.describe_group("g").lag == 0


def test_two_members_share_the_partitions(log: EmbeddedLog) -> None:
    log.create_topic("raw", partitions=2)
    with (
        start("consume", "raw", "--follow", "--group", "g") as one,
        start("consume", "raw", "-f", "--group", "g") as two,
    ):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            owners = {part.owner for part in log.describe_group("g").partitions} if log.groups() else set()
            if len(owners - {None}) == 2:
                break
            time.sleep(0.05)
        assert len(owners) == 2
        for member in (one, two):
            member.send_signal(signal.SIGINT)
            member.communicate(timeout=20)


def test_ctrl_c_in_an_import_says_what_is_stored(log: EmbeddedLog) -> None:
    log.create_topic("raw")
    with start("produce", "raw") as writer, log.consumer("raw") as consumer:
        assert writer.stdin is not None
        writer.stdin.write(b"one\n")
        writer.stdin.flush()
        assert consumer.poll(timeout=20)
        writer.send_signal(signal.SIGINT)
        assert writer.stderr is not None
        assert writer.stderr.read() == b"stored 1 record in 1 partition of 'raw'\n"
        writer.wait(20)
    assert writer.returncode == 130


# ---------------------------------------------------------------- terminals


def test_tables_are_plain_in_a_pipe_and_drawn_on_a_terminal(process: Run, log: EmbeddedLog) -> None:
    log.create_topic("scores", schema=SCHEMA)
    piped = process("topics", "list").out
    assert ESCAPE not in piped
    assert not BOX & set(piped)
    code, shown = on_terminal("topics", "list")
    assert code == 0
    assert BOX & set(shown)
    assert "scores" in shown


@pytest.mark.more
def test_an_import_shows_its_progress_on_a_terminal(log: EmbeddedLog, tmp_path: Path) -> None:
    """Method: what is read one record at a time is slow enough for a bar, which waits a second."""
    log.create_topic("scores", schema=SCHEMA)
    with (tmp_path / "many.jsonl").open("w") as file:
        for n in range(400_000):
            file.write(f'{{"user":"u{n % 1000}","team":"t{n % 10}","score":{n}}}\n')
    code, shown = on_terminal("produce", "scores", tmp_path / "many.jsonl", "--key", "team", "--header", "a=b")
    assert code == 0
    assert "━" in shown
    assert "/s" in shown
    assert "stored 400,000 records" in shown


def test_a_pipe_has_no_progress(process: Run, log: EmbeddedLog) -> None:
    log.create_topic("raw")
    done = process("produce", "raw", stdin=b"x\n" * 1000)
    assert done.err == "stored 1,000 records in 1 partition of 'raw'\n"


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (["topics", "list", "--nonsense"], 2, "WrongUsage"),
        (["topics", "create", "a/b"], 2, "InvalidName"),
        (["topics", "create", "x", "--retention", "soon"], 2, "InvalidDuration"),
        (["topics", "create", "x", "--schema", "user strnig"], 2, "InvalidSchema"),
        (["topics", "create", "x", "--partitions", "many"], 2, "WrongUsage"),
        (["consume", "nothing"], 3, "UnknownTopic"),
        (["consume", "scores", "--partition", "9"], 3, "UnknownPartition"),
        (["groups", "describe", "nobody"], 3, "UnknownGroup"),
        (["queues", "receive", "nowhere"], 3, "UnknownQueue"),
        (["topics", "create", "scores"], 4, "AlreadyExists"),
    ],
)
def test_every_error_has_its_exit_code(ms: Run, log: EmbeddedLog, arguments: list[str], code: int, kind: str) -> None:
    log.create_topic("scores")
    plain = ms(*arguments)
    assert (plain.code, plain.out) == (code, "")
    assert plain.err.startswith("error: ")
    for place in (["--json", *arguments], [*arguments, "--json"]):
        done = ms(*place)
        error = json.loads(done.err)["error"]
        assert (done.code, error["exit_code"], error["kind"]) == (code, code, kind)


def test_storage_errors(process: Run, tmp_path: Path) -> None:
    """A file where the log should be, a folder with other things in it, and a broker nobody knows."""
    (tmp_path / "file").touch()
    assert process("--log", tmp_path / "file", "topics", "create", "x").code == 5
    assert process("--log", tmp_path, "topics", "list").code == 5
    assert process("--log", "carrier-pigeon://coop", "topics", "list").code == 2


def test_a_full_disk_ends_the_import(log: EmbeddedLog, tmp_path: Path) -> None:
    """Method: the system lets the process write files of 6 MB at most; the first chunk of 4 MB fits."""
    log.create_topic("raw")
    lines = tmp_path / "lines"
    lines.write_bytes(b"".join(os.urandom(500).hex().encode() + b"\n" for _ in range(12_000)))

    def with_little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6_000_000, 6_000_000))

    with start("produce", "raw", lines, preexec_fn=with_little_room) as writer:
        _, err = writer.communicate(timeout=60)
    assert writer.returncode == 5
    message = err.decode()
    assert "Traceback" not in message
    assert "no space left" in message
    with log.consumer("raw") as consumer:
        stored = sum(1 for _ in consumer.until_caught_up())
    assert 0 < stored < 12_000
    assert f"stored {stored:,} records" in message


def test_no_mistake_ends_in_a_traceback(process: Run) -> None:
    done = process("produce", "nothing", "--partition", "x")
    assert done.code == 2
    assert "Traceback" not in done.err


def test_help_names_the_exit_codes(process: Run) -> None:
    done = process("--help")
    assert done.code == 0
    for code in (0, 1, 2, 3, 4, 5, 6, 130):
        assert f" {code}  " in done.out
    assert process("--version").out.startswith("millstream ")
    assert process().code == 2


@pytest.mark.parametrize("command", ["topics create", "produce", "consume", "tail", "groups reset", "queues receive"])
def test_every_help_has_an_example(ms: Run, command: str) -> None:
    done = ms(*command.split(), "--help")
    assert "Example:" in done.out
    assert f"millstream {command}" in done.out


def test_the_shell_completes_topics(process: Run, log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.create_topic("scores")
    log.create_topic("raw")
    monkeypatch.setenv("_MILLSTREAM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "millstream consume sc")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert process().out.split() == ["scores"]
