"""What an executor's pod runs: Spark's executor in this image's Java, configured by Spark's variables.

Spark's own images have a script for this (Spark, "Running on Kubernetes"); pyspark's wheel does not.
"""

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from everstep.steps.entry import StepError
from everstep.steps.preprocess.java import Java, check_user, find_java, unsupported_arguments

CLASS = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_ARGUMENTS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
_OPTION = re.compile(r"SPARK_JAVA_OPT_(\d+)")


def command(environment: Mapping[str, str], java: Java, jars: Path) -> list[str]:
    """The program and its arguments. Raises KeyError for a variable that Spark has not set."""
    numbers = sorted(int(match[1]) for match in map(_OPTION.fullmatch, environment) if match)
    options = [environment[f"SPARK_JAVA_OPT_{number}"] for number in numbers]
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    flags = [word for flag, name in _ARGUMENTS.items() for word in (flag, environment[name])]
    supported = [option for option in options if option not in unsupported_arguments(java)]
    return [str(java.program), *supported, f"-Xms{memory}", f"-Xmx{memory}", "-cp", f"{jars}/*", CLASS, *flags]


def main() -> None:
    """Replace this process by the executor."""
    package = find_spec("pyspark")
    if package is None or package.origin is None:
        raise SystemExit("executor: this image has no pyspark; use one with everstep[preprocess]")
    try:
        check_user()
        java = find_java(os.environ)
    except StepError as error:
        raise SystemExit(f"executor: {error}") from None
    words = command(os.environ, java, Path(package.origin).parent / "jars")
    os.execv(words[0], words)


if __name__ == "__main__":
    main()
