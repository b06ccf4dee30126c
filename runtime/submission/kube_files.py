"""Where kube configurations are, without the kubernetes client: a search that most machines end with nothing."""

import os
from collections.abc import Mapping
from pathlib import Path


def config_files(environment: Mapping[str, str]) -> list[Path]:
    """Those that KUBECONFIG names and that are there, else ~/.kube/config, as kubectl searches."""
    named = environment.get("KUBECONFIG", "")
    home = Path(environment.get("HOME") or "/")
    paths = [Path(one) for one in named.split(os.pathsep) if one] or [home / ".kube" / "config"]
    return [path for path in paths if path.is_file()]
