"""torchrun, by its documentation ("torchrun (Elastic Launch)"), and DLRover's dlrover-run, which has its flags."""

from everstep.convert.launchers.dialect import MODULE, NO_PYTHON, Dialect

CHECKS = ("network_check", "exclude_straggler", "switchbox_check")
"""dlrover-run's own."""
_USE_ENV = "use_env"
_SWITCHES = frozenset({*CHECKS, *MODULE, NO_PYTHON, _USE_ENV, "standalone"})

TORCHRUN = Dialect(
    (("torchrun",), ("dlrover-run",)), ("torch.distributed.run", "dlrover.trainer.torch.elastic_run"), _SWITCHES
)
TORCH_LAUNCH = Dialect(
    (), ("torch.distributed.launch",), _SWITCHES, rank_flag="--local-rank", no_rank_flag=_USE_ENV
)  # fmt: skip
"""Its predecessor."""
