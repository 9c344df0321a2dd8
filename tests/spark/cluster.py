"""A standalone cluster of Spark on loopback: a master and two workers, each a process of its own.

Knows: how to start and end them, and which settings a driver on the same machine needs to use them.
Must never know: what runs on it.

The workers have different addresses, 127.0.0.2 and 127.0.0.3: Spark runs the second attempt of a slow task on
another host only.
"""

import os
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pyspark

from pyspark_weir import java
from pyspark_weir.session import CHECKPOINT_FILES, CHECKPOINT_FILES_LOCAL
from tests.server import free_port
from tests.spark import classes
from tests.waiting import until

_started_s_max: Final = 120.0
_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
# What runs for a minute is not worth the slower compiler, nor that Spark's classes, a fifth of a start, are
# verified; a heap that is small starts fast, and room for classes spares collections while they are loaded.
# Where the archive of classes is of another Java, it is not used.
JVM: Final = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:MetaspaceSize=256m "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote "
    f"-XX:SharedArchiveFile={classes.ARCHIVE} -Xlog:cds=off"
)
_HOSTS: Final = ("127.0.0.2", "127.0.0.3")


class Cluster:
    """`with Cluster(folder) as cluster`: ready when the block begins, gone when it ends."""

    def __init__(self, folder: Path, *, slots: int = 1) -> None:
        self._folder = folder
        self._slots = slots
        self._port = free_port()
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        """For `--master`."""
        return f"spark://127.0.0.1:{self._port}"

    @property
    def pids(self) -> list[int]:
        """The workers, whose children are the executors."""
        return [one.pid for one in self._workers]

    def conf(self) -> dict[str, str]:
        """Settings of a session on it, of which two fit side by side."""
        return {
            "spark.master": self.url,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": JVM,
            "spark.executor.extraJavaOptions": JVM,
            "spark.executor.memory": "512m",
            "spark.executor.cores": str(self._slots),
            "spark.sql.shuffle.partitions": "2",
            # All is on this machine.
            CHECKPOINT_FILES: CHECKPOINT_FILES_LOCAL,
        }

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._master = self._launch("master", _MASTER, "--host", "127.0.0.1", "--port", str(self._port))
        self._wait_for("master", "I have been elected leader", 1)
        room = ("--cores", str(self._slots), "--memory", "1g")
        for number, host in enumerate(_HOSTS):
            work = ("--work-dir", str(self._folder / f"work-{number}"))
            self._workers.append(
                self._launch(f"worker-{number}", _WORKER, "--host", host, *room, *work, self.url)
            )
        self._wait_for("master", "Registering worker", len(_HOSTS))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        processes = [*self._workers, *([self._master] if self._master else [])]
        for one in processes:
            # A worker ends its executors, which are in sessions of their own.
            one.send_signal(signal.SIGTERM)
        for one in processes:
            try:
                one.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(one.pid, signal.SIGKILL)
                one.wait()

    def _launch(self, name: str, program: str, *options: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ}
        java.find().enter(environment)
        home = Path(pyspark.__file__).parent
        (self._folder / "log4j2.properties").write_text(_LOGGING)
        environment |= {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "192m",
            "SPARK_DAEMON_JAVA_OPTS": f"{JVM} -Dlog4j2.configurationFile={self._folder}/log4j2.properties",
        }
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [str(home / "bin" / "spark-class"), program, "--webui-port", "0", *options],
                cwd=self._folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait_for(self, name: str, text: str, times: int) -> None:
        log = self._folder / f"{name}.log"
        until(lambda: log.read_text().count(text) >= times, log.read_text, _started_s_max)


_LOGGING: Final = """\
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""
