"""Passwords are in nothing that Spark writes or shows: event logs, logs, checkpoints, plans, command lines."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import fastavro
import pytest

from brokers import USERS
from connectors.kafka.raw import Record, put
from connectors.kafka.support import made
from connectors.kafka.test_schema_registry import NEW, Registry, running
from kafka_cluster import KafkaCluster
from postgres_server import Server

PROGRAM = """
import json, sys, threading
from contextlib import suppress
from pathlib import Path
import millstream as ms
from millstream.spark import session
from millstream.spark.session.start import log_file

args = json.loads(sys.stdin.readline())
spark = session(master="local[2]", settings=args["settings"])
topic = ms.kafka(args["servers"], topic=args["topic"], format="avro", registry=args["registry"], settings=args["login"])
flow = ms.Flow("planted")
rows = flow.read(topic, "user string, n long, timestamp timestamp", event_time="timestamp", name="rows")
totals = rows.key_by("user").window(ms.fixed("1 minute")).agg(total=ms.sum("n"))
totals.write(ms.postgres(args["dsn"], "totals"))
rows.select("user", "n").write(ms.kafka(args["servers"], topic=args["topic"] + ".copy", settings=args["login"]))
working = threading.Thread(target=lambda: jobs.append(flow.run(broker="log", folder="job", until="caught up")))
jobs, lines = [], set()
working.start()
while working.is_alive():
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it ended meanwhile
            lines.add(entry.read_text(errors="replace"))
    working.join(0.3)
said = [repr(flow), flow.explain(), flow.explain(physical=True), *lines, log_file().read_text()]
Path("said").write_text("\\n".join(said))
print(jobs[0].progress.rows_read, flush=True)
"""


@pytest.mark.soak
def test_a_password_is_in_nothing_that_spark_writes(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Those of Kafka, of a registry and of Postgres, and settings of Spark that are secrets."""
    topic = made(kafka.bootstrap, retention_ms="-1")  # the record is of 1970
    content = io.BytesIO()
    fastavro.schemaless_writer(content, fastavro.parse_schema(NEW), {"n": 1, "more": None, "user": "a"})
    assert put(kafka.bootstrap, topic, Record(b"\0" + (300).to_bytes(4, "big") + content.getvalue(), b"k", 1000)) == 0
    registry, server = Registry(), Server()
    registry.user = "bob:planted registry"
    planted = [USERS["ann"], "planted registry", "planted-postgres", "planted-setting"]
    planted += [base64.b64encode(each.encode()).decode().rstrip("=") for each in [registry.user, *planted]]
    args = {
        "servers": kafka.secure_bootstrap,
        "topic": topic,
        "registry": registry.url,
        "dsn": server.new_database().replace("millstream@", "millstream:planted-postgres@"),
        "login": {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "ann",
            "sasl.password": USERS["ann"],
            "ssl.ca.location": str(kafka.certificate),
            "basic.auth.user.info": registry.user,
        },
        "settings": {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": f"file://{tmp_path / 'events'}",
            "spark.eventLog.compress": "false",
            "spark.ssl.keyPassword": "planted-setting",
        },
    }
    assert "planted-postgres" in str(args["dsn"])
    (tmp_path / "events").mkdir()
    try:
        with running(registry.server):
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM],
                input=json.dumps(args),
                cwd=tmp_path,
                env={**os.environ, "TMPDIR": str(tmp_path)},
                capture_output=True,
                text=True,
            )
    finally:
        server.close()
    assert done.stdout.strip() == "1", done.stdout + done.stderr
    events = [path for path in (tmp_path / "events").rglob("*") if path.is_file()]
    assert any("QueryProgressEvent" in path.read_text(errors="replace") for path in events)
    assert any("SparkListenerTaskEnd" in path.read_text(errors="replace") for path in events)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 20
    found = [(path.name, each) for path in files for each in planted if each.encode() in path.read_bytes()]
    assert found == []
    assert not any(each in done.stdout + done.stderr for each in planted)
