"""`millstream pack`: packs the libraries of this environment into one file, for workers that only have Python."""

from __future__ import annotations

import io
import os
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from millstream.cli.output import show_done
from millstream.cli.session import Session, command
from millstream.errors import InvalidInput, NoAccess

# Spark brings its own Python side to workers, Millstream is sent with every job, and nothing is installed there.
LEFT_OUT = ("millstream", "pip", "py4j", "pyspark", "setuptools", "wheel")
ENDINGS = (".tar.gz", ".tgz")
LIBRARIES = "lib"
# Workers unpack it anywhere, so it finds its libraries relative to itself.
PYTHON = """\
#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd)
PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}$here/{libraries}"
export PYTHONPATH
for python in {known} python{version} python3 python; do
    if "$python" -c 'import sys; sys.exit("{version}" != "%d.%d" % sys.version_info[:2])' 2>/dev/null; then
        exec "$python" "$@"
    fi
done
echo "no Python {version} on $(hostname): install it there" >&2
exit 127
"""


def register(app: typer.Typer) -> None:
    command(app, "pack")(pack)


def pack(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The archive to create, such as env.tar.gz.")],
    without: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Leave a library out; repeatable.")] = None,
) -> None:
    """Pack the installed libraries for cluster workers that do not have them.

    Workers only need the same Python version on the same kind of machine.

    \b
    Example:
      millstream pack env.tar.gz --without mypy --without ruff
      millstream run flow.py --master spark://host:7077 --archive env.tar.gz
    """
    if not file.name.endswith(ENDINGS):
        raise InvalidInput(
            f"'{file}' does not have the name of an archive", next_step=f"give it one of: {', '.join(ENDINGS)}"
        )
    left_out = {_plain(name) for name in (*LEFT_OUT, *(without or []))}
    chosen = {
        _plain(each.name): each for each in metadata.distributions() if each.name and _plain(each.name) not in left_out
    }
    try:
        descriptor, unfinished = tempfile.mkstemp(dir=file.absolute().parent, prefix=f".{file.name}-")
    except OSError as error:
        raise NoAccess(
            f"'{file}' cannot be written: {error.strerror}", next_step="name a file in another folder"
        ) from None
    try:
        with os.fdopen(descriptor, "wb") as target, tarfile.open(fileobj=target, mode="w:gz", compresslevel=1) as made:
            _add_python(made)
            for distribution in chosen.values():
                for place, source in _files(distribution):
                    made.add(source, f"{LIBRARIES}/{place}", recursive=False)
        Path(unfinished).chmod(0o644)
        Path(unfinished).replace(file)
    finally:
        Path(unfinished).unlink(missing_ok=True)
    size_mb = file.stat().st_size / 1e6
    show_done(
        session,
        f"packed {len(chosen)} libraries into '{file}', {size_mb:,.0f} MB",
        document={"file": str(file), "libraries": sorted(chosen), "bytes": file.stat().st_size},
    )


def _plain(name: str) -> str:
    """The normalized name of a library."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _files(distribution: metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """The files of a library itself, without its commands and manuals."""
    for each in distribution.files or []:
        place = PurePosixPath(each)
        source = Path(str(distribution.locate_file(each)))
        if ".." not in place.parts and not place.is_absolute() and place.suffix != ".pth" and source.is_file():
            yield str(place), source


def _add_python(made: tarfile.TarFile) -> None:
    import shlex

    version = "{}.{}".format(*sys.version_info[:2])
    base = getattr(sys, "_base_executable", sys.executable)
    text = PYTHON.format(libraries=LIBRARIES, known=shlex.quote(base), version=version).encode()
    entry = tarfile.TarInfo("bin/python")
    entry.size, entry.mode = len(text), 0o755
    made.addfile(entry, io.BytesIO(text))
