"""The runner of Nexmark: what can be asked of it, how it hears engines, how it judges, and a small run of it."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import children
import event_files
import flink_home
import generator
import pyarrow as pa
import pytest
import run
from checks import LATER, TIMES, Answers
from children import Answer, Engine
from engine import Task, arguments, read_arguments
from expected import bag
from flink_home import FlinkUnavailable
from report import Outcome, Results, marks, short
from rich.console import Console
from spark_queries import ASKED

from millstream.errors import InvalidInput, NotFound

EVENTS = 3000
SCRIPT = Path(run.__file__)


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("text", "count"), [("10m", 10_000_000), ("1.5M", 1_500_000), ("200k", 200_000), ("7", 7), ("1_000", 1000)]
)
def test_numbers_of_events(text: str, count: int) -> None:
    assert run.read_count(text) == count


@pytest.mark.parametrize("text", ["", "many", "-1", "0", "10x", "k"])
def test_no_number_of_events(text: str) -> None:
    with pytest.raises(InvalidInput, match="no number of events"):
        run.read_count(text)


def test_by_default_all_queries_run_against_all_peers() -> None:
    options = run.read_options([])
    assert (len(options.queries), options.events, options.peers) == (29, 10_000_000, ("spark", "flink"))
    assert options.batch_events == 2_000_000


def test_options_select_queries_events_and_peers() -> None:
    options = run.read_options(["--query", "q7, Q4", "--events", "200k", "--peer", "flink"])
    assert (options.queries, options.events, options.peers) == (("q4", "q7"), 200_000, ("flink",))
    assert run.read_options(["--peer", "none"]).peers == ()
    quick = run.read_options(["--quick"])
    assert len(quick.queries) < 6
    assert quick.peers == ("spark",)
    assert run.read_options(["--quick", "--query", "q9"]).queries == ("q9",)


@pytest.mark.parametrize("said", [["--query", "q23"], ["--peer", "storm"]])
def test_what_is_not_there_is_named(said: list[str]) -> None:
    with pytest.raises(InvalidInput, match=f"there is no '{said[1]}'") as refused:
        run.read_options(said)
    assert "choose of" in str(refused.value)


def test_a_batch_is_a_quarter_of_few_events() -> None:
    assert run.read_options(["--events", "40k"]).batch_events == 10_000


# ---------------------------------------------------------------- files


def test_files_hold_the_events_once(tmp_path: Path) -> None:
    event_files.make(tmp_path, EVENTS, 1000)
    made = generator.events(0, EVENTS, event_files.FAST.rate, out_of_order=event_files.FAST.out_of_order)
    for topic, table in event_files.read(tmp_path).items():
        wanted = bag(made[topic].to_pylist())
        assert bag(table.to_pylist()) == wanted
        assert len(list((tmp_path / topic).iterdir())) == 3
        halves = [pa.parquet.read_table(path) for path in sorted((tmp_path / "by_reader" / topic).iterdir())]
        assert bag(row for half in halves for row in half.to_pylist()) == wanted
        assert abs(len(halves[0]) - len(halves[1])) <= 3
        first = pa.parquet.read_table(tmp_path / "first_by_reader" / topic)
        assert len(first) == pa.parquet.read_metadata(tmp_path / topic / "0000.parquet").num_rows


def test_closing_events_come_a_day_later(tmp_path: Path) -> None:
    event_files.make(tmp_path, EVENTS, 1000, closing=True)
    for table in event_files.read(tmp_path).values():
        times = table["dateTime"].to_pylist()
        assert max(times) - min(times) > event_files.LATER
        assert sorted(times)[-1] - sorted(times)[0] < 2 * event_files.LATER


# ---------------------------------------------------------------- engines


def scripted(tmp_path: Path, text: str) -> Engine:
    script = tmp_path / "engine_script.py"
    script.write_text(f"import json, sys, time\nsay = lambda **words: print(json.dumps(words), flush=True)\n{text}")
    return Engine("scripted", (sys.executable, str(script)), {})


def task(tmp_path: Path, *queries: str) -> Task:
    return Task(tmp_path / "events", tmp_path / "scratch", queries, 100, 25, None)


def test_a_task_survives_the_command_line(tmp_path: Path) -> None:
    given = task(tmp_path, "q1", "q2")
    assert read_arguments(arguments([given, given])) == [given, given]
    assert given.steady == 75


def test_answers_are_received_and_memory_is_measured(tmp_path: Path) -> None:
    engine = scripted(
        tmp_path,
        "say(ready=True); print('a library speaks'); say(begin='q1'); held = bytearray(80_000_000); time.sleep(1)\n"
        "say(query='q1', seconds=2.0, events_per_s=50.0); say(query='q2', refused='no such thing')\n",
    )
    (_, first), (_, second) = children.asked(engine, [task(tmp_path, "q1", "q2")], 60)
    assert (first.query, first.events_per_s, second.refused) == ("q1", 50.0, "no such thing")
    assert 80_000_000 < first.peak_bytes < 500_000_000


def test_an_engine_that_dies_has_failed_what_it_did_not_answer(tmp_path: Path) -> None:
    engine = scripted(tmp_path, "say(query='q1', seconds=1.0)\nsys.exit('out of memory')\n")
    (_, first), (_, second) = children.asked(engine, [task(tmp_path, "q1", "q2")], 60)
    assert first.failed is None
    assert second == Answer("q2", failed="ended with code 1: out of memory", peak_bytes=second.peak_bytes)


def test_an_engine_that_takes_too_long_is_ended_with_all_it_started(tmp_path: Path) -> None:
    started = "import subprocess; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    engine = scripted(tmp_path, f"{started}open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\nchild.wait()\n")
    [(_, answer)] = children.asked(engine, [task(tmp_path, "q1")], 2)
    assert answer.failed is not None
    assert answer.failed.startswith("took longer than 2 s")
    pid = int((tmp_path / "pid").read_text())
    while children.resident_bytes(pid):
        time.sleep(0.05)


# ---------------------------------------------------------------- judging


@pytest.fixture
def answers(tmp_path: Path) -> Answers:
    event_files.make(tmp_path / "events", EVENTS, 1000, event_files.SLOW, closing=True)
    return Answers(tmp_path / "events")


def kept(tmp_path: Path, rows: list[dict[str, Any]]) -> Path:
    (tmp_path / "rows.pickle").write_bytes(pickle.dumps(rows))
    return tmp_path / "rows.pickle"


def test_wrong_rows_are_found(answers: Answers, tmp_path: Path) -> None:
    rows = answers.of("q8")
    assert answers.difference("q8", kept(tmp_path, rows), "spark") == ""
    retracted = [{**rows[0], "weight": 1}, {**rows[0], "weight": -1}]
    assert answers.difference("q8", kept(tmp_path, [*rows, *retracted]), "spark") == ""
    first = next(row for row in rows if row["starttime"] < LATER)
    others = [row for row in rows if row is not first]
    assert answers.difference("q8", kept(tmp_path, others), "spark").startswith("1 rows missing, 0 too many")
    assert answers.difference("q8", kept(tmp_path, [*rows, first]), "spark").startswith("0 rows missing, 1 too many")
    never_came = {**first, "id": -1, "weight": -1}
    assert answers.difference("q8", kept(tmp_path, [*rows, never_came]), "spark").startswith("1 rows missing")


@pytest.mark.parametrize("name", ["q5", "q7", "q11"])
def test_windows_of_the_last_events_may_be_open_but_not_wrong(answers: Answers, tmp_path: Path, name: str) -> None:
    rows = answers.of(name)
    closed = [row for row in rows if row[TIMES[name]] < LATER]
    assert 0 < len(closed) < len(rows)
    for engine in ("millstream", "spark"):
        assert answers.difference(name, kept(tmp_path, closed), engine) == ""
        assert answers.difference(name, kept(tmp_path, rows), engine) == ""
    one = next(row for row in rows if row[TIMES[name]] > LATER)
    assert "1 too many" in answers.difference(name, kept(tmp_path, [*rows, one]), "spark")
    # The end of its input ends them in Flink.
    assert answers.difference(name, kept(tmp_path, rows), "flink") == ""
    assert "rows missing" in answers.difference(name, kept(tmp_path, closed), "flink")


def arrivals(answers_of: Path, moved: timedelta = timedelta(0), length_s: int = 10) -> list[dict[str, Any]]:
    """All bids in the window of processing time that is now."""
    now = datetime.now(UTC)
    starts = now - timedelta(seconds=now.timestamp() % 10) + moved
    counts = Counter(event_files.read(answers_of)["bids"]["bidder"].to_pylist())
    window = {"starttime": starts, "endtime": starts + timedelta(seconds=length_s)}
    return [{"bidder": bidder, "bid_count": count, **window} for bidder, count in counts.items()]


def test_arrivals_are_counted_by_bidder(answers: Answers, tmp_path: Path) -> None:
    rows = arrivals(tmp_path / "events")
    assert answers.difference("q12", kept(tmp_path, rows), "flink") == ""
    assert "rows missing" in answers.difference("q12", kept(tmp_path, rows[1:]), "flink")
    corrected = [{**rows[0], "bid_count": 1}, {**rows[0], "bid_count": 1, "weight": -1}, *rows]
    assert answers.difference("q12", kept(tmp_path, corrected), "flink") == ""
    parts = [{**rows[0], "bid_count": 1}, {**rows[0], "bid_count": rows[0]["bid_count"] - 1}, *rows[1:]]
    assert answers.difference("q12", kept(tmp_path, parts), "flink").startswith("1 windows with several counts")


def test_arrivals_are_in_windows_of_this_run(answers: Answers, tmp_path: Path) -> None:
    events = tmp_path / "events"
    for rows in (arrivals(events, length_s=20), arrivals(events, timedelta(seconds=1))):
        assert answers.difference("q12", kept(tmp_path, rows), "flink").startswith("no window of ten seconds")
    for hours in (-1, 1):
        rows = arrivals(events, timedelta(hours=hours))
        assert answers.difference("q12", kept(tmp_path, rows), "flink").startswith("a window out of this run")


def outcome(speed: float | None, wrong: str | None = "", refused: str | None = None) -> Outcome:
    return Outcome(wrong=wrong, refused=refused, events_per_s=speed, peak_bytes=1 << 30)


def test_speeds_are_compared_where_both_are_right() -> None:
    results = Results(["millstream", "spark"], ["q1", "q2", "q3", "q4"])
    rows = results.by_query
    rows["q1"] = {"millstream": outcome(400.0), "spark": outcome(100.0)}
    rows["q2"] = {"millstream": outcome(100.0), "spark": outcome(100.0)}
    rows["q3"] = {"millstream": outcome(100.0), "spark": outcome(9000.0, wrong="1 rows missing")}
    rows["q4"] = {"millstream": outcome(100.0), "spark": outcome(None, wrong=None, refused="[NOT_ON_STREAMS]")}
    figures = results.figures()
    assert (figures["queries_right"], figures["queries_right_spark"]) == (4, 2)
    assert (figures["min_speed_vs_spark"], figures["geomean_speed_vs_spark"]) == (1.0, 2.0)
    assert figures["table"]["q4"]["spark"] == {"right": False, "refused": "[NOT_ON_STREAMS]"}
    chart = ElementTree.fromstring(results.chart("Speeds & sizes"))
    said = "".join(chart.itertext())
    assert "cannot" in said
    assert "Speeds & sizes" in said


@pytest.mark.parametrize(
    ("number", "said"), [(999.6, "1k"), (999_600, "1M"), (1_049_000, "1.05M"), (56_594, "56.6k"), (12.4, "12")]
)
def test_numbers_are_short(number: float, said: str) -> None:
    assert short(number) == said


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(30_000, 90_000, [20_000, 50_000, 100_000]), (5, 5, [5, 10]), (0.5, 1, [1, 2]), (10, 20, [10, 20])],
)
def test_an_axis_has_round_numbers_around_all_speeds(low: float, high: float, ticks: list[int]) -> None:
    assert marks(low, high) == ticks


def test_the_table_of_three_engines_fits_a_terminal() -> None:
    results = Results(["millstream", "spark", "flink"], ["q6", "q105"])
    results.by_query["q6"] = {
        "millstream": outcome(1_234_567.0),
        "spark": outcome(None, wrong=None, refused="no"),
        "flink": outcome(500.0, wrong="1 rows missing"),
    }
    results.by_query["q105"] = {engine: outcome(987_654.0) for engine in results.engines}
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(results.table("Nexmark"))
    lines = console.export_text().splitlines()
    [refused] = [line for line in lines if "q6" in line]
    assert [cell.strip() for cell in refused.split("│")[1:-1]] == ["q6", "1.23M 1.0 GiB", "cannot", "wrong", "", ""]
    [right] = [line for line in lines if "q105" in line]
    assert right.count("988k 1.0 GiB") == 3
    assert right.count("1.00x") == 2


# ---------------------------------------------------------------- Flink's own environment


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing but a Maven, which makes the jar it is asked for, and writes down that it ran."""
    folder = tmp_path / "tools"
    folder.mkdir()
    program(
        folder / "mvn",
        f"""for word in "$@"; do case $word in -DoutputDirectory=*) made="${{word#*=}}";; esac; done
        echo once >> {folder}/calls; echo '[INFO] [/odd] words'
        /bin/mkdir -p "$made"; echo jar > "$made/flink-sql-parquet-{flink_home.VERSION}.jar" """,
    )
    monkeypatch.setenv("PATH", str(folder))
    return folder


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def python(tools: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python that says it is 3.12, can create environments, and can install packages."""
    path = tools / "python3.12"
    program(
        path,
        f"""case "$*" in
        *ensurepip*) echo 3 12;;
        *"-m venv"*) /bin/mkdir -p "$3/bin"; /bin/cp {path} "$3/bin/python";;
        *"-m pip"*) echo Collecting apache-flink;;
        esac""",
    )
    monkeypatch.setattr(flink_home, "find_python", partial(flink_home.find_python, this=str(tools / "none")))
    return path


def test_flink_is_installed_once(python: Path, tools: Path, tmp_path: Path) -> None:
    messages: list[str] = []
    made = flink_home.engine(tmp_path / "flink", messages.append)
    assert Path(made.command[0]).is_file()
    assert Path(made.environment["FLINK_JARS"].split(":")[0]).is_file()
    assert "Flink: Collecting apache-flink" in messages
    messages.clear()
    assert flink_home.engine(tmp_path / "flink", messages.append) == made
    assert messages == []
    assert (tools / "calls").read_text() == "once\n"


def test_an_incomplete_flink_is_reinstalled(python: Path, tools: Path, tmp_path: Path) -> None:
    works = (tools / "mvn").read_text()
    program(tools / "mvn", "echo '[ERROR] no repository can be reached'; exit 1")
    with pytest.raises(FlinkUnavailable, match="no repository can be reached") as refused:
        flink_home.engine(tmp_path / "flink")
    assert "see whether Maven reaches a repository" in str(refused.value)
    assert not flink_home.is_whole(tmp_path / "flink" / flink_home.VERSION)
    (tools / "mvn").write_text(works)
    made = flink_home.engine(tmp_path / "flink")
    Path(made.command[0]).unlink()  # the Python it was made with is gone
    assert flink_home.engine(tmp_path / "flink") == made
    assert Path(made.command[0]).is_file()
    assert sorted(path.name for path in (tmp_path / "flink").iterdir()) == [flink_home.VERSION, "lock"]


def test_a_flink_that_pip_cannot_find_says_what_to_do(python: Path, tmp_path: Path) -> None:
    works = python.read_text()
    python.write_text(works.replace("echo Collecting apache-flink", "echo 'no matching distribution'; exit 1"))
    with pytest.raises(FlinkUnavailable, match="no matching distribution") as refused:
        flink_home.engine(tmp_path / "flink")
    assert "pip config list" in str(refused.value)


def test_flink_takes_a_python_that_it_runs_on(python: Path, tools: Path, tmp_path: Path) -> None:
    newer = tmp_path / "python3.13"
    program(newer, "echo 3 13")
    assert flink_home.find_python(this=str(newer)) == str(python)
    older = tools / "python3.11"
    program(older, "echo 3 11")
    assert flink_home.find_python(this=str(older)) == str(older)
    program(python, "exit 127")  # a name with no Python behind it
    assert flink_home.find_python(this=str(newer)) == str(older)
    older.unlink()
    with pytest.raises(FlinkUnavailable, match=r"needs one of Python 3.10, 3.11, 3.12") as refused:
        flink_home.find_python(this=str(newer))
    assert "--peer spark" in str(refused.value)


def test_without_maven_nothing_is_downloaded(python: Path, tools: Path, tmp_path: Path) -> None:
    (tools / "mvn").unlink()
    with pytest.raises(FlinkUnavailable, match="Maven is needed") as refused:
        flink_home.engine(tmp_path / "flink")
    assert "install Maven" in str(refused.value)
    assert not (tmp_path / "flink").exists()


# ---------------------------------------------------------------- whole runs


def small_run(tmp_path: Path, *said: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "millstream.cli", "bench", "nexmark", "--out", str(tmp_path / "out"), *said]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert json.loads((tmp_path / "out" / "nexmark.json").read_text()) == figures
    ElementTree.parse(tmp_path / "out" / "nexmark.svg")
    return figures


@pytest.mark.soak
def test_a_small_run_without_peers(tmp_path: Path) -> None:
    figures = small_run(tmp_path, "--quick", "--query", "q4,q8", "--events", "4k", "--peer", "none")
    assert (figures["queries"], figures["queries_right"]) == (2, 2)
    assert all(row["millstream"]["events_per_s"] > 0 for row in figures["table"].values())


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_every_query_is_right_here_and_on_spark_where_it_can_be_asked(tmp_path: Path) -> None:
    every = ",".join(ASKED)
    figures = small_run(tmp_path, "--quick", "--query", every, "--events", "4k", "--peer", "spark")
    assert figures["queries_right"] == 29
    cannot = {name for name, row in figures["table"].items() if "refused" in row["spark"]}
    assert cannot == {"q4", "q6", "q19", "q101", "q102", "q103", "q104", "q105", "q106"}
    assert figures["queries_right_spark"] == 29 - len(cannot)


def test_without_a_checkout_it_says_where_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from millstream.cli.job_commands import bench

    assert bench.script(bench.NEXMARK) == SCRIPT
    installed = tmp_path / "lib" / "python" / "site" / "millstream" / "cli" / "bench.py"
    monkeypatch.setattr(bench, "__file__", str(installed))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFound, match="not part of the installed package"):
        bench.script(bench.NEXMARK)
