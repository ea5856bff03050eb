"""Text to terms: words in lower case, and in a language their stems.

A word is a run of letters, marks and digits of any script. Documents and queries are analysed by the same function, so
that they agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from importlib import import_module
from typing import Any

import polars as pl

from millstream.errors import InvalidInput

STANDARD = "standard"
WORD = r"[\p{Alphabetic}\p{M}\p{N}]+"
ASCII_WORD = re.compile("[0-9A-Za-z]+")
STEMS_CACHED = 200_000
VALUES_GAP = 100
"""How far the last word of a value is from the first one of the next value of the same field: no phrase spans both."""


def words_of(texts: Sequence[str]) -> list[list[str]]:
    """The words of each text as they are written."""
    if all(map(str.isascii, texts)):
        return [ASCII_WORD.findall(text) for text in texts]
    found: list[list[str]] = pl.Series(texts, dtype=pl.String).str.extract_all(WORD).to_list()
    return found


def terms_of(words: Sequence[str], analyser: str) -> list[str]:
    """The terms of words, one each."""
    lower = [word.lower() for word in words]
    return lower if analyser == STANDARD else list(map(_stemmer(analyser), lower))


def analysed(text: str, analyser: str) -> list[str]:
    """The terms of a text."""
    (words,) = words_of([text])
    return terms_of(words, analyser)


def check_analyser(name: object) -> str:
    """The name of an analyser that exists; raises InvalidInput for another."""
    if name == STANDARD:
        return STANDARD
    languages: list[str] = _snowball().algorithms()
    if not isinstance(name, str) or name not in languages:
        raise InvalidInput(
            f"there is no analyser {name!r}",
            next_step=f"analysers that exist: {STANDARD}, {', '.join(sorted(languages))}",
        )
    return name


@cache
def _stemmer(language: str) -> Callable[[str], str]:
    stemmer = _snowball().stemmer(language)
    stem: Callable[[str], str] = stemmer.stemWord
    return lru_cache(STEMS_CACHED)(stem)


def _snowball() -> Any:
    try:
        return import_module("snowballstemmer")
    except ImportError:
        raise InvalidInput(
            "analysers of languages need the package snowballstemmer",
            next_step="pip install 'millstream[search]', or use the analyser 'standard'",
        ) from None
