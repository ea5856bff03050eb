"""Logs of devices: two formats, routed by severity, enriched, into a topic and files; failures are replayed later."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import millstream as ms

# As `millstream listen tcp device-logs` receives them: some devices send JSON, older ones text.
LINES = [
    '{"device": "pump-1", "level": 6, "message": "started"}',
    "<3>pump-2: bearing at 92 degrees",
    '{"device": "fan-1", "level": 2, "message": "stopped"}',
    "<6>fan-2: speed 1200",
    "<4>pump-2[17]: pressure low",  # firmware 2 adds the number of its process
    '{"device": "pump-1", "level": "high"}',
    "reboot",
]
READ = "device string, level int, message string"
SITES = [{"device": "pump-1", "site": "north"}, {"device": "pump-2", "site": "south"}]
FIRST_PATTERN = r"<%{INT:level}>(?P<device>[\w-]+): %{GREEDYDATA:message}"
FIXED_PATTERN = r"<%{INT:level}>(?P<device>[\w-]+)(?:\[\d+\])?: %{GREEDYDATA:message}"


def collected(files: str) -> ms.Flow:
    flow = ms.Flow("data-flow")
    forms = flow.read("device-logs", "line string").route(
        json="startswith(line, '{')", text="startswith(line, '<')", rest="unknown"
    )
    from_json = forms["json"].parse("line", READ)
    from_text = forms["text"].parse("line", READ, format="regex", pattern=FIRST_PATTERN)
    events = from_json.union(from_text).join(flow.table(SITES, "device string, site string"), on="device", how="left")
    # Every event is kept in files; an urgent one also goes to a topic, so its row is in two branches.
    branches = events.route(urgent="level <= 3", kept="true", match="all")
    # The urgent rows wait in a queue, the worst first; the batch that takes them is not the one that keeps the files.
    branches["urgent"].queue("alerts", priority="-level", at_most=1_000, when_full="wait").write("urgent")
    branches["kept"].write(ms.files(files, "json"))
    # What failed keeps its bytes, where it came from, and why.
    from_json.dead.union(from_text.dead).write("failures")
    forms["unknown"].write("unknown")
    return flow


def repaired() -> ms.Flow:
    """After the fix: the failures once more. What still fails stays a failure."""
    flow = ms.Flow("data-flow-repair")
    failures = flow.read("failures", "value binary").select(line="cast(value as string)").where("startswith(line, '<')")
    fixed = failures.parse("line", READ, format="regex", pattern=FIXED_PATTERN)
    fixed.write("repaired")
    fixed.dead.write("failures.again")
    return flow


def main(broker: str) -> None:
    files = Path(broker) / "kept"
    with ms.connect(broker) as log:
        log.create_topic("device-logs", schema="line string")
        with log.producer() as producer:
            for line in LINES:
                producer.send("device-logs", {"line": line})
        collected(str(files)).run(until="caught up", broker=broker)
        repaired().run(until="caught up", broker=broker)

        table = Table(
            "branch", "device", "site", "level", "message", title="where each line went", title_justify="left"
        )
        kept = [json.loads(line) for file in sorted(files.glob("*.json*")) for line in file.read_text().splitlines()]
        for branch, rows in (("urgent", _rows(log, "urgent")), ("files", kept), ("repaired", _rows(log, "repaired"))):
            for row in sorted(rows, key=lambda row: (row["device"], row["message"])):
                table.add_row(branch, row["device"], row.get("site") or "", str(row["level"]), row["message"])
        for row in sorted(_rows(log, "failures"), key=lambda row: row["value"]):
            table.add_row("failures", "", "", "", row["value"].decode())
        for row in _rows(log, "unknown"):
            table.add_row("unknown", "", "", "", row["line"])
        Console().print(table)


def _rows(log: ms.Broker, topic: str) -> list[dict[str, Any]]:
    with log.consumer(topic) as consumer:
        return [record.value for record in consumer.until_caught_up()]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        main(folder)
