"""The claim of a topic of the embedded log: a row in the coordinator's file, which also names the topic."""

from __future__ import annotations

from millstream.connectors.claims import Claim, Found, shared
from millstream.connectors.topic.records_sink import producer_name
from millstream.log import EmbeddedLog
from millstream.log.agreement.coordinator import SINK_BATCHES, SINK_OUTPUTS


class TopicKeeper:
    keeps_claims = True

    def __init__(self, log: EmbeddedLog, topic: str, claim: Claim) -> None:
        self._log = log
        self._topic = topic
        self._claim = claim
        self._of_step = (claim.job, claim.step)
        self.where = f"topic '{topic}' of {log.path}"
        with log.coordinator.change() as db:
            db.execute(SINK_BATCHES)
            db.execute(SINK_OUTPUTS)

    def look(self) -> Found:
        there = self._topic in self._log.topics()
        with self._log.coordinator.look() as db:
            found = db.execute("SELECT run, batch FROM sink_batches WHERE job = ? AND step = ?", self._of_step)
            batches = {row["run"]: int(row["batch"]) for row in found.fetchall()}
            found = db.execute("SELECT run, folder, host FROM sink_outputs WHERE job = ? AND step = ?", self._of_step)
            held = found.fetchone()
        claim = None
        if held is not None:
            claim = Claim(*self._of_step, *held) if held["run"] else None
        elif batches:  # written by an older version
            claim = Claim(*self._of_step, self._claim.run if self._claim.run in batches else max(batches))
        identity = self._log.topic(self._topic).identity if there else ""
        return Found(there, claim, batches.get(self._claim.run), identity)

    def make(self) -> None:
        own, created = self._claim, self._topic not in self._log.topics()
        with self._log.coordinator.change(durable=True) as db:
            db.execute(
                "INSERT INTO sink_outputs VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (job, step) DO UPDATE "
                "SET run = excluded.run, folder = excluded.folder, host = excluded.host, topic = excluded.topic, "
                "created = CASE WHEN excluded.created = 1 THEN 1 WHEN topic = excluded.topic THEN created ELSE 0 END",
                (own.job, own.step, own.run, own.folder, own.host, self._topic, int(created)),
            )

    def check_clear(self) -> None:
        if self._topic not in self._log.topics():
            return
        topic = self._log.topic(self._topic)
        with self._log.coordinator.look() as db:
            rows = db.execute("SELECT id FROM producers WHERE name = ?", (producer_name(*self._of_step),)).fetchall()
            held = db.execute("SELECT * FROM sink_outputs WHERE topic = ?", (self._topic,)).fetchall()
        own = {int(row["id"]) for row in rows}
        foreign = set().union(*(partition.producer_ids() for partition in topic.partitions())) - own
        if topic.settings.compaction:  # compacted records have no producer id
            is_own = any((row["job"], row["step"]) == self._of_step and row["created"] for row in held)
            others = any((row["job"], row["step"]) != self._of_step and row["run"] for row in held)
            foreign = foreign if others or not is_own else set()
        if foreign:
            raise shared(
                f"the topic '{self._topic}' has records that the job '{self._claim.job}' did not write, "
                "so it is not emptied",
                self.where,
                f"delete it if they are not needed (millstream topics delete {self._topic}), and start over again; "
                "or write to another topic",
            )

    def clear(self) -> None:
        """Deletes and recreates the topic, so that consumers do not mistake the new records for a continuation."""
        if self._topic in self._log.topics():
            settings = self._log.describe_topic(self._topic).settings
            if any(partition.end_offset() for partition in self._log.topic(self._topic).partitions()):
                self._log.delete_topic(self._topic)
                self._log.create_topic(self._topic, **settings.to_document())
        with self._log.coordinator.change(durable=True) as db:
            db.execute("DELETE FROM sink_batches WHERE job = ? AND step = ?", self._of_step)
            db.execute("UPDATE sink_outputs SET run = '' WHERE job = ? AND step = ?", self._of_step)

    def release(self) -> None:
        with self._log.coordinator.change(durable=True) as db:
            db.execute("UPDATE sink_outputs SET run = '' WHERE job = ? AND step = ?", self._of_step)

    def close(self) -> None:
        """The job closes the log."""
