"""Spark for the duration of one step: quiet, on loopback unless there is a cluster, nothing left behind.

Spark's Java process (`gateway`) ends when its standard input closes, so it also ends when this process is killed; its
Python workers end with it.
"""

import asyncio
import errno
import logging
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.platform import POD_VARIABLE
from everstep.steps.entry import StepError, defer_signals
from everstep.steps.preprocess import gateway, masters
from everstep.steps.preprocess.java import check_user, find_java
from everstep.steps.preprocess.scratch import scratch

if TYPE_CHECKING:
    from pyspark import SparkContext

    from everstep.runtime.platform.kubernetes import Access

SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set in the environment of a program that spark-submit runs."""
_END_S = 10.0
_STARTED_S = 120.0
"""Seconds within which the API server must answer and know the address of this pod."""
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
def spark(master: str, cores: int, executor_cores: int) -> Iterator["SparkContext"]:
    """A SparkContext; its Java process has ended when the block has. Raises StepError if Java does not start.

    Asks for at most `cores` cores, on a cluster in executors of `executor_cores`. Under spark-submit it is the
    submitted context: master and settings are those of that command.
    """
    if SUBMITTED in os.environ:
        context = _submitted_context()
        try:
            yield context
        finally:
            context.stop()
        return
    check_user()
    with scratch() as folder:
        before, kind, java, busy = dict(os.environ), masters.kind_of(master), None, False
        try:
            spark_settings = settings(master, cores, executor_cores, folder)
            if kind is masters.Kind.STANDALONE:
                _copy_defaults(folder, master)
            home = Path(_package_file("pyspark")).parent
            _set_environment(folder, spark_settings["spark.driver.host"])
            try:
                command = gateway.command(find_java(before), home / "jars", folder, spark_settings)
                with defer_signals():
                    java = gateway.launch(command, folder)
                context = _start(spark_settings, java, folder)
            finally:
                os.environ.update(before)  # first, because other threads read them meanwhile
                for name in set(os.environ) - set(before):
                    del os.environ[name]
            busy = True
            yield context
            busy = False
        finally:
            _end_java(java, at_once=not busy and kind is masters.Kind.LOCAL)


@contextmanager
def explain_failures(place: str) -> Iterator[None]:
    """Turn the failure of a Spark job into one line. `place` is where its tasks write."""
    from py4j.protocol import Py4JError

    try:
        yield
    except (Py4JError, ConnectionError) as error:
        message = _message(error)
        if os.strerror(errno.ENOSPC) in message:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), place) from error
        print(message, file=sys.stderr)
        raise StepError("Spark's job failed, see above; run the step again", code=ExitCode.TRY_AGAIN) from error


@contextmanager
def _explain_start() -> Iterator[None]:
    """Turn a failed start into one line: Spark, its master or the API server may answer at another try."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkRuntimeError

    try:
        yield
    except (PySparkRuntimeError, Py4JError, ConnectionError) as error:
        (line, *_) = _message(error).splitlines() or [type(error).__name__]
        raise StepError(f"Spark did not start: {line}", code=ExitCode.TRY_AGAIN) from error


def _message(error: Exception) -> str:
    """The error's text: Java's own, without a stack trace, if that is where it happened."""
    from py4j.protocol import Py4JJavaError

    return str(error.java_exception.toString()) if isinstance(error, Py4JJavaError) else str(error)


def _copy_defaults(folder: Path, master: str) -> None:
    """Copy the settings that a cluster requires of its users, such as its secret, from a file in SPARK_CONF_DIR.

    Warns about a standalone cluster without a secret: it is open, and only its owner can set one.
    """
    defaults = Path(os.environ.get("SPARK_CONF_DIR", ""), "spark-defaults.conf")
    exists = defaults.is_file()
    if exists:
        shutil.copy(defaults, folder)
    if not exists or not masters.has_secret(defaults.read_text()):
        print(
            f"{master} asks for no secret: anyone who reaches its ports can read this data and run programs; "
            "set spark.authenticate, .secret and spark.network.crypto.enabled in SPARK_CONF_DIR/spark-defaults.conf",
            file=sys.stderr,
        )


def _set_environment(folder: Path, address: str) -> None:
    """Set what Spark and its workers read from the environment, for as long as it takes to start them.

    SPARK_HOME is unset: with it workers would import the sources in its pyspark.zip, which Python compiles again in
    each.
    """
    os.environ.update(
        SPARK_LOCAL_IP=address,
        SPARK_LOCAL_DIRS=str(folder),
        SPARK_CONF_DIR=str(folder),
        PYSPARK_PYTHON=sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable,
        PYTHONPATH=os.pathsep.join(filter(None, [_package_root(), os.environ.get("PYTHONPATH")])),
    )
    for name in ("SPARK_HOME", "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        os.environ.pop(name, None)
    (folder / "log4j2.properties").write_text(_LOG4J)


def _submitted_context() -> "SparkContext":
    from pyspark import SparkConf, SparkContext

    with _explain_start():
        conf = (
            SparkConf()
            .setIfMissing("spark.app.name", "everstep-preprocess")
            .setExecutorEnv("PYTHONPATH", _package_root())
        )
        return SparkContext(conf=conf)


def _package_root() -> str:
    """The folder from which workers import this package."""
    return str(Path(__file__).parents[3])


def _package_file(package: str) -> str:
    """The file of a package, without importing it. Raises StepError if it is not installed."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise StepError(f"{package} is not installed; pip install 'everstep[preprocess]'")
    return spec.origin


def _start(spark_settings: Mapping[str, str], java: subprocess.Popen[bytes], folder: Path) -> "SparkContext":
    from pyspark import SparkConf, SparkContext  # slow, so done while Java starts

    logging.getLogger("py4j").setLevel(logging.ERROR)
    conf = SparkConf(loadDefaults=False).setAppName("everstep-preprocess").setAll(list(spark_settings.items()))
    port, secret = gateway.wait_for_connection(java, folder)
    os.environ.update({SUBMITTED: str(port), "PYSPARK_GATEWAY_SECRET": secret})
    with _explain_start():
        return SparkContext(conf=conf.setExecutorEnv("PYTHONPATH", _package_root()))


def settings(master: str, cores: int, executor_cores: int, folder: Path) -> dict[str, str]:
    """Spark's settings for that master, which is asked for `cores` in total. Raises StepError."""
    kind, result = masters.kind_of(master), masters.common_settings(folder)
    if kind is masters.Kind.LOCAL:
        return result | masters.local_settings(f"local[{cores}]")
    executors = -(-cores // executor_cores)
    if kind is masters.Kind.STANDALONE:
        return (
            result
            | masters.cluster_settings(executors, executor_cores, _own_address(master))
            | {"spark.master": master}
        )
    pod, file = own_pod(os.environ), folder / "executor.json"
    file.write_text(masters.pod_template(pod))
    result |= masters.cluster_settings(executors, executor_cores, pod.address)
    return result | masters.kubernetes_settings(master, pod, executor_cores, file)


def _own_address(master: str) -> str:
    """This machine's address as the master's machine reaches it. Sends nothing."""
    host, _, port = master.removeprefix("spark://").partition(",")[0].rpartition(":")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, int(port)))
            return probe.getsockname()[0]
    except OverflowError:
        raise StepError(f"--spark-master {master}: a port is at most 65535") from None
    except OSError as error:
        code = ExitCode.TRY_AGAIN if error.errno == socket.EAI_AGAIN else ExitCode.BAD_INPUT
        what = f"--spark-master {master}: {host} cannot be reached ({error.strerror or error})"
        raise StepError(what, code) from None


def own_pod(environment: Mapping[str, str]) -> masters.Pod:
    """The pod in which this step runs. Raises StepError."""
    from everstep.runtime.platform.kubernetes import Access, KubeError, template_of
    from everstep.runtime.platform.kubernetes.api import ACCOUNT

    name = environment.get(POD_VARIABLE, "")
    if not name:
        raise StepError(
            f"--spark-master k8s://: this is not one of Everstep's pods ({POD_VARIABLE} is not set); run the "
            "step on Argo, or choose local[*] or spark://"
        )

    try:
        access = Access.of_this_pod(environment)
        own = asyncio.run(asyncio.wait_for(_read(access, name), _STARTED_S))
    except TimeoutError:
        raise StepError(
            f"--spark-master k8s://: {access.url} does not know the address of pod {name} after {_STARTED_S:.0f} s; is "
            "its machine Ready?",
            code=ExitCode.TRY_AGAIN,
        ) from None
    except KubeError as error:
        raise StepError(f"--spark-master k8s://: {error}", code=ExitCode.TRY_AGAIN) from None
    files = str(ACCOUNT / "token"), str(ACCOUNT / "ca.crt")
    return masters.Pod(access.url, access.namespace, *files, name, own["status"]["podIP"], template_of(own))


async def _read(access: "Access", name: str) -> dict[str, Any]:
    from everstep.runtime.platform.kubernetes import KubeApi

    async with KubeApi(access) as api:
        return await api.own_pod(name)


def _end_java(java: subprocess.Popen[bytes] | None, at_once: bool) -> None:
    """End Java and wait: close its standard input, or kill it (`at_once`) if nothing runs and no cluster knows it."""
    pyspark = sys.modules.get("pyspark")
    context = pyspark.SparkContext._active_spark_context if pyspark else None
    if context is not None and context._accumulatorServer is not None:
        # It would print a traceback when Java closes its connection.
        context._accumulatorServer.handle_error = lambda *_: None
    if pyspark is not None and pyspark.SparkContext._gateway is not None:
        # Garbage-collected objects would be reported to Java.
        pyspark.SparkContext._gateway._gateway_client.is_connected = False
    if java is not None:
        _wait(java, at_once)
    if context is not None:
        context._jsc = None
    if pyspark is not None:
        kind: Any = pyspark.SparkContext
        kind._active_spark_context = kind._gateway = kind._jvm = None


def _wait(java: subprocess.Popen[bytes], at_once: bool) -> None:
    if at_once:
        java.kill()
    if java.stdin:
        java.stdin.close()
    try:
        java.wait(_END_S)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()
