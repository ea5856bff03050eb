"""Passwords come from the environment or from files: every user of a machine can read the arguments of a process."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from millstream.cli.failures import warn
from millstream.cli.session import Session
from millstream.errors import InvalidInput, NotFound
from millstream.postgres_address import has_secret
from millstream.secrets import conceal, is_likely_secret

ARGUMENTS = "a password does not belong on a command line: all users of this machine can read it there"


def database_address(session: Session, at: str | None, variable: str | None, file: Path | None) -> str | None:
    """The address of a Postgres database, from whichever option has it."""
    if sum(each is not None for each in (at, variable, file)) > 1:
        raise InvalidInput("--at, --at-env and --at-file all give the address", next_step="choose one of them")
    if at is not None:
        if has_secret(at):
            raise InvalidInput(
                ARGUMENTS,
                where="--at",
                next_step="leave it out and set PGPASSWORD or put it in ~/.pgpass; or give the whole address with "
                "--at-env NAME, from an environment variable, or --at-file FILE",
            )
        return at
    if variable is not None:
        found = os.environ.get(variable)
        if not found:
            raise NotFound(
                f"the environment variable '{variable}' is not set",
                where="--at-env",
                next_step=f"export {variable}=postgresql://user:password@host/database",
            )
        return found
    return None if file is None else _content(session, file).strip()


def spark_settings(session: Session, given: list[str], file: Path | None) -> dict[str, str]:
    """Spark settings, from --conf NAME=VALUE and from a file in the format of spark-defaults.conf."""
    found: dict[str, str] = {}
    if file is not None:
        for number, line in enumerate(_content(session, file).splitlines(), 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            pair = re.split(r"\s*=\s*|\s+", text, maxsplit=1)
            if len(pair) < 2 or not pair[0]:
                raise InvalidInput("a line is not 'name value'", where=f"{file}:{number}", next_step="fix the line")
            found[pair[0]] = pair[1]
        conceal(value for name, value in found.items() if is_likely_secret(name))
    for each in given:
        key, sign, value = each.partition("=")
        if not sign or not key.strip():
            raise InvalidInput(f"--conf {key} has no value", next_step="--conf spark.executor.memory=2g")
        if is_likely_secret(key):
            raise InvalidInput(
                ARGUMENTS,
                where=f"--conf {key.strip()}",
                next_step="put the setting in a file, as a line 'name value', and name the file with --conf-file FILE",
            )
        found[key.strip()] = value.strip()
    return found


def _content(session: Session, file: Path) -> str:
    try:
        text = file.expanduser().read_text()
        mode = file.expanduser().stat().st_mode
    except OSError as error:
        raise NotFound(f"'{file}' cannot be read: {error.strerror}", next_step="name another file") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"'{file}' is not text", next_step="name another file") from None
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        warn(f"other users can read '{file}': protect its secrets with chmod 600", as_json=session.json)
    return text
