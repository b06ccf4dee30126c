"""The driver's Java process, started as Spark's own script would start it, but faster.

spark-submit runs a Python to find Spark, and a first Java to compute the command line of the second. Both results are
known here: see Spark's launcher (SparkSubmitCommandBuilder, JavaModuleOptions).
"""

import os
import struct
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from everstep.runtime.exit_codes import ExitCode
from everstep.steps.entry import StepError
from everstep.steps.preprocess.java import Java, unsupported_arguments

SUBMIT = "org.apache.spark.deploy.SparkSubmit"
JVM_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
"""For a driver that only hands out tasks: little memory, a quick start, no performance file in /tmp."""
_OPENED_PACKAGES = ("lang", "lang.invoke", "lang.reflect", "io", "net", "nio", "util")
MODULES = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    "--add-modules=jdk.incubator.vector",
    *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _OPENED_PACKAGES),
    "--add-opens=java.base/java.util.concurrent=ALL-UNNAMED",
    "--add-opens=java.base/java.util.concurrent.atomic=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.cs=ALL-UNNAMED",
    "--add-opens=java.base/sun.security.action=ALL-UNNAMED",
    "--add-opens=java.base/sun.util.calendar=ALL-UNNAMED",
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
)
"""The Java packages that Spark 4 opens."""
_CONNECTION_VARIABLE = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""The variable that names the file in which Spark writes its port and its secret."""
_HEAD = struct.Struct(">ii")
_POLL_S = 0.02


def command(java: Java, jars: Path, folder: Path, settings: Mapping[str, str]) -> list[str]:
    """The program and its arguments. `folder` holds Spark's configuration and its output. Pure."""
    options = [option for option in MODULES if option not in unsupported_arguments(java)]
    place = ["-cp", f"{folder}{os.pathsep}{jars}/*", f"-Djava.io.tmpdir={folder}"]
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    return [str(java.program), *JVM_OPTIONS, *options, *place, SUBMIT, *conf, "pyspark-shell"]


def launch(words: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start it. It ends when its standard input closes, so also when this process is killed.

    It has a process group of its own: Ctrl-C ends this process, which then ends it.
    """
    environment = {
        **os.environ,
        _CONNECTION_VARIABLE: str(_connection_file(folder)),
        "SPARK_CONNECT_MODE": "0",
        "PYTHONHASHSEED": "0",
    }
    return subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, process_group=0)


def wait_for_connection(process: subprocess.Popen[bytes], folder: Path) -> tuple[int, str]:
    """Wait until it listens; returns its port and its secret. Raises StepError if it ends first."""
    file = _connection_file(folder)
    while not file.is_file():
        if process.poll() is not None:
            raise StepError(f"Spark did not start: its Java ended with {process.returncode}", code=ExitCode.TRY_AGAIN)
        time.sleep(_POLL_S)
    content = file.read_bytes()
    port, size = _HEAD.unpack_from(content)
    return port, content[_HEAD.size : _HEAD.size + size].decode()


def _connection_file(folder: Path) -> Path:
    return folder / "gateway"
