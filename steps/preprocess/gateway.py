"""The driver's Java process, started as Spark's own script would, without what takes that script its time.

spark-submit runs a Python to find Spark and a first Java that tells how to start the second. What these would tell is
known here: see Spark's launcher (SparkSubmitCommandBuilder, JavaModuleOptions).
"""

import os
import struct
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from everstep.steps.entry import TRY_AGAIN, StepError
from everstep.steps.preprocess.java import Java, unsupported_arguments

SUBMIT = "org.apache.spark.deploy.SparkSubmit"
JVM_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
"""A driver that only hands out tasks: little memory, quickly started, and no file of figures in /tmp."""
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
"""What Spark 4 opens of Java's modules."""
_CONNECTION_VARIABLE = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""Names the file in which Spark tells its port and its secret."""
_HEAD = struct.Struct(">ii")
_POLL_S = 0.02


def command(java: Java, jars: Path, folder: Path, settings: Mapping[str, str]) -> list[str]:
    """The program and its arguments. `folder` holds Spark's configuration and what it writes. Pure."""
    options = [option for option in MODULES if option not in unsupported_arguments(java)]
    place = ["-cp", f"{folder}{os.pathsep}{jars}/*", f"-Djava.io.tmpdir={folder}"]
    told = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    return [str(java.program), *JVM_OPTIONS, *options, *place, SUBMIT, *told, "pyspark-shell"]


def launch(words: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start it. It ends when its standard input closes: so also when this process is killed.

    It is in a process group of its own: Ctrl-C ends this process, which then ends it.
    """
    environment = {
        **os.environ,
        _CONNECTION_VARIABLE: str(_connection_file(folder)),
        "SPARK_CONNECT_MODE": "0",
        "PYTHONHASHSEED": "0",
    }
    return subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, process_group=0)


def wait_for_connection(process: subprocess.Popen[bytes], folder: Path) -> tuple[int, str]:
    """The port at which it listens, and its secret, once it does. Raises StepError when it ends before."""
    file = _connection_file(folder)
    while not file.is_file():
        if process.poll() is not None:
            raise StepError(f"Spark did not start: its Java ended with {process.returncode}", code=TRY_AGAIN)
        time.sleep(_POLL_S)
    told = file.read_bytes()
    port, size = _HEAD.unpack_from(told)
    return port, told[_HEAD.size : _HEAD.size + size].decode()


def _connection_file(folder: Path) -> Path:
    return folder / "gateway"
