"""Hides values of masked columns in what is shown of records. What it makes of a value cannot be turned back.

Equal values get the same sign, so that rows of different keys can still be distinguished.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any

from millstream.supervision.printed_values import value_end

SIGN = "•••"
DIGEST_BYTES = 5
QUOTED = re.compile(r'(?<=found )\S.*|"(?:[^"\\]|\\.)*"?')
"""What an error quotes of a record. Names are in single quotes."""
ECHOED_CHARACTERS_MIN = 4
"""A shorter value is not looked for in other texts: it would be found in every other word."""


@dataclass(frozen=True)
class Mask:
    """The names and patterns of masked columns at one moment, with a secret that only this process knows."""

    columns: frozenset[str]
    secret: bytes = field(repr=False)
    unreadable: frozenset[str] = frozenset()
    """Topics with masked columns whose records have no columns of their own: what cannot be read there is hidden."""

    def __bool__(self) -> bool:
        return bool(self.columns)

    @cached_property
    def _names(self) -> str:
        return "|".join(re.escape(each).replace(r"\*", r"[\w.-]*") for each in sorted(self.columns))

    @cached_property
    def _name(self) -> re.Pattern[str]:
        return re.compile(self._names, re.IGNORECASE)

    @cached_property
    def _assigned(self) -> re.Pattern[str]:
        """A masked name in front of a value, as JSON, Python and logs write it."""
        return re.compile(rf"""(?<!\w)(?:{self._names})\\*["'`]?\s*[:=]\s*""", re.IGNORECASE)

    @cached_property
    def _blamed(self) -> re.Pattern[str]:
        """An error about a masked column, up to its end."""
        return re.compile(rf"(?P<name>(?:column|field) ['\"`](?:{self._names})['\"`]:? )(?P<value>.*)", re.IGNORECASE)

    def hides(self, name: str) -> bool:
        """Whether a column is masked: by its name, or by a part of it, as columns of state and nested fields have."""
        if not self.columns:
            return False
        return any(self._name.fullmatch(each) is not None for each in (name, *name.split(".")))

    def sign(self, value: Any) -> Any:
        """What is shown instead of a value; null stays null."""
        if value is None:
            return None
        text = value if isinstance(value, str) else json.dumps(value, default=str, sort_keys=True)
        return SIGN + blake2b(text.encode(errors="replace"), key=self.secret, digest_size=DIGEST_BYTES).hexdigest()

    # ------------------------------------------------------------ documents

    def row(self, value: Any) -> Any:
        """A row, or anything in one, with the values of masked columns hidden. It is JSON."""
        if not self.columns:
            return value
        return self._echoless(self._row(value), self._hidden_in(value))

    def key(self, key: str | None, value: Any) -> str | None:
        """The key of a record: hidden if it is, or contains, a hidden value of the record."""
        if key is None or not self.columns:
            return key
        hidden = self._hidden_in(value)
        made: str = self.sign(key) if key in hidden else self._echoless(key, hidden)
        return made

    def document(self, value: Any, records: Collection[str]) -> Any:
        """A document with rows under the names in `records`; elsewhere, names are not those of columns."""
        if not self.columns:
            return value
        hidden: set[str] = set()
        return self._echoless(self._document(value, records, hidden), hidden)

    def _document(self, value: Any, records: Collection[str], hidden: set[str]) -> Any:
        if isinstance(value, dict):
            made = {}
            for name, each in value.items():
                if name in records:
                    hidden |= self._hidden_in(each)
                    made[name] = self._row(each)
                else:
                    made[name] = self._document(each, records, hidden)
            return made
        if isinstance(value, list):
            return [self._document(each, records, hidden) for each in value]
        return self.text(value) if isinstance(value, str) else value

    def _row(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self.sign(each) if self.hides(name) else self._row(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self._row(each) for each in value]
        return self.text(value) if isinstance(value, str) else value

    def _hidden_in(self, value: Any) -> set[str]:
        """The hidden values of a row as texts."""
        if isinstance(value, str):
            parsed = _parsed(value)
            return set() if parsed is None else self._hidden_in(parsed)
        if isinstance(value, list):
            return set().union(*(self._hidden_in(each) for each in value))
        if not isinstance(value, dict):
            return set()
        found: set[str] = set()
        for name, each in value.items():
            found |= set(_leaves(each)) if self.hides(name) else self._hidden_in(each)
        return found

    def _echoless(self, value: Any, hidden: Iterable[str]) -> Any:
        """Without copies of hidden values in other texts, such as a key or an error."""
        longest_first = sorted((each for each in hidden if len(each) >= ECHOED_CHARACTERS_MIN), key=len, reverse=True)
        return self._replaced(value, longest_first) if longest_first else value

    def _replaced(self, value: Any, hidden: list[str]) -> Any:
        if isinstance(value, dict):
            return {self._replaced(name, hidden): self._replaced(each, hidden) for name, each in value.items()}
        if isinstance(value, list):
            return [self._replaced(each, hidden) for each in value]
        if isinstance(value, str):
            for each in hidden:
                value = value.replace(each, self.sign(each))
        return value

    # ------------------------------------------------------------ texts

    def text(self, text: str) -> str:
        """A text without the values that it assigns to masked columns: JSON, `name=value`, or an error about one."""
        if not self.columns or self._name.search(text) is None:
            return text
        parsed = _parsed(text)
        if parsed is not None:
            return json.dumps(self._row(parsed), ensure_ascii=False)
        return self._unassigned(self._blamed.sub(lambda found: found["name"] + self._signed(found["value"]), text))

    def _unassigned(self, text: str) -> str:
        made, at = [], 0
        while (found := self._assigned.search(text, at)) is not None:
            end = value_end(text, found.end())
            made += [text[at : found.end()], self._signed(text[found.end() : end])]
            at = end
        return "".join([*made, text[at:]])

    def _signed(self, value: str) -> str:
        bare = value.strip("\\\"'")
        return value if not bare or value.startswith(SIGN) else str(self.sign(bare))

    def reason(self, topic: str | None, reason: str) -> str:
        """Why a record of a topic is dead. What is quoted there may be of any column, masked ones included."""
        if not self.columns:
            return reason
        return self.text(QUOTED.sub(SIGN, reason) if topic in self.unreadable else reason)

    def letter(self, letter: dict[str, Any], origin: str | None) -> dict[str, Any]:
        """A dead letter of a record of a topic."""
        reason = self.reason(origin, letter["reason"] or "")
        made = self.document({**letter, "reason": reason}, ("value",))
        return {**made, "value": self.unread(origin, made["value"])}

    def reasons(self, document: Any) -> Any:
        """A document about reasons alone, of whatever topics: everything that is quoted in them is hidden."""
        if not self.columns:
            return document
        if isinstance(document, dict):
            return {self.reasons(name): self.reasons(each) for name, each in document.items()}
        if isinstance(document, list):
            return [self.reasons(each) for each in document]
        return self.text(QUOTED.sub(SIGN, document)) if isinstance(document, str) else document

    def unread(self, topic: str | None, value: Any) -> Any:
        """A value of a topic without columns: hidden if the topic has masked ones and the value is not JSON."""
        if topic not in self.unreadable or not isinstance(value, str) or isinstance(_parsed(value), dict | list):
            return value
        return f"{SIGN} ({len(value):,} characters)"


def _parsed(text: str) -> Any:
    """The object or list that a text is in JSON; None if it is none."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict | list) else None


def _leaves(value: Any) -> Iterable[str]:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _leaves(each)
    elif value is not None and not isinstance(value, bool):
        yield str(value)
