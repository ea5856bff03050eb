"""HDFS over HTTP, as a file system of Arrow: Hadoop is needed on the cluster only, not on this machine.

The NameNode answers questions about names, and redirects reads and writes of contents to a DataNode. A file that was
read is as long as the NameNode reported: a connection that breaks in the middle is an error, not the end of the file.
"""

from __future__ import annotations

import getpass
import http.client
import json
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any
from urllib.parse import quote, urlencode, urlsplit

import pyarrow as pa
import pyarrow.fs as fs

from millstream.errors import InvalidInput

INTERFACE = "/webhdfs/v1"
URL, USER = "WEBHDFS_URL", "HADOOP_USER_NAME"
REQUEST_SECONDS = 30.0
IN_MEMORY_BYTES = 64 << 20
MILLISECOND_NS = 1_000_000
REDIRECT = 307
NOT_FOUND = "FileNotFoundException"
REFUSALS = ("AccessControlException", "AuthorizationException", "SecurityException", "IllegalArgumentException")
"""Answers that stay the same. A NameNode that starts, or lacks DataNodes, answers with other exceptions."""


class WebHdfs(fs.FileSystemHandler):  # type: ignore[misc]
    """What `RemoteFolder` needs of a file system: files are read and written whole, in order."""

    def __init__(self, url: str, user: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise InvalidInput(
                f"{URL} is the HTTP address of HDFS, without a user", next_step=f"{URL}=http://namenode:9870"
            )
        self._url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix(INTERFACE)}{INTERFACE}"
        self._user = user or getpass.getuser()
        self._opener = urllib.request.build_opener(_NoRedirects)

    @classmethod
    def of(cls, url: str, user: str | None, options: Mapping[str, str]) -> fs.FileSystem:
        return fs.PyFileSystem(cls(url, options.get(USER) or os.environ.get(USER) or user))

    def get_type_name(self) -> str:
        return "webhdfs"

    def normalize_path(self, path: str) -> str:
        return path

    # ------------------------------------------------------------ names

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> fs.FileInfo:
        try:
            return _file_info(path, self._answer("GET", path, "GETFILESTATUS")["FileStatus"])
        except FileNotFoundError:
            return fs.FileInfo(path, fs.FileType.NotFound)

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        return list(self._below(selector.base_dir, selector.recursive, selector.allow_not_found))

    def _below(self, folder: str, recursive: bool, may_be_missing: bool) -> Iterator[fs.FileInfo]:
        try:
            listed = self._answer("GET", folder, "LISTSTATUS")["FileStatuses"]["FileStatus"]
        except FileNotFoundError:
            if may_be_missing:
                return
            raise
        for status in listed:
            about = _file_info(f"{folder.rstrip('/')}/{status['pathSuffix']}", status)
            yield about
            if recursive and about.type == fs.FileType.Directory:
                yield from self._below(about.path, True, may_be_missing=True)  # it may be deleted in between

    def create_dir(self, path: str, recursive: bool) -> None:
        self._done("PUT", path, "MKDIRS")

    def delete_file(self, path: str) -> None:
        self._done("DELETE", path, "DELETE", recursive="false")

    def delete_dir(self, path: str) -> None:
        self._done("DELETE", path, "DELETE", recursive="true")

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        for about in self._below(path, recursive=False, may_be_missing=missing_dir_ok):
            self.delete_dir(about.path)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError("HDFS is not emptied")

    def move(self, src: str, dest: str) -> None:
        """One atomic step. A file that is there is replaced, as elsewhere in Arrow."""
        self._done("PUT", src, "RENAME", destination=_absolute(dest), renameoptions="OVERWRITE")

    def copy_file(self, src: str, dest: str) -> None:
        raise NotImplementedError("HDFS does not copy files")

    # ------------------------------------------------------------ contents

    def open_input_stream(self, path: str) -> pa.NativeFile:
        about = self._info(path)
        if about.type != fs.FileType.File:
            raise FileNotFoundError(path)
        answer = self._ask("GET", path, "OPEN")
        if answer.status == REDIRECT:
            answer = self._at_data_node("GET", answer, None)
        return pa.PythonFile(_Download(answer, about.size, path), mode="r")

    def open_input_file(self, path: str) -> pa.NativeFile:
        raise NotImplementedError("files of HDFS are read in order")

    def open_output_stream(self, path: str, metadata: Mapping[str, str]) -> pa.NativeFile:
        return pa.PythonFile(_Upload(self, path), mode="w")

    def open_append_stream(self, path: str, metadata: Mapping[str, str]) -> pa.NativeFile:
        raise NotImplementedError("files of HDFS are written whole")

    def put(self, path: str, content: IO[bytes]) -> None:
        answer = self._ask("PUT", path, "CREATE", overwrite="true")
        answer.close()
        if answer.status != REDIRECT:
            raise OSError(f"HTTP status {answer.status}: HDFS did not name a DataNode to write to")
        self._at_data_node("PUT", answer, content).close()

    # ------------------------------------------------------------ requests

    def _done(self, method: str, path: str, operation: str, **parameters: str) -> None:
        if self._answer(method, path, operation, **parameters).get("boolean") is False:
            raise OSError(f"HDFS did not carry out {operation} of {path}")

    def _answer(self, method: str, path: str, operation: str, **parameters: str) -> dict[str, Any]:
        with self._ask(method, path, operation, **parameters) as answer, _plainly():
            content = answer.read()
        try:
            found = json.loads(content) if content else {}
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise OSError(f"HTTP status 400: {self._url} does not answer as HDFS does: check {URL}")
        return found

    def _ask(self, method: str, path: str, operation: str, **parameters: str) -> Any:
        query = urlencode({"op": operation, "user.name": self._user, **parameters})
        return self._opened(urllib.request.Request(f"{self._url}{quote(_absolute(path))}?{query}", method=method))

    def _at_data_node(self, method: str, redirect: Any, content: IO[bytes] | None) -> Any:
        redirect.close()
        request = urllib.request.Request(redirect.headers["Location"], data=content, method=method)
        if content is not None:
            request.add_header("Content-Type", "application/octet-stream")
            request.add_header("Content-Length", str(content.seek(0, os.SEEK_END)))
            content.seek(0)
        return self._opened(request)

    def _opened(self, request: urllib.request.Request) -> Any:
        with _plainly():
            try:
                return self._opener.open(request, timeout=REQUEST_SECONDS)
            except urllib.error.HTTPError as error:
                if error.code == REDIRECT:
                    return error
                with error:
                    raise _refusal(error.code, error.read(), self._url) from None
            except urllib.error.URLError as error:
                raise OSError(f"HDFS does not answer at {request.host}: {error.reason}") from error


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is part of the protocol: contents are sent only to the DataNode that it names."""

    def redirect_request(self, req: urllib.request.Request, *_: Any) -> None:
        return None


class _Download:
    """The content of a file, checked for its length."""

    def __init__(self, answer: Any, size_bytes: int, path: str) -> None:
        self._answer = answer
        self._left = size_bytes
        self._path = path
        self.closed = False

    def read(self, count: int | None = None) -> bytes:
        with _plainly():
            content: bytes = self._answer.read(None if count is None or count < 0 else count)
        self._left -= len(content)
        is_end = count is None or count < 0 or (count > 0 and not content)
        if is_end and self._left > 0:
            raise OSError(f"the connection broke {self._left} bytes before the end of {self._path}")
        return content

    def close(self) -> None:
        self.closed = True
        self._answer.close()


class _Upload:
    """Collects the content, and sends it when it is closed."""

    def __init__(self, target: WebHdfs, path: str) -> None:
        self._target = target
        self._path = path
        self._content = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115
        self.closed = False

    def write(self, content: bytes) -> int:
        return self._content.write(content)

    def flush(self) -> None:
        """There is nothing to send before the end."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with self._content:
                self._target.put(self._path, self._content)


@contextmanager
def _plainly() -> Iterator[None]:
    """Errors of the connection as those of a file system."""
    try:
        yield
    except http.client.HTTPException as error:
        raise OSError(f"the connection to HDFS broke: {type(error).__name__} {error}") from error


def _refusal(status: int, content: bytes, url: str) -> OSError:
    try:
        found = json.loads(content)["RemoteException"]
        kind, message = str(found["exception"]), str(found["message"]).partition("\n")[0]
    except (ValueError, KeyError, TypeError):
        if status >= 500:
            return OSError(f"HDFS does not answer at {url}: HTTP {status}")
        return OSError(f"HTTP status 400: {url} does not answer as HDFS does (HTTP {status}): check {URL}")
    if kind == NOT_FOUND:
        return FileNotFoundError(message)
    return OSError(f"{f'HTTP status {status}' if kind in REFUSALS else 'HDFS'}: {kind}: {message}")


def _absolute(path: str) -> str:
    return f"/{path.lstrip('/')}"


def _file_info(path: str, status: Mapping[str, Any]) -> fs.FileInfo:
    is_file = status["type"] == "FILE"
    return fs.FileInfo(
        path,
        fs.FileType.File if is_file else fs.FileType.Directory,
        size=int(status["length"]) if is_file else None,
        mtime_ns=int(status["modificationTime"]) * MILLISECOND_NS,
    )
