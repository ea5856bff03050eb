"""The command line on Kafka: the same commands; what Kafka does not report is shown as unknown."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from kafka_cluster import KafkaCluster
from log.kafka.settling import settle
from log.kafka.support import new
from millstream.cli.app import app
from millstream.cli.session import complete_groups, complete_queues, complete_topics
from millstream.log.kafka.log import KafkaLog
from serving.support import Job, total, totals_flow

from .conftest import Done, Run, start

SCHEMA = "user string, team string, score int"
ANN, BOB, EVE = (
    '{"user":"ann","team":"red","score":1}',
    '{"user":"bob","team":"blue","score":2}',
    '{"user":"eve","team":"red","score":3}',
)


@pytest.fixture(autouse=True)
def address(kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    address = f"kafka://{kafka.bootstrap}"
    monkeypatch.setenv("MILLSTREAM_BROKER", address)
    monkeypatch.setenv("MILLSTREAM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NO_COLOR", "")
    return address


@pytest.fixture
def log(address: str) -> Iterator[KafkaLog]:
    with KafkaLog(address) as opened:
        yield opened


@pytest.fixture
def ms() -> Run:
    """Runs a command in this process."""

    def run(*arguments: object, stdin: str = "") -> Done:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Done(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def scores(ms: Run) -> str:
    """A topic with three records."""
    name = new()
    assert ms("topics", "create", name, "--schema", SCHEMA, "--partitions", 2).code == 0
    done = ms("produce", name, "--key", "team", stdin=f"{ANN}\n{BOB}\n{EVE}\n")
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith("stored 3 records in ")
    return name


def details(done: Done) -> dict[str, str]:
    """The lines before the table."""
    pairs = (line.partition(":") for line in done.out.partition("\n\n")[0].splitlines())
    return {name: value.strip() for name, _, value in pairs}


@pytest.mark.more
def test_topics(ms: Run, scores: str, address: str) -> None:
    done = ms("topics", "create", scores)
    assert (done.code, f"topic '{scores}' already exists" in done.err) == (4, True)
    titles, *rows = (line.split() for line in ms("topics", "list").lines)
    [row] = [dict(zip(titles, row, strict=False)) for row in rows if row[0] == scores]
    assert (row["PARTITIONS"], row["RECORDS"], row["SIZE"]) == ("2", "3", "-")
    [entry] = [each for each in ms("topics", "list", "--json").json if each["name"] == scores]
    assert (entry["records_max"], entry["size_bytes"], entry["schema"]) == (3, None, SCHEMA)
    shown = ms("--log", address, "topics", "change", scores, "--retention", "7 days", "--partitions", 3)
    assert shown.code == 0
    assert [line.split()[4:] for line in shown.lines[-3:]] == [["-", "-"]] * 3
    said = details(ms("topics", "describe", scores, "--log", address))
    assert (said["retention"], said["partitions"], said["records"], said["size"]) == ("7 days", "3", "3", "-")
    [*_, last] = ms("topics", "describe", scores, "--json").json["partitions"]
    assert (last["end_offset"], last["size_bytes"], last["segments"]) == (0, None, None)
    for command, why in (
        (["clean"], "Kafka's brokers apply retention and compaction themselves"),
        (["clean", scores], "Kafka's brokers apply retention and compaction themselves"),
        (["repair", scores], "Kafka's brokers repair a topic themselves"),
    ):
        refused = ms("topics", *command)
        assert (refused.code, why in refused.err, "next:" in refused.err) == (2, True, True)
    assert "add --yes" in ms("topics", "delete", scores).err
    assert ms("topics", "delete", scores, "--yes").err == f"deleted topic '{scores}'\n"
    assert scores not in ms("topics", "list").out


@pytest.mark.more
def test_settings_by_kafkas_names(ms: Run, scores: str) -> None:
    done = ms("topics", "alter", scores, "--set", "min.insync.replicas=1", "--set", "max.message.bytes=2000000")
    assert done.code == 0
    assert ms("topics", "describe", scores, "--json").json["settings"]["min_insync_replicas"] == 1
    assert ms("topics", "alter", scores, "--set", "min.insync.replicas").code == 2
    assert ms("topics", "alter", scores, "--set", "no.such=1").code == 2
    assert ms("topics", "move", scores, "--to", "99").code == 3
    assert ms("topics", "move", scores, "--to", "one").code == 2
    here = ms("topics", "move", scores, "--to", "1", "--json")  # where it is: nothing to do, and no tool needed
    assert here.json["replicas"] == {"0": [1], "1": [1]}


def test_records(ms: Run, scores: str) -> None:
    assert sorted(ms("consume", scores).lines) == sorted((ANN, BOB, EVE))
    whole = [json.loads(line) for line in ms("consume", scores, "--json").lines]
    assert sorted((each["key"], each["value"]["user"]) for each in whole) == [
        ("blue", "bob"), ("red", "ann"), ("red", "eve")
    ]  # fmt: skip
    assert len(ms("consume", scores, "--max", 2).lines) == 2
    assert ms("tail", scores, "-n", 1).lines == [EVE]
    done = ms("produce", scores, "--key", "team", stdin=f"{ANN}\nnonsense\n")
    assert (done.code, f"1 dead letter in '{scores}.dead'" in done.err) == (6, True)
    assert ms("consume", f"{scores}.dead", "--json").json["value"]["reason"].startswith("line 2: ")
    made = new()
    assert ms("produce", made, "--create", "--partitions", 2, "--key-separator", ":", stdin="a:1\nb:2\n").code == 0
    assert sorted(ms("consume", made, "--with-key").lines) == ["a\t1", "b\t2"]


@pytest.mark.more
def test_groups(ms: Run, scores: str) -> None:
    group = new("g")
    taken = ms("consume", scores, "--group", group, "--max", 2).lines
    rest = ms("consume", scores, "--group", group).lines
    assert sorted(taken + rest) == sorted((ANN, BOB, EVE))
    assert [group, "0", scores, "0"] in [line.split() for line in ms("groups", "list").lines]
    assert details(ms("groups", "describe", group)) == {"group": group, "members": "0 members", "lag": "0"}
    found = ms("groups", "reset", group, "--topic", scores, "--to", "earliest", "--json").json
    assert (found["lag"], {part["committed"] for part in found["partitions"]}) == (3, {0})
    assert ms("groups", "delete", group).err == f"deleted group '{group}'\n"
    done = ms("groups", "describe", group)
    assert (done.code, f"there is no group '{group}'" in done.err) == (3, True)


@pytest.mark.more
def test_queues(ms: Run, scores: str) -> None:
    name = new("q")
    made = ms("queues", "create", name, "--topic", scores, "--max-tries", 2)
    assert made.err == f"created queue '{name}' on topic '{scores}'; its dead letters go to '{name}.dead'\n"
    assert [name, scores, *["-"] * 5] in [line.split() for line in ms("queues", "list").lines]
    described = ms("queues", "describe", name, "--json").json
    counts = ("waiting", "in_flight", "acknowledged", "dead", "lost", "consumers")
    assert [described[count] for count in counts] == [None] * 6
    assert details(ms("queues", "describe", name))["waiting"] == "-"
    # Without --wait: what is there is there, though a new member of the group gets its share only after seconds.
    assert sorted(ms("queues", "receive", name, "--max", 3, "--ack").lines) == sorted((ANN, BOB, EVE))
    ms("produce", scores, "--key", "team", stdin=f"{ANN}\n{BOB}\n")
    done = ms("queues", "receive", name, "--max", 0, "--exec", "grep -q ann", "--json")
    assert (done.code, done.json) == (6, {"queue": name, "acknowledged": 1, "refused": 2})
    assert "2 tries" in ms("consume", f"{name}.dead").out
    assert ms("queues", "delete", name).code == 0
    done = ms("queues", "receive", name)
    assert (done.code, f"there is no queue '{name}'" in done.err) == (3, True)


@pytest.mark.more
def test_switches(ms: Run, scores: str) -> None:
    other = new()
    ms("topics", "create", other, "--schema", SCHEMA)
    assert ms("switch", scores, other).err == f"readers of '{scores}' read topic '{other}'\n"
    assert [line.split() for line in ms("switch", scores).lines[1:]] == [[scores, "no"], [other, "yes"]]
    assert details(ms("topics", "describe", scores))["readers read"] == other
    assert (ms("consume", scores).out, len(ms("consume", scores, "--pinned").lines)) == ("", 3)
    assert ms("switch", scores, "--back").err == f"readers of '{scores}' read topic '{scores}'\n"
    assert ms("switch", scores, "--off").code == 0
    assert len(ms("consume", scores).lines) == 3


@pytest.mark.more
def test_jobs_and_tables(ms: Run, log: KafkaLog, address: str) -> None:
    assert ms("jobs", "list").err == "there are no jobs\n"
    name = new()
    job = Job(log, totals_flow(name, name=f"{name}-job"))
    job.write((total("red", 5), 1), (total("blue", 2), 1))
    settle(log, name)
    assert ms("jobs", "list").lines[1].split() == [f"{name}-job", "stopped", "0", *"----"]
    assert [name, "topic", "team", f"{name}-job", address] in [line.split() for line in ms("table", "list").lines]
    assert ms("table", "get", name, "red").out == '{"team":"red","total":5}\n'
    done = ms("table", "get", name, "green")
    assert (done.code, "keys that exist: red, blue" in done.err) == (3, True)
    assert "there is no table" in ms("table", "get", new(), "red").err
    with start("table", "serve", "--port", "0") as server:
        try:
            assert server.stderr is not None
            said = server.stderr.readline().decode()
            found = re.search(r"http://127\.0\.0\.1:\d+/tables", said)
            assert found is not None, said
            for points in (5, 6):
                if points == 6:
                    job.write((total("red", 5), -1), (total("red", 6), 1))
                    settle(log, name)
                with urllib.request.urlopen(f"{found[0]}/{name}/red", timeout=60) as answer:
                    assert json.loads(answer.read()) == total("red", points)
        finally:
            server.send_signal(signal.SIGINT)
        assert (server.wait(60), server.stderr.read()) == (130, b"")
    job.close()
    assert ms("jobs", "forget", f"{name}-job", "--yes").code == 0
    assert ms("jobs", "list").err == "there are no jobs\n"


def test_names_are_completed(log: KafkaLog, ms: Run, scores: str) -> None:
    queue, group = new("q"), new("g")
    ms("queues", "create", queue, "--topic", scores)
    ms("consume", scores, "--group", group)
    context = typer.Context(typer.main.get_command(app))
    assert complete_topics(context, scores[:9]) == [scores]
    assert complete_groups(context, group[:9]) == [group]
    assert complete_queues(context, queue[:9]) == [queue]


@pytest.mark.more
def test_what_is_not_there_is_named(ms: Run, scores: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = new()
    for command in (["topics", "describe", missing], ["consume", missing], ["tail", missing], ["produce", missing]):
        done = ms(*command)
        assert (done.code, done.out) == (3, "")
        assert f"there is no topic '{missing}'" in done.err
        assert address in done.err
        assert scores in done.err  # among those that exist
    monkeypatch.setattr("millstream.log.kafka.clients.OPEN_SECONDS", 1.0)
    done = ms("--log", "kafka://127.0.0.1:1", "topics", "list", "--json")
    error = json.loads(done.err)["error"]  # and nothing else: what the client says to itself is not for users
    assert (done.code, error["kind"], error["where"]) == (5, "KafkaUnavailable", "kafka://127.0.0.1:1")
    assert error["next"] == "check that it is running and that the address is right"
    assert ms("--log", "kafka://ann:secret@host", "topics", "list").code == 2


def test_the_help_says_that_kafka_is_an_address(ms: Run) -> None:
    assert "kafka://HOST:PORT" in ms("topics", "list", "--help").out
    assert "'real time'" in ms("run", "--help").out
