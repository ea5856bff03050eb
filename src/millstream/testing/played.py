"""The results of a script with the figure that was drawn of them: shown in a notebook, or saved to a file."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

from millstream.errors import InvalidInput
from millstream.terminal import in_notebook, notebook_display
from millstream.user_lines import users_line


class Played(list[Any]):
    """A list with the result of each step, and their `figure` as SVG if one was drawn."""

    def __init__(self, results: Iterable[Any]) -> None:
        super().__init__(results)
        self.figure: str | None = None
        self._is_displayed = False

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the figure to an .svg file."""
        if self.figure is None:
            raise InvalidInput("no figure was drawn", where=users_line(), next_step="play(…, draw=True)")
        checked_path(path).write_text(self.figure, encoding="utf-8")

    def display(self) -> None:
        """Shows the figure in the output of a notebook cell; elsewhere it does nothing."""
        if self.figure is not None and in_notebook():
            notebook = notebook_display()
            notebook.display(notebook.SVG(self.figure))
            self._is_displayed = True

    def _repr_svg_(self) -> str | None:
        """The figure, unless the cell already shows it."""
        return None if self._is_displayed else self.figure


def checked_path(path: str | PathLike[str]) -> Path:
    """A file that a figure can be written to."""
    found = Path(path)
    if found.suffix != ".svg":
        raise InvalidInput(
            f"a figure must be an SVG file, not '{found}'", where=users_line(), next_step="draw='name.svg'"
        )
    if not found.parent.is_dir():
        wrong = f"there is no folder '{found.parent}' for the figure"
        raise InvalidInput(wrong, where=users_line(), next_step="create it first")
    return found
