"""A real standalone Spark cluster on this machine: a master and two workers of one core each."""

import os
import random
import secrets
import shlex
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark

from everstep.runtime.agent.ports import free_port
from everstep.steps.preprocess.java import Java, find_java, unsupported_arguments
from everstep.steps.preprocess.masters import ENCRYPTED
from tests.harness import wait_until

SPARK = Path(pyspark.__file__).parent
_MARK = "EVERSTEP_TEST_CLUSTER"
_SECRET = secrets.token_hex(16)


@dataclass(frozen=True)
class Cluster:
    """Its address for --master, and what its processes carry in their environment."""

    master: str
    mark: str

    def processes(self) -> list[psutil.Process]:
        """Master, workers, executors and the Python workers of these."""
        processes = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(_MARK) == self.mark:
                    processes.append(process)
        return processes

    def executors(self) -> list[psutil.Process]:
        """The Java processes in which tasks run."""
        return [process for process in self.processes() if _runs(process, "CoarseGrainedExecutorBackend")]


def spark_environment(folder: Path) -> dict[str, str]:
    """For Spark's own programs: a Java, this Python, the loopback address, and a cluster's secret."""
    home = _home(folder / "java", find_java(os.environ))
    there = {"JAVA_HOME": str(home), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return {**os.environ, **there, **secret(folder)}


def secret(folder: Path) -> dict[str, str]:
    """Where those who know it find it: whoever does not is refused, and nobody can read what the others say."""
    spark_conf = {"spark.authenticate": "true", "spark.authenticate.secret": _SECRET} | ENCRYPTED
    conf = folder / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    (conf / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in spark_conf.items()))
    return {"SPARK_CONF_DIR": str(conf)}


def _home(folder: Path, java: Java) -> Path:
    """A JAVA_HOME whose `java` is that one without the arguments of Spark's that do not suit it."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        "for argument; do\n"
        "  shift\n"
        '  case "$argument" in\n'
        f"    {'|'.join(unsupported_arguments(java))}) ;;\n"
        '    *) set -- "$@" "$argument" ;;\n'
        "  esac\n"
        "done\n"
        f'exec {shlex.quote(str(java.program))} "$@"\n'
    )
    program.chmod(0o755)
    return folder


@contextmanager
def standalone(folder: Path, environment: Mapping[str, str]) -> Iterator[Cluster]:
    """The cluster, until the block ends; then nothing of it is left."""
    port = free_port(random.Random())
    cluster = Cluster(f"spark://127.0.0.1:{port}", uuid.uuid4().hex)
    marked = {**environment, _MARK: cluster.mark}
    daemon = [str(SPARK / "bin/spark-class"), "org.apache.spark.deploy"]
    place = ["--host", "127.0.0.1", "--webui-port", "0"]
    commands = [[daemon[0], f"{daemon[1]}.master.Master", *place, "--port", str(port)]]
    for number in range(2):
        limits = ["--cores", "1", "--memory", "600m", "--work-dir", str(folder / f"work{number}")]
        commands.append([daemon[0], f"{daemon[1]}.worker.Worker", *place, *limits, cluster.master])
    started = []
    try:
        for number, command in enumerate(commands):
            with (folder / f"spark{number}.log").open("wb") as log:
                started.append(subprocess.Popen(command, env=marked, stdout=log, stderr=log))
            if not number:
                wait_until(lambda: _answers(port), "Spark's master")
        yield cluster
    finally:
        for process in cluster.processes():
            with suppress(psutil.Error):
                process.kill()
        for process in started:
            process.wait()


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
        return True
    return False


def _runs(process: psutil.Process, name: str) -> bool:
    with suppress(psutil.Error):
        return any(name in word for word in process.cmdline())
    return False
