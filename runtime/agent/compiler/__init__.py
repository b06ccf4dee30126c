"""The compiler for `torch.compile` on CPUs. Standard library only.

torch.compile (torch 2.15, `torch/_inductor/codecache.py`) lets g++ write a library in place, and takes each file that
exists for a finished one. A process that is killed meanwhile would leave a torn file, and every later one that needs it
would fail: `ImportError: ...: file too short`. What it compiles for GPUs, Triton itself renames into place.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

WHOLE = Path(__file__).with_name("g++")
"""A script: g++, whose output file appears whole or not at all."""


def compiler_variables(base: Mapping[str, str]) -> Mapping[str, str]:
    """The variables that make a process with the environment `base` use it; none if the user has named a compiler, or
    if there is no g++."""
    if "CXX" in base or shutil.which("g++", path=base.get("PATH")) is None or not os.access(WHOLE, os.X_OK):
        return {}
    return {"CXX": str(WHOLE)}
