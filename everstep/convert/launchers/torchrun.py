"""torchrun, by its documentation ("torchrun (Elastic Launch)"), and DLRover's dlrover-run, which has its flags, and
those of dlrover/trainer/torch/elastic_run.py."""

from collections.abc import Mapping

from everstep.convert.launchers.dialect import DEVICES, MODULE, NO_PYTHON, SLOTS, Dialect, Translation

CHECKS = ("network_check", "exclude_straggler", "switchbox_check")
"""dlrover-run's own."""
NODES, PROCESSES = "PET_NNODES", ("PET_NPROC_PER_NODE", "PET_N_PROC_PER_NODE")
"""Variables of Kubeflow's operators. torchrun takes the first of the second for a `SLOTS` that it is not given."""
_USE_ENV, _AUTO = "use_env", "auto_config"
_FROM_NODES = 4
"""As many make `_AUTO` check them."""
_SWITCHES = frozenset({
    *CHECKS, *MODULE, NO_PYTHON, _USE_ENV, _AUTO, "standalone", "run_path", "virtual_local_rank", "auto_tunning",
    "save_at_breakpoint", "comm_perf_test", "numa_affinity",
})  # fmt: skip


def _translate(flags: Mapping[str, str], nodes: int) -> Translation:
    if _AUTO not in flags:
        return Translation(flags, {})
    left = {name: value for name, value in flags.items() if name not in (_AUTO, "nnodes")}
    checks = {CHECKS[0]: "true"} if nodes >= _FROM_NODES else {}
    return Translation({**left, **checks, SLOTS: DEVICES}, {})


TORCHRUN = Dialect(
    (("torchrun",), ("dlrover-run",)), ("torch.distributed.run", "dlrover.trainer.torch.elastic_run"), _SWITCHES,
    _translate, slots_variable=PROCESSES[0],
)  # fmt: skip
TORCH_LAUNCH = Dialect(
    (), ("torch.distributed.launch",), _SWITCHES, _translate, "--local-rank", _USE_ENV, PROCESSES[0]
)  # fmt: skip
"""Its predecessor."""
