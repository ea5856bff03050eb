"""Files at an address: S3 and HDFS by real servers, and what is refused before anything is read."""

import gzip
import json
import pickle
import random
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq
import pytest

import millstream as ms
from millstream.connectors.claims import Claim
from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.opening import keeper_of, open_sink
from millstream.errors import InvalidInput, NotFound, SinkFailed, SinkUnavailable, SourceUnavailable
from millstream.log import EmbeddedLog
from millstream.records import Schema
from millstream.remote_folders import RemoteFolder

from ..reading import rows as read_all
from ..support import SCORES, table

A, B, C = ({"team": "a", "score": 1}, {"team": "b", "score": 2}, {"team": "c", "score": 3})
AWAY = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}


@pytest.fixture(params=["s3", "hdfs"])
def folder(request):
    """A folder of its own in the bucket, or in HDFS."""
    server = request.getfixturevalue(request.param)
    name = "".join(sign if sign.isalnum() else "-" for sign in request.node.name)
    return RemoteFolder(f"s3://tests/{name}" if request.param == "s3" else f"{server.address}/{name}", server.settings)


def place(folder, below="", format="json", **more):
    return ms.files(f"{folder.address}{below}", format, options=folder.options, **more)


def opened(endpoint, tmp_path, schema=SCORES):
    return open_sink(
        endpoint, Schema.of(schema), job="job", step="out", broker=tmp_path / "log", folder=tmp_path / "job"
    )


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def visible(folder):
    """The files that a reader sees, and their rows."""
    found = sorted(about.path for about in folder.listed() if not about.path.startswith("."))
    return found, [json.loads(line) for path in found for line in folder.read(path).splitlines()]


# ---------------------------------------------------------------- a source


@pytest.mark.more
def test_new_files_are_found_and_read_once(folder, open_):
    folder.write("1.json", lines(A))
    folder.write(".hidden.json", lines(C))
    folder.write("below/3.json", lines(C))
    source = open_(place(folder), SCORES)
    assert read_all(source) == [A]
    folder.write("team=b/2.json.gz", gzip.compress(lines({"score": 2})))
    again = open_(place(folder), SCORES)
    assert read_all(again) == [A, B]
    assert read_all(open_(place(folder, "/**/[13].json"), SCORES, "pattern")) == [A, C]


@pytest.mark.more
def test_parquet_and_lookup_tables(folder, open_):
    sink = pa.BufferOutputStream()
    pq.write_table(table(SCORES, [A, B, C]), sink)
    folder.write("rows.parquet", sink.getvalue().to_pybytes())
    assert read_all(open_(place(folder, format="parquet"), "score int")) == [{"score": n} for n in (1, 2, 3)]
    assert place(folder, "/rows.parquet", "parquet").load(SCORES).to_pylist() == [A, B, C]


@pytest.mark.more
def test_a_file_that_changed_is_refused(folder, open_):
    folder.write("1.json", lines(A))
    source = open_(place(folder), SCORES)
    end = source.latest()
    folder.write("1.json", lines(A, B))
    (part,) = source.slices({}, end, 1)[0]
    with pytest.raises(InvalidInput, match="has changed since"):
        list(source.read(part))
    folder.delete("1.json")
    with pytest.raises(InvalidInput, match="was deleted"):
        list(source.read(part))


@pytest.mark.more
def test_a_bucket_that_does_not_exist(s3, open_, tmp_path):
    missing = ms.files("s3://no-such-bucket/in", "json", options=s3.settings)
    with pytest.raises(NotFound, match="no bucket 'no-such-bucket'"):
        open_(missing, SCORES).latest()
    with pytest.raises(NotFound, match="no bucket 'no-such-bucket'"):
        opened(missing, tmp_path)


# ---------------------------------------------------------------- a sink


@pytest.mark.more
def test_each_batch_is_written_once(folder, tmp_path):
    sink = opened(place(folder), tmp_path)
    sink.write(0, table(SCORES, [A]), None)
    sink.write(0, table(SCORES, [A]), None)
    sink.close()
    sink = opened(place(folder), tmp_path)
    sink.write(0, table(SCORES, [A]), None)
    sink.write(1, table(SCORES, [B]), None)
    paths, rows = visible(folder)
    assert rows == [A, B]
    run = FileLedger(tmp_path / "job", "out").run
    assert paths == [f"out-{run}-{batch:010d}.json" for batch in (0, 1)]


@pytest.mark.more
def test_tasks_write_drafts_and_recorded_moves_are_completed(folder, tmp_path):
    """Goal: a batch killed in the middle of its moves is completed, and other attempts leave nothing."""
    sink = opened(place(folder, partition_by="team"), tmp_path)
    preparer = pickle.loads(pickle.dumps(sink.preparer()))
    first = [preparer.prepare(0, shard, table(SCORES, [row]), None).receipt for shard, row in ((1, A), (2, B))]
    moves = sink._moves(0, first)
    sink._ledger.prepare(0, moves)
    folder.move(f"{sink._hidden}/{moves.moves[0][0]}", moves.moves[0][1])  # and then it was killed
    sink = opened(place(folder, partition_by="team"), tmp_path)
    again = [preparer.prepare(0, shard, table(SCORES, [row]), None).receipt for shard, row in ((1, A), (2, B))]
    sink.write_prepared(0, table(SCORES, []), None, again)
    paths, rows = visible(folder)
    assert rows == [{"score": 1}, {"score": 2}]
    assert [path.partition("/")[0] for path in paths] == ["team=a", "team=b"]
    assert not [about for about in folder.listed() if about.path.endswith(".tmp")]


@pytest.mark.more
def test_a_folder_is_claimed_and_emptied(folder, tmp_path):
    with EmbeddedLog(tmp_path / "log", upkeep=False) as broker:
        ledger = FileLedger(tmp_path / "job", "out")
        keeper = keeper_of(place(folder), Claim.here("job", "out", ledger.run, tmp_path / "job"), ledger, broker)
        assert keeper.look().claim is None
        keeper.make()
        opened(place(folder), tmp_path).write(0, table(SCORES, [A]), None)
        assert keeper.look().claim.run == ledger.run
        keeper.clear()
        assert visible(folder) == ([], [])
        assert keeper.look().claim is None


# ---------------------------------------------------------------- HDFS over HTTP


@pytest.fixture
def in_hdfs(hdfs):
    return RemoteFolder(f"{hdfs.url.replace('http', 'webhdfs')}/{uuid.uuid4().hex}", {})


@pytest.mark.more
def test_names_and_contents_of_any_kind(in_hdfs, tmp_path):
    content = random.Random(1).randbytes(3 << 20)
    for name in ("plain", "with space", "a+b&c=d", "50%", "ä/ö/ü", "#?"):
        in_hdfs.write(name, content)
        assert in_hdfs.read(name) == content
        in_hdfs.copy_to(name, tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == content
    in_hdfs.write("plain", b"")  # replaces it
    assert in_hdfs.read("plain") == b""
    in_hdfs.move("50%", "plain")
    assert in_hdfs.read("plain") == content
    assert in_hdfs.read("50%") is None
    in_hdfs.delete("a+b&c=d")
    assert sorted(about.path for about in in_hdfs.listed()) == ["#?", "plain", "with space", "ä/ö/ü"]
    assert {about.size_bytes for about in in_hdfs.listed()} == {len(content)}


@pytest.mark.more
def test_a_user_without_permission_is_refused(hdfs, in_hdfs, tmp_path, open_):
    in_hdfs.write("1.json", lines(A))
    in_hdfs.files.handler._answer("PUT", in_hdfs.root, "SETPERMISSION", permission="700")
    forbidden = ms.files(in_hdfs.address, "json", options={"HADOOP_USER_NAME": "mallory"})
    with pytest.raises(SinkFailed, match=r"AccessControlException.*mallory"):
        opened(forbidden, tmp_path).write(0, table(SCORES, [A]), None)
    with pytest.raises(InvalidInput, match=r"AccessControlException.*mallory"):
        open_(forbidden, SCORES).latest()


@pytest.mark.more
def test_a_name_node_in_safe_mode_is_waited_for(hdfs, tmp_path):
    """As after its start: it answers, and takes nothing."""
    sink = opened(ms.files(f"{hdfs.address}/safe", "json", options=hdfs.settings), tmp_path)
    hdfs.set_safe_mode(True)
    try:
        with pytest.raises(SinkUnavailable, match="SafeModeException"):
            sink.write(0, table(SCORES, [A]), None)
    finally:
        hdfs.set_safe_mode(False)
    sink.write(0, table(SCORES, [A]), None)
    assert visible(RemoteFolder(f"{hdfs.address}/safe", hdfs.settings))[1] == [A]


class Impostor(BaseHTTPRequestHandler):
    """Answers as a NameNode, but a file ends early, or the answer is not of HDFS at all."""

    def do_GET(self):
        if "GETFILESTATUS" in self.path:
            content = json.dumps({"FileStatus": {"type": "FILE", "length": 100, "modificationTime": 0}}).encode()
        else:
            content = b"<html>" if "LISTSTATUS" in self.path else b"x" * 50
        self.send_response(200)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def impostor():
    with ThreadingHTTPServer(("127.0.0.1", 0), Impostor) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"webhdfs://127.0.0.1:{server.server_port}/x"
        server.shutdown()


def test_a_connection_that_breaks_is_not_the_end_of_a_file(impostor, tmp_path):
    folder = RemoteFolder(impostor)
    with pytest.raises(OSError, match="50 bytes before the end"):
        folder.copy_to("a", tmp_path / "copy")
    with pytest.raises(OSError, match="50 bytes before the end"):
        folder.read("a")


def test_another_server_is_not_taken_for_hdfs(impostor):
    folder = RemoteFolder(impostor)
    with pytest.raises(OSError, match="does not answer as HDFS does"):
        list(folder.files.get_file_info(fs.FileSelector("/x")))
    with pytest.raises(OSError, match="501"):
        folder.delete("a")


@pytest.mark.parametrize("url", ["namenode:9870", "ftp://namenode", "http://ann:secret@namenode"])
def test_an_address_that_is_not_of_http(url):
    with pytest.raises(InvalidInput, match="WEBHDFS_URL") as raised:
        RemoteFolder("hdfs://namenode/x", {"WEBHDFS_URL": url}).check()
    assert "secret" not in str(raised.value)


# ---------------------------------------------------------------- without a server


@pytest.mark.parametrize(("address", "options"), [("s3://tests/in", AWAY), ("webhdfs://127.0.0.1:1/in", {})])
def test_a_store_that_is_away(tmp_path, open_, address, options):
    away = ms.files(address, "json", options=options)
    with pytest.raises(SourceUnavailable, match="cannot be read"):
        open_(away, SCORES).latest()
    with pytest.raises(SinkUnavailable, match="cannot be written"):
        opened(away, tmp_path)


def test_a_file_address_is_a_path(tmp_path, open_):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_bytes(lines(A))
    endpoint = ms.files(f"file://{tmp_path}/in", "json")
    assert endpoint.path == f"{tmp_path}/in"
    assert read_all(open_(endpoint, SCORES)) == [A]


def test_unknown_schemes_are_refused():
    with pytest.raises(InvalidInput, match="ftp://"):
        ms.files("ftp://host/in")


@pytest.mark.parametrize(
    ("address", "option", "hint"),
    [
        ("s3://bucket/in", "AWS_ACCES_KEY_ID", "did you mean 'AWS_ACCESS_KEY_ID'?"),
        ("hdfs://host/in", "user", "options that exist: WEBHDFS_URL, HADOOP_USER_NAME"),
        ("gs://bucket/in", "token", "set what it needs in the environment"),
    ],
)
def test_options_that_would_be_ignored_are_refused(address, option, hint):
    with pytest.raises(InvalidInput, match=f"there is no option '{option}'") as refused:
        ms.files(address, options={option: "x"})
    assert hint in str(refused.value.next_step)


def test_hdfs_without_its_library_is_explained(open_, monkeypatch):
    monkeypatch.setenv("ARROW_LIBHDFS_DIR", "/nowhere")
    try:
        fs.HadoopFileSystem("hdfs://127.0.0.1", 1)
    except OSError as error:
        if "libhdfs" not in str(error) and "libjvm" not in str(error):
            pytest.skip("there is a Hadoop on this machine")
    with pytest.raises(InvalidInput, match="Hadoop's native library"):
        open_(ms.files("hdfs://127.0.0.1:1/in", "json"), SCORES).latest()


def test_keys_are_not_shown():
    endpoint = ms.files("s3://key:Xq7JmzW9Vt@bucket/in", options={"AWS_SECRET_ACCESS_KEY": "Yw8KnaV0Us"})
    assert "Xq7JmzW9Vt" not in str(endpoint)
    assert "Yw8KnaV0Us" not in repr(endpoint)
    assert b"Yw8KnaV0Us" not in pickle.dumps(endpoint)


def test_an_error_of_a_store_that_refuses(monkeypatch):
    from millstream.connectors.files.remote_sink import remote_errors

    with pytest.raises(SinkFailed, match="ACCESS_DENIED"), remote_errors("here"):
        raise OSError("AWS Error ACCESS_DENIED during HeadBucket operation")
