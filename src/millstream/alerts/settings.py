"""The alerts of a supervisor: targets and rules in a TOML file of its folder."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from millstream.alerts.quiet import QuietHours
from millstream.alerts.rules import Rule
from millstream.alerts.targets import Target, WebhookTarget, command, email, slack
from millstream.errors import InvalidInput, MillstreamError
from millstream.private_files import read_bounded
from millstream.records import duration
from millstream.user_lines import what_exists

FILE = "alerts.toml"
FILE_BYTES_MAX = 1 << 20
SECRETS = ("password", "secret", "url")
RULE_KEYS = ("when", "jobs", "to", "quiet", "repeat")


@dataclass(frozen=True)
class AlertSettings:
    targets: dict[str, Target] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()

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
    has_secrets = any(name in table for table in document.get("targets", {}).values() for name in SECRETS)
    if has_secrets and (found.st_mode & (stat.S_IRWXG | stat.S_IRWXO) or found.st_uid != os.geteuid()):
        raise InvalidInput(
            "the alerts have passwords or addresses that are secret, and other users can read the file",
            where=str(path),
            next_step=f"chmod 600 {path}",
        )
    return settings


def parse(document: Mapping[str, Any]) -> AlertSettings:
    """The settings of a TOML document."""
    for name in document:
        if name not in ("targets", "rules"):
            raise InvalidInput(f"there is no '{name}'", next_step=what_exists(name, ("targets", "rules")))
    targets = {name: _target(name, given) for name, given in _table(document.get("targets", {})).items()}
    rules = document.get("rules", [])
    if not isinstance(rules, list):
        raise InvalidInput("rules are a list of tables", next_step="begin each with [[rules]]")
    return AlertSettings(targets, tuple(_rule(_table(given), targets) for given in rules))


def _target(name: str, given: Any) -> Target:
    table = dict(_table(given))
    kind = table.pop("kind", None)
    makers: dict[str, Callable[[dict[str, Any]], Target]] = {
        "email": lambda values: email(*_texts(values.pop("to", [])), **values),
        "webhook": lambda values: WebhookTarget.of(**values),
        "slack": lambda values: slack(**values),
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


def _rule(given: Mapping[str, Any], targets: Mapping[str, Target]) -> Rule:
    for key in given:
        if key not in RULE_KEYS:
            raise InvalidInput(f"a rule has no '{key}'", next_step=what_exists(key, RULE_KEYS))
    rule = Rule.parse(given.get("when", ""))
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


def _texts(given: Any) -> list[str]:
    found = [given] if isinstance(given, str) else given
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise InvalidInput(f"{given!r} is not a text or a list of texts", next_step='for example ["ops"]')
    return found


def _table(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise InvalidInput(f"{given!r} is not a table", next_step="see alerts.md")
    return given
