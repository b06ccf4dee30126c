"""DeepSpeed's launcher: `deepspeed [flags] script arguments`.

By DeepSpeed's deepspeed/launcher/runner.py (its flags) and launch.py (what a process gets): it starts a process for
each device of each node of its hostfile, or of its own node, with torch's variables, and tells each its local rank by
`--local_rank`.
"""

from collections.abc import Mapping

from everstep.convert.launchers.dialect import DEVICES, MODULE, NO_PYTHON, SLOTS, Dialect, Translation

_NO_RANK = "no_local_rank"
_ELASTIC = "elastic_training"
_MEETING = (
    "H", "hostfile", "master_addr", "master_port", "node_rank", "launcher", "launcher_args", "ssh_port", "no_ssh",
    "no_ssh_check", "force_multi", "save_pid", "world_info",
)  # fmt: skip
"""Where its nodes are and how it starts processes there, which the train step decides."""
_LINES = ("q", "quiet", "log_level")
"""Of the launcher itself."""
_SLOTS = ("num_gpus", "num_accelerators")
_LEAST, _MOST = "min_elastic_nodes", "max_elastic_nodes"


def _translate(flags: Mapping[str, str], nodes: int) -> Translation:
    left = {name: value for name, value in flags.items() if name not in (*_MEETING, *_LINES)}
    slots = [left.pop(name) for name in _SLOTS if name in left] or [DEVICES]
    most = left.pop("num_nodes", "")
    if left.pop(_ELASTIC, ""):
        least, most = left.pop(_LEAST, "1"), left.pop(_MOST, most) or str(nodes)
        most = f"{least}:{most}"
    return Translation({**left, SLOTS: slots[-1], **({"nnodes": most} if most else {})}, {})


DIALECT = Dialect(
    (("deepspeed",), ("ds",)), ("deepspeed.launcher.runner",),
    frozenset({
        *MODULE, NO_PYTHON, _NO_RANK, _ELASTIC, "no_ssh", "no_ssh_check", "force_multi", "save_pid", "q", "quiet",
        "bind_cores_to_rank",
    }),
    _translate, "--local_rank", _NO_RANK,
)  # fmt: skip
