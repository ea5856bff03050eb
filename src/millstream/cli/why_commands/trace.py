"""`millstream trace`: where a record came from, and what came of it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from millstream.cli.job_commands import supervised
from millstream.cli.job_commands.supervised import Params, parameters
from millstream.cli.output import show_document, show_text
from millstream.cli.session import Session, TopicName, command
from millstream.errors import NotFound
from millstream.plan.parameters import set_parameters


def register(app: typer.Typer) -> None:
    command(app, "trace")(trace)


def trace(
    session: Session,
    topic: TopicName,
    partition: Annotated[int, typer.Argument(metavar="PARTITION")],
    offset: Annotated[int, typer.Argument(metavar="OFFSET")],
    file: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="The Python file of a job; repeatable. Submitted jobs are known."),
    ] = None,
    param: Params = None,
    back: Annotated[bool, typer.Option("--back", help="Only what it came from.")] = False,
    forward: Annotated[bool, typer.Option("--forward", help="Only what came of it.")] = False,
) -> None:
    """Trace a record back to the records it came from, and forward to what came of it, across jobs.

    The recorded batches of the jobs are run again in this process, without Spark. Nothing is written.

    \b
    Example:
      millstream trace totals 0 12 --file flow.py
      millstream trace scores 0 1042 --forward --file flow.py --file report.py
    """
    from millstream.cli.job_commands.run import chosen_flow
    from millstream.provenance.history import History
    from millstream.provenance.tracing import Place, Tracer

    set_parameters(parameters(param))
    histories = []
    for each in file or []:
        chosen, _ = chosen_flow(each, None, session.address)
        histories.append(History(chosen, broker=session.existing()))
    for job in supervised.listed(session):
        if job["name"] not in {history.job for history in histories}:
            chosen, _ = chosen_flow(Path(job["file"]), job["flow"], session.address)
            with suppress(NotFound):  # it has not run yet
                histories.append(History(chosen, broker=session.existing(), job=job["name"]))
    both = back == forward
    found = Tracer(histories).trace(Place(topic, partition, offset), back=back or both, forward=forward or both)
    if session.json:
        show_document(found)
        return
    lines = [f"{topic} {partition} {offset}"]
    for name, arrow in (("from", "<-"), ("to", "->")):
        if name in found:
            lines += list(_lines(found, name, arrow, 1)) or [f"  {arrow} nothing"]
    show_text("\n".join(lines))


def _lines(record: dict[str, Any], name: str, arrow: str, depth: int) -> list[str]:
    made = []
    for link in record[name]:
        batch = "" if link["batch"] < 0 else f", batch {link['batch']}"
        made.append(f"{'  ' * depth}{arrow} {link['job']}{batch}: {link['output']}")
        made += [f"{'  ' * (depth + 1)}{note}" for note in link["notes"]]
        for each in link["records"]:
            made.append(f"{'  ' * (depth + 1)}{each['topic']} {each['partition']} {each['offset']}")
            made += _lines(each, name, arrow, depth + 2)
    return made
