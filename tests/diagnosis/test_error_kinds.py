"""The table of errors: real ends of real processes, and texts that torch and NCCL are known to print."""

import itertools
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from everstep.runtime.diagnosis.first_cause import ProcessEnd, attribute
from everstep.runtime.job import error_kinds
from everstep.runtime.job.error_kinds import OOM_KILLED, TABLE, evidence_line, kind_of
from tests.forks import Forks
from tests.harness import PATIENCE_S

REAL = {
    "a file is missing": "open('/nothing/here')",
    "the disk is full": "f = open('/dev/full', 'w'); f.write('x'); f.flush()",
    "a module cannot be imported": "import no_such_module",
    "out of memory": "bytearray(1 << 60)",
    "asked to end: a preemption or a SIGTERM": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "killed from outside": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "native code crashed": "import ctypes; ctypes.string_at(0)",
    "shared memory is full": (  # A page of a mapping that its file does not have, as in a full /dev/shm.
        "import mmap, tempfile; f = tempfile.TemporaryFile(); f.truncate(1 << 20); m = mmap.mmap(f.fileno(), 1 << 20); "
        "f.truncate(0); m[:1] = b'x'"
    ),
    "a port is taken": (
        "import socket; a, b = socket.socket(), socket.socket(); a.bind(('127.0.0.1', 0)); a.listen(); "
        "b.bind(a.getsockname())"
    ),
    "access is denied": "raise PermissionError(13, 'Permission denied', '/data')",
    "too many open files": (
        "import os, resource; resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8)); [os.open('/', 0) for _ in range(9)]"
    ),
    "the connection to another rank broke": ("import socket; a, b = socket.socketpair(); b.close(); a.send(b'x')"),
    "an error in the script's code": "undefined_name",
    "an assertion of the script failed": "assert 1 == 2",
    "an error of the script": "raise ValueError('a config of mine')",
}
"""Kind -> a program that ends so."""

PAIR = """
import datetime, os, tempfile, time
import torch.distributed as d
place = tempfile.mktemp()
rank = 0 if os.fork() else 1
d.init_process_group(
    "gloo", init_method=f"file://{place}", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=2)
)
d.all_reduce(torch.ones(1))
"""
TORCH = {
    "shapes do not match": "torch.ones(2, 3) @ torch.ones(4, 5)",
    "tensors are on different devices or of different types": "torch.ones(2, 2) @ torch.ones(2, 2).double()",
    "the state's shapes differ from the model's": (
        "torch.nn.Linear(2, 3).load_state_dict(torch.nn.Linear(3, 3).state_dict())"
    ),
    "the loss is not a number": (
        "torch.autograd.set_detect_anomaly(True); x = torch.zeros(1, requires_grad=True); "
        "torch.sqrt(x * 0).mul(0).backward()"
    ),
    "a file is damaged": "import io; torch.load(io.BytesIO(b'PK' + bytes(99)))",
    "a data loader's worker died": """
class Samples(torch.utils.data.Dataset):
    def __len__(self): return 1
    def __getitem__(self, index):
        import os
        os.kill(os.getpid(), 9)
next(iter(torch.utils.data.DataLoader(Samples(), num_workers=1)))""",
    "a collective timed out": f"{PAIR}\nif rank: time.sleep(4); os._exit(0)\nd.all_reduce(torch.ones(1))",
    "the connection to another rank broke": f"{PAIR}\nif rank: os._exit(0)\nd.all_reduce(torch.ones(1))",
}
"""The same of torch."""

WRITTEN = [
    # pytorch/pytorch issue 16417, comment of 2024-02-13; the class has its shorter name since torch 2.5.
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.00 MiB. GPU 0 has a total capacity of 23.65 "
     "GiB of which 11.06 MiB is free.", 1, "out of GPU memory"),
    # NVIDIA/Megatron-LM issue 1207.
    ("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, "
     "NumelOut=1, Timeout(ms)=600000) ran for 600013 milliseconds before timing out.", -6, "a collective timed out"),
    # pytorch/pytorch issue 108861.
    ("RuntimeError: DataLoader worker (pid 11011) is killed by signal: Bus error. It is possible that dataloader's "
     "workers are out of shared memory. Please try to raise your shared memory limit", 1, "shared memory is full"),
    # NVIDIA/Megatron-LM issue 878.
    ("OSError: [Errno 28] No space left on device", 1, "the disk is full"),
    # FoNDUE-HTR/Documentation issue 13.
    ("RuntimeError: DataLoader worker (pid 164244) is killed by signal: Killed. ", 1, "a data loader's worker died"),
    # gloo/transport/tcp/pair.cc, as torch 2 prints it after the end of a peer.
    ("RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:10427", 1,
     "the connection to another rank broke"),
    # The same file, of torch 2.15, where two ranks all-reduced tensors of different sizes.
    ("terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at "
     "gloo/transport/tcp/pair.cc:464] op.preamble.length <= op.nbytes. 72 vs 4. Received data size doesn't match "
     "expected size. Is there a distributed collective mismatch in your code?", -6,
     "ranks disagree about a collective"),
    # NCCL's documentation, "ncclRemoteError".
    ("torch.distributed.DistBackendError: NCCL error: ncclRemoteError: A call failed possibly due to a network error "
     "or a remote process exiting prematurely.", 1, "the connection to another rank broke"),
    # NVIDIA/nccl issue 1410, with the last line of openxla/xla pull request 7201.
    ("torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:275, unhandled cuda error\n"
     "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'", 1,
     "out of GPU memory"),
    # mittagessen/kraken issue 642, with the words of torch's pinning allocator where the host has no page left for it.
    ("RuntimeError: Caught RuntimeError in pin memory thread for device 0.\nOriginal Traceback (most recent call "
     'last):\n  File "torch/utils/data/_utils/pin_memory.py", line 37, in do_one_step\n    data = pin_memory(data)\n'
     "RuntimeError: CUDA error: out of memory", 1, "no memory of the host to pin"),
    # The same without that thread: a kernel, or a copy, that found no room on its device.
    ("torch.AcceleratorError: CUDA error: out of memory", 1, "out of GPU memory"),
    # lllyasviel/Fooocus issue 1313.
    ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver",
     1, "the CUDA driver or a library does not match"),
    # NVIDIA/nccl issue 525 and pytorch/ci-infra pull request 490, behind torch's line.
    ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled system error\n"
     "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"
     "Last error:\nError while creating shared memory segment /dev/shm/nccl-WU88OE (size 9637888), error: No space "
     "left on device (28)", 1, "shared memory is full"),
    # pytorch/pytorch issue 48530.
    ("RuntimeError: CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported", 1,
     "a program on the GPU failed"),
    ("NVRM: Xid (PCI:0000:04:00): 31, pid=4711, name=python, Ch 00000008", -6, "a program on the GPU failed"),
    ("torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cuda//0", 1,
     "a collective timed out"),
    # torch 2's TCPStore, where two jobs of a host have one --master-port.
    ("torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: "
     "29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use", 1, "a port is taken"),
    # NCCL's documentation, "ncclInvalidUsage", behind torch's line; the last line is of its init.cc.
    ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, invalid usage\nncclInvalidUsage: "
     "This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 "
     "both on CUDA device 1000", 1, "NCCL was called wrongly"),
    # gloo/transport/tcp/pair.cc, where the machine of a peer does not answer any more.
    ("RuntimeError: [gloo/transport/tcp/pair.cc:547] Read error [10.0.0.2]:10427: Connection timed out", 1,
     "the connection to another rank broke"),
    ("ncclInternalError: Internal check failed.\nLast error:\nBootstrap : no socket interface found", 1,
     "NCCL could not connect the ranks"),
    # torch's nccl2/ProcessGroupNCCL.cpp, with NCCL's own words for ncclSystemError and ncclInternalError.
    ("RuntimeError: NCCL AllReduce failed: unhandled system error (run with NCCL_DEBUG=INFO for details)", 1,
     "NCCL could not connect the ranks"),
    ("RuntimeError: NCCL AllGather failed: internal error - please report this issue to the NCCL developers", 1,
     "NCCL could not connect the ranks"),
    # NVIDIA's "XID Errors", as the driver writes it to the kernel's log.
    ("NVRM: Xid (PCI:0000:04:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", 1,
     "a GPU failed or fell off the bus (Xid)"),
    # cudaGetErrorString of 220, 999 and 702, in torch's words.
    ("torch.AcceleratorError: CUDA error: uncorrectable NVLink error detected during the execution", 1,
     "a GPU failed or fell off the bus (Xid)"),
    ("torch.AcceleratorError: CUDA error: unknown error", 1, "a GPU failed or fell off the bus (Xid)"),
    ("torch.AcceleratorError: CUDA error: the launch timed out and was terminated", 1, "a program on the GPU failed"),
    # The kernel's mm/oom_kill.c, of a killed worker of this project's own tests.
    ("Memory cgroup out of memory: Killed process 7405 (python) total-vm:462824kB", -9, OOM_KILLED.name),
    ("everstep: the loss of iteration 81 is nan, right after iteration 80", 76, "the loss is not a number"),
]  # fmt: skip


def end_of(program: str) -> tuple[str, int]:
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    return completed.stderr, completed.returncode


@pytest.mark.parametrize("kind", REAL)
def test_a_real_end_is_of_its_kind(kind: str) -> None:
    error, exit_code = end_of(REAL[kind])
    assert exit_code != 0, "the program must end with an error"
    assert kind_of(error, exit_code).name == kind, error


@pytest.mark.long
@pytest.mark.parametrize("kind", TORCH)
def test_a_real_end_in_torch_is_of_its_kind(kind: str, forks: Forks, tmp_path: Path) -> None:
    program, output = tmp_path / "program.py", tmp_path / "output"
    program.write_text(f"import torch\n{TORCH[kind]}")
    exit_code = forks.run([str(program)], {}, output)
    assert exit_code != 0, "the program must end with an error"
    assert kind_of(output.read_text(), exit_code).name == kind, output.read_text()


@pytest.mark.parametrize(("error", "exit_code", "kind"), WRITTEN)
def test_what_torch_nccl_and_the_kernel_print_is_of_its_kind(error: str, exit_code: int, kind: str) -> None:
    assert kind_of(error, exit_code).name == kind


def test_the_names_are_different_and_the_page_is_that_of_the_table() -> None:
    assert len({kind.name for kind in TABLE}) == len(TABLE)
    assert Path("docs/errors.md").read_text() == error_kinds.render()


def test_the_line_that_names_the_error_is_the_evidence() -> None:
    error = "Traceback (most recent call last):\n  File 'a'\nValueError: bad\nsome later line of a library"
    assert evidence_line(error) == "ValueError: bad"
    assert evidence_line("") == ""
    cpp = (
        "DistNetworkError: failed to recv, got 0 bytes\nException raised from recvBytes at Utils.hpp:672\nframe #0: c10"
    )
    assert evidence_line(cpp) == "DistNetworkError: failed to recv, got 0 bytes"


FIRST = ProcessEnd("rank 3 on b", 10.4, 1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", 41)
ECHOES = (
    ProcessEnd("rank 0 on a", 10.2, 1, "RuntimeError: Connection closed by peer [10.0.0.3]:4711", 41),
    ProcessEnd("rank 1 on a", 10.3, -6, "NCCL communicator was aborted on rank 1.", 41),
    ProcessEnd("rank 2 on b", 10.9, -15, "", 41),
)


@pytest.mark.parametrize("ends", list(itertools.permutations((FIRST, *ECHOES))))
def test_the_first_cause_is_found_in_any_order_even_if_its_echoes_died_before(ends: tuple[ProcessEnd, ...]) -> None:
    attribution = attribute(ends)
    assert attribution is not None
    assert attribution.first is FIRST
    assert set(attribution.echoes) == set(ECHOES)


def test_one_paragraph_says_cause_evidence_echoes_hope_and_what_was_done() -> None:
    attribution = attribute((*ECHOES, FIRST))
    assert attribution is not None
    text = attribution.paragraph("restart in place")
    assert text.startswith("First, rank 3 on b ended (exit code 1) at iteration 41: out of GPU memory.")
    for part in (
        "Tried to allocate 2 GiB",
        "3 other ends are echoes",
        "A restart does not help.",
        "Done: restart in place.",
    ):
        assert part in text


def test_the_kernel_knows_better_than_the_signal() -> None:
    kernel = ("Memory cgroup out of memory: Killed process 7 (python)",)
    attribution = attribute([ProcessEnd("rank 0 on a", 1.0, -signal.SIGKILL, kernel=kernel)])
    assert attribution is not None
    assert attribution.kind is OOM_KILLED
    assert "The kernel: “Memory cgroup out of memory" in attribution.paragraph()


def test_without_ends_there_is_no_cause() -> None:
    assert attribute([]) is None


def test_the_paragraph_says_which_ranks_had_errors_of_their_own_and_counts_them_as_no_echoes() -> None:
    missing = "FileNotFoundError: [Errno 2] No such file or directory: 'tokens.bin'"
    first = ProcessEnd("rank 1 on a", 10.1, 1, missing, 4, failed=(0, 1, 2, 3))
    other = ProcessEnd("rank 9 on c", 10.2, 1, missing, 4, failed=(9,))
    attribution = attribute([ECHOES[0], other, first])
    assert attribution is not None
    assert "Ranks 0-3,9 had errors of their own." in attribution.paragraph()
    assert "1 other end is an echo of it" in attribution.paragraph()


def test_the_paragraph_says_which_rank_had_an_error_though_only_an_echo_of_it_has_ended() -> None:
    echo = attribute([replace(ECHOES[0], failed=(5,))])
    assert echo is not None
    assert "Rank 5 had an error of its own." in echo.paragraph()


def test_the_paragraph_says_that_one_rank_alone_failed_but_not_where_the_node_did_not_say() -> None:
    alone, unknown = attribute([replace(FIRST, failed=(3,))]), attribute([FIRST])
    assert alone is not None
    assert unknown is not None
    assert "No other rank had an error of its own." in alone.paragraph()
    assert "of its own" not in unknown.paragraph()
