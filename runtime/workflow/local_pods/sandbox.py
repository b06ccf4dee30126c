"""`--sandbox`: pods in user, mount, pid and ipc namespaces of their own, and without a network where that is asked for.

A pod sees this machine's files read-only, without what is private: homes, /run, other runs and the secrets of its own.
It may write where a pod on a cluster may (its own folders, its volumes), and where the launcher says: a store. It has
no privileges, sees no process but its own, and what it starts ends with it. Its exit code and output are written down
by a process outside, and of its outputs only what lies in its own folders and volumes is read. `spawner` does it.

What it does not do: bound memory, disk and time of pods, or hide what every user of this machine may read.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep.runtime.workflow.local_pods.interpreter import interpreter_paths
from everstep.runtime.workflow.local_pods.isolation import ALWAYS_PRIVATE
from everstep.runtime.workflow.manifest.parse import ManifestError

PRIVATE = ("/root", "/home", "/run")
SHARED = ("jobs", "logs", "nodes")
"""Folders of a run that its pods write to: what a train step leaves there is read from outside while it runs."""
HIDDEN = ("asks", "beside.json", "claims", "pods")
"""What of a run its pods do not see: others' variables and secrets, and the way to its launcher."""


class NoSandboxError(ManifestError):
    """This machine cannot make a sandbox: one line that says why."""


@dataclass(frozen=True)
class Sandbox:
    """How sandboxed pods are isolated."""

    network: bool = True
    """Whether pods have this machine's network; without it a pod has only a loopback of its own."""
    writable: tuple[str, ...] = ()
    """Folders of this machine that pods write to besides their own."""

    def spawner_request(
        self, run: Path, pod_folder: Path, read_folders: Sequence[Path], several: bool
    ) -> dict[str, Any]:
        """The sandbox of a pod of that run, for the spawner: views of the machine's paths, outer ones first.

        `pod_folder` is the only folder of the pod's that it sees as it is; it may read `read_folders`. `several`: each
        container gets its own sandbox, from `podrun`. Makes the folders that the pod may write to.
        """
        hidden_paths = [str(run.parent), *(str(run / name) for name in HIDDEN)]
        readable = [*interpreter_paths([*private_folders(), *ALWAYS_PRIVATE]), *map(str, read_folders), str(run)]
        writable = [*self.writable, *(str(run / name) for name in SHARED), str(pod_folder)]
        for path in writable:
            os.makedirs(path, exist_ok=True)
        views = [(path, "hidden") for path in hidden_paths] + [(path, "shown") for path in readable]
        views += [(path, "writable") for path in writable]
        return {
            "network": self.network,
            "several": several,
            "views": sorted(dict(views).items(), key=lambda view: view[0].count("/")),
        }


def private_folders() -> list[str]:
    """Folders of this machine with private files of its users."""
    return [*PRIVATE, os.path.expanduser("~")]


def check_available() -> None:
    """Raise NoSandboxError where the kernel allows no sandbox, as tried with a pod that does nothing."""
    program = str(Path(__file__).with_name("spawner.py"))
    trial = subprocess.run(
        [sys.executable, "-I", "-S", program, "try", json.dumps({"network": False, "several": False, "views": []})],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if trial.returncode:
        why = trial.stderr.strip().splitlines()[-1:] or [f"exit code {trial.returncode}"]
        raise NoSandboxError(
            f"--sandbox: this kernel cannot make one ({why[0]}); run it in a container or on a cluster"
        )
