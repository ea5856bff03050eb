"""A pseudo terminal in place of this process's streams, and contents that would act on one."""

from __future__ import annotations

import io
import os
import pty
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from millstream.terminal import escaped

TITLE, CLIPBOARD = "\x1b]0;owned\x07", "\x1b]52;c;b3duZWQ=\x07"
CURSOR, CLEAR, CLEAR_8_BIT = "\x1b[9A\x1b[3K", "\x1b[2J\x1bc", "\x9b2J"
MARKUP = "[bold]x[/bold][/][link=mailto:eve]y[/link]"
TURNED, SEPARATED, DELETED = "\u202eabc\u2066", "a\u2028b\u2029c", "a\x7f\x08b"
HOSTILE = [TITLE, CLIPBOARD, CURSOR, CLEAR, CLEAR_8_BIT, MARKUP, TURNED, SEPARATED, DELETED]
ALL = "".join(HOSTILE)
OF_RICH = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[2K|\x1b\[1A|\r")
"""Colours, the cursor hidden and back, a line drawn again: what rich writes for tables and progress."""


class Screen:
    def __init__(self) -> None:
        self._shown = io.BytesIO()
        self._main, self.side = pty.openpty()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._main, 65536)
            except OSError:  # on Linux, the end
                return
            if not piece:
                return
            self._shown.write(piece)

    def type(self, text: bytes) -> None:
        os.write(self._main, text)

    def close(self) -> None:
        os.close(self.side)
        self._reader.join(20)
        os.close(self._main)

    @property
    def text(self) -> str:
        return self._shown.getvalue().decode()

    @property
    def calm(self) -> str:
        """What it showed, without what rich writes for itself; fails if anything else could act on the terminal."""
        return calm(self.text)


def calm(text: str) -> str:
    plain = OF_RICH.sub("", text)
    acting = [sign for sign in plain if sign != "\n" and sign != "\t" and escaped(sign) != sign]
    assert not acting, repr(plain)
    return plain


@contextmanager
def terminal(*names: str) -> Iterator[Screen]:
    """`stdin`, `stdout` and `stderr`, or those that are named, are a terminal that is very wide."""
    screen = Screen()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("COLUMNS", "5000")
        for name in names or ("stdin", "stdout", "stderr"):
            how = "r" if name == "stdin" else "w"
            stream = open(os.dup(screen.side), how, encoding="utf-8")  # noqa: PTH123, SIM115
            patched.setattr(sys, name, stream)
        try:
            yield screen
        finally:
            for name in names or ("stdin", "stdout", "stderr"):
                getattr(sys, name).close()
            screen.close()
