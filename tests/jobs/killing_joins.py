"""A job of joins and timers that is killed, and what SQL makes of all rows it was given.

No row is late and no two versions of a profile have the same time, so what the job sends does not depend on how its
rows fell into batches: DuckDB computes it from the input alone.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import polars as pl

from .killing import USERS, Killed
from .support import read, row, sqlite_rows, t, unweighted

CITIES = ("Oslo", "Voss", "Bergen")
FLOW = """
from datetime import timedelta
from pathlib import Path
import millstream as ms

here = Path(__file__).parent
flow = ms.Flow("killed")
late = ms.bounded("5 seconds")
visits = flow.read("{visits}", "{visits_schema}", event_time="at", watermark=late)
clicks = flow.read("{clicks}", "{clicks_schema}", event_time="at", watermark=late)
profiles = flow.read("{profiles}", "{profiles_schema}", event_time="at", watermark=late).to_table(key="user")

near = visits.join(clicks, on="user", within=("-2 seconds", "1 second"), how="left")
near.select("user", "n", other="n_right").write("{near}")
visits.join(profiles, on="user", how="left", as_of="event_time").select("user", "n", "city").write("{homes}")
sums = visits.group_by("user").agg(total=ms.sum("n"), k=ms.count())
sums.join(profiles, on="user").select("user", "total", "k", "city").write(ms.sqlite(str(here / "sums.sqlite"), "sums"))


def remember(row, key):
    key.state["seen"] = key.state.get("seen", 0) + 1
    key.map("open")[row["n"]] = row["at"].isoformat()
    key.at_event_time(row["at"] + timedelta(seconds=3), str(row["n"]))
    return {{"user": row["user"], "n": row["n"], "seen": key.state["seen"], "kind": "row"}}


def due(tag, time, key):
    opened = key.map("open").pop(int(tag))
    assert opened == (time - timedelta(seconds=3)).isoformat(), (opened, time)
    return {{"user": key["user"], "n": int(tag), "seen": len(key.map("open")), "kind": "timer"}}


timed = visits.key_by("user").process(remember, "user string, n int, seen int, kind string", on_timer=due)
timed.write("{timed}")
"""
SCHEMA = "user string, n int, at timestamp"
THE_END_S = 100_000.0
"""When the last row of each partition is, whose only purpose is to move the watermarks past all others."""


class KilledJoins(Killed):
    flow = FLOW
    inputs: ClassVar[dict[str, str]] = {
        "visits": SCHEMA,
        "clicks": SCHEMA,
        "profiles": "user string, city string, at timestamp",
    }
    outputs: ClassVar[tuple[str, ...]] = ("near", "homes", "timed")

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed)
        self._sent = 0

    def feed(self, count: int) -> None:
        """Rows of both partitions of each topic, at most four seconds out of order; n is different in each."""
        seconds: dict[tuple[str, int], list[float]] = {(name, part): [] for name in self.inputs for part in (0, 1)}
        for _ in range(count):
            self._second += 0.2
            for place in seconds:
                seconds[place].append(max(0.0, self._second - self.chance.choice([0, 0, 0, 0.5, 1, 3, 4])))
        for (name, part), times in seconds.items():
            if name == "profiles":
                times = times[::10]
            self._put(name, part, [(self.chance.choice(USERS), second) for second in times])

    def end(self) -> None:
        for name in self.inputs:
            for part in (0, 1):
                self._put(name, part, [("end", THE_END_S)])

    def _put(self, name: str, part: int, rows: list[tuple[str, float]]) -> None:
        with self.log.producer() as producer:
            for user, second in rows:
                self._sent += 1
                if name == "profiles":
                    at = t(second + self._sent / 1e6)  # unlike any other
                    value: dict[str, Any] = {"user": user, "city": self.chance.choice(CITIES), "at": at}
                else:
                    value = row(user, self._sent, second)
                producer.send(self.topics[name], value, partition=part)

    def check(self) -> None:
        """Every output has exactly what SQL gives for the rows that were sent."""
        with duckdb.connect() as db:
            for name in self.inputs:
                db.register(name, pl.DataFrame(read(self.log, self.topics[name])).to_arrow())
            near = """select v."user", v.n, c.n as other from visits v left join clicks c on v."user" = c."user"
                and v."at" - c."at" between interval '-2 seconds' and interval '1 second'"""
            homes = """select v."user", v.n, p.city from visits v asof left join profiles p
                on v."user" = p."user" and v."at" >= p."at\""""
            sums = """select v."user", sum(v.n), count(*), any_value(p.city) from visits v
                join (select "user", arg_max(city, "at") as city from profiles group by 1) p using ("user")
                group by 1"""
            for name, sql in (("near", near), ("homes", homes)):
                found = Counter(
                    tuple(each.values())
                    for each in unweighted(read(self.log, self.topics[name]))
                    if each["user"] != "end"
                )
                wanted = Counter(db.sql(f"select * from ({sql}) where \"user\" <> 'end'").fetchall())
                assert sum(wanted.values()) > 100
                assert found == wanted, name
            stored = sqlite_rows(self.folder / "sums.sqlite", "user, total, k, city", "sums")
            assert sorted(stored) == sorted(db.sql(sums).fetchall())
            visits = db.sql('select "user", n from visits where "user" <> \'end\'').fetchall()
        timed = [each for each in unweighted(read(self.log, self.topics["timed"])) if each["user"] != "end"]
        for kind in ("row", "timer"):
            assert Counter((each["user"], each["n"]) for each in timed if each["kind"] == kind) == Counter(visits)
        for user in USERS:
            seen = sorted(each["seen"] for each in timed if each["kind"] == "row" and each["user"] == user)
            assert seen == list(range(1, len(seen) + 1))
