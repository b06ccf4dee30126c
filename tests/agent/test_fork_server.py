"""The fork server: a worker is what `python script.py` would be, and one thread is a condition."""

import asyncio
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import zipapp
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from everstep.runtime.agent.environment import ERROR_FILE_VARIABLE
from everstep.runtime.agent.forkserver_process import ForkServerProcess, start_fork_server
from everstep.runtime.agent.output import NodeLog
from everstep.runtime.agent.preload import import_turn, is_cuda_initialized
from everstep.runtime.agent.process_group import signal_group
from everstep.runtime.agent.script import TRACEBACK_VARIABLE
from everstep.runtime.agent.worker_ends import WorkerEnd
from everstep.runtime.agent.workers import Workers, WorkerSpec
from tests.launch.launchers import until

DEADLINE_S = 60


class Ran(NamedTuple):
    """What one worker did."""

    end: WorkerEnd
    output: str
    said: tuple[str, ...]


def run_worker(
    folder: Path,
    command: Sequence[str],
    *,
    plain: bool = False,
    preload: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    python: str = "",
    own: Sequence[str] = (),
    cpus: Sequence[int] = (),
    first_server: ForkServerProcess | None = None,
) -> Ran:
    """Start one worker through a fork server and wait for its end; `own`: the worker's own command."""
    log = os.open(folder / "log", os.O_CREAT | os.O_RDWR | os.O_APPEND)

    async def story() -> tuple[WorkerEnd, tuple[str, ...]]:
        ends: asyncio.Queue[WorkerEnd] = asyncio.Queue()
        workers = Workers(command, preload, ends.put_nowait, python or sys.executable, first_server=first_server)
        try:
            async with asyncio.timeout(DEADLINE_S):
                error_message = await workers.wait_until_ready(plain)
                output = NodeLog(log, folder).open(0, 0)
                variables = {"RANK": "0", TRACEBACK_VARIABLE: str(folder / "traceback"), **(environment or {})}
                variables[ERROR_FILE_VARIABLE] = output.error_file
                workers.start(1, False, [WorkerSpec(variables, tuple(own or command), output, cpus)])
                return await ends.get(), error_message
        finally:
            await workers.close()

    end, own_error_lines = asyncio.run(story())
    os.close(log)
    return Ran(end, (folder / "log").read_text(), own_error_lines)


def write(folder: Path, name: str, text: str) -> str:
    """A script."""
    (folder / name).write_text(text)
    return str(folder / name)


@pytest.mark.parametrize("is_ready", [False, True], ids=["that still preloads", "that is ready"])
def test_workers_are_forked_by_a_server_that_was_started_before_its_agent(tmp_path: Path, is_ready: bool) -> None:
    script = write(tmp_path, "train.py", "import os\nprint(os.getppid())\n")
    server = start_fork_server([script], [])
    if is_ready:
        assert select.select([server.socket], [], [], DEADLINE_S)[0]
    assert run_worker(tmp_path, [script], first_server=server).output == f"[0] {server.process.pid}\n"
    assert server.process.returncode in (0, -signal.SIGKILL)


def test_a_server_that_no_worker_needed_is_ended(tmp_path: Path) -> None:
    server = start_fork_server([write(tmp_path, "train.py", "")], [])

    async def story() -> None:
        await Workers([], [], lambda _: None, first_server=server).close()

    asyncio.run(story())
    assert server.process.returncode in (0, -signal.SIGKILL)


def test_an_agent_needs_little_before_it_starts_its_fork_server() -> None:
    code = "import sys, everstep.runtime.agent.__main__; print({'aiohttp', 'torch'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout == "set()\n"


@pytest.mark.parametrize("plain", [False, True], ids=["forked", "by exec"])
def test_a_worker_runs_on_the_cpus_that_it_is_bound_to(tmp_path: Path, plain: bool) -> None:
    script = write(tmp_path, "train.py", "import os\nprint(sorted(os.sched_getaffinity(0)))\n")
    cpu = max(os.sched_getaffinity(0))
    assert run_worker(tmp_path, [script], plain=plain, cpus=[cpu]).output == f"[0] [{cpu}]\n"


@pytest.mark.parametrize("plain", [False, True], ids=["forked", "by exec"])
def test_a_script_is_main_with_its_arguments_and_its_folder_first_in_the_path(tmp_path: Path, plain: bool) -> None:
    write(tmp_path, "beside.py", "VALUE = 7")
    script = write(
        tmp_path,
        "train.py",
        "import beside, os, sys\n"
        "class Thing: pass\n"
        "print(__name__, __file__ == sys.argv[0], sys.argv[1:], beside.VALUE, os.environ['RANK'])\n"
        "print(sys.modules['__main__'].Thing is Thing, os.getsid(0) == os.getpid())\n",
    )
    ran = run_worker(tmp_path, [script, "--x", "1"], plain=plain)
    assert ran.end.exit_code == 0
    assert ran.output == "[0] __main__ True ['--x', '1'] 7 0\n[0] True True\n"


@pytest.mark.parametrize("plain", [False, True], ids=["forked", "by exec"])
@pytest.mark.parametrize("archive", [False, True], ids=["folder", "archive"])
def test_a_folder_or_archive_is_run_as_by_python(tmp_path: Path, plain: bool, archive: bool) -> None:
    app = tmp_path / "app"
    app.mkdir()
    write(app, "beside.py", "value = 6")
    write(app, "__main__.py", "import sys, beside\nprint(__name__, beside.value, sys.argv[1:])\n")
    if archive:
        zipapp.create_archive(app, tmp_path / "app.pyz")
        shutil.rmtree(app)
    ran = run_worker(tmp_path, [str(tmp_path / ("app.pyz" if archive else "app")), "--lr", "1"], plain=plain)
    assert (ran.end.exit_code, ran.output) == (0, "[0] __main__ 6 ['--lr', '1']\n")
    assert ran.said == ()


def test_a_module_is_run_as_with_python_m(tmp_path: Path) -> None:
    ran = run_worker(tmp_path, ["-m", "json.tool", "/proc/self/stat"])
    assert ran.end.exit_code == 1
    assert "Extra data" in ran.output
    assert ran.end.error == ran.output.replace("[0] ", "").strip()


def test_an_exception_shows_the_scripts_frames_only_and_ends_with_1(tmp_path: Path) -> None:
    script = write(tmp_path, "train.py", "def f():\n    return 1 / 0\nf()\n")
    ran = run_worker(tmp_path, [script])
    assert ran.end.exit_code == 1
    assert ran.end.error.count("File ") == 2
    assert ran.end.error.endswith("ZeroDivisionError: division by zero")


@pytest.mark.parametrize(
    ("ending", "code"),
    [("raise SystemExit", 0), ("raise SystemExit(7)", 7), ("raise SystemExit('words')", 1), ("os.abort()", -6)],
)
def test_exit_codes_are_pythons(tmp_path: Path, ending: str, code: int) -> None:
    ran = run_worker(tmp_path, [write(tmp_path, "train.py", f"import os\n{ending}\n")])
    assert ran.end.exit_code == code


def test_a_script_with_a_syntax_error_says_where(tmp_path: Path) -> None:
    ran = run_worker(tmp_path, [write(tmp_path, "train.py", "x = = 1\n")])
    assert ran.end.exit_code == 1
    assert "SyntaxError" in ran.end.error
    assert "train.py" in ran.end.error


def test_exit_handlers_and_threads_are_waited_for(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        "train.py",
        "import atexit, threading\n"
        "go = threading.Event()\n"
        "atexit.register(print, 'handler')\n"
        "threading.Thread(target=lambda: (go.wait(), print('thread'))).start()\n"
        "print('main', end='')\n"
        "go.set()\n",
    )
    ran = run_worker(tmp_path, [script])
    assert ran.output.replace("[0] ", "") == "mainthread\nhandler\n"


@pytest.mark.parametrize("plain", [False, True], ids=["forked", "by exec"])
def test_a_worker_may_have_its_own_arguments(tmp_path: Path, plain: bool) -> None:
    script = write(tmp_path, "train.py", "import sys\nprint(sys.argv[1:])\n")
    ran = run_worker(tmp_path, [script, "--rank=${local_rank}"], own=[script, "--rank=0"], plain=plain)
    assert ran.output == "[0] ['--rank=0']\n"


def test_any_program_found_by_path_can_be_a_worker(tmp_path: Path) -> None:
    write(tmp_path, "greet", '#!/bin/sh\necho $RANK "$@"; exit 3\n')
    (tmp_path / "greet").chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ran = run_worker(tmp_path, ["--no-python", "greet", "a", "b c"], plain=True, environment=path)
    assert (ran.end.exit_code, ran.output) == (3, "[0] 0 a b c\n")


def test_a_program_that_is_not_there_is_said(tmp_path: Path) -> None:
    ran = run_worker(tmp_path, ["--no-python", "not-there-at-all"], plain=True)
    assert ran.end.exit_code == 1
    assert "not-there-at-all" in ran.end.error


@pytest.mark.parametrize("plain", [False, True], ids=["forked", "by exec"])
def test_run_path_runs_under_torchs_record_which_writes_the_error_file(tmp_path: Path, plain: bool) -> None:
    pytest.importorskip("torch")
    script = write(tmp_path, "train.py", "import sys\nprint(__name__, sys.argv[1:])\nraise ValueError('boom')\n")
    ran = run_worker(tmp_path, ["--run-path", script, "--x"], plain=plain)
    assert ran.output.startswith("[0] __main__ ['--x']\n")
    assert ran.end.exit_code == 1
    assert ran.end.error_file.endswith("error-0.json")
    assert ran.end.error.rstrip().endswith("ValueError: boom")


def test_another_python_may_run_the_script(tmp_path: Path) -> None:
    write(tmp_path, "other", f'#!/bin/sh\necho other "$1"; exec {sys.executable} "$@"\n')
    (tmp_path / "other").chmod(0o755)
    script = write(tmp_path, "train.py", "print('runs')\n")
    ran = run_worker(tmp_path, [script], plain=True, python=str(tmp_path / "other"))
    assert ran.output == "[0] other -u\n[0] runs\n"


def test_what_the_script_imports_is_there_before_it_runs_and_what_fails_only_warns(tmp_path: Path) -> None:
    write(tmp_path, "costly.py", "import os\nPID = os.getpid()")
    script = write(
        tmp_path,
        "train.py",
        "import os\nimport costly\ntry:\n    import not_there\nexcept ImportError:\n    pass\n"
        "print(costly.PID != os.getpid())\n",
    )
    ran = run_worker(tmp_path, [script], preload=["also_not_there"])
    assert ran.output == "[0] True\n"
    assert any("also_not_there" in line for line in ran.said)


def test_threads_left_by_an_import_lead_to_exec_and_one_line_says_so(tmp_path: Path) -> None:
    write(
        tmp_path,
        "threads.py",
        "import os, threading\nPID = os.getpid()\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
    )
    script = write(tmp_path, "train.py", "import os\nimport threads\nprint(threads.PID == os.getpid())\n")
    ran = run_worker(tmp_path, [script])
    assert ran.output == "[0] True\n"
    assert [line for line in ran.said if "preloading left 2 threads" in line]


@pytest.mark.skipif(not shutil.which("cc"), reason="builds a stand-in for the CUDA driver with cc")
@pytest.mark.parametrize(("answer", "is_plain"), [(0, True), (3, False)], ids=["initialized", "only loaded"])
def test_an_import_that_initializes_the_cuda_driver_leads_to_exec_and_one_line_says_so(
    tmp_path: Path, answer: int, is_plain: bool
) -> None:
    library = tmp_path / "libcuda.so.1"
    source = f"int cuDeviceGetCount(int *count) {{ *count = 0; return {answer}; }}"
    build = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library), "-Wl,-soname,libcuda.so.1"]
    subprocess.run(build, input=source, text=True, check=True)
    (tmp_path / "driven.py").write_text(f"import ctypes, os\nctypes.CDLL({str(library)!r})\nPID = os.getpid()\n")
    (tmp_path / "train.py").write_text("import os\nimport driven\nprint(driven.PID == os.getpid())\n")
    ran = run_worker(tmp_path, [str(tmp_path / "train.py")])
    assert any("initialized CUDA" in line for line in ran.said) is is_plain
    assert f"[0] {is_plain}" in ran.output


def test_torch_is_asked_too_as_rocms_driver_has_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = SimpleNamespace(is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]
    assert is_cuda_initialized()


def test_an_import_that_looks_for_devices_does_not_initialize_the_driver_and_workers_ask_it(tmp_path: Path) -> None:
    variable = "PYTORCH_NVML_BASED_CUDA_CHECK"
    write(tmp_path, "looks.py", f"import os\nASKED_NVML = os.environ.get({variable!r})\n")
    script = write(tmp_path, "train.py", f"import os, looks\nprint(looks.ASKED_NVML, os.environ.get({variable!r}))\n")
    assert run_worker(tmp_path, [script]).output == "[0] 1 None\n"


def test_an_import_that_ends_the_fork_server_leads_to_exec(tmp_path: Path) -> None:
    write(tmp_path, "deadly.py", "import os\nif 'RANK' not in os.environ: os._exit(9)")
    ran = run_worker(tmp_path, [write(tmp_path, "train.py", "import deadly\nprint('runs')\n")])
    assert (ran.end.exit_code, ran.output) == (0, "[0] runs\n")
    assert "by exec" in ran.said[0]


def test_a_dead_workers_process_group_dies_with_it(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        "train.py",
        "import subprocess, os\nprint(subprocess.Popen(['sleep', '1000']).pid, flush=True)\nos.kill(os.getpid(), 9)\n",
    )
    ran = run_worker(tmp_path, [script])
    assert ran.end.exit_code == -9
    try:
        sleeper = os.pidfd_open(int(ran.output.removeprefix("[0] ")))
    except ProcessLookupError:
        return
    died = select.poll()
    died.register(sleeper, select.POLLIN)
    assert died.poll(DEADLINE_S * 1000), "the worker's child lives"
    os.close(sleeper)


SHARES = """
import multiprocessing, os, subprocess, sys
from multiprocessing.shared_memory import SharedMemory
if __name__ == "__main__":
    memory, semaphore = SharedMemory(create=True, size=1 << 20), multiprocessing.get_context("spawn").Semaphore()
    child = subprocess.Popen(["sleep", "1000"])
    print(memory.name, semaphore._semlock.name.removeprefix("/"), child.pid, flush=True)
    if sys.argv[1:] == ["dies"]:
        os.kill(os.getpid(), 9)
    child.wait()
"""
"""It leaves memory, a semaphore and a child."""


@pytest.mark.parametrize("dies", [True, False], ids=["it dies", "it is killed"])
def test_what_a_killed_worker_shared_in_memory_is_removed_and_its_group_is_gone(tmp_path: Path, dies: bool) -> None:
    script = write(tmp_path, "train.py", SHARES)
    if dies:
        ran = run_worker(tmp_path, [script, "dies"])
        assert ran.end.exit_code == -signal.SIGKILL
        words = ran.output.splitlines()[0].removeprefix("[0] ").split()
    else:
        command = [sys.executable, script]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as worker:
            assert worker.stdout is not None
            words = worker.stdout.readline().split()
            assert Path("/dev/shm", words[0]).exists()
            assert Path("/dev/shm", f"sem.{words[1]}").exists()
            signal_group(worker.pid, signal.SIGKILL)
    left = [Path("/dev/shm", words[0]), Path("/dev/shm", f"sem.{words[1]}"), Path("/proc", words[2])]
    until(lambda: not any(path.exists() for path in left), lambda: f"there is still one of {left}")


def test_a_fork_finds_torch_as_told_and_what_its_optimizer_will_import(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = write(
        tmp_path,
        "train.py",
        "import gc\nimport sys\nimport numpy as np\nimport torch\n\n"
        "print(np.random.rand(), torch.get_num_threads(), gc.isenabled(), 'torch._dynamo' in sys.modules)\n"
        "torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), 0.1)\n",
    )
    ran = run_worker(tmp_path, [script], environment={"OMP_NUM_THREADS": "2"})
    value, *values = ran.output.removeprefix("[0] ").split()
    assert values == ["2", "True", "True"]
    assert 0 <= float(value) < 1
    assert not [line for line in ran.said if "exec" in line], "torch and numpy must leave one thread"


@pytest.mark.parametrize(
    ("code", "arguments", "is_there"),
    [
        ("net = torch.compile(net)", [], True),
        ("flags.add_argument('--compile')\n    net = torch.compile(net)", ["--lr", "1"], False),
        ("flags.add_argument('--compile')\n    net = torch.compile(net)", ["--compile"], True),
        ("flags.add_argument('--torch-compile')\n    net = torch.compile(net)", ["--torch-compile=yes"], True),
        ("from torch import compile as faster", [], True),
        ("re.compile('torch.compile')", [], False),
    ],
)
def test_a_fork_finds_what_its_compiler_will_import(
    tmp_path: Path, code: str, arguments: Sequence[str], is_there: bool
) -> None:
    pytest.importorskip("torch")
    names = ["torch._inductor.compile_fx", "torch._inductor.fx_passes.serialized_patterns._sfdp_pattern_1"]
    script = write(
        tmp_path,
        "train.py",
        f"import sys\nimport torch\n\ndef later():\n    {code}\n\nprint({{name in sys.modules for name in {names}}})\n",
    )
    ran = run_worker(tmp_path, [script, *arguments])
    assert ran.output.split() == ["[0]", f"{{{is_there}}}"]
    assert not [line for line in ran.said if "exec" in line], "torch must leave one thread"


def test_a_compiler_that_cannot_be_imported_is_told_once(tmp_path: Path) -> None:
    for package in ("torch", "torch/_inductor"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    write(tmp_path, "torch/_inductor/__init__.py", "raise RuntimeError('it does not fit this torch')\n")
    script = write(tmp_path, "train.py", "import torch\n\ndef later():\n    torch.compile(later)\n")
    code = (
        "import sys\nfrom everstep.runtime.agent.preload import preload\n"
        f"sys.path.insert(0, '')\nprint(preload([{script!r}], []))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told = "import torch._inductor.compile_fx: RuntimeError: it does not fit this torch"
    assert ran.stdout == f"{[told]}\n"


def test_threads_that_nobody_set_are_as_many_as_in_a_fresh_process(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = write(
        tmp_path,
        "train.py",
        "import os\nimport torch\nprint(torch.get_num_threads(), 'OMP_NUM_THREADS' in os.environ)\n",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OMP_NUM_THREADS", raising=False)
        outputs_seen = {run_worker(tmp_path, [script], plain=plain).output.splitlines()[-1] for plain in (False, True)}
    assert len(outputs_seen) == 1
    assert outputs_seen.pop().endswith(" False")


def test_python_is_the_same_one(tmp_path: Path) -> None:
    ran = run_worker(tmp_path, [write(tmp_path, "t.py", "import sys\nprint(sys.executable)\n")], plain=True)
    assert ran.output == f"[0] {sys.executable}\n"


def test_more_workers_than_the_socket_takes_at_once_are_all_started_and_ended(tmp_path: Path) -> None:
    many, padding = 96, "x" * 8000
    command = [write(tmp_path, "train.py", "import threading\nthreading.Event().wait()\n")]

    async def story() -> list[WorkerEnd]:
        ends: asyncio.Queue[WorkerEnd] = asyncio.Queue()
        forked: asyncio.Queue[int] = asyncio.Queue()
        workers = Workers(command, (), ends.put_nowait, on_start=lambda rank, pid: forked.put_nowait(rank))
        outputs = NodeLog(log, tmp_path)
        try:
            async with asyncio.timeout(DEADLINE_S):
                await workers.wait_until_ready(plain=False)
                specs = [
                    {TRACEBACK_VARIABLE: str(tmp_path / f"traceback-{rank}"), "MORE": padding} for rank in range(many)
                ]
                workers.start(
                    1, False, [WorkerSpec(spec, tuple(command), outputs.open(r, r)) for r, spec in enumerate(specs)]
                )
                assert sorted([await forked.get() for _ in range(many)]) == list(range(many))
                workers.signal_all(signal.SIGKILL)
                return [await ends.get() for _ in range(many)]
        finally:
            await workers.close()

    log = os.open(tmp_path / "log", os.O_CREAT | os.O_RDWR | os.O_APPEND)
    endings = asyncio.run(story())
    os.close(log)
    assert sorted((end.local_rank, end.exit_code) for end in endings) == [
        (rank, -signal.SIGKILL) for rank in range(many)
    ]


def test_a_worker_that_has_not_made_its_group_yet_is_killed_too() -> None:
    worker = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
    signal_group(worker.pid, signal.SIGKILL)
    assert worker.wait(DEADLINE_S) == -signal.SIGKILL


def test_as_many_fork_servers_import_at_a_time_as_there_are_turns() -> None:
    name, imports_done = f"everstep-test-{os.getpid()}", threading.Event()

    def wait_for_turn() -> None:
        with import_turn(2, DEADLINE_S, name):
            imports_done.set()

    with import_turn(2, 0.0, name):
        with import_turn(2, 0.0, name):
            waiting = threading.Thread(target=wait_for_turn)
            waiting.start()
            with import_turn(2, 0.1, name):  # Its patience ends: it does not wait for ever.
                assert not imports_done.is_set()
        waiting.join(DEADLINE_S)
        assert imports_done.is_set()
