"""Creates the Spark session. Every setting that matters is in one table here, with its reason."""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.errors import InvalidSetting, MillstreamError, NotFound, SparkFailed
from millstream.secrets import SHOWN
from millstream.spark.session import archive, callbacks, interpreter, java, launch, lost_jvm, shipping, submitting
from millstream.spark.session.start_failures import translated

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*]"
LOG_NAME = "spark.log"
TEMPORARY = "tmp"
REACH_S_MAX = 10
STOP_S_MAX = 30.0
SOCKET_FOLDER_MAX = 60
"""The path of a socket has at most about a hundred bytes, and Spark's names for them have 42."""


@dataclass(frozen=True)
class Setting:
    """A Spark setting and the reason for its value. `required`: flows are wrong or refused without it."""

    key: str
    value: str
    why: str
    required: bool = False
    local: bool = False


STREAMING = "spark.sql.streaming"
ROCKSDB = f"{STREAMING}.stateStore.rocksdb"
SETTINGS = (
    Setting(
        f"{STREAMING}.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        "transformWithState runs on no other state store",
        required=True,
    ),
    Setting("spark.sql.session.timeZone", "UTC", "expressions mean the same on every machine", required=True),
    Setting(f"{ROCKSDB}.changelogCheckpointing.enabled", "true", "a batch uploads its changes, not whole files: 90 ms"),
    Setting(f"{ROCKSDB}.trackTotalNumberOfRows", "false", "counting rows would add a read to every write"),
    Setting(
        f"{STREAMING}.checkpointFileManagerClass",
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
        "on a disk the default starts about 60 more helper processes a batch: 160 ms",
    ),
    Setting("spark.sql.execution.arrow.maxRecordsPerBatch", "100000", "large Arrow batches: less work per row"),
    Setting("spark.sql.execution.arrow.pyspark.enabled", "true", "toPandas and createDataFrame go by Arrow"),
    Setting("spark.python.worker.reuse", "true", "a new Python worker per task costs seconds a batch"),
    Setting("spark.executorEnv.POLARS_MAX_THREADS", "1", "Spark distributes the work over the cores"),
    Setting("spark.driver.maxResultSize", "0", "a batch is limited where it is read, not where it is collected"),
    Setting("spark.ui.enabled", "false", "the console shows running jobs; no port is used"),
    Setting("spark.ui.showConsoleProgress", "false", "no progress bar across the terminal"),
    Setting("spark.sql.catalogImplementation", "in-memory", "no metastore_db in the working directory"),
    Setting("spark.driver.host", "127.0.0.1", "a laptop's own name often does not resolve", local=True),
    Setting("spark.driver.bindAddress", "127.0.0.1", "nothing outside this machine needs the driver", local=True),
    Setting("spark.driver.memory", "1g", "Spark's own default, made explicit", local=True),
    # Spark generates the secret in the JVM's memory. A local session uses no network, so this costs nothing.
    Setting("spark.authenticate", "true", "all users of this machine can reach the loopback interface", local=True),
    Setting("spark.network.crypto.enabled", "true", "AES for the handshake, not MD5", local=True),
    Setting("spark.network.crypto.saslFallback", "false", "no weaker fallback", local=True),
    Setting("spark.ui.killEnabled", "false", "a UI that is enabled would let any user kill jobs", local=True),
)
# For a JVM on this machine. There is little garbage, and the serial collector takes no threads from the work.
# The optimizing compiler waits ten times longer than usual: early, it took a fifth of the CPU time to a first output.
JVM_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
    "-XX:-UsePerfData",
    "-Djava.net.preferIPv6Addresses=false",
)
JARS = "spark.jars"
# These need Spark's own launcher: it fetches jars, changes the class path, reads a folder of settings.
SUBMITTED = (
    JARS,
    "spark.files",
    "spark.archives",
    "spark.submit.",
    "spark.driver.extra",
    "spark.driver.default",
)
JAVA_OPTIONS = "MILLSTREAM_JAVA_OPTIONS"
"""More options for the JVM of a session on this machine, such as -XX:TieredStopAtLevel=1 for short runs."""
SUBMIT_VARIABLES = ("PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME")

# Spark's log goes to a file; what a user must know is raised as an error that names the file.
LOGGING = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {log}
appender.file.filePattern = {log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 20MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
"""

_lock = threading.Lock()
_log: Path | None = None
_analyzing: SparkSession | None = None


def session(
    *,
    master: str | None = None,
    name: str = "millstream",
    partitions: int = 2,
    settings: Mapping[str, str] = {},
    environment: str | None = None,
) -> SparkSession:
    """The running session, or a new one. `master` defaults to MILLSTREAM_MASTER, or all cores of this machine.

    `partitions` is the number of tasks of a shuffle; `settings` override those of Millstream. `environment` is an
    archive with the libraries of workers, created by `millstream pack`.
    """
    if partitions < 1:
        raise InvalidSetting(f"a shuffle cannot have {partitions} partitions", next_step="use one or more")
    with _lock:
        active = running()
        if active is not None and active is _analyzing and _differs(active, master, settings, environment):
            _stop(STOP_S_MAX)
            active = None
        if active is not None:
            found = _adopted(active, master, settings)
        else:
            chosen = master or os.environ.get("MILLSTREAM_MASTER") or DEFAULT_MASTER
            found = created(chosen, name, partitions, settings, environment=environment)
        shipping.ship_package(found)
        return found


def session_for_analysis() -> SparkSession:
    """A session that checks expressions while a flow is built. A run continues with it, or replaces it."""
    global _analyzing
    found = session()
    _analyzing = found
    return found


def _differs(active: SparkSession, master: str | None, settings: Mapping[str, str], environment: str | None) -> bool:
    """Whether a run needs another session than the one that only checked expressions."""
    other_master = master is not None and master != active.sparkContext.master
    return (
        other_master or environment is not None or any(active.conf.get(key, None) != settings[key] for key in settings)
    )


def created(
    master: str,
    name: str,
    partitions: int,
    settings: Mapping[str, str],
    *,
    jvm_options: Sequence[str] | None = None,
    environment: str | None = None,
) -> SparkSession:
    """A new session. `jvm_options` replace those of the class archive."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    local = shipping.is_local(master)
    shipped = None if environment is None or local else _archive(environment)
    check_reachable(master)
    folder = Path(tempfile.mkdtemp(prefix="millstream-spark-"))
    atexit.register(_clean_up, folder)
    chosen = {each.key: each.value for each in SETTINGS if local or not each.local}
    chosen["spark.sql.shuffle.partitions"] = str(partitions)
    chosen["spark.sql.warehouse.dir"] = (folder / "warehouse").as_uri()
    if re.match(r"spark://(127\.|localhost)", master):  # workers are on this machine, too
        chosen |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if shipped is not None:
        chosen["spark.archives"] = f"{shipped}#{shipping.ENVIRONMENT}"
        os.environ["PYSPARK_PYTHON"] = shipping.driver_python(folder)
    chosen |= _python(local)
    if local:
        chosen |= _sockets(folder)
    else:  # the memory of an executor's Python processes is listed with the job
        chosen["spark.executor.processTreeMetrics.enabled"] = "true"
    chosen |= settings
    if local:
        chosen |= _local_dirs(chosen)
    _start_jvm(local, chosen, folder, jvm_options, moved=shipped is not None)
    callbacks.authenticate(SparkContext._gateway)
    try:
        found = SparkSession.builder.master(master).appName(name).config(map=dict(chosen)).getOrCreate()
        lost_jvm.silence(found)
        return found
    except MillstreamError:
        raise
    except Exception as error:
        raise translated(error, master, _log) from None


def activate(spark: SparkSession) -> None:
    """Makes a session that another thread started the active one of this thread: Spark has one per thread."""
    spark_sessions: Any = type(spark)._get_j_spark_session_class(spark._jvm)
    spark_sessions.setActiveSession(spark._jsparkSession)


def stop(*, patience_seconds: float = STOP_S_MAX) -> None:
    """Stops the running session, if there is one, and its JVM."""
    with _lock:
        _stop(patience_seconds)


def _stop(patience_seconds: float) -> None:
    from pyspark import SparkContext

    active = running()
    if active is not None:
        active.stop()
    gateway: Any = SparkContext._gateway
    if gateway is not None and gateway.proc is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()  # the JVM exits when its stdin closes
        gateway.proc.wait(patience_seconds)
        SparkContext._gateway = SparkContext._jvm = None


def warm(spark: SparkSession) -> threading.Thread:
    """Starts the Python workers in the background, one per core, so that a first batch does not wait for them."""
    cores = spark.sparkContext.defaultParallelism

    def run() -> None:
        spark.range(0, cores, 1, cores).mapInArrow(_loaded, "id long").write.format("noop").mode("overwrite").save()

    thread = threading.Thread(target=run, name="millstream-warm", daemon=True)
    thread.start()
    return thread


def kept_log() -> Path | None:
    """Spark's log, for an error that names it: it is kept when the process exits."""
    found = log_file()
    if found is not None:
        _kept_logs.add(found)
    return found


_kept_logs: set[Path] = set()


def log_file() -> Path | None:
    """Spark's log of this process; None before a session was created here."""
    return _log


def _loaded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import polars  # noqa: F401 imported only to load it

    yield from batches


def running() -> SparkSession | None:
    """The session of this thread, otherwise that of another."""
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    return active if active is not None and active.sparkContext._jsc is not None else None


def _sockets(folder: Path) -> dict[str, str]:
    """Unix sockets to the workers of this machine: a batch takes 30 to 70 ms less than by TCP. Spark does not remove
    them, so they are in a folder that is removed at exit."""
    if len(os.fsencode(folder)) > SOCKET_FOLDER_MAX:
        return {}
    setting = "spark.python.unix.domain.socket"
    return {f"{setting}.enabled": "true", f"{setting}.dir": str(folder)}


def _local_dirs(chosen: Mapping[str, str]) -> dict[str, str]:
    """Where Spark keeps shuffled rows: by default in the private folder. If the user configured folders, in private
    folders there, since Spark's own are readable by everyone."""
    configured = os.environ.get("SPARK_LOCAL_DIRS") or chosen.get("spark.local.dir")
    if not configured:
        return {}
    made = [Path(tempfile.mkdtemp(prefix="millstream-spark-", dir=_folder(each))) for each in configured.split(",")]
    for folder in made:
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {"spark.local.dir": ",".join(map(str, made))}


def _folder(configured: str) -> Path:
    try:
        folder = Path(configured.strip())
        folder.mkdir(parents=True, exist_ok=True)
        return folder.absolute()
    except OSError as error:
        raise InvalidSetting(
            f"Spark cannot keep files in '{configured}': {error.strerror}",
            where="spark.local.dir, or SPARK_LOCAL_DIRS",
            next_step="use a folder that this user may write to",
        ) from error


def _python(local: bool) -> dict[str, str]:
    """Workers run this interpreter. On a cluster, where paths may differ, PYSPARK_PYTHON takes precedence."""
    chosen = sys.executable if local else os.environ.get("PYSPARK_PYTHON", sys.executable)
    # The process that transformWithState starts on the driver reads only the environment.
    os.environ["PYSPARK_PYTHON"] = chosen
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if local:
        # Without the environment of this process: here polars may use all cores.
        return {"spark.pyspark.python": chosen, "spark.pyspark.driver.python": sys.executable}
    return {"spark.pyspark.python": chosen}


def check_reachable(master: str) -> None:
    """Fails at once if no master of a standalone cluster answers, which takes Spark a minute."""
    masters = re.fullmatch(r"spark://([^,/]+:\d+(?:,[^,/]+:\d+)*)", master)
    if not masters:
        return
    why = ""
    for address in masters[1].split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S_MAX).close()
            return
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
    raise SparkFailed(
        f"no Spark master answers at '{master}': {why}",
        next_step="check that the cluster is up and its address is right",
    )


def _archive(given: str) -> str:
    """The URL of an archive: a file of this machine, or a URL that workers can reach."""
    if "://" in given:
        return given
    file = Path(given).expanduser().absolute()
    if not file.is_file():
        raise NotFound(f"there is no archive '{given}'", next_step="create it: millstream pack env.tar.gz")
    return f"file://{file}"


def _start_jvm(
    local: bool, chosen: Mapping[str, str], folder: Path, options: Sequence[str] | None, *, moved: bool
) -> None:
    """`moved`: with `folder` as its working directory, where Python has the same path as on workers; the user's
    relative paths still start at the current one."""
    global _log
    from pyspark import SparkContext

    if SparkContext._gateway is not None:
        return
    found = java.find()
    _log = folder / LOG_NAME
    logging = folder / "log4j2.properties"
    logging.write_text(LOGGING.format(log=_log))
    log_option = f"-Dlog4j2.configurationFile={logging.as_uri()}"
    temporary = folder / TEMPORARY
    temporary.mkdir()
    # For libraries that Java unpacks and runs, and shuffled rows: Spark opens some of these folders to every user.
    temporary_option = f"-Djava.io.tmpdir={temporary}"
    jars = _jars_here(chosen.get(JARS, ""))
    submitted = any(key.startswith(SUBMITTED) and not (key == JARS and jars) for key in chosen)
    if local and not submitted and not any(map(os.environ.get, SUBMIT_VARIABLES)):
        cached = archive.options(found) if options is None else options
        memory = f"-Xmx{chosen['spark.driver.memory']}"
        plain = [
            memory,
            *JVM_OPTIONS,
            log_option,
            temporary_option,
            f"-XX:ErrorFile={folder / 'crash.log'}",
            "-XX:-CreateCoredumpOnCrash",
            *_java_options(),
        ]
        try:
            gateway = launch.start(found, [*plain, *cached], _log, jars)
        except SparkFailed:
            if not cached or options is not None:
                raise
            _log.unlink(missing_ok=True)
            gateway = launch.start(found, plain, _log, jars)
            # Java starts without it, so the archive was the reason: Java 17 crashes on a damaged one.
            archive.path(found).unlink(missing_ok=True)
    else:
        os.environ["JAVA_HOME"] = str(java.launcher_home(found))
        more = [chosen.get("spark.driver.extraJavaOptions", ""), log_option, f'"{temporary_option}"']
        more += [f'"-Duser.dir={Path.cwd()}"'] if moved else []
        given = {**chosen, "spark.driver.extraJavaOptions": " ".join(filter(None, more))}
        gateway = submitting.submit(given, folder, _log, cwd=folder if moved else None, local=local)
    SparkContext._ensure_initialized(gateway=gateway)


def _java_options() -> list[str]:
    given = os.environ.get(JAVA_OPTIONS, "")
    try:
        return shlex.split(given)
    except ValueError as error:
        next_step = "separate the options by spaces, and close every quote"
        raise InvalidSetting(f"{JAVA_OPTIONS} cannot be read: {error}", next_step=next_step) from None


def _jars_here(given: str) -> list[Path]:
    """The jars of a setting if all are plain files of this machine; otherwise none, and Spark finds them."""
    paths = [Path(each.strip().removeprefix("file://")).absolute() for each in given.split(",")] if given else []
    return paths if all(path.suffix == ".jar" and path.is_file() for path in paths) else []


def _adopted(active: SparkSession, master: str | None, settings: Mapping[str, str]) -> SparkSession:
    """A running session with the settings that flows require; its other settings are unchanged."""
    running = active.sparkContext.master
    if master is not None and master != running:
        raise InvalidSetting(
            f"the running session has the master '{running}', and '{master}' was requested",
            where="session(master=…)",
            next_step="stop the running session first: millstream.spark.stop()",
        )
    wanted = {each.key: each.value for each in SETTINGS if each.required} | dict(settings)
    for key, value in wanted.items():
        if active.conf.get(key, None) == value:
            continue
        if not active.conf.isModifiable(key):
            raise InvalidSetting(
                f"the running session has {key} = {_shown(key, active.conf.get(key, None))}, which cannot be changed "
                "while it runs",
                where=f"setting {key}",
                next_step=f'create the session with .config("{key}", "{_shown(key, value)}"), or let session() do it',
            )
        active.conf.set(key, value)
    interpreter.use_interpreter(active)
    callbacks.authenticate(active.sparkContext._gateway)
    return active


def _shown(key: str, value: str | None) -> str | None:
    """The value of a setting from the table above; others may be passwords."""
    return value if value is None or any(each.key == key for each in SETTINGS) else SHOWN


def _clean_up(folder: Path) -> None:
    """Removes the folder at exit, but keeps Spark's log if an error names it or it contains errors."""
    log = folder / LOG_NAME
    content = log.read_text(errors="replace") if log.exists() else ""
    if log not in _kept_logs and not re.search(r"^\S+ \S+ ERROR |^Error|Exception|Traceback", content, re.MULTILINE):
        shutil.rmtree(folder, ignore_errors=True)
    else:
        shutil.rmtree(folder / TEMPORARY, ignore_errors=True)
        (folder / submitting.FILE_NAME).unlink(missing_ok=True)
