"""Spark for the time of one step: quiet, on the loopback address only, nothing left behind.

Spark's Java process ends when its standard input closes, so it also ends when this process is killed; its Python
workers end with it.
"""

import errno
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.entry import TRY_AGAIN, StepError
from steps.preprocess.java import find_java, make_home

if TYPE_CHECKING:
    from pyspark import SparkContext

ATTEMPTS = 3
SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""In the environment of what spark-submit runs."""
_END_S = 10.0
_LOG4J = """\
# A failed job is told once, by `failures`.
rootLogger.level = fatal
rootLogger.appenderRef.stderr.ref = stderr
# Spark prints a line about its default level unless this logger has one.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = fatal
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %m%n%ex
"""


@contextmanager
def spark(master: str) -> Iterator["SparkContext"]:
    """A SparkContext; its Java process has ended when the block has. Raises StepError when Java does not start.

    Under spark-submit it is the one that was submitted: master and settings are those of that command.
    """
    if SUBMITTED in os.environ:
        context = _submitted()
        try:
            yield context
        finally:
            context.stop()
        return
    scratch = Path(tempfile.mkdtemp(prefix="everstep-spark-"))
    before = dict(os.environ)
    try:
        _environment(scratch)
        try:
            context = _start(master, scratch)
        finally:
            os.environ.clear()
            os.environ.update(before)
        yield context
    finally:
        _end()
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def failures(place: str) -> Iterator[None]:
    """Turn the failure of a Spark job into one line. `place` is where its tasks write."""
    from py4j.protocol import Py4JError, Py4JJavaError

    try:
        yield
    except Py4JError as error:
        told = str(error.java_exception.toString()) if isinstance(error, Py4JJavaError) else str(error)
        if os.strerror(errno.ENOSPC) in told:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), place) from error
        print(told, file=sys.stderr)
        raise StepError("Spark's job failed, as told above; run the step again", code=TRY_AGAIN) from error


def _environment(scratch: Path) -> None:
    """What Spark's scripts and workers read from the environment, for as long as it takes to start them."""
    os.environ.update(
        JAVA_HOME=str(make_home(scratch / "java", find_java(os.environ))),
        SPARK_LOCAL_IP="127.0.0.1",
        SPARK_LOCAL_DIRS=str(scratch),
        SPARK_CONF_DIR=str(scratch),
        PYSPARK_PYTHON=sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable,
        PYSPARK_SUBMIT_ARGS="pyspark-shell",
        PYTHONPATH=os.pathsep.join(filter(None, [_root(), os.environ.get("PYTHONPATH")])),
    )
    for name in ("SPARK_HOME", "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        os.environ.pop(name, None)
    (scratch / "log4j2.properties").write_text(_LOG4J)


def _submitted() -> "SparkContext":
    from pyspark import SparkConf, SparkContext

    conf = SparkConf().setIfMissing("spark.app.name", "everstep-preprocess").setExecutorEnv("PYTHONPATH", _root())
    return SparkContext(conf=conf)


def _root() -> str:
    """Where workers find this package."""
    return str(Path(__file__).parents[2])


def _start(master: str, scratch: Path) -> "SparkContext":
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError

    logging.getLogger("py4j").setLevel(logging.ERROR)
    conf = SparkConf(loadDefaults=False).setMaster(_with_retries(master)).setAppName("everstep-preprocess")
    conf.setAll(
        [
            ("spark.ui.enabled", "false"),
            ("spark.ui.showConsoleProgress", "false"),
            # Without a secret given, Spark makes a random one for local masters; on a command line all could read it.
            ("spark.authenticate", "true"),
            ("spark.driver.host", "127.0.0.1"),
            ("spark.driver.bindAddress", "127.0.0.1"),
            ("spark.driver.memory", "512m"),
            ("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"),
            ("spark.local.dir", str(scratch)),
            ("spark.python.worker.reuse", "true"),
        ]
    )
    try:
        return SparkContext(conf=conf)
    except PySparkRuntimeError as error:
        raise StepError(f"Spark did not start: {str(error).splitlines()[0]}", code=TRY_AGAIN) from error


def _with_retries(master: str) -> str:
    """A local master that tries each task up to ATTEMPTS times: a Python worker may be killed for memory."""
    threads = master.removeprefix("local").strip("[]") or "1"
    return f"local[{threads},{ATTEMPTS}]"


def _end() -> None:
    """Close Java's standard input, which ends it, and wait; kill it if it does not."""
    pyspark = sys.modules.get("pyspark")
    if pyspark is None or pyspark.SparkContext._gateway is None:
        return
    kind: Any = pyspark.SparkContext
    process: subprocess.Popen[bytes] = kind._gateway.proc
    context = kind._active_spark_context
    if context is not None and context._accumulatorServer is not None:
        # It would print a traceback when Java closes its connection.
        context._accumulatorServer.handle_error = lambda *_: None
    if process.stdin:
        process.stdin.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if context is not None:
        context._jsc = None
    kind._active_spark_context = kind._gateway = kind._jvm = None
