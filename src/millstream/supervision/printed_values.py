"""Where a value ends that is printed behind its name, as JSON, Python, Spark and logs write it.

In doubt, it ends later: what follows a value may be hidden with it, but no part of it may be shown.
"""

from __future__ import annotations

import re

CLOSING = {"{": "}", "[": "]", "(": ")"}
TOKEN = re.compile(r"""\\+["']?|["'{}\[\]()]""")
LITERAL = re.compile(r"""(?:[bBrRuUfF]{1,2})?(?P<escapes>\\*)(?P<quote>["'])""")
BARE = re.compile(r"""(?:[^\s,;&{}\[\]()"'\\]|\\+(?![\\"']))+""")
LINES_MAX = 20
CHARACTERS_MAX = 2_000
"""How far after its line a struct or list may reach: every value is looked at this far, so this keeps time linear."""


def value_end(text: str, start: int) -> int:
    """Where the value ends that starts at `start`; `start` if there is none."""
    literal = LITERAL.match(text, start)
    if literal is not None:
        end = _quote_end(text, literal, literal.end(), len(text))
        return len(text) if end is None else end
    at = start
    while at < len(text):
        if text[at] in CLOSING:
            end = _balanced_end(text, at)
            if end is None:
                return _line_end(text, at)
            at = end
        elif (bare := BARE.match(text, at)) is not None:
            at = bare.end()
        else:
            break
    return at


def _quote_end(text: str, opened: re.Match[str], start: int, stop: int) -> int | None:
    """Where a quoted text ends. In JSON within JSON, its quotes have backslashes, and quotes in it have more."""
    escapes, quote = len(opened["escapes"]), opened["quote"]
    for token in TOKEN.finditer(text, start, stop):
        if token[0].endswith(quote) and (len(token[0]) - 1) % (2 * escapes + 2) == escapes:
            return token.end()
    return None


def _balanced_end(text: str, start: int) -> int | None:
    """Where the bracket at `start` is closed; None if it is not."""
    stop, open_, at = _reach(text, start), [CLOSING[text[start]]], start + 1
    while (token := TOKEN.search(text, at, stop)) is not None:
        at = token.end()
        if (quoted := LITERAL.fullmatch(token[0])) is not None:
            end = _quote_end(text, quoted, at, stop)
            if end is None:
                return None
            at = end
        elif token[0] in CLOSING:
            open_.append(CLOSING[token[0]])
        elif token[0] == open_[-1]:
            open_.pop()
            if not open_:
                return at
    return None


def _reach(text: str, start: int) -> int:
    """How far a struct or list is looked for: its line, and some more."""
    first = at = _line_end(text, start)
    for _ in range(LINES_MAX):
        at = _line_end(text, min(at + 1, len(text)))
    return min(at, first + CHARACTERS_MAX)


def _line_end(text: str, at: int) -> int:
    found = text.find("\n", at)
    return len(text) if found < 0 else found
