"""Files in an object store or in HDFS, through Arrow's file systems: listed, copied, written and deleted.

A path without a scheme, or with file://, is on the local disk and does not come here. In an object store a file appears
as a whole when it is complete, and there are no renames: a file is moved by copying it there and deleting the original.
HDFS renames files, and shows them while they are written.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.fs as fs

from millstream.errors import InvalidInput, MillstreamError, NotFound
from millstream.secrets import Secret, concealed, revealed, shown_address
from millstream.user_lines import users_line, what_exists
from millstream.webhdfs import URL as WEBHDFS_URL
from millstream.webhdfs import USER as HADOOP_USER
from millstream.webhdfs import WebHdfs

WEB_SCHEMES = {"webhdfs": "http", "swebhdfs": "https"}
HADOOP_SCHEMES = ("hdfs", "viewfs", *WEB_SCHEMES)
SCHEMES = ("s3", "s3a", *HADOOP_SCHEMES, "gs", "gcs", "abfs", "abfss")
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
SECOND_NS = 1_000_000_000
CHUNK_BYTES = 1 << 20
UPLOADING = ".uploading"
CONNECT_SECONDS, REQUEST_SECONDS = 5.0, 30.0
_S3 = {
    "access_key": "AWS_ACCESS_KEY_ID",
    "secret_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
    "region": "AWS_REGION",
    "endpoint_override": "AWS_ENDPOINT_URL",
}
S3_OPTIONS = (*_S3.values(), "AWS_ALLOW_HTTP")
"""The last one is for Delta tables beside the files: here the scheme of the endpoint says it."""
FOR_GOOD = re.compile(
    r"ACCESS_DENIED|NO_SUCH_BUCKET|INVALID_ACCESS_KEY|SIGNATURE_DOES_NOT_MATCH|InvalidAccessKey|HTTP status 40[013]|"
    r"does not exist|NoSuchBucket|Bucket .* not found",
    re.IGNORECASE,
)


def scheme_of(path: str) -> str | None:
    """The scheme of an address; None for a path on the local disk."""
    found = _ADDRESS.match(path)
    return None if found is None or found[1].lower() == "file" else found[1].lower()


def local_path(path: str) -> str:
    """A path of the local disk without file://."""
    return unquote(urlparse(path).path) if path.lower().startswith("file://") else path


def check_address(path: str) -> None:
    scheme = scheme_of(path)
    if scheme is not None and scheme not in SCHEMES:
        raise InvalidInput(
            f"files cannot be read or written at {scheme}://",
            where=users_line(),
            next_step=f"known: a path, {', '.join(f'{each}://' for each in ('file', *SCHEMES))}",
        )


def check_options(path: str, options: Mapping[str, Any]) -> None:
    """Refuses options that would be ignored; those of a path on the local disk may be for another place."""
    scheme = scheme_of(path)
    if scheme is None:
        return
    known = S3_OPTIONS if scheme in ("s3", "s3a") else (WEBHDFS_URL, HADOOP_USER) if scheme in HADOOP_SCHEMES else ()
    for name in options:
        if name not in known:
            raise InvalidInput(
                f"there is no option '{name}' for {scheme}://",
                where=users_line(),
                next_step=what_exists(name, known, kind="options") if known else "set what it needs in the environment",
            )


@dataclass(frozen=True)
class About:
    """A file that was found."""

    path: str
    """Below the folder."""
    size_bytes: int
    modified_ns: int


@dataclass(frozen=True)
class RemoteFolder:
    """A folder, or a pattern of files, at an address. Picklable: it connects when it is first used."""

    address: str
    options: Mapping[str, str | Secret] = field(default_factory=dict, hash=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteFolder, (self.address, dict(self.options))

    @cached_property
    def _opened(self) -> tuple[fs.FileSystem, str]:
        return opened(self.address, revealed(self.options))

    @property
    def files(self) -> fs.FileSystem:
        return self._opened[0]

    @property
    def root(self) -> str:
        return self._opened[1]

    def path(self, below: str) -> str:
        return f"{self.root}/{below}" if below else self.root

    def listed(self) -> Iterator[About]:
        """The files of the folder and of those below it; or the files that match, if the address is a pattern."""
        magic = min((self.root.find(sign) for sign in "*?[" if sign in self.root), default=-1)
        base = self.root if magic < 0 else self.root[:magic].rpartition("/")[0]
        about = self.files.get_file_info(base)
        if about.type == fs.FileType.File:
            yield _about("", about)
            return
        found = self.files.get_file_info(fs.FileSelector(base, recursive=True, allow_not_found=magic >= 0))
        for each in found:
            if each.type == fs.FileType.File and (magic < 0 or _matches(each.path, self.root)):
                yield _about(each.path[len(base) + 1 :], each)

    @property
    def base(self) -> RemoteFolder:
        """The folder that the paths of `listed` are below."""
        magic = min((self.address.find(sign) for sign in "*?[" if sign in self.address), default=-1)
        return self if magic < 0 else RemoteFolder(self.address[:magic].rpartition("/")[0], self.options)

    def about(self, below: str) -> About | None:
        found = self.files.get_file_info(self.path(below))
        return _about(below, found) if found.type == fs.FileType.File else None

    def copy_to(self, below: str, target: Path) -> None:
        with self.files.open_input_stream(self.path(below)) as stream, target.open("wb") as file:
            while chunk := stream.read(CHUNK_BYTES):
                file.write(chunk)

    def read(self, below: str) -> bytes | None:
        try:
            with self.files.open_input_stream(self.path(below)) as stream:
                content: bytes = stream.read()
                return content
        except FileNotFoundError:
            return None

    def write(self, below: str, content: bytes) -> None:
        self._make_folder(below)
        with self.files.open_output_stream(self.path(below)) as stream:
            stream.write(content)

    def copy_from(self, source: Path, below: str) -> None:
        """Uploads a file; it appears when all of it is there."""
        self._make_folder(below)
        draft = f"{below}{UPLOADING}" if self._has_renames else below
        try:
            with source.open("rb") as file, self.files.open_output_stream(self.path(draft)) as stream:
                while chunk := file.read(CHUNK_BYTES):
                    stream.write(chunk)
            about = self.about(draft)
            if about is None or about.size_bytes != source.stat().st_size:
                raise OSError(f"the upload of {source.name} is incomplete")
        except BaseException:
            with suppress(OSError):
                self.delete(draft)  # the stream was closed, which completes it as it is
            raise
        if draft != below:
            self.delete(below)
            self.move(draft, below)

    def move(self, below: str, target: str) -> None:
        self._make_folder(target)
        self.files.move(self.path(below), self.path(target))

    def _make_folder(self, below: str) -> None:
        """Object stores have no folders: Arrow would write an empty object for each."""
        if self._has_renames:
            self.files.create_dir(str(PurePosixPath(self.path(below)).parent), recursive=True)

    @property
    def _has_renames(self) -> bool:
        return scheme_of(self.address) in HADOOP_SCHEMES

    def delete(self, below: str) -> None:
        if self.about(below) is not None:
            self.files.delete_file(self.path(below))

    def check(self) -> None:
        """Raises NotFound for a bucket that does not exist, and the error of a store that refuses or is away."""
        bucket = "/" if self._has_renames else self.root.partition("/")[0]
        if self.files.get_file_info(bucket).type == fs.FileType.NotFound:
            raise NotFound(
                f"there is no bucket '{bucket}'", where=shown_address(self.address), next_step="create it first"
            )


def opened(address: str, options: Mapping[str, str]) -> tuple[fs.FileSystem, str]:
    """The file system of an address, and the path in it."""
    parts = urlparse(address, allow_fragments=False)
    path = unquote(parts.path)
    if parts.scheme in ("s3", "s3a"):
        return s3(options), f"{parts.netloc}{path}".rstrip("/")
    if parts.scheme in HADOOP_SCHEMES:
        web = web_address(parts.scheme, parts.netloc.rpartition("@")[2], options)
        if web is not None:
            return WebHdfs.of(web, parts.username, options), path.rstrip("/")
        return hadoop(parts.scheme, parts.hostname, parts.port, options), path.rstrip("/")
    with library_errors(address):
        made, root = fs.FileSystem.from_uri(address)
    return made, root.rstrip("/")


def s3(options: Mapping[str, str]) -> fs.FileSystem:
    """Settings are looked up in the options, then in the environment, as the AWS tools do."""
    found = {name: options.get(setting) or os.environ.get(setting) for name, setting in _S3.items()}
    endpoint = found["endpoint_override"]
    settings = {name: value for name, value in found.items() if value}
    if endpoint and "://" in endpoint:
        settings["scheme"], _, settings["endpoint_override"] = endpoint.partition("://")
    settings.setdefault("region", os.environ.get("AWS_DEFAULT_REGION") or "us-east-1")
    return fs.S3FileSystem(
        **settings,
        connect_timeout=CONNECT_SECONDS,
        request_timeout=REQUEST_SECONDS,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=2),
    )


def web_address(scheme: str, host: str, options: Mapping[str, str]) -> str | None:
    """Where HDFS is reached over HTTP; None if it is not."""
    if scheme in WEB_SCHEMES:
        return f"{WEB_SCHEMES[scheme]}://{host}"
    return options.get(WEBHDFS_URL) or os.environ.get(WEBHDFS_URL)


def hadoop(scheme: str, host: str | None, port: int | None, options: Mapping[str, str]) -> fs.FileSystem:
    where = f"{scheme}://{host or ''}"
    try:
        return fs.HadoopFileSystem(where if host else "default", port or 0, user=options.get(HADOOP_USER))
    except OSError as error:
        if "libhdfs" not in str(error) and "libjvm" not in str(error):
            raise
        raise InvalidInput(
            f"HDFS needs Hadoop's native library, which is not on this machine: {str(error).splitlines()[0]}",
            where=where,
            next_step=f"use HTTP: options={{'{WEBHDFS_URL}': 'http://namenode:9870'}}; or install Hadoop, and set "
            "HADOOP_HOME, JAVA_HOME, CLASSPATH=$(hadoop classpath --glob), and ARROW_LIBHDFS_DIR to the folder of "
            "libhdfs.so",
        ) from error


def error_text(error: BaseException) -> str:
    return " ".join(shown_address(concealed(str(error))).split())


@contextmanager
def library_errors(address: str) -> Iterator[None]:
    """An address that Arrow does not understand."""
    try:
        yield
    except MillstreamError:
        raise
    except (pa.ArrowException, ValueError, ImportError) as error:
        raise InvalidInput(error_text(error), where=shown_address(address), next_step="check the address") from error


def _about(below: str, found: fs.FileInfo) -> About:
    """With whole seconds: a store's listing may have more digits than its answer about one file."""
    return About(below, found.size, (found.mtime_ns or 0) // SECOND_NS * SECOND_NS)


def _matches(path: str, pattern: str) -> bool:
    """As a glob: * and ? stay within a folder, ** does not."""
    if "**" in pattern:
        return fnmatch.fnmatchcase(path, pattern.replace("**/", "*"))
    own, wanted = path.split("/"), pattern.split("/")
    return len(own) == len(wanted) and all(map(fnmatch.fnmatchcase, own, wanted))
