"""What a job is to run, and how: as its user submitted it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from millstream.alerts.rules import Rule
from millstream.errors import InvalidInput, NotFound
from millstream.secrets import is_likely_secret
from millstream.supervision.schedules import Schedule
from millstream.user_lines import what_exists

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
HIDDEN = "(hidden)"


class Restart(Enum):
    """When a job that has ended is started again."""

    ON_FAILURE = "on-failure"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True)
class JobSpecification:
    name: str
    file: str
    flow: str | None = None
    params: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    """Of `millstream run`, such as --master."""
    schedule: str | None = None
    """A cron expression; None: the job starts now."""
    time_zone: str = "UTC"
    restart: Restart = Restart.ON_FAILURE
    restarts_max: int = 5
    """How many failures in a row are followed by another start."""
    folder: str = "."
    """The working folder of the job's process."""
    alerts: tuple[str, ...] = ()
    """Rules such as "lag_seconds > 60 for 5 minutes"."""

    @classmethod
    def checked(cls, given: Mapping[str, Any]) -> JobSpecification:
        """From a request. Everything that can be checked without running the file is checked here."""
        unknown = sorted(set(given) - set(cls.__dataclass_fields__))
        if unknown:
            raise InvalidInput(
                f"a job has no '{unknown[0]}'", next_step=what_exists(unknown[0], list(cls.__dataclass_fields__))
            )
        made = cls(
            name=_text(given, "name"),
            file=_text(given, "file"),
            flow=None if given.get("flow") is None else _text(given, "flow"),
            params=_params(given.get("params", {})),
            options=_options(given.get("options", [])),
            schedule=None if given.get("schedule") is None else _text(given, "schedule"),
            time_zone=_text(given, "time_zone") if "time_zone" in given else "UTC",
            restart=_restart(given.get("restart", Restart.ON_FAILURE.value)),
            restarts_max=_count(given.get("restarts_max", 5)),
            folder=_text(given, "folder") if "folder" in given else str(Path(_text(given, "file")).parent),
            alerts=_alerts(given.get("alerts", [])),
        )
        check_name(made.name)
        if not Path(made.file).is_absolute() or not Path(made.folder).is_absolute():
            raise InvalidInput(f"'{made.file}' is not an absolute path", next_step="submit the file by its whole path")
        if not Path(made.file).is_file():
            raise NotFound(f"there is no file '{made.file}'", next_step="name a Python file that builds a flow")
        if made.schedule is not None:
            Schedule(made.schedule, made.time_zone).check()
        return made

    def document(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "restart": self.restart.value,
            "options": list(self.options),
            "alerts": list(self.alerts),
        }

    def shown(self) -> dict[str, Any]:
        """The document for people and programs: values that look like secrets are hidden."""
        params = {name: HIDDEN if is_likely_secret(name) else value for name, value in self.params.items()}
        return {**self.document(), "params": params, "options": [_shown_option(each) for each in self.options]}

    def named_values(self) -> Iterable[tuple[str, str]]:
        """Its parameters and the Spark settings among its options."""
        yield from self.params.items()
        yield from _settings(self.options)

    @classmethod
    def kept(cls, document: Mapping[str, Any]) -> JobSpecification:
        """From the store: it was checked when it was submitted, and its file may be gone by now."""
        given = dict(document)
        restart = Restart(given.pop("restart"))
        lists = {name: tuple(given.get(name, ())) for name in ("options", "alerts")}
        return cls(**{**given, **lists}, restart=restart)


def option_of(options: Sequence[str], name: str) -> str | None:
    """The value of an option of `millstream run`, written as one text or as two. The last one counts."""
    found = None
    for number, each in enumerate(options):
        if each.startswith(f"{name}="):
            found = each.partition("=")[2]
        elif each == name and number + 1 < len(options):
            found = options[number + 1]
    return found


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:120]!r} cannot be the name of a job",
            next_step="use up to 100 letters, digits and _.- and start with a letter or a digit",
        )


def _shown_option(option: str) -> str:
    name, separator, _ = option.partition("=")
    return f"{name}={HIDDEN}" if separator and is_likely_secret(name) else option


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not value or "\0" in value:
        raise InvalidInput(f"'{name}' of a job must be a text, not {value!r}", next_step=f"give it as {name}")
    return value


def _params(given: Any) -> dict[str, str]:
    if not isinstance(given, dict) or not all(isinstance(each, str) for pair in given.items() for each in pair):
        raise InvalidInput("parameters must be names and texts", next_step="--param NAME=VALUE")
    for name in given:
        if not PARAMETER.fullmatch(name):
            raise InvalidInput(f"{name!r} cannot be the name of a parameter", next_step="use letters, digits and _")
    return dict(given)


def _options(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or not all(isinstance(each, str) and "\0" not in each for each in given):
        raise InvalidInput("options must be a list of texts", next_step="such as ['--master', 'local[2]']")
    for name, _ in _settings(given):
        if is_likely_secret(name):  # its run would refuse it
            raise InvalidInput(
                f"the value of '{name}' may be a secret, and other users can read the options of a process",
                next_step="put the setting in a file, as a line 'name value', and name it with --conf-file FILE",
            )
    return tuple(given)


def _settings(options: Sequence[str]) -> Iterable[tuple[str, str]]:
    """The Spark settings among options, written as one text or as two."""
    for number, each in enumerate(options):
        is_setting = each.startswith("--conf=") or (number > 0 and options[number - 1] == "--conf")
        if is_setting:
            name, _, value = each.removeprefix("--conf=").partition("=")
            yield name.strip(), value


def _alerts(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list | tuple):
        raise InvalidInput("alerts must be a list of rules", next_step="such as ['lag_seconds > 60 for 5 minutes']")
    rules = [Rule.parse(each) for each in given]
    for rule in rules:
        if rule.is_on_slots:
            raise InvalidInput(
                f"'{rule.condition}' is about a database, not about a job",
                next_step="write it into alerts.toml of the supervisor: see alerts.md",
            )
    return tuple(rule.text for rule in rules)


def _restart(given: Any) -> Restart:
    choices = [choice.value for choice in Restart]
    if given not in choices:
        raise InvalidInput(f"restart={given!r} is unknown", next_step=what_exists(given, choices, kind="choices"))
    return Restart(given)


def _count(given: Any) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= 1_000_000:
        raise InvalidInput(f"restarts_max={given!r} is not a count", next_step="0 or more")
    return given
