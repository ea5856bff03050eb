"""Goal: no secret is shown or stored, whatever setting it stands in.

Method: one secret, which occurs nowhere else, is planted in every setting that can hold one, and then looked for in
all that is shown, raised, logged, pickled and written. `tests/jobs/kafka/test_jobs.py` does so with a whole job on
Spark.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark import cloudpickle

import millstream as ms
from cli.conftest import start
from millstream.connectors.catalog import Remembered, remember, remembered
from millstream.connectors.databases.lookups import PostgresTable
from millstream.connectors.kafka.schema_registry import Registry
from millstream.connectors.opening import open_sink
from millstream.connectors.static_rows import load
from millstream.errors import InvalidInput, MillstreamError
from millstream.log import EmbeddedLog, connect
from millstream.log.kafka.address import KafkaAddress
from millstream.log.kafka.clients import Clients
from millstream.plan.run_settings import Settings
from millstream.postgres_address import has_secret, secrets_of, without_password
from millstream.records import Schema
from millstream.secrets import HARMLESS_KAFKA, Secret, hidden, is_likely_secret, shown_address

LEFT, RIGHT = "Xq7Jm", "zW9Vt"
PLANTED = f"{LEFT}{RIGHT}"


def clean(*shown: object) -> None:
    """Fails if even half of the secret is in it."""
    for each in shown:
        text = each.decode(errors="replace") if isinstance(each, bytes) else str(each)
        assert LEFT not in text, text
        assert RIGHT not in text, text


def clean_error(raised: pytest.ExceptionInfo[MillstreamError]) -> None:
    """Neither it nor what it was raised from quotes the secret."""
    error = raised.value
    clean(error, repr(error), pickle.dumps(error), *traceback.format_exception_only(error))
    cause: BaseException | None = error
    while cause is not None:
        clean(cause, repr(cause))
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def clean_flow(flow: ms.Flow) -> None:
    clean(repr(flow), *(flow.explain(format) for format in ("text", "mermaid", "svg")))
    for output in flow.check():
        node: Any = output
        while node is not None:
            clean(node, repr(node), node.name, node.label)
            clean(pickle.dumps(node) if node is output else b"", cloudpickle.dumps(node))
            node = node.inputs[0] if node.inputs else None


@pytest.fixture
def heard() -> Iterator[io.StringIO]:
    """What all loggers say, down to debugging."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    names = ["", "millstream", "millstream.kafka"]
    before = [(logging.getLogger(name), logging.getLogger(name).level) for name in names]
    for logger, _ in before:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
    yield text
    for logger, level in before:
        logger.removeHandler(handler)
        logger.setLevel(level)


# ---------------------------------------------------------------- Kafka

KAFKA = [
    "basic.auth.user.info",
    "bearer.auth.token",
    "https.ca.pem",
    "sasl.jaas.config",
    "sasl.kerberos.kinit.cmd",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.private.key.pem",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.extensions",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.password",
    "schema.registry.basic.auth.user.info",
    "schema.registry.ssl.key.password",
    "schema.registry.url",
    "ssl.ca.pem",
    "ssl.certificate.pem",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.key",
    "ssl.keystore.password",
    "ssl.truststore.password",
    "something.that.nobody.knows",
]


def refused(address: str) -> None:
    with pytest.raises(MillstreamError) as raised:
        KafkaAddress.of(address)
    clean_error(raised)


@pytest.mark.parametrize("name", KAFKA)
def test_settings_of_kafka(name: str, tmp_path: Path) -> None:
    assert name not in HARMLESS_KAFKA
    place = ms.kafka("host:9092", topic="t", settings={name: PLANTED, "client.id": "shown"})
    clean(place, repr(place), place.settings, pickle.dumps(place), cloudpickle.dumps(place))
    assert "shown" in repr(place)
    assert pickle.loads(pickle.dumps(place)).settings[name].reveal() == PLANTED
    flow = ms.Flow("planted")
    flow.read(place, "a int", name="in").write(place.renamed("out"), name="out")
    clean_flow(flow)
    refused(f"kafka://host:9092?{name}={PLANTED}")
    refused(f"kafka://host:9092?client.id=x&%{ord(name[0]):x}{name[1:]}={PLANTED}")
    file = tmp_path / "client.properties"
    file.write_text(f"{name}={PLANTED}\n")
    address = KafkaAddress.of(f"kafka://host:9092?settings={file}")
    clean(address, repr(address), address.settings, pickle.dumps(address))


@pytest.mark.parametrize("name", KAFKA)
def test_errors_of_kafkas_client_about_its_settings(name: str, heard: io.StringIO) -> None:
    """With all of its debugging, and with settings that it refuses."""
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER" if "oauth" in name else "PLAIN"}
    user = (
        {"sasl.username": "ann", "sasl.password": "x"} if "oauth" not in name else {"sasl.oauthbearer.method": "oidc"}
    )
    given = {**login, **user, "debug": "all"}
    given |= {"log_level": "7", name: PLANTED}
    address = KafkaAddress("127.0.0.1:1", hidden(given))
    try:
        clients = Clients(address)
        clients.admin.poll(0.2)
    except MillstreamError as error:
        clean_error(pytest.ExceptionInfo.from_exception(error))
    clean(heard.getvalue())


def test_users_in_addresses() -> None:
    refused(f"kafka://ann:{PLANTED}@host:9092")
    with pytest.raises(MillstreamError) as raised:
        ms.kafka(f"ann:{PLANTED}@host:9092", topic="t")
    clean_error(raised)
    for address in (f"postgresql://ann:{PLANTED}@host/db", f"http://host?token={PLANTED}", f"http://{PLANTED}@host"):
        with pytest.raises(MillstreamError) as raised:
            connect(address)
        clean_error(raised)


@pytest.mark.parametrize(
    "url",
    [
        f"http://ann:{PLANTED}@host:8081",
        f"https://{PLANTED}@host",
        f"https://host/path?token={PLANTED}",
        f"https://host#{PLANTED}",
    ],
)
def test_addresses_of_registries(url: str) -> None:
    with pytest.raises(MillstreamError) as raised:
        ms.kafka("host:9092", topic="t", format="avro", registry=url)
    clean_error(raised)
    with pytest.raises(MillstreamError) as raised:
        Registry.of(url, KafkaAddress("host:9092"))
    clean_error(raised)


def test_the_user_of_a_registry() -> None:
    made = Registry.of("http://host", KafkaAddress("host:9092", hidden({"basic.auth.user.info": f"ann:{PLANTED}"})))
    clean(repr(made), pickle.dumps(made))


@pytest.mark.parametrize(
    "path",
    [
        f"s3a://{LEFT}:{RIGHT}@bucket/folder",
        f"https://bucket.example.com/in?X-Amz-Signature={PLANTED}&X-Amz-Date=1",
        f"abfss://container@account.example.com/in?sig={PLANTED}",
    ],
)
def test_addresses_of_files(path: str) -> None:
    clean(shown_address(path))
    try:
        place = ms.files(path)
    except InvalidInput as error:  # not every kind of address can be read
        clean(str(error))
    else:
        clean(place, place.name)


# ---------------------------------------------------------------- Postgres

SERVER = "127.0.0.1:1"
WORDS = "host=127.0.0.1 port=1 user=ann dbname=games"
OF_LIBPQ = ["password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret"]
ADDRESSES = [
    *(f"postgresql://{SERVER}/games?user=ann&{name}={PLANTED}" for name in OF_LIBPQ),
    *(f"{WORDS} {name}={PLANTED}" for name in OF_LIBPQ),
    f"postgresql://ann:{PLANTED}@{SERVER}/games",
    f"postgres://ann:{LEFT}%40{RIGHT}@{SERVER}/games",
    f"postgresql://ann:{LEFT}\n{RIGHT}@{SERVER}/games",
    f"postgresql://ann:{LEFT}:{RIGHT}@{SERVER}/games",
    f"postgresql://{SERVER}/games?%70assword={PLANTED}",
    f"postgresql://{SERVER}/games?p%61ssword={LEFT}%20{RIGHT}&sslmode=disable",
    f"postgresql://{SERVER}/games?password={LEFT}\n{RIGHT}",
    f"postgresql://{SERVER}/games?passfile=/{PLANTED}",
    f"postgresql://{SERVER}/games?options=-c%20app.key%3D{PLANTED}",
    f"postgresql://{SERVER}/games?nobody_knows={PLANTED}",
    f"postgresql://{SERVER}/games?{PLANTED}",
    f"postgresql://{SERVER}/games?password=a={PLANTED}",
    f"{WORDS} password={LEFT}\\ {RIGHT}",
    f"{WORDS} password={LEFT}\\'{RIGHT}",
    f"{WORDS} password='{LEFT} {RIGHT}'",
    f"{WORDS} password = '{LEFT}\\' {RIGHT}' sslmode=disable",
    f"{WORDS} password='{LEFT}\n{RIGHT}'",
    f"{WORDS} password={LEFT}\\\n{RIGHT}",
    f"{WORDS} password\n=\n{PLANTED}",
    f"{WORDS} password=a password={PLANTED}",
    f"{WORDS} PASSWORD={PLANTED}",
    f"{WORDS} passfile=/{PLANTED}",
    f"{WORDS} options='-c app.key={PLANTED}'",
    f"{WORDS} nobody_knows={PLANTED}",
    f"{WORDS} password='{PLANTED}",
    f"{WORDS} password={LEFT} {RIGHT}",
    f"host=127.0.0.1 port=1 dbname='postgresql://ann:{PLANTED}@host/db'",
    f"host=127.0.0.1 port=1 dbname='password={PLANTED}'",
]


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://ann:{LEFT}@{RIGHT}@{SERVER}/games",
        f"postgresql://ann:{LEFT}/{RIGHT}@{SERVER}/games",
        f"postgresql://ann:{LEFT}?{RIGHT}@{SERVER}/games",
        f"postgresql://{SERVER}?password={LEFT}@{RIGHT}",
        f"mysql://ann:{PLANTED}@{SERVER}/games",
        f"{PLANTED}://host",
    ],
)
def test_addresses_that_are_refused(address: str) -> None:
    clean(without_password(address))
    if not address.startswith(PLANTED):  # where it is taken for the scheme
        with pytest.raises(MillstreamError) as raised:
            ms.postgres(address, "totals")
        clean_error(raised)
    table = Remembered("totals", "postgres", "postgresql://host/db", ("team",), "team string")
    with pytest.raises(MillstreamError) as raised:
        PostgresTable(table, address).row("a")
    clean_error(raised)


@pytest.mark.parametrize("address", ADDRESSES)
def test_addresses_of_postgres(address: str, tmp_path: Path) -> None:
    clean(without_password(address))
    clean(without_password(without_password(address)))
    place = ms.postgres(address, "totals", key="team")
    assert place.dsn == Secret(address)
    clean(place, repr(place), place.name, pickle.dumps(place), cloudpickle.dumps(place))
    flow = ms.Flow("planted")
    flow.read("scores", "team string, score int", name="in").write(place, name="out")
    clean_flow(flow)
    remember(tmp_path, flow.check(), tmp_path)
    clean((tmp_path / "tables.json").read_bytes())


@pytest.mark.parametrize("address", ADDRESSES)
def test_errors_of_postgres_about_its_address(address: str, tmp_path: Path, heard: io.StringIO) -> None:
    """Nobody listens there, and much of it cannot be read."""
    schema = Schema.of("team string")
    place = ms.postgres(address, "totals", key="team")
    named: dict[str, Any] = {"job": "j", "step": "s", "broker": tmp_path / "log", "folder": tmp_path / "job"}
    with pytest.raises(MillstreamError) as raised:
        open_sink(place, schema, **named).write(0, pa.table({"team": ["a"]}), None)
    clean_error(raised)
    with pytest.raises(MillstreamError) as raised:
        load(place, schema)
    clean_error(raised)
    table = Remembered("totals", "postgres", "postgresql://host/db", ("team",), "team string")
    opened = PostgresTable(table, address)
    with pytest.raises(MillstreamError) as raised:
        opened.row("a")
    clean_error(raised)
    clean(repr(opened), heard.getvalue())


def test_addresses_are_read_as_libpq_reads_them() -> None:
    for address in ADDRESSES:
        try:
            found = psycopg.conninfo.conninfo_to_dict(address)
        except psycopg.Error:
            continue
        held = {str(value) for name, value in found.items() if name in OF_LIBPQ}
        assert held <= set(secrets_of(address)), address
        assert not held or has_secret(address), address


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://ann@db:5432,other:1/games?sslmode=require", None),
        ("postgresql://[::1]:5432/games?application_name=a%20b", None),
        ("postgresql:///games?host=/tmp&connect_timeout=3", None),
        ("postgresql://ann%40tenant@db/games?options=-c%20search_path%3Dgames", None),
        ("host=db user=ann@tenant dbname='the games' sslmode=verify-full sslrootcert=/ca.pem", None),
        ("service=games", None),
        ("host=db options='-c search_path=games -c statement_timeout=3'", None),
        ("postgresql://ann:x@db/games?%70assword=x", "postgresql://ann@db/games?password=…"),
        ("host=db\tpassword=a\\ b  user=ann", "host=db password=… user=ann"),
        ("mysql://ann:x@db", "…"),
        ("nonsense", "…"),
    ],
)
def test_what_is_harmless_is_shown(address: str, shown: str | None) -> None:
    assert without_password(address) == (address if shown is None else shown)
    assert has_secret(address) is (shown is not None)


# ---------------------------------------------------------------- Spark

SPARK = [
    "spark.hadoop.fs.s3a.secret.key",
    "spark.hadoop.fs.s3a.access.key",
    "spark.hadoop.fs.s3a.session.token",
    "spark.hadoop.fs.azure.account.key.games.dfs.core.windows.net",
    "spark.hadoop.fs.azure.sas.container.account",
    "spark.ssl.keyPassword",
    "spark.ssl.keyStorePassword",
    "spark.authenticate.secret",
    "spark.io.encryption.keygen.password",
    "spark.executorEnv.AWS_SECRET_ACCESS_KEY",
    "spark.executorEnv.PGPASSWORD",
    "spark.kubernetes.authenticate.submission.oauthToken",
]


@pytest.mark.parametrize("name", SPARK)
def test_settings_of_spark(name: str) -> None:
    assert is_likely_secret(name)
    clean(repr(Settings.of({"conf": {name: PLANTED}})))


# ---------------------------------------------------------------- the command line


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedLog]:
    monkeypatch.setenv("MILLSTREAM_BROKER", str(tmp_path / "log"))
    with EmbeddedLog(tmp_path / "log") as opened:
        yield opened


def ran(*arguments: object, **variables: str) -> tuple[int, str]:
    with start(*arguments, env={**os.environ, **variables}) as running:
        out, err = running.communicate(timeout=120)
    return running.returncode, (out + err).decode()


@pytest.mark.more
def test_passwords_do_not_belong_on_the_command_line(log: EmbeddedLog, tmp_path: Path) -> None:
    flow = tmp_path / "flow.py"
    flow.write_text("import millstream as ms\nflow = ms.Flow('f')\nflow.read('t', 'a int').write('u')\n")
    for command in (
        ["table", "get", "totals", "red", "--at", f"postgresql://ann:{PLANTED}@db/games"],
        ["table", "serve", "--at", f"host=db password={PLANTED}"],
        ["run", flow, "--conf", f"spark.hadoop.fs.s3a.secret.key={PLANTED}"],
        ["topics", "list", f"postgresql://ann:{PLANTED}@db/games"],
        ["--log", f"kafka://host:9092?sasl.password={PLANTED}", "topics", "list"],
    ):
        for how in ([], ["--json"]):
            code, said = ran(*command, *how)
            assert code == 2
            clean(said)
            assert "Traceback" not in said


@pytest.mark.more
def test_the_address_of_a_database_comes_from_a_variable_or_a_file(log: EmbeddedLog, tmp_path: Path) -> None:
    job = log.path / "jobs" / "j"
    job.mkdir(parents=True)
    flow = ms.Flow("j")
    rows = flow.read("scores", "team string, score int")
    rows.write(ms.postgres(f"postgresql://ann:{PLANTED}@{SERVER}/games", "totals", key="team"))
    remember(job, flow.check(), log.path)
    assert [table.where for table in remembered(log.path)] == [f"postgresql://ann@{SERVER}/games"]
    whole = f"postgresql://ann:{PLANTED}@{SERVER}/games"
    file = tmp_path / "address"
    file.write_text(whole + "\n")
    file.chmod(0o600)
    get = ["table", "get", "totals", "red"]
    for how, variables in (
        (["--at-env", "GAMES"], {"GAMES": whole}),
        (["--at-file", file], {}),
        ([], {"PGPASSWORD": PLANTED}),
    ):
        code, said = ran(*get, *how, **variables)
        assert code == 5
        assert "Postgres cannot be read: connection failed" in said
        clean(said)
    file.chmod(0o644)
    code, said = ran(*get, "--at-file", file)
    assert "warning: other users can read" in said
    clean(said)
    assert ran(*get, "--at-env", "NOTHING")[0] == 3
    assert ran(*get, "--at-file", tmp_path / "nothing")[0] == 3
    assert ran(*get, "--at", "service=x", "--at-env", "X")[0] == 2
    for command in (["jobs", "list"], ["table", "list"], ["jobs", "list", "--json"], ["table", "list", "--json"]):
        clean(ran(*command)[1])


def test_the_arguments_of_a_server_hold_no_password(log: EmbeddedLog) -> None:
    variables = {**os.environ, "GAMES": f"postgresql://ann:{PLANTED}@{SERVER}/games"}
    with start("table", "serve", "--port", "0", "--at-env", "GAMES", env=variables) as server:
        assert server.stderr is not None
        clean(server.stderr.readline())
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                clean(process.read_bytes())
            except OSError:  # it has ended meanwhile
                continue
        server.terminate()
        server.communicate(timeout=60)
