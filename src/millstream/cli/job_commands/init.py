"""`millstream init`: creates a project with a flow, its test and sample data, ready to run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.output import show_done
from millstream.cli.session import Session, command
from millstream.errors import AlreadyExists, InvalidName

NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")  # a distribution name, which is stricter than a flow's

FLOW = '''\
"""Points per team and minute, from the files in scores/."""

from pathlib import Path

import millstream as ms

HERE = Path(__file__).parent
SCHEMA = "user string, team string, score int, at timestamp"


def points_per_team(scores: ms.Stream) -> ms.Stream:
    """The logic of the flow, in a function of its own so that test_flow.py can test it without Spark."""
    return (
        scores.where("score > 0")
        .key_by("team")
        .window(ms.fixed("1 minute"), allowed_lateness="5 minutes")
        .agg(points=ms.sum("score"), players=ms.distinct_count("user"))
    )


flow = ms.Flow("{name}", log=HERE / ".millstream")
scores = flow.read(
    ms.files(HERE / "scores", format="json"),
    schema=SCHEMA,
    event_time="at",
    watermark=ms.bounded("10 seconds"),
)
points = points_per_team(scores)
points.write(ms.console())
points.late.write("scores.late")

if __name__ == "__main__":
    flow.run(until="caught up")
'''

TEST = """\
from datetime import UTC, datetime, timedelta

from flow import SCHEMA, points_per_team
from millstream.testing import Add, Watermark, assert_steps, play

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def scored(user, team, score, seconds):
    return {"user": user, "team": team, "score": score, "at": NOON + timedelta(seconds=seconds)}


def test_a_minute_is_summed_up_when_the_watermark_passes_its_end():
    steps = [
        Add([scored("ann", "red", 7, 5), scored("bob", "red", 2, 50), scored("cyd", "blue", 4, 20)]),
        Watermark(NOON + timedelta(minutes=1)),
    ]
    sent = play(points_per_team, steps, schema=SCHEMA, event_time="at")
    assert_steps(
        sent,
        {1: [{"team": "blue", "points": 4, "players": 1}, {"team": "red", "points": 9, "players": 2}]},
    )


def test_a_late_score_corrects_the_result():
    steps = [
        Add([scored("ann", "red", 7, 5)]),
        Watermark(NOON + timedelta(minutes=2)),
        Add([scored("bob", "red", 1, 30)]),
    ]
    sent = play(points_per_team, steps, schema=SCHEMA, event_time="at")
    assert_steps(sent, {1: [{"points": 7}], 2: [{"points": 8, "pane": {"timing": "late"}}]})
"""

SCORES = """\
{"user": "ann", "team": "red", "score": 7, "at": "2026-01-31T12:00:05Z"}
{"user": "cyd", "team": "blue", "score": 4, "at": "2026-01-31T12:00:20Z"}
{"user": "bob", "team": "red", "score": 2, "at": "2026-01-31T12:00:50Z"}
{"user": "dan", "team": "blue", "score": 5, "at": "2026-01-31T12:01:10Z"}
{"user": "ann", "team": "red", "score": 3, "at": "2026-01-31T12:00:58Z"}
{"user": "cyd", "team": "blue", "score": 1, "at": "2026-01-31T12:01:45Z"}
{"user": "bob", "team": "red", "score": 6, "at": "2026-01-31T12:02:30Z"}
"""

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["millstream"]

[project.optional-dependencies]
dev = ["pytest>=8.3"]

[tool.setuptools]
py-modules = ["flow"]

[tool.pytest.ini_options]
pythonpath = ["."]
"""

README = """\
# {name}

A Millstream flow: points per team and minute.

| command | what it does |
|---|---|
| `pytest` | tests the flow in this process, without Spark |
| `millstream run flow.py` | runs it on Spark until Ctrl-C, and reads files that are added to `scores/` meanwhile |
| `millstream run flow.py --until "caught up"` | stops once every file has been read; the next run continues there |
| `millstream run flow.py --explain` | prints the steps, and how they are executed on Spark |
"""

GITIGNORE = ".millstream/\n.venv/\n__pycache__/\n.pytest_cache/\n*.egg-info/\n"

FILES = {
    "flow.py": FLOW,
    "test_flow.py": TEST,
    "scores/first.jsonl": SCORES,
    "pyproject.toml": PYPROJECT,
    "README.md": README,
    ".gitignore": GITIGNORE,
}


def register(app: typer.Typer) -> None:
    command(app, "init")(init)


def init(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the project, its folder and its flow.")],
) -> None:
    """Create a project in the folder NAME: a flow, its test, sample data and a pyproject.toml.

    \b
    Example:
      millstream init team-scores
      cd team-scores
      pytest
      millstream run flow.py
    """
    if not NAME.fullmatch(name):
        raise InvalidName(
            f"{name!r} is not a name for a project",
            next_step="use letters, digits and . _ -, with a letter or digit at both ends",
        )
    folder = Path(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise AlreadyExists(f"'{name}' already exists and is not empty", next_step="choose another name")
    for path, text in FILES.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text.replace("{name}", name))
    show_done(
        session,
        f"created {name}",
        f"next: cd {name}, then pytest, then millstream run flow.py",
        document={"project": name, "files": list(FILES)},
    )
