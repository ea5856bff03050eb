"""Slots of watched databases: what a real Postgres keeps for a capture is a metric, and too much of it an alert."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from capture.support import remove_slots, wait_until_free
from millstream.alerts.settings import parse, read_settings
from millstream.capture.capturing import Capture
from millstream.capture.postgres.database import PostgresDatabase
from millstream.errors import InvalidInput
from millstream.log import EmbeddedLog
from millstream.supervision.alerting import Alerting
from millstream.supervision.metrics import exposed
from millstream.supervision.specification import JobSpecification
from millstream.supervision.status import Status
from millstream.supervision.store import Observed
from millstream.supervision.supervisor import Supervisor

RULE = "slot_retained_bytes > 1000000 for 5 minutes"
FILE = """
[targets.got]
kind = "command"
arguments = ["sh", "-c", "cat >> {folder}/got"]

[databases.shop]
address = "{dsn}"

[[rules]]
when = "{rule}"

[[rules]]
when = "shop.slot_is_lost == 1"

[[rules]]
when = "rows_dead > 0"
"""


@pytest.fixture
def db(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute("CREATE TABLE orders (id int PRIMARY KEY, product text)")
        yield db
        remove_slots(db)


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    made = Supervisor(tmp_path, str(tmp_path / "log"), tmp_path / "log" / "jobs")
    made.store.add(JobSpecification("scores", "/nowhere/flow.py", "scores"), "ann", Observed.RUNNING, None)
    yield made
    made.store.close()


@pytest.fixture
def alerting(supervisor: Supervisor, tmp_path: Path, dsn: str) -> Iterator[Alerting]:
    write(tmp_path, FILE.format(folder=tmp_path, dsn=dsn, rule=RULE))
    made = Alerting(tmp_path, Status(supervisor))
    yield made
    made._outbox.close()


def write(folder: Path, text: str) -> None:
    (folder / "alerts.toml").write_text(text)
    (folder / "alerts.toml").chmod(0o600)


def look(alerting: Alerting, now: float) -> None:
    alerting.slots.look()
    alerting.judge(now)
    alerting._sender.send_due(now + 60)


def got(folder: Path) -> list[Any]:
    path = folder / "got"
    sent = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [alert for each in sent for alert in each["alerts"]]


def left_behind(log: EmbeddedLog, db: psycopg.Connection[Any], dsn: str) -> str:
    """A capture that ran once, and then no more, while the database was written to."""
    with Capture(log, "orders", lambda name: PostgresDatabase(dsn, {"orders": "orders"}, name)) as running:
        running.catch_up()
        slot = running.database.slot  # type: ignore[attr-defined]
    wait_until_free(db, slot)
    db.execute("INSERT INTO orders SELECT n, repeat('x', 1000) FROM generate_series(1, 3000) n")
    return str(slot)


def test_a_slot_that_nobody_reads_is_an_alert_until_it_is_dropped(
    alerting: Alerting, supervisor: Supervisor, log: EmbeddedLog, db: psycopg.Connection[Any], dsn: str, tmp_path: Path
) -> None:
    look(alerting, 1000.0)
    assert got(tmp_path) == []
    slot = left_behind(log, db, dsn)
    for now in (2000.0, 2200.0):
        look(alerting, now)
    assert got(tmp_path) == [], "it has not held for long enough"
    look(alerting, 2300.0)
    (fired,) = got(tmp_path)
    assert (fired["kind"], fired["job"], fired["rule"]) == ("firing", None, RULE)
    assert fired["title"] == f"shop/{slot}: slot_retained_bytes > 1e+06"
    assert f"of the slot '{slot}' of the database 'shop' is " in fired["text"]
    assert [each["job"] for each in alerting.document()["active"]] == [f"shop/{slot}"]
    again = Alerting(tmp_path, Status(supervisor))  # after a kill, it knows nothing of the database yet
    again.judge(2400.0)
    look(again, 2500.0)
    assert len(got(tmp_path)) == 1
    db.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    look(again, 2600.0)
    assert [(each["kind"], each["rule"]) for each in got(tmp_path)[1:]] == [("resolved", RULE)]
    assert got(tmp_path)[1]["text"] == f"The slot '{slot}' of the database 'shop' was dropped."
    assert again.document()["active"] == []
    again._outbox.close()


def test_slots_are_metrics(
    alerting: Alerting, supervisor: Supervisor, log: EmbeddedLog, db: psycopg.Connection[Any], dsn: str
) -> None:
    slot = left_behind(log, db, dsn)
    alerting.slots.look()
    (sample,) = alerting.slots.samples()
    assert sample.slot_retained_bytes >= sample.slot_lag_bytes > 1_000_000
    lines = exposed(Status(supervisor), alerting.slots.databases()).decode().splitlines()
    values = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}
    labels = f'{{database="shop",slot="{slot}"}}'
    assert values[f"millstream_slot_retained_bytes{labels}"] == sample.slot_retained_bytes
    assert values[f"millstream_slot_lag_bytes{labels}"] == sample.slot_lag_bytes
    assert values[f"millstream_slot_is_active{labels}"] == values[f"millstream_slot_is_lost{labels}"] == 0.0
    assert values['millstream_database_up{database="shop"}'] == 1.0


def test_a_database_that_does_not_answer_changes_nothing_and_shows_no_password(
    alerting: Alerting, supervisor: Supervisor, log: EmbeddedLog, db: psycopg.Connection[Any], dsn: str, tmp_path: Path
) -> None:
    slot = left_behind(log, db, dsn)
    for now in (1000.0, 1300.0):
        look(alerting, now)
    assert len(got(tmp_path)) == 1
    gone = "postgresql://ann:planted-secret@127.0.0.1:1/shop?connect_timeout=2"
    write(tmp_path, FILE.format(folder=tmp_path, dsn=gone, rule=RULE))
    look(alerting, 1400.0)
    found = alerting.document()
    assert [each["job"] for each in found["active"]] == [f"shop/{slot}"]
    assert found["databases"][0]["error"]
    assert "planted-secret" not in json.dumps(found) + repr(alerting.settings)
    assert b'millstream_database_up{database="shop"} 0.0' in exposed(Status(supervisor), alerting.slots.databases())
    write(tmp_path, FILE.format(folder=tmp_path, dsn=dsn, rule=RULE))
    look(alerting, 1500.0)
    assert len(got(tmp_path)) == 1, "it still holds, and was sent"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"rules": [{"when": RULE}]}, "no database is watched"),
        ({"databases": {"a b": {"address": "host=x"}}}, "cannot be the name"),
        ({"databases": {"a": {"address": "mysql://x/y"}}}, "not that of a Postgres"),
        ({"databases": {"a": {"address": "x"}}}, "not that of a Postgres"),
        ({"databases": {"a": {"address": "host=x", "limit": 1}}}, "and nothing else"),
        ({"databases": {"a": {"address": "postgresql://u:p@q@h/d"}}}, "an extra '@'"),
        ({"databases": {"a": {"address": "host=x"}}, "rules": [{"when": f"b.{RULE}"}]}, "no database 'b'"),
        ({"databases": {"a": {"address": "host=x"}}, "rules": [{"when": RULE, "jobs": ["x"]}]}, "not about jobs"),
    ],
)
def test_what_cannot_be_watched(document: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as refused:
        parse(document)
    assert refused.value.next_step


def test_a_rule_on_slots_does_not_belong_to_a_job() -> None:
    with pytest.raises(InvalidInput, match="not about a job"):
        JobSpecification.checked({"name": "a", "file": "/a.py", "alerts": [RULE]})


def test_an_address_with_a_password_must_be_private(tmp_path: Path) -> None:
    file = tmp_path / "alerts.toml"
    for address, is_fine in (("postgresql://ann@db/shop", True), ("postgresql://ann:secret@db/shop", False)):
        file.write_text(f'[databases.shop]\naddress = "{address}"\n')
        file.chmod(0o644)
        if is_fine:
            assert read_settings(file).databases == {"shop": address}
        else:
            with pytest.raises(InvalidInput, match="other users can read the file"):
                read_settings(file)
