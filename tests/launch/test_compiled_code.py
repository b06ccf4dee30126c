"""Code that is compiled when its process is killed: no torn library is left for the processes after it."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from everstep.runtime.agent.compiler import WHOLE, compiler_variables
from tests.launch.launchers import EVERSTEP, Launcher, until

SCRIPT = """
import os
import torch
import torch._inductor.config

torch._inductor.config.cpp_cache_precompile_headers = False  # They take longer than the rest.
torch._inductor.config.cpp.vec_isa_ok = False  # To see what vectors this processor has, it compiles once more.
with open("worker", "w") as file:
    file.write(str(os.getpid()))
print("twice 21 is", int(torch.compile(lambda x: x + x.sin() * 0)(torch.tensor(21)) * 2), flush=True)
"""
DEADLY = """#!/bin/sh
[ -z "{when}" ] || case " $* " in *"{when}"*) ;; *) exec {real} "$@" ;; esac
mkdir {folder}/fired 2>/dev/null || exec {real} "$@"
while [ "$1" != -o ]; do shift; done
printf half > "$2"
echo "$2" > {folder}/fired/output
{then}
"""
"""g++ that once writes half of its output, and then does something else."""


def make_compiler(folder: Path, then: str, when: str = "") -> str:
    """PATH with such a compiler; `when`: what the arguments contain for it to fire."""
    programs, real = folder / "bin", shutil.which("g++")
    if real is None:
        pytest.skip("no g++ here")
    programs.mkdir()
    (programs / "g++").write_text(DEADLY.format(real=real, folder=folder, then=then, when=when))
    (programs / "g++").chmod(0o755)
    return f"{programs}:{os.environ['PATH']}"


def test_a_killed_compiler_leaves_nothing_in_the_place_of_its_output(tmp_path: Path) -> None:
    path = make_compiler(tmp_path, "exec sleep 600")
    (tmp_path / "a.cpp").write_text("int answer() { return 42; }")
    command = [WHOLE, "-shared", "-fPIC", "a.cpp", "-o", tmp_path / "its answer.so"]
    environment = {**os.environ, "PATH": path}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True) as killed:
        until((tmp_path / "fired" / "output").exists, lambda: "it did not fire")
        os.killpg(killed.pid, signal.SIGKILL)
    assert not (tmp_path / "its answer.so").exists()
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    program = f"import ctypes; print(ctypes.CDLL({str(tmp_path / 'its answer.so')!r})._Z6answerv())"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "42\n"


def test_a_compiler_that_fails_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": make_compiler(tmp_path, "exit 7")}
    command = [WHOLE, "-c", "a.cpp", "-o", "a.o"]
    assert subprocess.run(command, cwd=tmp_path, env=environment, check=False).returncode == 7
    assert (tmp_path / "fired").exists()
    assert not list(tmp_path.glob("a.*"))


def test_it_is_not_used_where_the_user_names_a_compiler_or_there_is_none(tmp_path: Path) -> None:
    path = make_compiler(tmp_path, "exit 7")
    assert compiler_variables({"PATH": path}) == {"CXX": str(WHOLE)}
    assert compiler_variables({"PATH": path, "CXX": "clang++"}) == {}
    assert compiler_variables({"PATH": str(tmp_path)}) == {}


def test_a_worker_killed_while_it_compiles_is_started_anew_and_compiles(launcher: Launcher) -> None:
    folder = launcher.folder
    path = make_compiler(folder, f"kill -9 -$(cat {folder}/worker) $$", when=".main.so")
    (folder / "script.py").write_text(SCRIPT)
    arguments = ["--standalone", "--max-restarts=1", "script.py"]
    cache = str(folder / "compiled")
    process = launcher.start(EVERSTEP, *arguments, PATH=path, TORCHINDUCTOR_CACHE_DIR=cache)
    outcome = launcher.wait_for_end(process)
    assert outcome.code == 0, outcome.err
    assert outcome.lines() == ["twice 21 is 42"]
    torn = Path((folder / "fired" / "output").read_text().strip())
    assert torn.is_relative_to(cache)
    assert torn.suffix == ".part"
