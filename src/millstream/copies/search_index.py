"""A copy as a search index, by Tantivy: each row is a document, found by the words of its text columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from millstream.copies.generations import FolderStore
from millstream.copies.ports import Changes
from millstream.errors import InvalidInput, NotFound, SinkUnavailable

INDEX = "index"
KEY, ROW = "_key", "_row"
WRITER_BYTES = 15_000_000
SCHEMA_FILE = "meta.json"


def library() -> ModuleType:
    try:
        import tantivy
    except ImportError as error:
        raise InvalidInput(
            "a search index needs the package tantivy", next_step="pip install 'millstream[index]'"
        ) from error
    return tantivy


class SearchIndexStore(FolderStore):
    """`text` are the columns whose words are indexed."""

    def __init__(self, path: Path, text: Sequence[str], *, is_next: bool = False) -> None:
        self._tantivy = library()
        self._text = tuple(text)
        self._opened: tuple[Path, Any, Any] | None = None
        super().__init__(path, is_next=is_next)

    def _change(self, folder: Path, changes: Changes, clear: bool) -> None:
        index = self._writer(folder)
        if clear:
            index.delete_all_documents()
        for key, row in changes.items():
            index.delete_documents_by_term(KEY, key)
            if row is not None:
                index.add_document(self._document(key, row))
        index.commit()

    def _document(self, key: str, row: bytes) -> Any:
        content = json.loads(row)
        texts = {name: _words(content.get(name)) for name in self._text}
        return self._tantivy.Document(**{KEY: key, ROW: row, **texts})

    def _writer(self, folder: Path) -> Any:
        if self._opened is None or self._opened[0] != folder:
            self.close()
            (folder / INDEX).mkdir(exist_ok=True)
            try:
                index = self._tantivy.Index(self._schema(), path=str(folder / INDEX))
                self._opened = folder, index, index.writer(WRITER_BYTES, 1)
            except ValueError as error:  # also if another process has it open
                raise SinkUnavailable(
                    f"the index cannot be opened: {error}",
                    where=self.where,
                    next_step="end another process that writes to it; after a change of its text columns, rebuild it",
                ) from error
        return self._opened[2]

    def _schema(self) -> Any:
        made = self._tantivy.SchemaBuilder()
        made.add_text_field(KEY, stored=True, tokenizer_name="raw")
        made.add_bytes_field(ROW, stored=True)
        for name in self._text:
            made.add_text_field(name, stored=False)
        return made.build()

    def holds(self, key: str, row: bytes) -> bool:
        self._writer(self._generation.folder)
        assert self._opened is not None
        index = self._opened[1]
        index.reload()
        term = self._tantivy.Query.term_query(index.schema, KEY, key)
        return row in _found(index, term, 1)

    def replacement(self) -> SearchIndexStore:
        return SearchIndexStore(self._generation.path, self._text, is_next=True)

    def close(self) -> None:
        if self._opened is not None:
            _, _, writer = self._opened
            writer.wait_merging_threads()
            self._opened = None


def search(path: Path, words: str, text: Sequence[str], limit: int) -> list[dict[str, Any]]:
    """The rows that have the words, the best first; for readers, beside the process that writes."""
    folder = path.expanduser().resolve() / INDEX
    if not (folder / SCHEMA_FILE).exists():
        raise NotFound("there is no index", where=str(path), next_step="fill it first: millstream follow")
    index = library().Index.open(str(folder))
    try:
        query = index.parse_query(words, list(text))
    except ValueError as error:
        said = f"the query cannot be read: {error}"
        raise InvalidInput(said, next_step="put words with special characters in quotes") from error
    return [json.loads(row) for row in _found(index, query, limit)]


def _found(index: Any, query: Any, limit: int) -> list[bytes]:
    searcher = index.searcher()
    return [searcher.doc(address).get_first(ROW) for _, address in searcher.search(query, limit).hits]


def _words(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
