"""`millstream why`: explains a result of a job, from its recorded batches."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.job_commands import supervised
from millstream.cli.job_commands.supervised import Params, parameters
from millstream.cli.output import Cell, show_details, show_document, show_done, show_note, show_table
from millstream.cli.session import Session, command
from millstream.errors import InvalidInput, NotFound
from millstream.plan.parameters import set_parameters

if TYPE_CHECKING:
    from millstream.plan.flow import Flow

SHOWN_ROWS = 20
File = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The Python file of the job; default: the one it was submitted with."),
]


def register(app: typer.Typer) -> None:
    command(app, "why")(why)


def why(
    session: Session,
    job: Annotated[str, typer.Argument(metavar="JOB", help="The name of the job.")],
    parts: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="With --pane: its keys, window= and index=.")
    ] = None,
    pane: Annotated[bool, typer.Option("--pane", help="Explain a pane: its rows, and why it was sent.")] = False,
    late: Annotated[
        tuple[str, int, int] | None,
        typer.Option(metavar="TOPIC PARTITION OFFSET", help="Explain why a record was late."),
    ] = None,
    bound: Annotated[
        str | None, typer.Option(metavar="'30 seconds'", help="Compare another bound of the watermark.")
    ] = None,
    dead: Annotated[
        tuple[str, int, int] | None,
        typer.Option(metavar="TOPIC PARTITION OFFSET", help="Explain why a record became a dead letter."),
    ] = None,
    as_test: Annotated[
        Path | None,
        typer.Option("--as-test", metavar="FILE", help="Write the pane, late record or dead letter as a test."),
    ] = None,
    step: Annotated[str | None, typer.Option(help="Which step, if the flow has several.")] = None,
    file: File = None,
    flow: Annotated[str | None, typer.Option(help="Which flow, if the file has several.")] = None,
    param: Params = None,
    folder: Annotated[Path | None, typer.Option(help="The job's folder, if it was run with --folder.")] = None,
) -> None:
    """Explain a pane, a late record or a dead letter of a job, or what another bound would have meant.

    The batches that the job has recorded are run again in this process, without Spark. Nothing is written.

    \b
    Example:
      millstream why team-scores --pane team=red window=2026-01-31T12:00:00Z --file flow.py
      millstream why team-scores --late scores 0 1042 --file flow.py
      millstream why team-scores --bound "30 seconds" --file flow.py
      millstream why team-scores --late scores 0 1042 --file flow.py --as-test tests/test_case.py
    """
    if parts and not pane:
        raise InvalidInput(f"'{parts[0]}' belongs to no question", next_step="add --pane, --late or --bound")
    found = flow_of(session, job, file, flow, param)
    asked = parameters(parts) if pane else None
    if as_test is not None:
        _write_test(session, found, as_test, asked, late, dead, step=step, folder=folder, job=job)
        return
    from millstream.provenance.why import why as ask

    answer = ask(
        found.flow,
        pane=asked,
        late=late,
        bound=bound,
        dead=dead,
        step=step,
        broker=session.existing(),
        folder=folder,
        job=job,
    )
    if session.json:
        show_document(answer)
        return
    show = _show_pane if pane else _show_late if late is not None else _show_bound if bound is not None else _show_dead
    show(session, answer)
    for note in answer["notes"]:
        show_note(f"note: {note}")


@dataclass(frozen=True)
class JobFlow:
    """The flow of a job, and where it was found."""

    flow: Flow
    file: Path
    name: str | None
    params: dict[str, str]


def flow_of(session: Session, job: str, file: Path | None, flow: str | None, param: list[str] | None) -> JobFlow:
    """The flow of a job, from a file, or from the one that it was submitted with."""
    from millstream.cli.job_commands.run import chosen_flow

    given = parameters(param)
    if file is None:
        submitted = next((each for each in supervised.listed(session) if each["name"] == job), None)
        if submitted is None:
            raise NotFound(
                f"it is not known which file the job '{job}' runs",
                next_step="name it with --file, such as --file flow.py",
            )
        file, flow = Path(submitted["file"]), flow or submitted["flow"]
        given = {**submitted["params"], **given}
    set_parameters(given)
    chosen, _ = chosen_flow(file, flow, session.address)
    return JobFlow(chosen, file, flow, given)


def _write_test(
    session: Session,
    found: JobFlow,
    path: Path,
    pane: dict[str, str] | None,
    late: tuple[str, int, int] | None,
    dead: tuple[str, int, int] | None,
    *,
    step: str | None,
    folder: Path | None,
    job: str,
) -> None:
    from millstream.provenance.history import History
    from millstream.testing.cases import FlowFile, case_of, write_test

    history = History(found.flow, broker=session.existing(), folder=folder, job=job)
    file = FlowFile(found.file, found.name, found.params)
    case = case_of(history, file, pane=pane, late=late, dead=dead, step=step)
    write_test(case, file, path)
    show_done(session, f"wrote {path}", document={"file": str(path), "test": f"test_{case.name}"})


def _show_pane(session: Session, answer: dict[str, Any]) -> None:
    pane = answer["pane"]
    shown: dict[str, Cell] = {"step": answer["step"], **{name: _cell(value) for name, value in pane.items()}}
    shown |= {"sent in batch": f"{answer['batch']}, at {answer['clock']}", "trigger": answer["trigger"]}
    shown["fired"] = "; ".join(f"{each['trigger']}: {each['why']}" for each in answer["fired"])
    if answer["moved_by"] is not None:
        shown["moved by"] = moves_text(answer["moved_by"])
    before = answer["replaced"]
    shown["replaced"] = "nothing" if before is None else f"the pane of batch {before['batch']}"
    for name, cells in (before or {"changed": {}})["changed"].items():
        shown[f"  {name}"] = f"{_cell(cells['before'])} -> {_cell(cells['after'])}"
    shown["rows"] = len(answer["rows"])
    show_details(session, shown, document=answer)
    rows = answer["rows"][-SHOWN_ROWS:]
    titles = ["topic", "partition", "offset", "batch", "new", "row"]
    table: Sequence[Sequence[Cell]] = [
        (*(row.get(name) for name in titles[:4]), "yes" if row["new"] else "", _cell(row["row"])) for row in rows
    ]
    if len(answer["rows"]) > len(rows):
        show_note(f"the last {len(rows)} of its rows; --json has all")
    show_table(session, titles, table, document=answer, empty="no row is in it")


def _show_late(session: Session, answer: dict[str, Any]) -> None:
    shown: dict[str, Cell] = {"record": f"{answer['topic']} {answer['partition']} {answer['offset']}"}
    shown["read in batch"] = f"{answer['batch']}, at {answer['clock']}"
    if not answer["steps"]:
        shown["late"] = "no: a step before filtered it out, or it became a dead letter"
    for step in answer["steps"]:
        shown |= {"step": step["step"], "event time": _cell(step["event_time"]), "watermark": _cell(step["watermark"])}
        shown["late"] = "yes" if step["late"] else "no"
        for window in step["windows"]:
            shown |= {"window": _cell(window["window"]), "reason": window["reason"]}
            if window.get("passed_by"):
                shown["passed by"] = moves_text(window["passed_by"])
            if "late_by" in window:
                shown["late by"] = window["late_by"]
                bound = ", ".join(window["bound"]) or "none"
                shown["kept by a bound of"] = f"{window['bound_needed'] or '-'}, instead of {bound}"
                if window.get("lateness_needed"):
                    shown["or a lateness of"] = f"{window['lateness_needed']}, instead of {window['lateness']}"
    show_details(session, shown, document=answer)


def _show_bound(session: Session, answer: dict[str, Any]) -> None:
    rows: list[Sequence[Cell]] = []
    for step in answer["steps"]:
        for when in ("now", "then"):
            made = step[when]
            delay = step["added_delay"]["mean_s"] if when == "then" else None
            rows.append(
                (
                    step["step"],
                    made["bound"],
                    made["rows"],
                    made["late"],
                    f"{made['late_share']:.2%}",
                    None if delay is None else f"{delay:+.1f} s",
                    step["added_delay"]["still_open"] if when == "then" else 0,
                )
            )
    titles = ["step", "bound", "rows", "late", "late share", "mean delay", "windows still open"]
    show_table(session, titles, rows, document=answer, empty="the flow has no window")


def _show_dead(session: Session, answer: dict[str, Any]) -> None:
    shown: dict[str, Cell] = {"record": f"{answer['topic']} {answer['partition']} {answer['offset']}"}
    shown |= {"step": answer["step"], "reason": answer["reason"], "value": str(answer["value"])}
    shown["read in batch"] = f"{answer['batch']}, at {answer['clock']}"
    show_details(session, shown, document=answer)


def moves_text(moves: dict[str, Any]) -> str:
    """What moved the watermark, in one line."""
    records = [
        f"{each['topic']} {each['partition']} {each['offset']} with event time {each['event_time']}"
        for each in moves["records"]
    ]
    idle = [f"partition {each['partition']} of '{each['source']}' was idle" for each in moves["idle"]]
    ended = ["the run ended"] if moves["run_ended"] else []
    return f"batch {moves['batch']}: {'; '.join([*records, *idle, *ended]) or 'a step before that had held it back'}"


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
