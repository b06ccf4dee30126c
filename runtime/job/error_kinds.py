"""The table of errors: by which words, signal or exit code each is known, whether a restart can help, how to fix it.

`python -m everstep.runtime.job.error_kinds` prints docs/errors.md. Pure. The first row that matches counts.
"""

import re
import signal
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from everstep.runtime.exit_codes import ExitCode


class Hope(StrEnum):
    """Whether a restart can help."""

    YES = "helps"
    """The cause has passed, or stays with the machine."""
    NO = "does not help"
    """The same error comes again until somebody fixes it."""
    PERHAPS = "may help"


@dataclass(frozen=True)
class ErrorKind:
    """One row."""

    name: str
    hope: Hope
    mend: str
    words: str = ""
    """Regular expression for the text of the error."""
    exit_codes: tuple[int, ...] = ()
    """As in subprocess: negative for a signal."""
    is_echo: bool = False
    """It follows from the end of another process, which is the cause."""
    is_network: bool = False
    """Where no process has ended, the network between the ranks has failed."""

    def matches(self, error: str, exit_code: int) -> bool:
        """Is this the end of such a process?"""
        return exit_code in self.exit_codes or bool(self.words and re.search(self.words, error))


UNKNOWN = ErrorKind("an error of the script", Hope.PERHAPS, "read its traceback")

OOM_KILLED = ErrorKind(
    "out of memory: killed by the kernel", Hope.PERHAPS,
    "give the node more memory (Everstep does, up to oom.limit), use fewer data loader workers or a smaller batch",
    words=r"(?i)\boom-kill|Memory cgroup out of memory|Out of memory: Killed process|OOMKilled", exit_codes=(247,),
)  # fmt: skip

OUT_OF_GPU_MEMORY = ErrorKind(
    "out of GPU memory", Hope.NO,
    "use a smaller batch or sequence, activation checkpointing, or more ranks to shard over",
    r"(CUDA|HIP)( error:)? out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|"
    r"Cuda failure( \d+)? 'out of memory'",
)  # fmt: skip

TABLE = (
    OOM_KILLED,
    ErrorKind("a GPU failed or fell off the bus (Xid)", Hope.YES,
              "the node is replaced; check the GPU with nvidia-smi -q",
              r"NVRM: Xid(?! \([^)]*\): (13|31|43)\b)|GPU has fallen off the bus|uncorrectable (ECC|NVLink)|"
              r"over nvlink or a hardware error|CUDA error: (hardware|unknown error|system not yet)|"
              r"CUDA-capable device\(s\) is/are busy"),
    ErrorKind("a program on the GPU failed", Hope.PERHAPS,
              "find the operator with CUDA_LAUNCH_BLOCKING=1; mostly an index of the script's is out of bounds or a "
              "kernel of its own is wrong, seldom the GPU",
              r"NVRM: Xid \([^)]*\): (13|31|43)\b|"
              r"CUDA error: (device-side assert|an illegal (memory|instruction)|unspecified launch|misaligned|"
              r"the launch timed|invalid program counter|operation not supported on global)"),
    ErrorKind("no memory of the host to pin", Hope.PERHAPS,
              "give the node more memory, raise its limit of locked memory (ulimit -l), or let the DataLoader pin "
              "less: a smaller batch or prefetch_factor, or pin_memory=False",
              r"(?s)in pin memory thread.*(CUDA|HIP) error: out of memory"),
    OUT_OF_GPU_MEMORY,
    ErrorKind("shared memory is full", Hope.NO,
              "give the pod a larger /dev/shm (emptyDir, medium: Memory), or use fewer data loader workers",
              r"(?i)bus error|unable to (open|write to|allocate) shared memory|insufficient shared memory|"
              r"creating shared memory segment|unable to (write to|resize) file </torch_",
              (-signal.SIGBUS, 128 + signal.SIGBUS)),
    ErrorKind("the disk is full", Hope.NO, "free or enlarge the disk that the path is on",
              r"No space left on device|\[Errno 28\]|Disk quota exceeded|\[Errno 122\]"),
    ErrorKind("ranks disagree about a collective", Hope.NO,
              "they called different ones, or with different shapes: compare what each rank does at that line",
              r"distributed collective mismatch|Detected mismatch between collectives|"
              r"Mismatch between collective operation types"),
    ErrorKind("NCCL was called wrongly", Hope.NO,
              "read what it says with NCCL_DEBUG=WARN; mostly two ranks use one device, or a tensor is on another one",
              r"ncclInvalidUsage|ncclInvalidArgument"),
    ErrorKind("a collective timed out", Hope.PERHAPS,
              "a rank did not join it: find the rank that is out of step in the stacks (everstep stacks)",
              r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for (recv|send)|"
              r"waiting for clients|Application timeout caused pair closure|monitoredBarrier.*timed? ?out|"
              r"wait timeout after \d+ ?ms"),
    ErrorKind("a port is taken", Hope.PERHAPS, "end the process that has it, or let the system choose one (port 0)",
              r"(?i)Address already in use|EADDRINUSE"),
    ErrorKind("the connection to another rank broke", Hope.YES, "find why that rank ended",
              r"Connection closed by peer|Connection reset by peer|Broken pipe|Connection refused|"
              r"NCCL communicator was aborted|ncclRemoteError|remote process exited or there was a network error|"
              r"socketProgress: Connection closed|Socket closed|recvValueWithTimeout|DistNetworkError|"
              r"errors_impl\.(Unavailable|Aborted)Error|"
              r"gloo[^\n]*(Connection timed out|No route to host|Network is (unreachable|down))",
              is_echo=True, is_network=True),
    ErrorKind("NCCL could not connect the ranks", Hope.PERHAPS,
              "read what it says with NCCL_DEBUG=WARN; NCCL_SOCKET_IFNAME names the network that it shall use",
              r"ncclSystemError|ncclInternalError|Bootstrap : no socket interface found|"
              r"unhandled system error|internal error - please report this issue to the NCCL", is_network=True),
    ErrorKind("the loss is not a number", Hope.PERHAPS,
              "lower the learning rate, clip gradients, check the data of that iteration",
              r"(?i)\bloss\b[^\n]{0,60}\b(is|was|=|became)\s*-?(nan|inf)\b|contains? (nan|inf)|returned nan values|"
              r"FloatingPointError|non-?finite (loss|grad)", (ExitCode.DIVERGED,)),
    ErrorKind("the state's shapes differ from the model's", Hope.NO,
              "train the model of the checkpoint, or start a new run",
              r"Error\(s\) in loading state_dict|size mismatch for |RestoreError"),
    ErrorKind("a file is damaged", Hope.NO, "save or download it again",
              r"PytorchStreamReader failed|(archive|zip file) is corrupted|Error while deserializing header|"
              r"UnpicklingError|not a zip file"),
    ErrorKind("shapes do not match", Hope.NO, "fix the model or the shape of the data; print the shapes at that line",
              r"shapes cannot be multiplied|size of tensor a|must match the size|shape '.*' is invalid for input|"
              r"Expected input batch_size|Given groups=|mat1 and mat2|Sizes of tensors must match|"
              r"index out of range in self|operands could not be broadcast"),
    ErrorKind("tensors are on different devices or of different types", Hope.NO, "move them with .to(device, dtype)",
              r"Expected all tensors to be on the same device|expected scalar type|to have the same dtype"),
    ErrorKind("a module cannot be imported", Hope.NO, "install it in the image or the environment that the step uses",
              r"ModuleNotFoundError|ImportError|undefined symbol|cannot open shared object file"),
    ErrorKind("a file is missing", Hope.NO, "check the path, and that every node mounts it",
              r"FileNotFoundError|No such file or directory|NoSuchKey|NoSuchBucket"),
    ErrorKind("access is denied", Hope.NO, "check owner, mode and credentials",
              r"PermissionError|AccessDenied|403 Forbidden|40[13] Client Error|GatedRepoError"),
    ErrorKind("too many open files", Hope.NO, "raise `ulimit -n`, or set torch's sharing strategy to file_system",
              r"Too many open files|received 0 items of ancdata"),
    ErrorKind("out of memory", Hope.PERHAPS,
              "give the node more memory, use fewer data loader workers or a smaller batch",
              r"\bMemoryError\b|Cannot allocate memory|not enough memory: you tried to allocate|DefaultCPUAllocator"),
    ErrorKind("a data loader's worker died", Hope.PERHAPS,
              "read its own error, which is printed above; try num_workers=0",
              r"DataLoader worker \(pid.*(exited unexpectedly|is killed by signal)"),
    ErrorKind("the CUDA driver or a library does not match", Hope.NO,
              "match torch's CUDA version and the driver of the host",
              r"CUDA driver version is insufficient|no kernel image is available|forward compatibility was attempted|"
              r"Found no NVIDIA driver|NVIDIA driver on your system is too old|unsupported (display driver|toolchain)"),
    ErrorKind("native code crashed", Hope.PERHAPS, "find the last Python frame in the stacks; run with faulthandler",
              r"Segmentation fault|Fatal Python error", (-signal.SIGSEGV, 139, -signal.SIGABRT, 134)),
    ErrorKind("Everstep ended the gang", Hope.YES, "", r"SignalException: .*SIGTERM|got signal: 15", is_echo=True),
    ErrorKind("asked to end: a preemption or a SIGTERM", Hope.YES, "",
              exit_codes=(-signal.SIGTERM, 143, -signal.SIGINT, 130, -signal.SIGHUP, 129)),
    ErrorKind("killed from outside", Hope.YES, "find what sent SIGKILL: dmesg, the kubelet, an administrator",
              exit_codes=(-signal.SIGKILL, 137)),
    ErrorKind("an assertion of the script failed", Hope.NO, "read its traceback", r"AssertionError"),
    ErrorKind("an error in the script's code", Hope.NO, "read its traceback",
              r"(Name|Type|Attribute|Syntax|Indentation|Key|Index|UnboundLocal|NotImplemented|ZeroDivision)Error"),
)  # fmt: skip


def kind_of(error: str, exit_code: int) -> ErrorKind:
    """What a process with these last words and this exit code died of: the first row that matches."""
    return next((kind for kind in TABLE if kind.matches(error, exit_code)), UNKNOWN)


@lru_cache(64)
def is_echo(error: str, exit_code: int) -> bool:
    """Whether a process died of another's end: a collective whose peer is gone."""
    return kind_of(error, exit_code).is_echo


def evidence_line(error: str) -> str:
    """The line of a traceback that says it: the last one that names an error, else the last one."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    error_lines = [
        line for line in lines if re.match(r"[\w.]*(Error|Exception|Exit|Interrupt)\b(?! raised from)", line)
    ]
    return (error_lines or lines or [""])[-1][:300]


def render() -> str:
    """The table as Markdown."""
    lines = [
        "# What an error means",
        "",
        "Made from `runtime/job/error_kinds.py` by",
        "`python -m everstep.runtime.job.error_kinds > docs/errors.md`; a test keeps it true.",
        "`everstep report` names the kind of each end, and marks echoes: an echo follows from another end.",
        "",
        "| error | a restart | what to do | exit codes, signals |",
        "|---|---|---|---|",
    ]
    for kind in (*TABLE, UNKNOWN):
        codes = ", ".join(_code(code) for code in kind.exit_codes)
        echo = " (echo)" if kind.is_echo else ""
        lines.append(f"| {kind.name}{echo} | {kind.hope.value} | {kind.mend} | {codes} |")
    return "\n".join(lines) + "\n"


def _code(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else str(int(code))


if __name__ == "__main__":
    print(render(), end="")
