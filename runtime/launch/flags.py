"""The command line of `everstep launch`: torch's flags, dlrover-run's, ours; then the script with its arguments."""

import argparse
from collections.abc import Mapping
from typing import Any

from everstep.runtime.display.flaghelp import Flags
from everstep.runtime.job.spec import KEEP_LAST
from everstep.runtime.launch import torchrun

EXAMPLES = """examples:
  everstep launch --standalone --nproc-per-node 2 train.py --epochs 3
  everstep launch --nnodes 2:4 --rdzv-endpoint node0:29400 --max-restarts 3 train.py        # on every node
  everstep launch --job-spec roles.yaml --role ps --rdzv-endpoint node0:29400 train.py       # one node a role
  NODE_RANK=$RANK DLROVER_MASTER_ADDR=$MASTER_ADDR:$MASTER_PORT \\
    everstep launch --nnodes 4 --nproc-per-node 8 train.py                                  # in a PyTorchJob

A flag may be spelled with _ for - as well. Environment: EVERSTEP_JOB_TOKEN (the secret of a job of several hosts),
PET_<FLAG> (defaults of torch's flags), NODE_RANK with DLROVER_MASTER_ADDR, OMP_NUM_THREADS, PYTHON_EXEC.

Exit codes: 0 done, 1 the script's error, 2 bad input, 3 too few nodes, 75 no master, 128 + N ended by signal N.
"""


class Parser(Flags):
    """Abbreviations mean what they mean to torchrun: a flag that is only ours never makes one ambiguous."""

    def __init__(self, environment: Mapping[str, str], prog: str = "everstep launch") -> None:
        super().__init__(
            prog=prog,
            usage=f"{prog} [flags] script [its arguments]",
            description="torchrun, elastic: run a script on one node or many, whatever dies, comes or goes.",
            epilog=EXAMPLES,
        )
        torchrun.add_flags(self, environment)
        known = set(self._option_string_actions)
        _add_check_flags(self, environment)
        _add_everstep_flags(self)
        self._added = frozenset(self._option_string_actions) - known

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        found = super()._get_option_tuples(option_string)
        theirs = [match for match in found if match[1] not in self._added]
        return theirs or found


def _add_check_flags(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    """dlrover-run's node check."""
    group = parser.add_argument_group("checks of the nodes, as dlrover-run has them")

    def switch(name: str, text: str) -> None:
        group.add_argument(
            *torchrun.both_spellings(name), action=torchrun.SwitchAction, environment=environment, help=text
        )

    switch("network-check", "check every node before it trains; faulty ones are left out")
    switch("exclude-straggler", "with --network-check: leave slow nodes out too")
    switch("switchbox-check", "with --network-check: measure the links between pairs of devices")
    group.add_argument(
        *torchrun.both_spellings("box-pairs"), default="0:1 2:4 3:5 6:7", help='default "0:1 2:4 3:5 6:7"'
    )
    group.add_argument(
        *torchrun.both_spellings("min-bandwidth"), type=int, default=10_000, help="MB/s a pair (default 10000)"
    )
    group.add_argument(
        *torchrun.both_spellings("min-channels"), type=int, default=2, help="healthy pairs needed (default 2)"
    )


def _add_everstep_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("of everstep")
    group.add_argument(
        *torchrun.both_spellings("node-unit"), type=int, default=1, metavar="N",
        help="as dlrover-run has it: a round has a multiple of so many nodes (1)",
    )  # fmt: skip
    group.add_argument(
        "--store", default="", metavar="URI", help="shared by all nodes: checkpoints, and the master's takeover"
    )
    group.add_argument(
        "--job-spec", default="", metavar="FILE", help="YAML of the job's roles and policies; --role is this node's"
    )
    group.add_argument(
        "--hang-timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="all ranks that call everstep stand still for so long: they hang; all stacks are written (300)",
    )
    group.add_argument(
        "--on-hang",
        choices=["report", "restart", "fail"],
        help="what then follows (default: restart; fail with --max-restarts 0)",
    )
    group.add_argument(
        "--cooldown", type=float, default=30.0, metavar="SECONDS", help="a changed round is not broken up to grow (30)"
    )
    group.add_argument("--persist-interval", type=int, default=50, help="iterations between copies to the store (50)")
    group.add_argument(
        "--keep-last",
        type=int,
        default=KEEP_LAST,
        metavar="N",
        help=f"checkpoints that stay in the store, the newest ({KEEP_LAST}; 0: all)",
    )
    group.add_argument(
        "--keep-every", type=int, default=0, metavar="M", help="beside those, each whose iteration is a multiple of M"
    )
    group.add_argument(
        "--checkpoint-overhead", default="", metavar="1%", help="instead: as often as takes this share of the time"
    )
    group.add_argument(
        "--persist-bytes-per-s", type=float, default=0.0, help="what this node may write to the store (0: no limit)"
    )
    group.add_argument(
        "--preload", action="append", default=[], metavar="MODULE", help="one more import made once a node"
    )
    group.add_argument(
        "--no-tls", action="store_true", help="speak in clear between machines: where the network encrypts by itself"
    )
    group.add_argument("--no-fork-server", action="store_true", help="start each worker anew, importing by itself")
