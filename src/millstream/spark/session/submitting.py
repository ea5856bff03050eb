"""Starts the driver with Spark's own launcher, with settings in a private file: command lines are public."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from millstream.errors import NotFound
from millstream.private_files import open_private
from millstream.spark.session import launch

ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
FILE_OPTION = "--properties-file"
FILE_NAME = "spark.properties"


def submit(settings: Mapping[str, str], folder: Path, log: Path, *, cwd: Path | None, local: bool) -> Any:
    """Starts a JVM with Spark's launcher and these settings; returns its gateway. `folder` is private."""
    from pyspark.find_spark_home import _find_spark_home

    arguments, users_settings = _without_file(shlex.split(os.environ.get(ARGUMENTS, "pyspark-shell")))
    file = folder / FILE_NAME
    with os.fdopen(open_private(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as written:
        written.write(users_settings or "")
        written.writelines(f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items())
    options = [FILE_OPTION, str(file)]
    # A file of settings replaces spark-defaults.conf, unless asked to extend it.
    options += [] if users_settings is not None else ["--load-spark-defaults"]
    environ = dict(os.environ)
    if local:
        # Scratch folders are in the settings, as private ones; the UI, if enabled, is for this machine only.
        environ.pop("SPARK_LOCAL_DIRS", None)
        environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    launcher = Path(_find_spark_home(), "bin", "spark-submit")
    # Without a limit: it may download packages first.
    return launch.connected([str(launcher), *options, *arguments], environ, log, cwd=cwd)


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
