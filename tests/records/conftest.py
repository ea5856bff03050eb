"""Every test of records that decodes JSON decodes it twice: with the typed parser, and with orjson alone."""

from collections.abc import Iterator

import pytest

from millstream.records.codecs import JsonCodec
from millstream.records.codecs.json import _typed

from .both_parsers import decoded_twice


@pytest.fixture(autouse=True)
def both_parsers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(JsonCodec, "decode", decoded_twice)
    yield
    _typed.cache_clear()  # it has learned the fields of strange values
