"""Judges the rules for alerts on all jobs and slots, and sends what follows.

The conditions that hold, and what is to be sent about them, change in one transaction: a supervisor that was killed
neither forgets an alert nor raises it again.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from millstream import terminal
from millstream.alerts.message import RESOLVED, SENDER, TEST, Message, together
from millstream.alerts.outbox import FILE as DATABASE
from millstream.alerts.outbox import Outbox, read_health
from millstream.alerts.rules import Condition, JobView, Rule, SlotView, View, described, judged
from millstream.alerts.sender import FAILURES_REPORTED, GROUP_S, Sender, SenderThread
from millstream.alerts.settings import FILE, AlertSettings, read_settings
from millstream.errors import DamagedState, MillstreamError, NotFound
from millstream.supervision.slots import SlotWatch
from millstream.supervision.status import Status
from millstream.supervision.store import JobRecord
from millstream.user_lines import what_exists

JUDGE_S = 5.0
logger = terminal.logger("millstream.alerts")


class Alerting:
    def __init__(self, folder: Path, status: Status) -> None:
        """`folder` is the supervisor's own."""
        self._path = folder / FILE
        self._status = status
        try:
            self._outbox = Outbox(folder)
        except sqlite3.DatabaseError as error:
            raise DamagedState(
                f"the alerts that wait to be sent cannot be read: {error}",
                where=str(folder / DATABASE),
                next_step="move the file away: a new one is created",
            ) from error
        self._settings = AlertSettings()
        self._read_at: tuple[int, ...] | None = None
        self.error: str | None = None
        """Why the file cannot be used; the settings before it still apply."""
        self._judged_at = 0.0
        self._sender = Sender(self._outbox, lambda: self.settings.targets)
        self._thread = SenderThread(self._sender, self._judge_sometimes)
        self.slots = SlotWatch(lambda: self.settings.databases)

    def start(self) -> None:
        self.slots.start()
        self._thread.start()

    def close(self) -> None:
        self.slots.close()
        self._thread.close()
        self._outbox.close()

    @property
    def settings(self) -> AlertSettings:
        """Those of the file, read again when it changes."""
        try:
            found = self._path.stat()
            stamp: tuple[int, ...] = (found.st_mtime_ns, found.st_size, found.st_mode)
        except OSError:
            stamp = ()
        if stamp != self._read_at:
            self._read_at = stamp
            try:
                self._settings, self.error = read_settings(self._path), None
            except MillstreamError as error:
                self.error = str(error)
                logger.warning("%s", error)
        return self._settings

    # ------------------------------------------------------------ judging

    def _judge_sometimes(self, now: float) -> None:
        if now - self._judged_at >= JUDGE_S:
            self._judged_at = now
            self.judge(now)

    def judge(self, now: float) -> None:
        """One look at all jobs and slots."""
        settings, jobs = self.settings, self._status.jobs()
        metrics = self._status.running_metrics()
        with self._outbox.transaction() as connection:
            before = self._conditions(connection)
            known = set()
            for job in jobs:
                found = metrics.get(job.name)
                view = JobView(job.name, job.observed.value, job.failures, found.newest if found else None)
                for rule in rules_of(job, settings.rules):
                    known.add((rule.text, job.name))
                    self._judge(connection, settings, rule, view, before, now)
                known |= self._judge_senders(connection, job, before, now)
            known |= self._judge_slots(connection, settings, before, now)
            for rule_text, name in before.keys() - known:  # the rule or the job is gone
                self._keep(connection, rule_text, name, None)

    def _judge(
        self,
        connection: sqlite3.Connection,
        settings: AlertSettings,
        rule: Rule,
        view: View,
        before: dict[tuple[str, str], Condition],
        now: float,
    ) -> None:
        after, event = judged(rule, view, before.get((rule.text, view.title)), now)
        self._keep(connection, rule.text, view.title, after)
        if event is not None:
            title, text = described(rule, view, event)
            job = view.title if isinstance(view, JobView) else None
            self._put(settings, rule, Message(event, title, text, now, job, rule.text), now)

    def _judge_slots(
        self,
        connection: sqlite3.Connection,
        settings: AlertSettings,
        before: dict[tuple[str, str], Condition],
        now: float,
    ) -> set[tuple[str, str]]:
        """While a database does not answer, its alerts stay as they are."""
        known = set()
        watched = self.slots.databases()
        for rule in (each for each in settings.rules if each.is_on_slots):
            for name in settings.databases if rule.step is None else [rule.step]:
                held = {about for text, about in before if text == rule.text and about.startswith(f"{name}/")}
                known |= {(rule.text, about) for about in held}
                database = watched.get(name)
                if database is None or database.error is not None:
                    continue
                views = {view.title: view for view in (SlotView(name, slot.slot, slot) for slot in database.slots)}
                for about in held - views.keys():
                    views[about] = SlotView(name, about.partition("/")[2])  # it was dropped
                known |= {(rule.text, about) for about in views}
                for view in views.values():
                    self._judge(connection, settings, rule, view, before, now)
        return known

    def _judge_senders(
        self, connection: sqlite3.Connection, job: JobRecord, before: dict[tuple[str, str], Condition], now: float
    ) -> set[tuple[str, str]]:
        """Alerts about rows are sent by the job itself: if it cannot, that is an alert, too."""
        known = set()
        for folder in sorted((self._status.folder_of(job.name) / "sinks").glob("*")):
            for target, health in read_health(folder).items():
                text = f"alerts of '{folder.name}' to '{target}'"
                known.add((text, job.name))
                held = before.get((text, job.name))
                if health.failures >= FAILURES_REPORTED and held is None:
                    self._keep(connection, text, job.name, Condition(health.failing_since or now, now))
                    title = f"{job.name}: {text} cannot be sent"
                    self._put_all(Message(SENDER, title, str(health.error), now, job.name), now)
                elif health.failures == 0 and held is not None:
                    self._keep(connection, text, job.name, None)
                    self._put_all(Message(RESOLVED, f"{job.name}: {text} are sent again", "", now, job.name), now)
        return known

    def _put(self, settings: AlertSettings, rule: Rule, message: Message, now: float) -> None:
        quiet_until = None if rule.quiet is None else rule.quiet.ends_after(now)
        for name in settings.recipients(rule):
            self._outbox.put(name, message, now + GROUP_S if quiet_until is None else quiet_until)

    def _put_all(self, message: Message, now: float) -> None:
        for name in self.settings.targets:
            self._outbox.put(name, message, now)

    def _conditions(self, connection: sqlite3.Connection) -> dict[tuple[str, str], Condition]:
        rows = connection.execute("select rule, job, since, fired_at from conditions")
        return {(rule, job): Condition(since, fired_at) for rule, job, since, fired_at in rows}

    def _keep(self, connection: sqlite3.Connection, rule: str, job: str, condition: Condition | None) -> None:
        if condition is None:
            connection.execute("delete from conditions where rule = ? and job = ?", (rule, job))
        else:
            connection.execute(
                "insert or replace into conditions (rule, job, since, fired_at) values (?, ?, ?, ?)",
                (rule, job, condition.since, condition.fired_at),
            )

    # ------------------------------------------------------------ asked by people

    def document(self) -> dict[str, Any]:
        """Targets, rules and what holds now."""
        settings, health = self.settings, self._outbox.health()
        with self._outbox.transaction() as connection:
            conditions = self._conditions(connection)
        targets = []
        for name, target in settings.targets.items():
            found = asdict(health[name]) if name in health else {"failures": 0, "failing_since": None, "error": None}
            targets.append({"name": name, "target": str(target), **found})
        rules = [
            {
                "rule": rule.text,
                "jobs": [] if rule.is_on_slots else list(rule.jobs),
                "to": settings.recipients(rule),
            }
            for rule in settings.rules
        ]
        for job in self._status.jobs():
            own = [Rule.parse(text) for text in job.specification.alerts]
            rules += [{"rule": rule.text, "jobs": [job.name], "to": settings.recipients(rule)} for rule in own]
        active = [
            {"rule": rule, "job": job, "since": held.since, "sent_at": held.fired_at}
            for (rule, job), held in sorted(conditions.items())
        ]
        return {
            "file": str(self._path),
            "error": self.error,
            "targets": targets,
            "rules": rules,
            "active": active,
            "databases": self.slots.document(),
            "waiting": self._outbox.count(),
        }

    def test(self, name: str | None = None) -> list[dict[str, Any]]:
        """Sends a test message to a target, or to all, and returns what became of it."""
        targets = self.settings.targets
        if name is not None and name not in targets:
            raise NotFound(f"there is no target '{name}'", next_step=what_exists(name, list(targets), kind="targets"))
        chosen = targets if name is None else {name: targets[name]}
        message = Message(TEST, "A test of Millstream's alerts", "If you can read this, alerts arrive.", time.time())
        results = []
        for each, target in chosen.items():
            try:
                target.send(together([message]))
                results.append({"target": each, "sent": True, "error": None})
            except MillstreamError as error:
                results.append({"target": each, "sent": False, "error": error.what})
        return results


def rules_of(job: JobRecord, rules: Iterable[Rule]) -> list[Rule]:
    """The rules that apply to a job: those of the file, and those it was submitted with."""
    shared = [rule for rule in rules if rule.applies_to(job.name)]
    own = [replace(Rule.parse(text), jobs=(job.name,)) for text in job.specification.alerts]
    known = [rule.text for rule in shared]
    return [*shared, *(rule for rule in own if rule.text not in known)]
