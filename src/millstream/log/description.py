"""The descriptions of a log and of its topics on disk: validated when they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from millstream.errors import DamagedLog, MillstreamError, UnsupportedFormat
from millstream.log.access import SHARED_GROUP
from millstream.log.storage.disk import read_document
from millstream.log.topics import TopicSettings
from millstream.private_files import is_plain_folder

FORMAT = 1
DESCRIPTION = "millstream.json"
PARTICIPANTS = "participants"
FOLDERS = ("topics", PARTICIPANTS)
TOPIC = "topic.json"
MOVED_TO = "moved_to"


class TopicDescription(NamedTuple):
    identity: str
    settings: TopicSettings
    moved_to: str | None


def log_description(folder: Path) -> dict[str, Any]:
    path = folder / DESCRIPTION
    document = _document(path)
    version = document.get("format")
    if version != FORMAT or isinstance(version, bool):
        raise UnsupportedFormat(
            f"the log has format {version}; this version of Millstream supports {FORMAT}",
            where=str(path),
            next_step="open it with the Millstream that wrote it",
        )
    if not isinstance(document.get(SHARED_GROUP, ""), str):
        raise damaged(path, f"{SHARED_GROUP} must be the name of a group")
    for name in FOLDERS:
        if not is_plain_folder(folder / name):
            raise DamagedLog(
                "a folder of the log is missing, or replaced by a link",
                where=str(folder / name),
                next_step="restore it from a copy; only the whole log may be behind a link",
            )
    return document


def topic_description(folder: Path) -> TopicDescription:
    """The topic's name is that of the folder; a name inside the description is ignored."""
    path = folder / TOPIC
    document = _document(path, "id", "name")
    identity = document.pop("id")
    document.pop("name")
    moved_to = document.pop(MOVED_TO, None)
    if not isinstance(identity, str) or not isinstance(moved_to, str | None):
        raise damaged(path, "its identity is not text")
    try:
        return TopicDescription(identity, TopicSettings.of(**document), moved_to)
    except (MillstreamError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        why = error.what if isinstance(error, MillstreamError) else repr(error)
        raise damaged(path, why[:500]) from error


def _document(path: Path, *names: str) -> dict[str, Any]:
    """A description, which must have these entries."""
    try:
        document = read_document(path)
    except ValueError as error:
        raise damaged(path, str(error)) from error
    if not isinstance(document, dict) or any(name not in document for name in names):
        raise damaged(path, "it lacks required entries")
    return document


def damaged(path: Path, why: str) -> DamagedLog:
    return DamagedLog(
        f"the description cannot be read: {why}", where=str(path), next_step="restore the file from a copy"
    )
