"""The command line of `everstep launch`: torch's, dlrover-run's and Everstep's flags, then the script."""

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
    """Abbreviations mean what they mean to torchrun: Everstep's own flags never make one ambiguous."""

    def __init__(self, environment: Mapping[str, str], prog: str = "everstep launch") -> None:
        super().__init__(
            prog=prog,
            usage=f"{prog} [flags] script [its arguments]",
            description="Run a script on one node or many, like torchrun, but elastic: nodes may die, join and leave.",
            epilog=EXAMPLES,
        )
        torchrun.add_flags(self, environment)
        actions_before = set(self._option_string_actions)
        _add_check_flags(self, environment)
        _add_everstep_flags(self)
        self._added = frozenset(self._option_string_actions) - actions_before

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        matches = super()._get_option_tuples(option_string)
        theirs = [match for match in matches if match[1] not in self._added]
        return theirs or matches


def _add_check_flags(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    """dlrover-run's node check."""
    group = parser.add_argument_group("node checks, as in dlrover-run")

    def switch(name: str, text: str) -> None:
        group.add_argument(
            *torchrun.both_spellings(name), action=torchrun.SwitchAction, environment=environment, help=text
        )

    switch("network-check", "check every node before it trains; faulty ones are left out")
    switch("exclude-straggler", "with --network-check: leave slow nodes out too")
    switch("switchbox-check", "with --network-check: measure the links between pairs of devices")
    group.add_argument(
        *torchrun.both_spellings("box-pairs"),
        default="0:1 2:4 3:5 6:7",
        help='pairs of devices (default "0:1 2:4 3:5 6:7")',
    )
    group.add_argument(
        *torchrun.both_spellings("min-bandwidth"),
        type=int,
        default=10_000,
        help="MB/s that a healthy pair reaches (default 10000)",
    )
    group.add_argument(
        *torchrun.both_spellings("min-channels"), type=int, default=2, help="healthy pairs needed (default 2)"
    )


def _add_everstep_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("Everstep's own")
    group.add_argument(
        *torchrun.both_spellings("node-unit"), type=int, default=1, metavar="N",
        help="the number of nodes in a round is a multiple of this, as in dlrover-run (1)",
    )  # fmt: skip
    group.add_argument(
        "--job-spec", default="", metavar="FILE", help="YAML of the job's roles and policies; --role is this node's"
    )
    group.add_argument(
        "--hang-timeout", type=float, default=300.0, metavar="SECONDS",
        help="a job hangs when no rank makes progress for this long, and for ten iterations; stacks are written (300)",
    )  # fmt: skip
    group.add_argument(
        "--on-hang", choices=["report", "restart", "fail"],
        help="what to do about a hang (default: restart; fail with --max-restarts 0)",
    )  # fmt: skip
    group.add_argument(
        "--straggler-policy",
        choices=["report", "replace"],
        default="report",
        help="what follows if the others wait for a node for a minute, iteration after iteration: it is reported, with "
        "its slow part, or also left out, if enough others are there (report)",
    )
    group.add_argument(
        "--cooldown", type=float, default=30.0, metavar="SECONDS",
        help="after a change, wait this long before breaking a round to add nodes (30)",
    )  # fmt: skip
    group.add_argument(
        "--preload", action="append", default=[], metavar="MODULE", help="one more module to import once per node"
    )
    group.add_argument(
        "--spares", type=int, default=0, metavar="N",
        help="warm spare processes of this node: one takes the place of a worker that dies; a node that waits for a "
        "seat keeps one for each of its workers. For scripts with everstep.main (0)",
    )  # fmt: skip
    group.add_argument("--no-tls", action="store_true", help="no TLS between machines, if the network itself encrypts")
    group.add_argument(
        "--no-fork-server", action="store_true", help="start each worker as a new process with its own imports"
    )
    _add_store_flags(group)


def _add_store_flags(group: argparse._ArgumentGroup) -> None:
    """Flags of where a state is copied to, and how often."""
    group.add_argument(
        "--store",
        default="",
        metavar="URI",
        help="store shared by all nodes, for checkpoints and the master's takeover",
    )
    group.add_argument("--persist-interval", type=int, default=50, help="iterations between copies to the store (50)")
    group.add_argument(
        "--peer-copies", type=int, default=1, metavar="N",
        help="copies of a sharded state in other nodes' memory: as many machines may be lost at once (1)",
    )  # fmt: skip
    group.add_argument(
        "--keep-last", type=int, default=KEEP_LAST, metavar="N",
        help=f"newest checkpoints to keep in the store ({KEEP_LAST}; 0: all)",
    )  # fmt: skip
    group.add_argument(
        "--keep-every", type=int, default=0, metavar="M",
        help="also keep each checkpoint whose iteration is a multiple of M",
    )  # fmt: skip
    group.add_argument(
        "--checkpoint-overhead", default="", metavar="1%",
        help="instead of an interval: the share of the time that persisting may take",
    )  # fmt: skip
    group.add_argument(
        "--persist-bytes-per-s", type=float, default=0.0,
        help="limit of this node's writes to the store, in bytes/s (0: no limit)",
    )  # fmt: skip
