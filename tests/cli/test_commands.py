"""The table of commands lists what the modules register, and only the module of the called command is imported."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from importlib import import_module

import typer
from typer.testing import CliRunner

import millstream.cli
from millstream.cli.app import app
from millstream.cli.commands import MODULES

RUN = "millstream.cli.job_commands.run"


def modules_loaded_by(*arguments: str) -> set[str]:
    """All modules that a process has loaded when a command has ended."""
    program = (
        "import atexit, json, sys\n"
        "atexit.register(lambda: print(json.dumps(list(sys.modules)), file=sys.stderr))\n"
        "from millstream.cli import main\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_the_table_has_every_command_of_every_module() -> None:
    """Goal: no command is missing from the table, or listed with a module that lacks it. Method: register all."""
    found: dict[str, str] = {}
    for each in pkgutil.walk_packages(millstream.cli.__path__, "millstream.cli."):
        if each.name.endswith("__main__"):
            continue
        module = import_module(each.name)
        if hasattr(module, "register"):
            registered = typer.Typer()
            module.register(registered)
            names = typer.main.get_group(registered).commands
            found |= dict.fromkeys(names, each.name.removeprefix("millstream.cli."))
    assert found == MODULES


def test_a_command_imports_its_own_module_alone() -> None:
    loaded = {name for name in modules_loaded_by("run", "--help") if name.startswith("millstream.")}
    commands = {f"millstream.cli.{module}" for module in MODULES.values()}
    assert loaded & commands == {RUN}
    assert not {name for name in loaded if name.startswith(("millstream.log", "millstream.spark", "millstream.jobs"))}


def test_the_help_lists_all_commands_in_the_order_of_the_table() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    lines = shown[shown.index("Commands:") :].splitlines()[1:]
    assert [line.split()[0] for line in lines if line.startswith("  ") and line[2:3].strip()][: len(MODULES)] == [
        *MODULES
    ]


def test_a_misspelled_command_is_suggested() -> None:
    done = CliRunner().invoke(app, ["dead-leters"])
    assert done.exit_code == 2
    assert "Did you mean 'dead-letters'?" in done.output


def test_the_engine_of_a_job_imports_neither_kafka_nor_other_modes() -> None:
    """Goal: `millstream run` of one flow on the embedded log reaches its first pane without what only others need."""
    program = "import sys, millstream.jobs.flow_methods as _; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    others = {
        "millstream.jobs.apps.job",
        "millstream.jobs.previews.previewing",
        "millstream.jobs.real_time",
        "millstream.log.kafka.log",
        "millstream.spark.real_time.java_client",
    }
    assert not others & {*done.stdout.split()}
