"""Contents on a terminal are only text: no byte of a record moves the cursor, sets a title or hides a line.

A terminal interprets what is written to it, so anyone who can write a record, a file name or an error message could
otherwise control the reader's screen. Control characters are shown as escapes instead. In a pipe nothing is changed:
there the contents are data. Messages of errors and of `logging` are always escaped, because they may be read anywhere,
and one message must not look like two.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from importlib import import_module
from types import TracebackType
from typing import Any

# Control characters (C0, DEL, C1), line and paragraph separators, marks that change the direction of text, lone
# surrogates (which cannot be encoded), and the two characters that XML does not allow.
_OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_SHORT = {"\n": r"\n", "\t": r"\t", "\r": r"\r"}


def escaped(text: str) -> str:
    """The text as one line without control characters. Escapes are JSON's: a JSON document stays valid."""
    return _OBEYED.sub(_escape, text) if not text.isprintable() else text


def escaped_lines(text: str) -> str:
    """The same for text with our own line breaks."""
    return "\n".join(map(escaped, text.split("\n")))


def escaped_bytes(content: bytes) -> bytes:
    """The same for bytes, which may not be text: those that are not UTF-8 are shown as in Python."""
    return escaped(content.decode(errors="backslashreplace")).encode()


def is_harmless(text: str) -> bool:
    return _OBEYED.search(text) is None


def is_terminal(stream: Any) -> bool:
    """Whether control characters written there take effect; not if the stream is closed or missing."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook. IPython is not imported to find out."""
    loaded = sys.modules.get("IPython")
    shell = loaded.get_ipython() if loaded is not None else None
    return getattr(shell, "kernel", None) is not None


def notebook_display() -> Any:
    """The module with which a notebook displays things; it is there in every kernel."""
    return import_module("IPython.display")


def shown(text: str, stream: Any) -> str:
    """The text as it may be written to a stream: in one line on a terminal, unchanged elsewhere."""
    return escaped(text) if is_terminal(stream) else text


def shown_lines(text: str, stream: Any) -> str:
    return escaped_lines(text) if is_terminal(stream) else text


def write_line(text: str, *, err: bool = False) -> None:
    """Prints text that is already escaped. `typer.echo` would drop parts of it in a pipe."""
    stream = sys.stderr if err else sys.stdout
    try:
        stream.write(text + "\n")
    except UnicodeEncodeError:  # a file name that is not valid text, printed as it is
        stream.buffer.write((text + "\n").encode(stream.encoding, "surrogateescape"))
    stream.flush()


def _escape(found: re.Match[str]) -> str:
    sign = found.group()
    return _SHORT.get(sign) or f"\\u{ord(sign):04x}"


# ---------------------------------------------------------------- messages


class _Escaping(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        given = record.args
        if not given:
            record.msg = _quoted(record.msg)
        elif isinstance(given, tuple):
            record.args = tuple(map(_quoted, given))
        else:
            record.args = {name: _quoted(value) for name, value in given.items()}
        return True


def _quoted(value: Any) -> Any:
    """Numbers keep their type for `%d`; our errors escape what they quote themselves."""
    return value if isinstance(value, int | float) or getattr(value, "is_escaped", False) else escaped(str(value))


def logger(name: str, *before: logging.Filter) -> logging.Logger:
    """The logger of a module, whose messages quote contents; `before` are filters that need them unescaped."""
    found = logging.getLogger(name)
    if not any(isinstance(each, _Escaping) for each in found.filters):
        for each in (*before, _Escaping()):
            found.addFilter(each)
    return found


def show_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """As `sys.excepthook`: for a bug, whose message may quote contents."""
    text = "".join(traceback.format_exception(kind, error, trace))
    sys.stderr.write(shown_lines(text, sys.stderr))
