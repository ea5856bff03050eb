"""Lines of an import: a quote that is never closed, or a line that never ends, holds a bounded number of bytes."""

import io

import pytest

from millstream.cli.topic_commands.decoding import csv_decoder
from millstream.cli.topic_commands.lines import CHUNK_BYTES, Chunk, join_quoted, read_chunks
from millstream.errors import InvalidInput
from millstream.log.topics import TopicSettings
from millstream.records import Schema


def test_empty_lines_behind_an_open_quote_are_not_held():
    chunks = [Chunk([b"a", b'"open'], range(1, 3), 8)]
    chunks += [Chunk([b""] * 10_000, range(3 + 10_000 * at, 3 + 10_000 * (at + 1)), 10_000) for at in range(5)]
    sizes = [len(chunk.lines) for chunk in join_quoted(iter(chunks))]
    assert sizes[0] == 1  # the quote may still be closed
    assert sum(sizes[:3]) > 20_000  # that it will not be is known long before the input ends
    assert sum(sizes) == 50_002


def test_a_line_without_end_names_the_input(monkeypatch):
    from millstream.cli.topic_commands import lines

    monkeypatch.setattr(lines, "LINE_BYTES_MAX", CHUNK_BYTES)
    with pytest.raises(InvalidInput, match="line 2 is longer than 4 MiB") as refused:
        list(read_chunks(io.BytesIO(b"a\n" + b"x" * (3 * CHUNK_BYTES)), where="in.json"))
    assert refused.value.where == "in.json"


@pytest.mark.parametrize("header", [b'"' + b"x" * 200_000 + b'"', b"a\rb", b"," * 200_000])
def test_a_header_that_cannot_be_read_is_refused(header):
    settings = TopicSettings(schema=Schema.of("a string"))
    with pytest.raises(InvalidInput, match="header line"):
        csv_decoder(settings, None, header, where="topic 't'")
