"""A job and its outputs belong together: what was removed of either is noticed before anything is written."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

import millstream as ms
from millstream.cli.app import app
from millstream.errors import DamagedState, MillstreamError, NotFound, OutputMismatch, StartOverRefused
from millstream.log import EmbeddedLog

from .support import CAUGHT_UP, SCHEMA, Triple, per_user, put, read, scores, seconds, sqlite_rows, unweighted

pytestmark = pytest.mark.usefixtures("spark")

ROWS: list[Triple] = [("a", 1, 1), ("a", 2, 3), ("b", 5, 12), ("b", 1, 40)]
MORE: list[Triple] = [("a", 7, 41), ("b", 9, 80)]
NOWHERE = "spark://nowhere.invalid:7077"
"""What is refused before Spark is started is refused with this master too."""


class Shop:
    """A flow with a topic, a table and files, and what stands in each."""

    def __init__(self, log: EmbeddedLog, folder: Path) -> None:
        self.log, self.database, self.files = log, folder / "rows.db", folder / "files"
        self.job = log.path / "jobs" / "shop"

    def flow(self) -> ms.Flow:
        flow = ms.Flow("shop")
        stream = scores(flow)
        per_user(stream).write("totals", name="totals")
        stream.select("user", "n").write(ms.sqlite(self.database, "rows"), name="rows")
        stream.select("user", "n").write(ms.files(self.files, "json"), name="files")
        return flow

    def run(self, **settings: object) -> None:
        self.flow().run(broker=self.log.path, until=CAUGHT_UP, progress="none", **settings)

    def written(self) -> tuple[object, ...]:
        files = [json.loads(line) for path in self.files.glob("[!.]*") for line in path.read_text().splitlines()]
        return (
            seconds(unweighted(read(self.log, "totals"))),
            sorted(sqlite_rows(self.database, "user, n", "rows")) if self.database.exists() else [],
            sorted((row["user"], row["n"]) for row in files),
        )


def expected(rows: list[Triple], totals: list[tuple[str, float, int]]) -> tuple[object, ...]:
    plain = sorted((user, n) for user, n, _ in rows)
    return totals, plain, plain


FIRST = expected(ROWS, [("a", 0.0, 3), ("b", 10.0, 5)])
SECOND = expected(ROWS + MORE, [("a", 0.0, 3), ("a", 40.0, 7), ("b", 10.0, 5), ("b", 40.0, 1)])


@pytest.fixture
def shop(log: EmbeddedLog, tmp_path: Path) -> Shop:
    made = Shop(log, tmp_path)
    put(log, "scores", ROWS[:2])
    made.run()
    put(log, "scores", ROWS[2:])
    made.run()
    assert made.written() == FIRST
    return made


def refused(shop: Shop, *parts: str) -> None:
    before = shop.written()
    with pytest.raises(OutputMismatch) as raised:
        shop.run(master=NOWHERE)
    for part in ("'shop'", "--start-over", "start_over=True", *parts):
        assert part in str(raised.value)
    assert shop.written() == before


@pytest.mark.more
def test_whatever_is_missing_is_noticed_and_once_it_is_back_the_job_continues(shop: Shop, tmp_path: Path) -> None:
    away = tmp_path / "away"
    rebuild = ("--rebuild-output", "rebuild_output=")
    for missing, parts in (
        (shop.job / "checkpoint", ("results up to batch", "checkpoint", "holds no progress")),
        (shop.job / "sinks", ("another run",)),
        (shop.database, ("'rows'", "is gone", str(shop.database), *rebuild)),
        (shop.files, ("'files'", "is gone", str(shop.files), *rebuild)),
    ):
        missing.rename(away)
        refused(shop, *parts)
        if missing.is_dir():
            shutil.rmtree(missing)
        missing.unlink(missing_ok=True)
        away.rename(missing)
    (shop.job / "job.json").rename(away)
    with pytest.raises(DamagedState, match=r"job\.json is missing.*\n.*\n.*millstream jobs rebuild shop"):
        shop.run(master=NOWHERE)
    away.rename(shop.job / "job.json")
    with closing(sqlite3.connect(shop.database)) as db:
        db.execute("ALTER TABLE rows RENAME TO aside")
        with pytest.raises(OutputMismatch, match=r"'rows'.* is gone"):
            shop.run(master=NOWHERE)
        db.execute("ALTER TABLE aside RENAME TO rows")
    with pytest.raises(OutputMismatch, match=f"'totals'.* another run of the job.* folder is {shop.job} on "):
        shop.run(master=NOWHERE, folder=tmp_path / "elsewhere")
    put(shop.log, "scores", MORE)
    shop.run()
    assert shop.written() == SECOND


@pytest.mark.more
def test_a_job_whose_checkpoint_is_gone_starts_over(shop: Shop) -> None:
    shutil.rmtree(shop.job / "checkpoint")
    refused(shop)
    shop.run(start_over=True)
    assert shop.written() == FIRST
    put(shop.log, "scores", MORE)
    shop.run()
    assert shop.written() == SECOND


@pytest.mark.more
def test_outputs_that_are_gone_are_rebuilt(shop: Shop) -> None:
    """One is created again by hand: it is not the one that the job wrote to."""
    shop.log.delete_topic("totals")
    refused(shop, "'totals'", "is gone", "--rebuild-output totals")
    shop.log.create_topic("totals")
    refused(shop, "'totals'", "deleted and recreated")
    shop.log.delete_topic("totals")
    shop.database.unlink()
    shutil.rmtree(shop.files)
    with pytest.raises(NotFound, match="its outputs: totals, rows, files"):
        shop.run(master=NOWHERE, rebuild_output="sums")
    shop.run(rebuild_output=["totals", "rows", "files"])
    assert shop.written() == FIRST
    put(shop.log, "scores", MORE)
    shop.run()
    assert shop.written() == SECOND


@pytest.mark.more
def test_a_job_is_started_over_and_rebuilt_from_the_command_line(log: EmbeddedLog, tmp_path: Path) -> None:
    file = tmp_path / "flow.py"
    lines = ["import millstream as ms", "flow = ms.Flow('copies')"]
    file.write_text("\n".join([*lines, f"flow.read('scores', '{SCHEMA}').write('copy', name='copy')"]))
    put(log, "scores", ROWS)

    def run(*options: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["run", str(file), "--log", str(log.path), "--until", CAUGHT_UP, *options])
        return done.exit_code, done.output

    assert run()[0] == 0
    shutil.rmtree(log.path / "jobs" / "copies" / "checkpoint")
    code, said = run()
    assert code == 2
    assert "millstream run flow.py --start-over" in said
    assert run("--start-over")[0] == 0
    assert len(read(log, "copy")) == len(ROWS)
    log.delete_topic("copy")
    code, said = run()
    assert code == 2
    assert "--rebuild-output copy" in said
    assert run("--rebuild-output", "copies")[0] == 3
    assert run("--rebuild-output", "copy")[0] == 0
    assert len(read(log, "copy")) == len(ROWS)


@pytest.mark.more
def test_a_start_over_that_was_cut_short_is_completed(shop: Shop) -> None:
    shop.database.unlink()  # emptied already when the process died
    (shop.job / "starting_over").touch()
    shop.run()
    assert shop.written() == FIRST
    assert not (shop.job / "starting_over").exists()


@pytest.mark.more
def test_nothing_is_emptied_if_an_output_holds_rows_of_others(shop: Shop) -> None:
    with shop.log.producer() as producer:
        producer.send("totals", read(shop.log, "totals")[0])
    before = shop.written()
    with pytest.raises(StartOverRefused, match=r"did not write.*\n.*'totals'.*\n.*topics delete totals"):
        shop.run(master=NOWHERE, start_over=True)
    assert shop.written() == before
    assert not (shop.job / "starting_over").exists()


def test_results_of_deleted_records_cannot_be_rebuilt(log: EmbeddedLog, tmp_path: Path) -> None:
    log.create_topic("short", schema=SCHEMA, retention_bytes=4096, segment_bytes=4096)
    flow = ms.Flow("short")
    flow.read("short", SCHEMA).write("copy", name="copy")
    for n in range(100):
        put(log, "short", [("a", n, n)])
    log.clean("short")
    assert log.describe_topic("short").partitions[0].start_offset > 0
    with pytest.raises(StartOverRefused, match=r"before offset \d+ are gone.*\n.*\n.*--start-over"):
        flow.run(broker=log.path, master=NOWHERE, rebuild_output="copy")


@pytest.mark.more
def test_a_batch_run_leaves_its_outputs_to_the_next(log: EmbeddedLog, tmp_path: Path) -> None:
    put(log, "scores", ROWS)
    for count in (1, 2):
        flow = ms.Flow("copies")
        scores(flow).select("n").write(ms.sqlite(tmp_path / "rows.db", "rows"))
        flow.run(broker=log.path, batch=True, progress="none")
        assert len(sqlite_rows(tmp_path / "rows.db", "n", "rows")) == count * len(ROWS)


def test_a_job_whose_master_is_away_leaves_its_outputs_to_others(log: EmbeddedLog, tmp_path: Path) -> None:
    flow = ms.Flow("copied")
    scores(flow).write("rows")
    for folder in ("one", "two"):
        with pytest.raises(MillstreamError) as raised:
            flow.run(broker=log.path, folder=tmp_path / folder, master=NOWHERE, until=CAUGHT_UP, progress="none")
        assert not isinstance(raised.value, OutputMismatch)
