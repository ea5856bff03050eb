"""Every way a command can end has its own exit code, and a user's mistake never ends in a traceback."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

import typer
from typer.core import TyperGroup

from millstream.errors import MillstreamError
from millstream.secrets import shown_address
from millstream.terminal import show_traceback, shown_lines, write_line

OTHER_FAILURE, INTERRUPTED, PIPE_CLOSED = 1, 130, 141
NOT_FOR_ALL = 6
KAFKA_CLIENT = "millstream.kafka"  # logs of Kafka's client: permanent errors are raised as well
EXIT_CODES = {
    0: "fine",
    1: "any other failure, or the prompt was answered with no",
    2: "usage or invalid input",
    3: "not found: topic, partition, group, queue, table, key, file or log",
    4: "already exists",
    5: "storage: disk full, no access, damaged, not a log; Kafka or the database of a table is unavailable",
    6: "partly done: dead letters were written, or a queue's command failed",
    7: "Spark did not start, or stopped the job",
    130: "interrupted with Ctrl-C",
    141: "the reader of the output closed it",
    143: "terminated by SIGTERM before the current batch was complete",
}

# Typer raises it for every wrong option or argument, but does not export it.
UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])


class WrongUsage(MillstreamError):
    """An unknown or invalid option or argument."""

    exit_code = 2


class Root(TyperGroup):
    """The outermost command: all errors are handled here."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        as_json = "--json" in given
        _report_warnings(as_json)
        sys.excepthook = show_traceback
        try:
            code = super().main(given, prog_name, complete_var, False, windows_expand_args, **extra)
        except MillstreamError as error:
            code = report(error, as_json=as_json)
        except UsageError as error:
            code = _report_usage(error, as_json)
        except typer.Abort:
            code = OTHER_FAILURE
        except OSError as error:
            _discard_stdout()
            where = None if error.filename is None else str(error.filename)
            code = report(MillstreamError(error.strerror or str(error), where=where), as_json=as_json)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _discard_stdout()
            raise typer.Exit(PIPE_CLOSED) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        return result


def report(error: MillstreamError, *, as_json: bool) -> int:
    """Reports on stderr what happened, where, and what to do; returns the exit code."""
    if as_json:
        parts = {"kind": type(error).__name__, "what": error.what, "where": error.where, "next": error.next_step}
        _say(json.dumps({"error": {**parts, "exit_code": error.exit_code}}, ensure_ascii=False))
    else:
        _say(f"error: {error}")  # its parts are escaped
    return error.exit_code


def warn(message: str, *, as_json: bool) -> None:
    _say(json.dumps({"warning": message}, ensure_ascii=False) if as_json else f"warning: {message}")


def _say(text: str) -> None:
    with suppress(OSError):  # nobody is left to read it
        write_line(shown_lines(text, sys.stderr), err=True)


def _report_usage(error: typer.BadParameter, as_json: bool) -> int:
    command = error.ctx.command_path if error.ctx else "millstream"
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return error.exit_code
    # An unexpected argument is quoted, and may be an address with a password.
    return report(
        WrongUsage(shown_address(error.format_message()), where=command, next_step=f"{command} --help"), as_json=as_json
    )


class _Warnings(logging.Handler):
    """Prints the log's warnings on stderr, each text once."""

    def __init__(self, as_json: bool) -> None:
        super().__init__(logging.WARNING)
        self._as_json = as_json
        self._shown: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == KAFKA_CLIENT:
            return
        message = record.getMessage()
        if message not in self._shown:
            self._shown.add(message)
            warn(message, as_json=self._as_json)


def _report_warnings(as_json: bool) -> None:
    logger = logging.getLogger("millstream")
    logger.handlers = [_Warnings(as_json)]
    logger.propagate = False


def _discard_stdout() -> None:
    """Python flushes stdout again when it exits, and would complain a second time."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
