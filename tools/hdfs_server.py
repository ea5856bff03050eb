"""A real HDFS, a NameNode and a DataNode, for tests: its jars are brought by Maven once, and kept beside Kafka's."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kafka_jars import HERE, KafkaFailed, assemble, find_java
from kafka_node import HOST, Node, free_ports

POM = HERE.parent / "hdfs" / "pom.xml"
MAIN = "org.apache.hadoop.test.MiniDFSClusterManager"
ADMIN = "org.apache.hadoop.hdfs.tools.DFSAdmin"
JAVA = ("-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")  # it lives for minutes
SETTINGS = {"dfs.replication": "1", "dfs.permissions.enabled": "true", "dfs.namenode.safemode.extension": "0"}
START_S_MAX = 240
STOP_S_MAX = 20
LOOK_S = 0.1


class HdfsServer:
    """Runs while it is entered. Stopped and started again, it has the same files at the same addresses."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="millstream-hdfs-")
        port, web_port = free_ports(2)
        self._node = Node(0, Path(self._folder.name), port, 0, web_port)

    @property
    def address(self) -> str:
        return f"hdfs://{HOST}:{self._node.port}"

    @property
    def url(self) -> str:
        """Where it is reached over HTTP."""
        return f"http://{HOST}:{self._node.secure_port}"

    @property
    def settings(self) -> dict[str, str]:
        """What clients need. The user is the one that started it, who may do anything."""
        return {"WEBHDFS_URL": self.url}

    def start(self) -> None:
        jars, details = assemble(POM), Path(self._folder.name) / "details.json"
        details.unlink(missing_ok=True)
        is_new = not self._node.data.exists()
        settings = {**SETTINGS, "hdfs.minidfs.basedir": str(self._node.data)}
        given = [part for name, value in settings.items() for part in ("-D", f"{name}={value}")]
        ports = ["-nnport", str(self._node.port), "-httpport", str(self._node.secure_port), "-datanodes", "1"]
        options = [*ports, "-writeDetails", str(details), *(["-format"] if is_new else []), *given]
        self._node.start([str(find_java().command), *JAVA, "-cp", f"{jars}/*", MAIN, *options])
        deadline = time.monotonic() + START_S_MAX
        while not details.exists():  # it is written when the DataNode is known
            if not self._node.runs or time.monotonic() > deadline:
                raise self._node.failed("HDFS did not start")
            time.sleep(LOOK_S)

    def stop(self) -> None:
        self._node.send(signal.SIGTERM)
        self._node.wait(STOP_S_MAX)

    def set_safe_mode(self, is_on: bool) -> None:
        """In safe mode, as after its start, the NameNode answers questions and changes nothing."""
        program = [str(find_java().command), *JAVA, "-cp", f"{assemble(POM)}/*", ADMIN, "-fs", self.address]
        asked = [*program, "-safemode", "enter" if is_on else "leave"]
        subprocess.run(asked, check=True, capture_output=True, timeout=START_S_MAX)

    def __enter__(self) -> HdfsServer:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()
        self._folder.cleanup()


if __name__ == "__main__":  # for trying things out
    try:
        with HdfsServer() as server:
            print(f"export WEBHDFS_URL={server.url}\n{server.address}", flush=True)
            signal.sigwait([signal.SIGINT, signal.SIGTERM])
    except (KafkaFailed, subprocess.SubprocessError) as error:
        sys.exit(str(error))
