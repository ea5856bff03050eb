"""`millstream jobs submit` and the other commands for jobs that a supervisor runs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from millstream.cli.output import Cell, ask, show_details, show_done, show_table
from millstream.cli.session import Session
from millstream.errors import InvalidInput, MillstreamError

if TYPE_CHECKING:
    from millstream.supervision.client import Jobs

JobName = Annotated[str, typer.Argument(metavar="JOB", help="The name it was submitted with.")]
Params = Annotated[
    list[str] | None, typer.Option("--param", metavar="NAME=VALUE", help="A parameter of the file; repeatable.")
]


def parameters(given: list[str] | None) -> dict[str, str]:
    """The parameters of a command line."""
    made = {}
    for each in given or []:
        name, separator, value = each.partition("=")
        if not separator or not name:
            raise InvalidInput(f"{each!r} is not a parameter", next_step="--param NAME=VALUE")
        made[name] = value
    return made


def submit(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A Python file that builds a flow.")],
    name: Annotated[str | None, typer.Option(help="The job's name; default: that of its flow.")] = None,
    flow: Annotated[str | None, typer.Option(help="Which flow, if the file has several.")] = None,
    param: Params = None,
    schedule: Annotated[
        str | None, typer.Option(metavar="CRON", help="When to run it, such as '0 3 * * *'; default: now.")
    ] = None,
    time_zone: Annotated[str, typer.Option(help="The time zone of the schedule.")] = "UTC",
    master: Annotated[str | None, typer.Option(help="A Spark master.")] = None,
    until: Annotated[str | None, typer.Option(metavar="'caught up'", help="As in millstream run.")] = None,
    batch: Annotated[bool, typer.Option("--batch", help="As in millstream run.")] = False,
    every: Annotated[str | None, typer.Option(metavar="'10 seconds'", help="How often a batch starts.")] = None,
    folder: Annotated[Path | None, typer.Option(help="The job's checkpoint folder.")] = None,
    conf: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="A Spark setting; repeatable.")] = None,
    conf_file: Annotated[Path | None, typer.Option(metavar="FILE", help="A file of Spark settings.")] = None,
    restart: Annotated[
        Literal["on-failure", "always", "never"], typer.Option(help="When it is started again after it has ended.")
    ] = "on-failure",
    restarts_max: Annotated[int, typer.Option(min=0, help="Failures in a row after which it is given up.")] = 5,
    alert: Annotated[
        list[str] | None,
        typer.Option(metavar="RULE", help="A rule for alerts, as 'lag_seconds > 60 for 5 minutes'; repeatable."),
    ] = None,
) -> None:
    """Submit a flow to the supervisor, which keeps it running: it restarts the job when it fails.

    \b
    Example:
      millstream jobs submit flow.py
      millstream jobs submit report.py --batch --schedule "0 3 * * *" --time-zone Europe/Berlin
      millstream jobs submit flow.py --name north --param region=north
    """
    options: list[str] = ["--batch"] if batch else []
    for option, value in (
        ("--master", master),
        ("--until", until),
        ("--every", every),
        ("--folder", folder and folder.absolute()),
        ("--conf-file", conf_file and conf_file.absolute()),
    ):
        options += [] if value is None else [option, str(value)]
    for each in conf or []:
        options += ["--conf", each]
    made = supervisor_of(session).submit(
        file,
        name=name,
        flow=flow,
        params=parameters(param),
        options=options,
        schedule=schedule,
        time_zone=time_zone,
        restart=restart,
        restarts_max=restarts_max,
        alerts=alert or [],
    )
    when = f", next at {time_text(made['next_start'])}" if schedule else ""
    show_done(session, f"submitted '{made['name']}'{when}", document=made)


def show(session: Session, name: JobName) -> None:
    """Show a job: its state and progress, its newest runs, its processes, and the flows of an app.

    \b
    Example:
      millstream jobs show team-scores
    """
    job = supervisor_of(session).show(name)
    details: dict[str, Cell] = {each: job[each] for each in ("name", "state", "reason", "owner", "file", "flow")}
    details |= {"schedule": job["schedule"], "next start": time_text(job["next_start"]), "runs": job["runs"]}
    details |= {each: job[each] for each in ("batch", "rows", "lag", "rows_per_s", "watermark", "late", "dead")}
    for run in job["last_runs"]:
        end = "running" if run["ended"] is None else f"{time_text(run['ended'])}: {run['result']}"
        details[f"run {run['number']}"] = f"{run['why']}, {time_text(run['started'])} - {end}"
    for each in job["flows"]:
        details[f"flow {each['name']}"] = each["state"] + (f": {each['reason']}" if each["reason"] else "")
    for each in job["processes"]:
        memory = f"{each['memory_bytes'] / 1e6:,.0f} MB"
        details[f"{each['kind']} {each['pid']}"] = (
            f"on {each['host']} since {time_text(each['since'])}, {each['cpu_s']:g} s of CPU, {memory}"
        )
    for each in job["executors"]:
        used = [("JVM", each["jvm_memory_bytes"]), ("Python", each["python_memory_bytes"])]
        memory = "".join(f", {name} up to {size / 1e6:,.0f} MB" for name, size in used if size)
        details[f"executor {each['id']}"] = (
            f"on {each['host']} since {time_text(each['since'])}, {each['cores']} cores, "
            f"{each['task_s']:g} s of tasks{memory}"
        )
    show_details(session, details, document=job)


def logs(
    session: Session,
    name: JobName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it is written, until the job ends.")] = False,
    run: Annotated[int | None, typer.Option(help="The number of a run; default: the newest.")] = None,
    tail: Annotated[int | None, typer.Option(metavar="BYTES", help="Only the end of it.")] = None,
) -> None:
    """Print the log of a job.

    With --json, each line is an object with the number of its run.

    \b
    Example:
      millstream jobs logs team-scores -f
    """
    from millstream.cli.rendering import write_lines

    if follow and run is not None:
        raise InvalidInput("--follow follows the newest run", next_step="leave out --run")
    shown = _as_json if session.json else _safe
    rest, of_run = "", None
    for number, part in supervisor_of(session).logged(name, run=run, tail_bytes=tail or None, follow=follow):
        if rest and of_run != number:  # a run was killed in the middle of a line
            write_lines([shown(rest, of_run)])
            rest = ""
        *lines, rest = (rest + part).split("\n")
        of_run = number
        write_lines([shown(line, number) for line in lines])
    if rest:
        write_lines([shown(rest, of_run)])


def start(session: Session, name: JobName) -> None:
    """Start a job that has stopped, finished or failed; a scheduled one runs now."""
    _show_asked(session, "starting", supervisor_of(session).start(name))


def stop(
    session: Session,
    name: JobName,
    savepoint: Annotated[bool, typer.Option("--savepoint", help="Wait for that, and take a savepoint.")] = False,
) -> None:
    """Stop a job after its current batch. It continues there when it is started again."""
    job = supervisor_of(session).stop(name, savepoint=savepoint)
    _show_asked(session, "stopping", job)
    if savepoint and not session.json:
        show_done(session, f"took the savepoint '{job['savepoint']}'", document=None)


def restart(session: Session, name: JobName) -> None:
    """Stop a job after its current batch and start it again, with the file as it is now."""
    _show_asked(session, "restarting", supervisor_of(session).restart(name))


def delete(
    session: Session, name: JobName, yes: Annotated[bool, typer.Option("--yes", help="Skip the prompt.")] = False
) -> None:
    """Let the supervisor forget a job that does not run. Its outputs and its state stay: see millstream jobs forget."""
    ask(f"Delete '{name}' from the supervisor, with the logs of its runs?", yes=yes)
    show_done(session, f"deleted '{name}'", document=supervisor_of(session).delete(name))


def runs(session: Session, name: JobName) -> None:
    """List the runs of a job, the newest first; also scheduled ones that were missed.

    \b
    Example:
      millstream jobs runs report
    """
    found = supervisor_of(session).runs(name)
    rows = [
        (run["number"], run["why"], time_text(run["started"]), time_text(run["ended"]), run["code"], run["result"])
        for run in found
    ]
    show_table(
        session, ["run", "why", "started", "ended", "exit code", "result"], rows, document=found, empty="no runs yet"
    )


def failures(session: Session, name: JobName) -> None:
    """List the errors that ended runs of a job, equal ones together, the newest first.

    \b
    Example:
      millstream jobs failures team-scores
    """
    found = supervisor_of(session).failures(name)
    rows = [
        (
            each["times"],
            time_text(each["first"]),
            time_text(each["last"]),
            each["last_run"],
            each["what"],
            each["where"],
        )
        for each in found["groups"]
    ]
    titles = ["times", "first", "last", "last run", "error", "where"]
    show_table(session, titles, rows, document=found, empty="no run has failed")


def listed(session: Session) -> list[dict[str, Any]]:
    """The jobs of the supervisor; none if there is no supervisor, or it does not answer."""
    try:
        return supervisor_of(session).list()
    except MillstreamError:
        return []


def _show_asked(session: Session, doing: str, job: dict[str, Any]) -> None:
    show_done(session, f"{doing} '{job['name']}', which was {job['state']}", document=job)


def supervisor_of(session: Session) -> Jobs:
    """The jobs of the supervisor of a log."""
    from millstream.supervision.client import supervisor

    return supervisor(session.address)


def time_text(seconds: float | None) -> str | None:
    """An instant as people read it."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _safe(line: str, _: int | None) -> bytes:
    import sys

    from millstream.terminal import escaped_bytes, is_terminal

    encoded = line.encode(errors="replace")
    return escaped_bytes(encoded) if is_terminal(sys.stdout) else encoded


def _as_json(line: str, run: int | None) -> bytes:
    return _safe(json.dumps({"run": run, "line": line}, ensure_ascii=False), run)
