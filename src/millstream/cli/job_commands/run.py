"""`millstream run`: runs the flow of a file as a job on Spark."""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from millstream.cli.failures import INTERRUPTED
from millstream.cli.job_commands.reloading import reloadable
from millstream.cli.job_commands.supervised import Params, parameters
from millstream.cli.output import show_done, show_text
from millstream.cli.passwords import spark_settings
from millstream.cli.session import Session, command
from millstream.errors import InvalidInput, MillstreamError, NotFound
from millstream.plan.parameters import refuse_unread, set_parameters

if TYPE_CHECKING:
    from millstream.plan.flow import Flow

MODULE = "millstream_flow"


def register(app: typer.Typer) -> None:
    command(app, "run")(run)


def run(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A Python file that builds a flow.")],
    flow: Annotated[str | None, typer.Option(help="Which flow, if the file has several.")] = None,
    param: Params = None,
    master: Annotated[
        str | None, typer.Option(help="A Spark master; default: $MILLSTREAM_MASTER, else local[*].")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="'caught up'", help="Stop when everything available now has been read.")
    ] = None,
    batch: Annotated[
        bool, typer.Option("--batch", help="Process everything available now as one batch, and close every window.")
    ] = False,
    into: Annotated[
        str | None, typer.Option(help="Write the results to this topic instead, next to the existing ones.")
    ] = None,
    batch_rows: Annotated[int | None, typer.Option(help="At most this many rows of a source per batch.")] = None,
    every: Annotated[
        str | None, typer.Option(metavar="'10 seconds'", help="How often a batch starts; default: when there are rows.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="The job's checkpoint folder, which all workers must be able to reach; default: jobs/NAME in the log."
        ),
    ] = None,
    conf: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="A Spark setting; repeatable.")] = None,
    conf_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A file of Spark settings, one 'name value' per line; use it for passwords."),
    ] = None,
    archive: Annotated[
        str | None, typer.Option(metavar="FILE", help="Libraries for the workers, created by millstream pack.")
    ] = None,
    mode: Annotated[
        str | None, typer.Option(metavar="'real time'", help="Process each record on its own, from Kafka to Kafka.")
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="How long Ctrl-C and SIGTERM wait for the current batch; default: 30."),
    ] = None,
    progress: Annotated[
        str | None,
        typer.Option(metavar="HOW", help="How progress is shown on stderr: auto, terminal, lines, json or none."),
    ] = None,
    on_lost: Annotated[
        Literal["error", "earliest", "latest"] | None,
        typer.Option(help="If records were deleted before they were read: fail, or continue with what is left."),
    ] = None,
    start_over: Annotated[
        bool,
        typer.Option(
            "--start-over", help="Delete progress and state, empty the outputs, and start from the beginning."
        ),
    ] = False,
    rebuild_output: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="An output that was removed: replay the job and write all outputs again."),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Only print the steps and how they are executed on Spark.")
    ] = False,
) -> None:
    """Run a flow as a job on Spark until Ctrl-C: it stops after the current batch, and continues there next time.

    \b
    Example:
      millstream run flow.py
      millstream run flow.py --until "caught up" --master "local[4]"
      millstream run flow.py --master spark://host:7077 --folder /shared/jobs/flow --conf spark.executor.memory=2g
    """
    given_parameters = parameters(param)
    set_parameters(given_parameters)
    chosen, settings = chosen_flow(file, flow, session.address)
    refuse_unread(given_parameters, str(file))
    if explain:
        show_text(chosen.explain(physical=True))
        return
    given: dict[str, Any] = {"master": master, "until": until, "into": into, "batch_rows": batch_rows, "mode": mode}
    given["every"] = every
    given |= {"on_lost": on_lost, "start_over": start_over or None, "rebuild_output": rebuild_output or None}
    given |= {"grace_s": grace, "progress": progress or ("json" if session.json else None)}
    given |= {
        "folder": folder and folder.absolute(),
        "archive": archive,
        "conf": spark_settings(session, conf or [], conf_file) or None,
    }
    settings |= {name: value for name, value in given.items() if value is not None}
    settings |= {"batch": True} if batch else {}
    if session.address is not None:
        settings["broker"] = session.address
    if settings.get("broker", chosen.log) is None and (missing := session.missing_folder()):
        raise NotFound(f"there is no log in '{missing}'", next_step="name another with --log or MILLSTREAM_BROKER")
    from millstream.jobs.stop_request import TERMINATED, TIDY_S_MAX, end_after

    with reloadable(chosen, file, session.address):
        job = chosen.run(**settings)
    assert job is not None
    show_done(
        session,
        f"read {job.progress.rows_read:,} rows in {job.progress.batch + 1:,} batches",
        document={"rows": job.progress.rows_read, "batches": job.progress.batch + 1},
    )
    if job.gave_up:  # a thread may still be waiting for a sink that does not answer
        end_after(TIDY_S_MAX, INTERRUPTED if job.interrupted else TERMINATED)
    if job.interrupted or job.gave_up:
        raise typer.Exit(INTERRUPTED if job.interrupted else TERMINATED)


def chosen_flow(file: Path, name: str | None, broker: str | None) -> tuple[Flow, dict[str, Any]]:
    """The flow of a file, and the settings that the file itself runs it with."""
    from millstream.plan.flow import Flow
    from millstream.plan.on_spark.engine import collecting

    if not file.is_file():
        raise NotFound(f"there is no file '{file}'", next_step="name a Python file that builds a flow")
    with collecting(broker) as calls:
        found = _values(file)
    flows = {value.name: value for value in found.values() if isinstance(value, Flow)}
    settings_of = {flow.name: settings for flow, verb, settings in calls if verb == "run"}
    flows |= {flow.name: flow for flow, _, _ in calls}
    if name is None:
        flows = _without_parts(flows, settings_of)
    if not flows:
        raise InvalidInput(f"'{file}' builds no flow", next_step="write flow = ms.Flow('name') at the top of it")
    if name is None and len(flows) > 1:
        raise InvalidInput(
            f"'{file}' builds several flows", next_step=f"choose one: --flow {' or --flow '.join(flows)}"
        )
    if name is not None and name not in flows:
        raise NotFound(f"'{file}' has no flow '{name}'", next_step=f"its flows: {', '.join(flows)}")
    chosen = flows[name] if name is not None else next(iter(flows.values()))
    return chosen, dict(settings_of.get(chosen.name, {}))


def _without_parts(flows: dict[str, Flow], settings_of: Mapping[str, Mapping[str, Any]]) -> dict[str, Flow]:
    """The flows of a file without those that are part of an app; refuses parts that ask for another Spark master."""
    from millstream.plan.apps import App

    left = dict(flows)
    for app in [flow for flow in flows.values() if isinstance(flow, App)]:
        for part in app.flows:
            left.pop(part.name, None)
            own, shared = (settings_of.get(each.name, {}).get("master") for each in (part, app))
            if own not in (None, shared):
                raise InvalidInput(
                    f"the flows of the app '{app.name}' share one Spark session, and '{part.name}' is run with the "
                    f"master {own}, the app with {shared or 'the default'}",
                    next_step="leave out master= for the flow, and run only the app",
                )
        left[app.name] = app
    return left


def _values(file: Path) -> dict[str, Any]:
    """The globals of a file. Like in Python, its folder is on the module search path."""
    folder = str(file.resolve().parent)
    sys.path.insert(0, folder)
    try:
        return runpy.run_path(str(file), run_name=MODULE)
    except (MillstreamError, KeyboardInterrupt):
        raise
    except SyntaxError as error:
        raise InvalidInput(
            f"'{file}' is not Python: {error.msg}",
            where=f"{error.filename}:{error.lineno}",
            next_step="fix the line",
        ) from error
    except BaseException as error:  # whatever the user's code raises, including sys.exit
        lines = [each for each in traceback.extract_tb(error.__traceback__) if each.filename.startswith(folder)]
        raise InvalidInput(
            f"'{file}' failed: {type(error).__name__}: {error}",
            where=f"{lines[-1].filename}:{lines[-1].lineno}" if lines else None,
            next_step="the file is only executed to build its flow; calls that run the flow return None",
        ) from error
