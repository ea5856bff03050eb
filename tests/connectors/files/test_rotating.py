"""One file that grows: its lines, when it is rotated, and that no interruption leaves a part or writes a row twice."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

import millstream as ms
from connectors.support import SCORES, table, weights
from millstream.connectors.connector import Writing
from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.files.rotating import RotatingFileSink
from millstream.errors import InvalidInput, InvalidPlan, SinkFailed, SinkUnavailable
from millstream.records import Schema

LINE = len('{"team":"t0","score":0}\n')


def rows(*numbers):
    return table(SCORES, [{"team": f"t{number}", "score": number} for number in numbers])


class Opened:
    def __init__(self, folder):
        self.folder, self.path, self.at = folder, folder / "out" / "scores.log", 0.0

    def sink(self, format="json", schema=SCORES, job="job", **settings):
        writing = Writing(Schema.of(schema), job, "write", FileLedger(self.folder / job, "write"), "log")
        return RotatingFileSink(ms.rotating_file(self.path, format, **settings), writing, lambda: self.at)

    def scores(self):
        """By file, the rotated ones first."""
        files = [*sorted(self.path.parent.glob("scores.log.*")), self.path]
        return {
            file.name.removeprefix("scores.log"): [json.loads(line)["score"] for line in file.read_text().splitlines()]
            for file in files
        }


@pytest.fixture
def opened(tmp_path):
    return Opened(tmp_path)


def test_each_batch_is_appended_once(opened):
    sink = opened.sink()
    sink.write(3, rows(1, 2), None)
    sink.write(3, rows(1, 2), None)
    sink.write(4, rows(), None)
    sink.close()
    again = opened.sink()
    again.write(3, rows(1, 2), None)
    again.write(4, rows(), None)
    again.write(7, rows(3), None)
    assert opened.path.read_text().splitlines() == [f'{{"team":"t{n}","score":{n}}}' for n in (1, 2, 3)]


def test_no_file_is_larger_than_the_limit(opened):
    sink = opened.sink(max_size=3 * LINE)
    sink.write(0, rows(1, 2), None)
    sink.write(1, rows(3, 4, 5, 6, 7, 8), None)
    assert opened.scores() == {".000001": [1, 2, 3], ".000002": [4, 5, 6], "": [7, 8]}


def test_a_line_larger_than_the_limit_has_a_file_of_its_own(opened):
    sink = opened.sink(max_size=3)
    sink.write(0, rows(1, 2), None)
    assert opened.scores() == {".000001": [1], "": [2]}


def test_a_file_that_is_too_old_is_rotated_when_rows_come(opened):
    sink = opened.sink(max_age="1 hour")
    sink.write(0, rows(1), None)
    opened.at += 3599
    sink.write(1, rows(2), None)
    opened.at += 1
    sink.write(2, rows(), None)
    assert opened.scores() == {"": [1, 2]}
    sink.close()
    again = opened.sink(max_age="1 hour")
    again.write(3, rows(3), None)
    again.write(4, rows(4), None)
    assert opened.scores() == {".000001": [1, 2], "": [3, 4]}


def test_so_many_old_files_are_kept(opened):
    sink = opened.sink(max_size=LINE, keep=2)
    foreign = opened.path.parent / "scores.log.old"
    sink.write(0, rows(1), None)
    foreign.write_text("kept")
    sink.write(1, rows(2, 3, 4, 5), None)
    assert foreign.read_text() == "kept"
    foreign.unlink()
    assert opened.scores() == {".000003": [3], ".000004": [4], "": [5]}


def test_csv_has_a_header_in_every_file_and_weights(opened):
    sink = opened.sink("csv", max_size=30)
    sink.write(0, rows(1, 2), weights(1, -1))
    sink.write(1, rows(3), weights(1))
    files = [*sorted(opened.path.parent.glob("scores.log.*")), opened.path]
    lines = ["t1,1,1", "t2,2,-1", "t3,3,1"]
    assert [file.read_text() for file in files] == [f"team,score,weight\n{line}\n" for line in lines]


def test_text_is_lines_and_refuses_what_is_not_one(opened):
    refused = []
    given = table("line string", [{"line": text} for text in ("a", "b\nc", None, "ä", "d")])
    opened.sink("text", "line string").write(0, given, weights(1, 1, 1, 1, -1), refused.extend)
    assert opened.path.read_text() == "a\nä\n"
    assert [refusal.row for refusal in refused] == [1, 2, 4]
    with pytest.raises(SinkFailed, match="line break"):
        opened.sink("text", "line string", job="other").write(0, given, None)
    with pytest.raises(InvalidPlan, match="one column of text"):
        ms.Flow("f").read("scores", "team string, score int").write(ms.rotating_file(opened.path, "text"))


KILLED = textwrap.dedent(
    """
    import pathlib, resource, signal, sys
    from connectors.files.test_rotating import Opened, rows
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # the kernel writes what is allowed, and kills
    opened = Opened(pathlib.Path(sys.argv[1]))
    sink = opened.sink(max_size=int(sys.argv[2]))
    sink.write(0, rows(1, 2), None)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
    sink.write(1, rows(*range(3, 60)), None)
    """
)


@pytest.mark.parametrize(
    ("max_size", "killed_at"), [(1 << 20, 700), (500, 490)], ids=["in one file", "after a rotation"]
)
def test_a_kill_in_the_middle_of_a_line(opened, max_size, killed_at):
    """Method: the kernel kills the process when a file reaches a size, so that the last line is a part of one."""
    command = [sys.executable, "-c", KILLED, str(opened.folder), str(max_size), str(killed_at)]
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert ended.returncode == -signal.SIGXFSZ
    assert not opened.path.read_bytes().endswith(b"\n")
    sink = opened.sink(max_size=max_size)
    sink.write(0, rows(1, 2), None)
    sink.write(1, rows(*range(3, 60)), None)
    assert [score for scores in opened.scores().values() for score in scores] == list(range(1, 60))


def test_what_others_have_written_stays(opened):
    opened.path.parent.mkdir()
    opened.path.write_text("without a line break")
    sink = opened.sink()
    sink.write(0, rows(1), None)
    moved = opened.path.rename(opened.path.with_name("moved"))
    sink.write(1, rows(2), None)
    assert moved.read_text() == 'without a line break\n{"team":"t1","score":1}\n'
    assert opened.scores() == {"": [2]}
    with opened.path.open("a") as file:
        file.write('{"score":9}\n')
    sink.write(2, rows(), None)
    assert opened.scores() == {"": [2, 9]}
    opened.path.write_text("")  # truncated
    sink.write(3, rows(3), None)
    assert opened.scores() == {"": [3]}


def test_one_job_at_a_time_writes_it(opened):
    first = opened.sink()
    first.write(0, rows(1), None)
    with pytest.raises(SinkUnavailable, match="another job"):
        opened.sink(job="other").write(0, rows(2), None)
    first.close()
    opened.sink(job="other").write(0, rows(2), None)
    assert opened.scores() == {"": [1, 2]}


def test_a_folder_that_is_gone_is_waited_for(opened):
    opened.sink().write(0, rows(1), None)
    FileLedger(opened.folder / "job", "write").record(0)
    opened.path.parent.rename(opened.folder / "unmounted")
    sink = opened.sink()
    with pytest.raises(SinkUnavailable, match="no folder"):
        sink.write(1, rows(2), None)
    (opened.folder / "unmounted").rename(opened.path.parent)
    sink.write(1, rows(2), None)
    assert opened.scores() == {"": [1, 2]}


def test_wrong_arguments(opened):
    for wrong in ({"max_size": 0}, {"max_age": "0 s"}, {"keep": 0}, {"format": "xml"}):
        with pytest.raises(InvalidInput):
            ms.rotating_file("app.log", **wrong)
    with pytest.raises(InvalidInput, match="name a file"):
        ms.rotating_file("logs/")
    opened.path.mkdir(parents=True)
    with pytest.raises(InvalidInput, match="plain file"):
        opened.sink()


def test_in_a_flow(spark, tmp_path):
    with ms.connect(tmp_path / "log") as log:
        log.create_topic("scores", schema="team string, score int")
        with log.producer() as producer:
            producer.send("scores", {"team": "a", "score": 1})
    flow = ms.Flow("out", log=tmp_path / "log")
    flow.read("scores", "team string, score int").write(ms.rotating_file(tmp_path / "app.log"))
    flow.run(until="caught up", progress="none")
    assert (tmp_path / "app.log").read_text() == '{"team":"a","score":1}\n'
