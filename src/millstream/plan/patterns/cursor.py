"""Reads a text of MATCH_RECOGNIZE token by token. An error names the line and the column where it stands."""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

from millstream.errors import InvalidPattern
from millstream.user_lines import users_line

TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
      | (?P<string>'(?:[^'\\]|\\.|'')*')
      | (?P<quoted>`(?:[^`]|``)*`|"(?:[^"]|"")*")
      | (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<symbol>/\*|\{-|-\}|[<>!=]=|<>|\|\||.)""",
    re.VERBOSE | re.DOTALL,
)
UNCLOSED = {"'": "this text", '"': "this name", "`": "this name", "/*": "this comment"}


class Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """In capitals if it is a word; quoted names are none."""
        return self.text.upper() if self.kind == "word" else ""


class Cursor:
    def __init__(self, text: str) -> None:
        self.source = text
        self.line = users_line()
        self.tokens = [
            Token(found.lastgroup or "", found[0], found.start(), found.end())
            for found in TOKEN.finditer(text)
            if found.lastgroup != "space"
        ]
        self.at = 0
        for token in self.tokens:
            if token.kind == "symbol" and token.text in UNCLOSED:
                self.fail(f"{UNCLOSED[token.text]} is not closed", f"add {token.text[::-1]} at its end", token.start)

    @property
    def token(self) -> Token:
        if self.at < len(self.tokens):
            return self.tokens[self.at]
        return Token("end", "", len(self.source), len(self.source))

    def words_ahead(self, *words: str) -> bool:
        ahead = self.tokens[self.at : self.at + len(words)]
        return [token.word or token.text for token in ahead] == list(words)

    def took(self, *words: str) -> bool:
        """Whether these words stand here; they are then read."""
        if not self.words_ahead(*words):
            return False
        self.at += len(words)
        return True

    def take(self, *words: str, example: str) -> None:
        for word in words:
            if not self.took(word):
                self.fail(f"{word} is expected here, {self._found()}", example)

    def name(self, what: str, example: str) -> str:
        token = self.token
        if token.kind not in ("word", "quoted"):
            self.fail(f"{what} is expected here, {self._found()}", example)
        self.at += 1
        return token.text if token.kind == "word" else token.text[1:-1].replace(token.text[0] * 2, token.text[0])

    def place(self, start: int) -> str:
        before = self.source[:start]
        return f"line {before.count(chr(10)) + 1}, column {start - (before.rfind(chr(10)) + 1) + 1}"

    def _found(self) -> str:
        return "but the text ends" if self.token.kind == "end" else f"not '{self.token.text}'"

    def fail(self, what: str, next_step: str, start: int | None = None) -> NoReturn:
        at = self.place(self.token.start if start is None else start)
        raise InvalidPattern(f"{at} of MATCH_RECOGNIZE: {what}", where=self.line, next_step=next_step)
