"""Pods run the launcher's own Python, however it is installed: a venv behind links, a Python that has no `python`."""

import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

import everstep
from everstep.runtime.workflow.local_pods import interpreter
from everstep.runtime.workflow.local_pods.pod import has_namespaces
from tests.workflow.running import manifest_text

WHICH = manifest_text("""
  - name: main
    outputs: {parameters: [{name: o, valueFrom: {path: /tmp/o}}]}
    script: {image: python, command: [COMMAND], source: "PROGRAM"}
""")
IMPORT = "import marker, sys; open('/tmp/o', 'w').write(sys.prefix + marker.TEXT)"
PRIVATE = pytest.mark.skipif(not has_namespaces(), reason="the kernel allows no mount namespaces here")


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that pods see, not in /tmp."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


def make_venv(place: Path, python: str) -> Path:
    """A venv with Everstep, its packages and a module that no other Python has."""
    venv.EnvBuilder(symlinks=True).create(place)
    for name in ("python", "python3"):
        (place / "bin" / name).unlink()
        (place / "bin" / name).symlink_to(python)
    packages = next((place / "lib").glob("python*/site-packages"))
    (packages / "marker.py").write_text("TEXT = ' has it'\n")
    others = [str(Path(str(everstep.__file__)).parent.parent), *(path for path in sys.path if "site-packages" in path)]
    (packages / "everstep-tests.pth").write_text("\n".join(others))
    return place


def run(python: Path, folder: Path, program: str, *flags: str) -> str:
    """What the one pod of a run that this Python launches gives as its output."""
    command, _, text = program.partition(" ")
    (folder / "w.yaml").write_text(WHICH.replace("COMMAND", command).replace("PROGRAM", text))
    words = [str(python), "-m", "everstep", "workflow", "run", "w.yaml", *flags]
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    completed = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    status = json.loads((folder / "runs/w/workflow.json").read_text())["status"]
    return next(iter(status["nodes"].values()))["outputs"]["parameters"][0]["value"]


@PRIVATE
@pytest.mark.parametrize("flags", [[], ["--sandbox"]])
def test_a_venv_behind_a_link_into_tmp_is_the_pods_python(flags: list[str], tmp_path: Path, outside: Path) -> None:
    make_venv(tmp_path / "elsewhere", os.path.realpath(sys.executable))
    (outside / ".venv").symlink_to(tmp_path / "elsewhere")
    python = outside / ".venv/bin/python"
    program = f'sh python3 -c \\"{IMPORT}\\"'
    assert run(python, outside, program, *flags) == f"{outside}/.venv has it"


def test_a_python_of_another_name_alone_is_the_pods_python(tmp_path: Path) -> None:
    """As under uv, where a venv's python is a link to a link."""
    (tmp_path / "linked").symlink_to(os.path.dirname(os.path.realpath(sys.executable)))
    place = make_venv(tmp_path / "venv", str(tmp_path / "linked" / os.path.basename(os.path.realpath(sys.executable))))
    (place / "bin/python3").rename(place / "bin/python-mine")
    (place / "bin/python").unlink()
    assert run(place / "bin/python-mine", tmp_path, f"python {IMPORT}") == f"{place} has it"


def test_no_whole_private_folder_is_kept_for_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/", "/tmp", "/var/tmp"])
    monkeypatch.setattr(sys, "executable", "/bin/sh")
    paths = interpreter.interpreter_paths(["/tmp", "/home"])
    assert "/var/tmp" in paths
    assert not {"/", "/tmp"} & set(paths)
