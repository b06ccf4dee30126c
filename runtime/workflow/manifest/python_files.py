"""The manifest that a Python file declares: a Hera Workflow at its top level, or what its `-o yaml` prints."""

import subprocess
import sys
from pathlib import Path

from everstep.runtime.workflow.manifest.yaml_source import Document, ReadError, read_text

PRINT_DECLARED = """
import os, runpy, sys
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[1]))
known = runpy.run_path(sys.argv[1])
workflows = sys.modules.get("hera.workflows")
kinds = (workflows.Workflow, workflows.WorkflowTemplate) if workflows else ()
declared = {id(one): one for one in known.values() if isinstance(one, kinds)}
print("---\\n".join(one.to_yaml() for one in declared.values()))
"""
"""Run with the file's own folder first in sys.path and without being `__main__`, so that nothing is submitted."""


def read_python(path: Path) -> list[Document]:
    """The documents that a Python file declares. Raises ReadError: it fails, or declares nothing."""
    if not path.is_file():
        raise ReadError(f"{path}: No such file or directory")
    documents = read_text(_run_python(path, "-c", PRINT_DECLARED, str(path)), f"{path} -o yaml")
    documents = documents or read_text(_run_python(path, str(path), "-o", "yaml"), f"{path} -o yaml")
    if not documents:
        raise ReadError(f"{path}: declares no Workflow: keep one in a variable, or print it when asked for -o yaml")
    return documents


def _run_python(path: Path, *command: str) -> str:
    process = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    if process.returncode:
        errors = process.stderr.strip().splitlines()
        raise ReadError(f"{path}: {errors[-1] if errors else f'ended with exit code {process.returncode}'}")
    return process.stdout
