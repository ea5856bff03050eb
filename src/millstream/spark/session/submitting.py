"""Starts the driver with Spark's own launcher, with settings in a private file: command lines are public."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from millstream.errors import NotFound
from millstream.private_files import open_private

ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
FILE_OPTION = "--properties-file"
FILE_NAME = "spark.properties"


def submit(settings: Mapping[str, str], folder: Path, log: IO[bytes], *, cwd: Path | None, local: bool) -> Any:
    """Starts a JVM with Spark's launcher and these settings; returns its gateway. `folder` is private."""
    from pyspark.java_gateway import launch_gateway

    arguments, users_settings = _without_file(shlex.split(os.environ.get(ARGUMENTS, "pyspark-shell")))
    file = folder / FILE_NAME
    with os.fdopen(open_private(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as written:
        written.write(users_settings or "")
        written.writelines(f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items())
    options = [FILE_OPTION, str(file)]
    # A file of settings replaces spark-defaults.conf, unless asked to extend it.
    options += [] if users_settings is not None else ["--load-spark-defaults"]
    changed: dict[str, str | None] = {ARGUMENTS: shlex.join([*options, *arguments])}
    if local:
        # Scratch folders are in the settings, as private ones; the UI, if enabled, is for this machine only.
        changed |= {"SPARK_LOCAL_DIRS": None, "SPARK_LOCAL_IP": "127.0.0.1"}
    with _environment(changed):
        return launch_gateway(None, {"stderr": log, "cwd": cwd})  # type: ignore[no-untyped-call]


def _without_file(arguments: list[str]) -> tuple[list[str], str | None]:
    """The arguments without a file of settings, and its content: Spark's launcher accepts only one file."""
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == FILE_OPTION and (equals or index + 1 < len(arguments)):
            named = Path(value if equals else arguments[index + 1])
            try:
                content = named.read_text()
            except OSError as error:
                raise NotFound(
                    f"Spark's settings in '{named}' cannot be read: {error.strerror}",
                    where=ARGUMENTS,
                    next_step=f"correct {ARGUMENTS}, or unset it",
                ) from error
            return arguments[:index] + arguments[index + (1 if equals else 2) :], f"{content}\n"
    return arguments, None


def _escaped(text: str) -> str:
    """Escapes text for a Java properties file."""
    for plain, escaped in (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("=", "\\="), (":", "\\:"), (" ", "\\ ")):
        text = text.replace(plain, escaped)
    return text.replace("#", "\\#").replace("!", "\\!")


@contextmanager
def _environment(changed: Mapping[str, str | None]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changed}
    _set(changed)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
