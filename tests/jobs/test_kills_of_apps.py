"""kill -9 of an app while flows are added to it and removed: no flow loses a row or writes one twice."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from millstream.jobs.job_folder import newest_number
from millstream.log import EmbeddedLog
from waiting import exit_code, until

from .support import SCHEMA, put, read, seconds

pytestmark = [pytest.mark.own_processes]
USERS = ("ann", "bob")
APP = f"""
import random
import sys
import time
from pathlib import Path

import millstream as ms

here = Path(__file__).parent
chance = random.Random(int(sys.argv[1]))


def source(flow):
    return flow.read("scores", "{SCHEMA}", event_time="at", watermark=ms.bounded("5 seconds"))


def rows(name):
    flow = ms.Flow(name)
    source(flow).write(f"rows.{{name}}")
    return flow


def totals(name):
    flow = ms.Flow(name)
    source(flow).key_by("user").window(ms.fixed("10 seconds")).agg(total=ms.sum("n")).write(f"totals.{{name}}")
    return flow


removed = {{"coming": rows, "counting": totals}}
app = ms.app([rows("steady"), totals("sums"), rows("coming"), totals("counting")], name="app")
job = app.start(broker=here / "log", key_groups=2, progress="none", batch_rows=30)
present = dict.fromkeys(removed, True)
while not (here / "stop").exists():
    time.sleep(chance.uniform(0, 0.5))
    name = chance.choice(list(removed))
    with (here / "changes").open("a") as changes:
        changes.write(f"{{'-' if present[name] else '+'}}{{name}}\\n")
    if present[name]:
        app.remove(name)
    else:
        app.add(removed[name](name))
    present[name] = not present[name]
for name in removed:
    if not present[name]:
        app.add(removed[name](name))
while job.lag() or len({{*job.progress.written}}) < 4:
    time.sleep(0.2)
job.stop()
"""


class KilledApp:
    """The process of an app, which changes its own flows all the time, and the rows it is given."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.log = EmbeddedLog(folder / "log", upkeep=False)
        self.log.create_topic("scores", schema=SCHEMA, partitions=1)
        self.chance = random.Random(seed)
        self.fed = 0
        (folder / "app.py").write_text(APP)

    def feed(self, count: int) -> None:
        put(
            self.log,
            "scores",
            [(self.chance.choice(USERS), number, number / 10) for number in range(self.fed, self.fed + count)],
        )
        self.fed += count

    def start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "MILLSTREAM_MASTER": "local[2]"}
        with (self.folder / "err").open("ab") as err:
            command = [sys.executable, str(self.folder / "app.py"), str(self.chance.randrange(1000))]
            return subprocess.Popen(command, env=environment, stdout=err, stderr=err)

    def changes(self) -> int:
        path = self.folder / "changes"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def complete(self) -> int:
        """The newest batch that is complete."""
        return newest_number(self.folder / "log" / "jobs" / "app" / "checkpoint" / "commits")

    def run_and_kill(self) -> None:
        """Kills it at some moment in or between two changes."""
        process, complete = self.start(), self.complete()
        wanted = self.changes() + self.chance.randint(1, 3)

        def is_time() -> bool:
            return process.poll() is not None or (self.changes() > wanted and self.complete() > complete)

        try:
            until(is_time, "the flows are changed, and batches complete")
            assert process.poll() is None, (self.folder / "err").read_text()[-2000:]
            self.feed(40)
            time.sleep(self.chance.uniform(0, 2))
        finally:
            process.kill()
            process.wait()

    def run_to_the_end(self) -> None:
        put(self.log, "scores", [(user, 0, 100_000.0) for user in USERS])  # closes all windows
        (self.folder / "stop").touch()
        process = self.start()
        try:
            code = exit_code(process, "the app that catches up")
            assert code == 0, (self.folder / "err").read_text()[-2000:]
        finally:
            process.kill()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "kills",
    [pytest.param(3, marks=pytest.mark.more, id="three"), pytest.param(50, marks=pytest.mark.soak, id="many")],
)
def test_an_app_is_killed_while_its_flows_change(tmp_path: Path, kills: int) -> None:
    app = KilledApp(tmp_path, seed=kills)
    app.feed(40)
    for _ in range(kills):
        app.run_and_kill()
    app.run_to_the_end()
    numbers = [*range(app.fed), 0, 0]
    given = sorted((each["user"], each["n"]) for each in read(app.log, "scores"))
    for name in ("rows.steady", "rows.coming"):
        assert sorted((each["user"], each["n"]) for each in read(app.log, name)) == given, name
    assert sorted(n for _, n in given) == sorted(numbers)
    sums: dict[tuple[str, float], int] = {}
    for each in read(app.log, "scores")[: app.fed]:
        window = (each["user"], each["n"] // 100 * 10.0)
        sums[window] = sums.get(window, 0) + each["n"]
    wanted = sorted((user, start, total) for (user, start), total in sums.items())
    for name in ("totals.sums", "totals.counting"):
        assert sorted(seconds(read(app.log, name))) == wanted, name
