"""A copy as files: one for each key."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import quote

from millstream.copies.generations import FolderStore, replace_file
from millstream.copies.ports import Changes
from millstream.log.storage.disk import sync_folder

SUFFIX = ".json"
NAME_BYTES_MAX = 180


def file_name(key: str) -> str:
    """The key with special characters escaped, as in a URL; of a long one the beginning, and a digest of it."""
    name = quote(key, safe=" ,;@+=()", errors="surrogatepass")
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if len(name) > NAME_BYTES_MAX:
        name = f"{name[:NAME_BYTES_MAX]}~{hashlib.sha256(key.encode(errors='surrogatepass')).hexdigest()[:16]}"
    return name + SUFFIX


class KeyFiles(FolderStore):
    def __init__(self, path: Path, *, is_next: bool = False) -> None:
        super().__init__(path, is_next=is_next)

    def _change(self, folder: Path, changes: Changes, clear: bool) -> None:
        with self._generation.errors():
            for path in folder.glob(f"*{SUFFIX}") if clear else ():
                path.unlink(missing_ok=True)
            for key, row in changes.items():
                path = folder / file_name(key)
                if row is None:
                    path.unlink(missing_ok=True)
                else:
                    replace_file(path, row)
            sync_folder(folder)

    def holds(self, key: str, row: bytes) -> bool:
        path = self._generation.folder / file_name(key)
        with self._generation.errors():
            return path.exists() and path.read_bytes() == row

    def replacement(self) -> KeyFiles:
        return KeyFiles(self._generation.path, is_next=True)

    def close(self) -> None:
        """There is nothing to close."""
