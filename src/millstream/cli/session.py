"""The context of every command: the log, and how to print. Both options work before or after the command's name."""

from __future__ import annotations

import inspect
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, get_type_hints

import typer

from millstream.errors import InvalidInput, NotFound
from millstream.terminal import is_harmless

if TYPE_CHECKING:
    from millstream.log import Broker

Given = ParamSpec("Given")
COMPLETE_SECONDS = 4.0
LogAddress = Annotated[
    str | None,
    typer.Option(
        "--log",
        metavar="ADDRESS",
        help="The log's folder, or kafka://HOST:PORT; default: $MILLSTREAM_BROKER, else .millstream here.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON; errors and warnings on stderr are JSON, too.")]


@dataclass(frozen=True)
class Session:
    address: str | None
    json: bool

    @contextmanager
    def log(self, *, create: bool = False, shared_group: str | None = None) -> Iterator[Broker]:
        """The open log. Only commands that create things create its folder: a typo must not leave one behind."""
        from millstream.log import connect

        # Once imported, polars makes blocked reads and locks continue after Ctrl-C; this undoes that.
        signal.siginterrupt(signal.SIGINT, True)
        with connect(self._given() if create else self.existing(), shared_group=shared_group) as log:
            yield log

    def existing(self) -> str | None:
        """The address of an existing log."""
        if missing := self.missing_folder():
            raise NotFound(
                f"there is no log in '{missing}'",
                next_step="name another with --log or MILLSTREAM_BROKER, or create one: millstream topics create NAME",
            )
        return self.address

    def nothing(self, what: str) -> str:
        """What an empty listing prints: a wrong folder must not look like an empty log."""
        missing = self.missing_folder()
        return f"there is no log in '{missing}' yet" if missing else f"there are no {what}"

    def kafka(self) -> str | None:
        """The address, if it is Kafka."""
        address = self._given()
        return address if address.startswith("kafka://") else None

    def _given(self) -> str:
        from millstream.log import ADDRESS_VARIABLE, DEFAULT_FOLDER
        from millstream.log.memory import SCHEME as MEMORY_SCHEME

        given = self.address or os.environ.get(ADDRESS_VARIABLE) or DEFAULT_FOLDER
        if given.startswith(MEMORY_SCHEME):
            raise InvalidInput(
                "a log in memory belongs to one process: no command can reach it",
                where=given,
                next_step="use it in a Python program, or name a folder with --log",
            )
        return given

    def missing_folder(self) -> Path | None:
        from millstream.log import log_folder

        folder = log_folder(self._given())
        return None if folder is None or folder.exists() else folder


class Options:
    """What several commands share: subclasses are dataclasses, and each of their fields is an option."""


def command(
    app: typer.Typer, name: str
) -> Callable[[Callable[Concatenate[Session, Given], None]], Callable[Concatenate[Session, Given], None]]:
    """Registers a function of a session and its own options as a command that also has the shared options."""

    def register(function: Callable[Concatenate[Session, Given], None]) -> Callable[Concatenate[Session, Given], None]:
        @wraps(function)
        def run(ctx: typer.Context, log: str | None, as_json: bool, **own: Any) -> None:
            before: Session = ctx.find_root().obj
            session = Session(address=log or before.address, json=as_json or before.json)
            for name, shared in bundles.items():
                own[name] = shared(**{each.name: own.pop(each.name) for each in _parameters(shared)})
            function(session, **own)  # type: ignore[call-arg]

        signature = inspect.signature(function, eval_str=True)
        keyword = inspect.Parameter.KEYWORD_ONLY
        given = list(signature.parameters.values())[1:]
        bundles = {each.name: each.annotation for each in given if _is_bundle(each)}
        expanded = [_parameters(each.annotation) if _is_bundle(each) else [each] for each in given]
        own = [parameter.replace(kind=keyword) for parameters in expanded for parameter in parameters]
        shared = [
            inspect.Parameter("ctx", keyword, annotation=typer.Context),
            inspect.Parameter("log", keyword, annotation=LogAddress, default=None),
            inspect.Parameter("as_json", keyword, annotation=AsJson, default=False),
        ]
        run.__signature__ = signature.replace(parameters=[*own, *shared])  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *shared]}
        app.command(name)(run)
        return function

    return register


def _is_bundle(parameter: inspect.Parameter) -> bool:
    return isinstance(parameter.annotation, type) and issubclass(parameter.annotation, Options)


def _parameters(shared: Any) -> list[inspect.Parameter]:
    """The options of a subclass of `Options`."""
    annotations = get_type_hints(shared, include_extras=True)
    return [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=annotations[each.name],
            default=inspect.Parameter.empty if each.default is MISSING else each.default,
        )
        for each in fields(shared)
    ]


def subcommands(app: typer.Typer, name: str, help: str, *functions: Callable[..., None]) -> None:
    """Registers a command that only has subcommands: `list_topics` is `topics list`, `create` is `topics create`."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=help)
    app.add_typer(group, name=name)
    for function in functions:
        command(group, function.__name__.partition("_")[0])(function)


# ---------------------------------------------------------------- shell completion


def _completion(names: Callable[[Broker], list[str]]) -> Callable[[typer.Context, str], list[str]]:
    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        address = ctx.params.get("log") or ctx.find_root().params.get("log")
        found: list[str] = []

        def look() -> None:
            # Completion must not print errors.
            with suppress(Exception), connect(Session(address, json=False).existing()) as log:
                # Completions become part of a command line: only printable ones.
                found.extend(name for name in names(log) if name.startswith(incomplete) and is_harmless(name))

        from millstream.log import connect

        # Nor wait for a broker that is away.
        looking = Thread(target=look, daemon=True)
        looking.start()
        looking.join(COMPLETE_SECONDS)
        return list(found)

    return complete


complete_topics = _completion(lambda log: log.topics())
complete_groups = _completion(lambda log: log.groups())
complete_queues = _completion(lambda log: [info.name for info in log.queues()])

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topics)]
GroupName = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_groups)]
QueueName = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_queues)]
SharedGroup = Annotated[
    str | None,
    typer.Option(
        "--shared-group",
        metavar="GROUP",
        help="Permanently share the whole log with this operating system group; default: private to its owner.",
    ),
]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-host",
        metavar="NAME",
        help="A host name to accept (in the Host header) besides its address; repeatable.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Skip the prompt.")]
