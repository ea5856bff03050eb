"""The alerts of a supervisor: targets, rules and watched databases in a TOML file of its folder."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from millstream.alerts.push import PushTarget
from millstream.alerts.quiet import QuietHours
from millstream.alerts.rules import Rule
from millstream.alerts.targets import Target, WebhookTarget, command, email, slack
from millstream.errors import InvalidInput, MillstreamError
from millstream.postgres_address import has_secret, is_ambiguous, scheme_of
from millstream.private_files import read_bounded
from millstream.records import duration
from millstream.user_lines import what_exists

FILE = "alerts.toml"
FILE_BYTES_MAX = 1 << 20
SECRETS = ("password", "secret", "url", "headers")
RULE_KEYS = ("when", "jobs", "to", "quiet", "repeat")
TABLES = ("targets", "rules", "databases")
NAME = re.compile(r"[A-Za-z0-9_-]{1,60}")
ADDRESS = "for example postgresql://user@host/database"


@dataclass(frozen=True)
class AlertSettings:
    targets: dict[str, Target] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    databases: dict[str, str] = field(default_factory=dict, repr=False)
    """Addresses of Postgres databases whose slots are watched, by name."""

    def recipients(self, rule: Rule) -> list[str]:
        """The targets of a rule that exist; all of them if it names none."""
        return [name for name in self.targets if not rule.to or name in rule.to]


def read_settings(path: Path) -> AlertSettings:
    """The settings in a file; none if there is no file."""
    try:
        found = path.stat()
        content = read_bounded(path, FILE_BYTES_MAX)
    except FileNotFoundError:
        return AlertSettings()
    except OSError as error:
        raise InvalidInput(f"the alerts cannot be read: {error.strerror or error}", where=str(path)) from error
    try:
        document = tomllib.loads(content.decode())
        settings = parse(document)
    except (ValueError, MillstreamError) as error:
        what, next_step = (error.what, error.next_step) if isinstance(error, MillstreamError) else (str(error), None)
        raise InvalidInput(
            f"the alerts cannot be used: {what}", where=str(path), next_step=next_step or "see alerts.md"
        ) from error
    _refuse_untrusted(path, found, document)
    return settings


def _refuse_untrusted(path: Path, found: os.stat_result, document: Mapping[str, Any]) -> None:
    """Changing the file allows to run commands as this user, and its secrets are for this user alone."""
    what = None
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        what = "other users can change the file"
    elif found.st_mode & (stat.S_IRGRP | stat.S_IROTH) and _has_secrets(document):
        what = "they have passwords or addresses that are secret, and other users can read the file"
    if what is not None:
        raise InvalidInput(f"the alerts cannot be used: {what}", where=str(path), next_step=f"chmod 600 {path}")


def _has_secrets(document: Mapping[str, Any]) -> bool:
    addresses = [table["address"] for table in document.get("databases", {}).values()]
    targets = document.get("targets", {}).values()
    return any(name in table for table in targets for name in SECRETS) or any(map(has_secret, addresses))


def parse(document: Mapping[str, Any]) -> AlertSettings:
    """The settings of a TOML document."""
    for name in document:
        if name not in TABLES:
            raise InvalidInput(f"there is no '{name}'", next_step=what_exists(name, TABLES))
    targets = {name: _target(name, given) for name, given in _table(document.get("targets", {})).items()}
    rules = document.get("rules", [])
    if not isinstance(rules, list):
        raise InvalidInput("rules are a list of tables", next_step="begin each with [[rules]]")
    databases = {name: _address(name, given) for name, given in _table(document.get("databases", {})).items()}
    return AlertSettings(targets, tuple(_rule(_table(given), targets, databases) for given in rules), databases)


def _address(name: str, given: Any) -> str:
    if not NAME.fullmatch(name):
        raise InvalidInput(f"{name!r} cannot be the name of a database", next_step="use letters, digits, _ and -")
    table = _table(given)
    address = table.get("address")
    if list(table) != ["address"] or not isinstance(address, str):
        raise InvalidInput(f"the database '{name}' has an address, and nothing else", next_step=ADDRESS)
    if scheme_of(address) not in (None, "postgresql", "postgres") or ("=" not in address and "://" not in address):
        raise InvalidInput(f"the address of the database '{name}' is not that of a Postgres", next_step=ADDRESS)
    if is_ambiguous(address):
        raise InvalidInput(
            f"the address of the database '{name}' has an extra '@', '/' or '?'",
            next_step="in a password write %40 for '@', %2F for '/' and %3F for '?'",
        )
    return address


def _target(name: str, given: Any) -> Target:
    table = dict(_table(given))
    kind = table.pop("kind", None)
    makers: dict[str, Callable[[dict[str, Any]], Target]] = {
        "email": lambda values: email(*_texts(values.pop("to", [])), **values),
        "webhook": lambda values: WebhookTarget.of(**values),
        "slack": lambda values: slack(**values),
        "push": lambda values: _checked(PushTarget.of(**values)),
        "command": lambda values: command(*_texts(values.pop("arguments", [])), **values),
    }
    if kind not in makers:
        raise InvalidInput(
            f"the kind of the target '{name}' is {kind!r}", next_step=what_exists(str(kind), list(makers), kind="kinds")
        )
    try:
        return makers[kind](table)
    except TypeError as error:
        raise InvalidInput(f"the target '{name}' cannot be used: {error}", next_step=f"see ms.{kind}") from None


def _checked(target: Target) -> Target:
    target.check_alerts()
    return target


def _rule(given: Mapping[str, Any], targets: Mapping[str, Target], databases: Mapping[str, str]) -> Rule:
    for key in given:
        if key not in RULE_KEYS:
            raise InvalidInput(f"a rule has no '{key}'", next_step=what_exists(key, RULE_KEYS))
    rule = Rule.parse(given.get("when", ""))
    if rule.is_on_slots:
        _check_on_slots(rule, given, databases)
    to = (*rule.to, *_texts(given.get("to", [])))
    for name in to:
        if name not in targets:
            raise InvalidInput(
                f"there is no target '{name}'", next_step=what_exists(name, list(targets), kind="targets")
            )
    repeat = given.get("repeat")
    return replace(
        rule,
        to=to,
        jobs=tuple(_texts(given.get("jobs", ["*"]))),
        quiet=None if given.get("quiet") is None else QuietHours.parse(given["quiet"]),
        repeat_s=None if repeat is None else duration(repeat, what="repeat").total_seconds(),
    )


def _check_on_slots(rule: Rule, given: Mapping[str, Any], databases: Mapping[str, str]) -> None:
    if "jobs" in given:
        raise InvalidInput(
            f"'{rule.condition}' is about slots of databases, not about jobs", next_step="leave jobs out of the rule"
        )
    if not databases:
        raise InvalidInput(
            f"'{rule.condition}' is about slots, but no database is watched",
            next_step=f'add [databases.NAME] with address = "…", {ADDRESS}',
        )
    if rule.step is not None and rule.step not in databases:
        raise InvalidInput(
            f"there is no database '{rule.step}'",
            next_step=what_exists(rule.step, list(databases), kind="databases"),
        )


def _texts(given: Any) -> list[str]:
    found = [given] if isinstance(given, str) else given
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise InvalidInput(f"{given!r} is not a text or a list of texts", next_step='for example ["ops"]')
    return found


def _table(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise InvalidInput(f"{given!r} is not a table", next_step="see alerts.md")
    return given
