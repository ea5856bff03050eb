"""Generates the reference pages of the documentation: everything in them is read from the code.

`make docs` adds them to the site (tools/mkdocs_hooks.py); `python tools/reference.py FOLDER` writes them as files.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import millstream
from millstream.errors import MillstreamError
from millstream.expressions.functions import FUNCTIONS
from millstream.expressions.refused import ABOUT_MORE_ROWS, DIFFERENT
from millstream.log import Broker, EmbeddedLog
from millstream.log.topics import TopicSettings
from millstream.plan.run_settings import ReplaySettings, RunSettings, Settings

WIDTH = 100
SECTIONS = {
    "millstream.plan.flow": "Flows",
    "millstream.plan.parameters": "Flows",
    "millstream.plan.apps": "Apps",
    "millstream.plan.stream": "Streams",
    "millstream.plan.steps.keyed": "Keys and windows of a stream",
    "millstream.plan.tables": "Tables",
    "millstream.plan.joins": "Lookup tables",
    "millstream.plan.steps.written_stream": "Written streams",
    "millstream.plan.steps.process": "Steps with state and timers",
    "millstream.plan.patterns": "Patterns",
    "millstream.plan.models": "Models",
    "millstream.stored_models": "Models",
    "millstream.stored_queries": "Stored queries",
    "millstream.jobs.job": "Jobs",
    "millstream.jobs.apps": "Jobs of apps",
    "millstream.supervision": "Jobs of a supervisor",
    "millstream.asking": "Questions to a running job",
    "millstream.calling": "Questions to a running job",
    "millstream.provenance": "Questions to a running job",
    "millstream.plan.time.windows": "Windows",
    "millstream.plan.time.triggers": "Triggers",
    "millstream.plan.time.watermarks": "Watermarks",
    "millstream.plan.aggregates": "Aggregates",
    "millstream.plan.steps.retries": "Retries",
    "millstream.plan.dashboards": "Dashboards",
    "millstream.plan.shown": "Dashboards",
    "millstream.connectors": "Sources and sinks",
    "millstream.bridges": "Sinks to brokers and services",
    "millstream.capture": "Captures of databases",
    "millstream.copies": "Copies of tables",
    "millstream.alerts": "Alerts",
    "millstream.log": "The log",
    "millstream.events": "Event sourcing",
    "millstream.views": "Views",
    "millstream.testing": "Testing",
    "millstream.testing.connectors": "Testing connectors",
    "millstream.errors": "Errors",
}
"""The section of what comes from a module or package, in the order of the page. The longest name decides."""

RETURNED = {
    "millstream.plan.steps.keyed": ["Keyed", "Windowed"],
    "millstream.plan.tables": ["Grouping"],
    "millstream.plan.joins.joining": ["Side"],
    "millstream.plan.steps.written_stream": ["Written"],
    "millstream.jobs.apps.job": ["AppJob"],
    "millstream.connectors": ["Connector", "Source", "Sink", "TwoPhaseSink", "Preparer"],
    "millstream.log": ["Producer", "Consumer", "Queue"],
    "millstream.events": ["EventStore", "Subscription", "Recorded", "Appended"],
    "millstream.testing": [
        "play",
        "Add",
        "Watermark",
        "Clock",
        "Partition",
        "assert_panes",
        "assert_steps",
        "print_panes",
    ],
    "millstream.testing.connectors": [
        "BridgeSuite",
        "BridgeUnderTest",
        "Delivered",
        "FaultProxy",
        "Message",
        "SinkSuite",
        "SinkUnderTest",
    ],
}
"""What is documented besides the names of `millstream`: the types that its functions return, and the test modules."""

IMPLEMENTED_BY: dict[type, type] = {Broker: EmbeddedLog}
"""Whose methods document those of a port."""

VARIABLES = {
    "MILLSTREAM_BRIDGE": "The name under which a bridge is listed; default: its kind and its place.",
    "MILLSTREAM_BROKER": "The address of the log: a folder or kafka://host:9092; default: .millstream in the current "
    "folder.",
    "MILLSTREAM_MASTER": "The Spark master; default: local[*].",
    "MILLSTREAM_KAFKA_SETTINGS": "A file of librdkafka settings, one name=value per line: the place for passwords.",
    "MILLSTREAM_HOME": "The folder in which jobs on Kafka keep theirs; default: .millstream in the current folder.",
    "MILLSTREAM_CACHE": "A folder for files that make Spark start faster; default: the user's cache folder.",
    "MILLSTREAM_AMQP_PASSWORD": "The password with which `millstream listen amqp` logs in to the broker.",
    "MILLSTREAM_MQTT_PASSWORD": "The password with which `millstream listen mqtt` logs in to the broker.",
    "MILLSTREAM_TOKEN": "The token that `millstream table serve` and `millstream listen` require of callers, and that "
    "ms.connect('flight://…') sends.",
    "MILLSTREAM_PLAY_BROKER": "A Kafka address: tests played with on='spark' send their rows through it.",
}


def pages() -> dict[str, str]:
    """Every generated page: its path within docs/, and its text."""
    return {
        "reference/python.md": python_page(),
        "reference/settings.md": settings_page(),
        "reference/aggregates.md": aggregates_page(),
        "reference/expressions.md": expressions_page(),
        "reference/commands.md": commands_page(),
        "reference/errors.md": errors_page(),
    }


# ---------------------------------------------------------------- Python


def public_names() -> dict[str, dict[str, str]]:
    """The names to document, by section, each with the module it comes from."""
    found: dict[str, dict[str, str]] = {section: {} for section in SECTIONS.values()}
    for name in millstream.__all__:
        if name != "errors":
            module = home_of(name)
            found[section_of(module)][name] = module
    for module, names in RETURNED.items():
        found[section_of(module)].update(dict.fromkeys(names, module))
    return found


def section_of(module: str) -> str:
    packages = [package for package in SECTIONS if f"{module}.".startswith(f"{package}.")]
    if not packages:
        raise LookupError(f"{module} has public names: give it a section in SECTIONS of tools/reference.py")
    return SECTIONS[max(packages, key=len)]


def joined(parts: list[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def home_of(name: str) -> str:
    value = getattr(millstream, name)
    return value.__name__ if isinstance(value, ModuleType) else str(value.__module__)


def public(module: str, name: str) -> Any:
    return getattr(millstream if name in millstream.__all__ else import_module(module), name)


def python_page() -> str:
    parts = [
        "# Python reference",
        "Everything `import millstream as ms` provides, and the types that those functions return. "
        "Errors have [a page of their own](errors.md), and so do [aggregates](aggregates.md) and "
        "[run settings](settings.md).",
    ]
    for section, names in public_names().items():
        parts.append(f"## {section}")
        values = {name: public(module, name) for name, module in names.items()}
        for name in sorted(names, key=lambda each: (not inspect.isclass(values[each]), each)):
            value = values[name]
            shown = f"ms.{name}" if name in millstream.__all__ else name
            if names[name].startswith("millstream.testing"):
                shown = f"{names[name]}.{name}"
            parts += documented(shown, value)
    parts += ["## The module of errors", "### ms.errors {#ms.errors}", "Every error class: [errors](errors.md)."]
    return joined(parts)


def documented(name: str, value: Any) -> Iterator[str]:
    yield f"### {name} {{#{name}}}"
    if not inspect.isclass(value) or is_dataclass(value) or value is millstream.Flow:  # other classes are returned
        yield signature_block(name, value)
    yield doc_of(value)
    for method, member in members(value) if inspect.isclass(value) else ():
        yield f"#### {name}.{method} {{#{name}.{method}}}"
        if isinstance(member, property):
            yield f"Property, `{returned(member.fget)}`."
        else:
            yield signature_block(method, member)
        yield doc_of(member) or doc_of(getattr(IMPLEMENTED_BY.get(value), method, None))


def members(value: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class and of its bases in this package."""
    seen: dict[str, Any] = {}
    for base in reversed(value.__mro__):
        if base.__module__.startswith("millstream"):
            seen |= vars(base)
    for name, member in sorted(seen.items()):
        function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if not name.startswith("_") and (inspect.isfunction(function) or isinstance(function, property)):
            yield name, function


def signature_block(name: str, value: Any) -> str:
    signature = inspect.signature(value)
    shown = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    written = list(parameters(shown))
    result = "" if inspect.isclass(value) else f" -> {annotation(signature.return_annotation)}"
    line = f"{name}({', '.join(written)}){result}"
    if len(line) > WIDTH:
        line = f"{name}(\n" + "".join(f"    {each},\n" for each in written) + f"){result}"
    return f"```python\n{line}\n```"


def parameters(shown: list[inspect.Parameter]) -> Iterator[str]:
    starred = False
    for each in shown:
        if each.kind is each.KEYWORD_ONLY and not starred:
            yield "*"
        starred = starred or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        mark = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(each.kind.name, "")
        typed = "" if each.annotation is each.empty else f": {annotation(each.annotation)}"
        default = "" if each.default is each.empty else f" = {default_text(each.default)}"
        yield f"{mark}{each.name}{typed}{default}"


def default_text(value: Any) -> str:
    text = repr(value)
    return "…" if text.startswith("<") else text


def annotation(given: Any) -> str:
    if given is inspect.Signature.empty:
        return "None"
    return given if isinstance(given, str) else inspect.formatannotation(given)


def returned(function: Any) -> str:
    return annotation(inspect.signature(function).return_annotation)


def doc_of(value: Any) -> str:
    """Its own text: not one of a base class, nor the signature that a dataclass without a text has."""
    text = inspect.cleandoc(getattr(value, "__doc__", None) or "") if value is not None else ""
    return "" if is_dataclass(value) and text.startswith(f"{getattr(value, '__name__', '')}(") else text


# ---------------------------------------------------------------- settings


def settings_page() -> str:
    run = {each.name for each in fields(RunSettings)} - {each.name for each in fields(Settings)}
    replay = {each.name for each in fields(ReplaySettings)} - {each.name for each in fields(RunSettings)}
    rows = field_rows(Settings)
    rows += [(f"{n} (`run`, `replay`)", k, d, t) for n, k, d, t in field_rows(RunSettings) if bare(n) in run]
    rows += [(f"{n} (`replay`)", k, d, t) for n, k, d, t in field_rows(ReplaySettings) if bare(n) in replay]
    variables = [f"| `{name}` | {text} |" for name, text in VARIABLES.items()]
    parts = [
        "# Settings",
        "## Of a job",
        "Keywords of `Flow.run`, `Flow.start` and `Flow.replay`, and options of `millstream run` "
        "([commands](commands.md)).",
        table(["setting", "type", "default", "meaning"], rows),
        "`replay` requires `into`.",
        "## Of a topic",
        "Keywords of `create_topic`, and options of `millstream topics create`.",
        table(["setting", "type", "default", "meaning"], field_rows(TopicSettings)),
        "## Environment variables",
        "\n".join(["| variable | meaning |", "|---|---|", *variables]),
    ]
    return joined(parts)


def bare(name: str) -> str:
    return name.strip("`")


def field_rows(cls: type) -> list[tuple[str, str, str, str]]:
    """Name, type, default and documentation of each field of a dataclass."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("millstream"):
            texts |= field_docs(base)
    rows = []
    for name, parameter in inspect.signature(cls).parameters.items():
        default = "required" if parameter.default is parameter.empty else f"`{default_text(parameter.default)}`"
        default = "none" if default == "`…`" else default
        rows.append((f"`{name}`", f"`{annotation(parameter.annotation)}`", default, texts.get(name, "")))
    return rows


def field_docs(cls: type) -> dict[str, str]:
    """The text under each field of a class body, which Python itself does not keep."""
    [body] = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
            found[field.target.id] = " ".join(str(text.value.value).split())  # type: ignore[attr-defined]
    return found


def table(titles: list[str], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


# ---------------------------------------------------------------- aggregates and expressions


def aggregates_page() -> str:
    parts = [
        "# Aggregates",
        "What `.agg(name=ms.…)` computes over the rows of a window, a group or a session. Arguments are "
        "[Spark SQL expressions](expressions.md) over one row.",
    ]
    for name in public_names()["Aggregates"]:
        parts += documented(f"ms.{name}", getattr(millstream, name))
    return joined(parts)


def expressions_page() -> str:
    rows = [(f"`{name}`", entry.arguments or "nothing", entry.note) for name, entry in sorted(FUNCTIONS.items())]
    refused = sorted({**DIFFERENT, **ABOUT_MORE_ROWS}.items())
    parts = [
        "# Functions in expressions",
        "Expressions in `where`, `select`, `with_column` and aggregates are Spark SQL. These functions run without "
        "Spark too, with Spark's types and its answers to overflow and division by zero. An argument in brackets is "
        "optional.",
        table(["function", "arguments", "note"], rows),
        "## Functions that are refused",
        "A function that is in neither table is refused as well, and the error names similar ones that exist.",
        table(["function", "why"], [(f"`{name}`", why) for name, why in refused]),
    ]
    return joined(parts)


# ---------------------------------------------------------------- commands and errors


def commands_page() -> str:
    import typer
    from typer.testing import CliRunner

    from millstream.cli.app import app

    runner = CliRunner()

    def help_of(words: list[str]) -> str:
        done = runner.invoke(app, [*words, "--help"], prog_name="millstream", env={"COLUMNS": str(WIDTH)})
        assert done.exit_code == 0, done.output
        return f"```text\n{done.output.strip()}\n```"

    parts = ["# Commands", "As `--help` prints them; [the command line](../cli.md) shows them at work.", help_of([])]
    for words, is_group in commands(typer.main.get_command(app), []):
        title = " ".join(words)
        parts.append(f"{'##' if len(words) == 1 else '###'} {title} {{#{'-'.join(words)}}}")
        parts.append(help_of(words) if not is_group else f"`millstream {title}` has these commands:")
    return joined(parts)


def commands(group: Any, path: list[str]) -> Iterator[tuple[list[str], bool]]:
    for name, command in group.commands.items():
        is_group = hasattr(command, "commands")
        yield [*path, name], is_group
        if is_group:
            yield from commands(command, [*path, name])


def errors_page() -> str:
    import_module("millstream.serving")
    rows = []

    def add(error: type[MillstreamError], depth: int) -> None:
        indent = "&nbsp;&nbsp;" * depth
        rows.append((f"{indent}`{error.__name__}`", str(error.exit_code), (doc_of(error).splitlines() or [""])[0]))
        for below in sorted(error.__subclasses__(), key=lambda each: each.__name__):
            if below.__module__ == "millstream.errors":
                add(below, depth + 1)

    add(MillstreamError, 0)
    parts = [
        "# Errors",
        "All of them are in `ms.errors`, and all derive from `ms.MillstreamError`, so `except ms.MillstreamError` "
        "catches whatever Millstream raises. Each has `where`, the place, and `next_step`, what to do about it. "
        "Indented errors are kinds of the one above them.",
        table(["error", "exit code of a command", "meaning"], rows),
    ]
    return joined(parts)


def main(folder: Path) -> None:
    for path, text in pages().items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
