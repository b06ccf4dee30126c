"""`python -m everstep.runtime.diagnosis.pod_node --coordinator HOST:PORT --node NAME`: one node of a check, in a pod.

With `--hold S` a node that is fit then waits for the master of the job `--training`, and becomes an agent of it.

EVERSTEP_JOB and EVERSTEP_JOB_TOKEN are the check's, EVERSTEP_HOST the machine's name, EVERSTEP_IP the pod's address,
EVERSTEP_POD its name, EVERSTEP_STORE and EVERSTEP_TRAINING_TOKEN the training's. Exit codes: 0 it has its verdict, and
nobody took it, 2 bad input (no such devices), 75 the coordinator went away, 143 told to end.
"""

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NoReturn

import aiohttp

from everstep.runtime.diagnosis.errors import (
    CoordinatorLostError,
    MeasurementError,
    NoQuorumError,
    RefusedError,
    UnknownNodeError,
)
from everstep.runtime.diagnosis.http_link import HttpLink
from everstep.runtime.diagnosis.measurement_process import start_measurement_process
from everstep.runtime.diagnosis.messages import Arrive
from everstep.runtime.diagnosis.node import check_node
from everstep.runtime.diagnosis.switchbox import SwitchboxError, SwitchboxSpec, add_box_flags, box_of, missing_devices
from everstep.runtime.diagnosis.verdicts import Verdict
from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.net.tls import Credentials, credentials_of
from everstep.runtime.net.token import TOKEN_VARIABLE
from everstep.runtime.platform import POD_VARIABLE
from everstep.runtime.protocol.handover import NodeStart, decode_start, start_key
from everstep.runtime.store import NoSuchKey, Store, StoreError, open_store
from everstep.runtime.system.cpus import usable_cpus

LOOK_S = 1.0
"""How often a node that waits looks for its start."""


def node_arguments(
    address: str, node: str, box_flags: Sequence[str] = (), training: str = "", hold_s: float = 0.0
) -> list[str]:
    """The arguments of this module for a coordinator at that address."""
    hold = ["--training", training, "--hold", f"{hold_s:g}"] if training else []
    return ["--coordinator", address, "--node", node, *box_flags, *hold]


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Take part in one check; returns the exit code."""
    parser = argparse.ArgumentParser(description="One node of a check, in a pod.")
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--training", default="")
    parser.add_argument("--hold", type=float, default=0.0)
    add_box_flags(parser)
    flags = parser.parse_args(arguments)
    me = Arrive(flags.node, environment["EVERSTEP_HOST"], environment["EVERSTEP_IP"])
    credentials = credentials_of(environment[TOKEN_VARIABLE], environment["EVERSTEP_JOB"], tls=True)
    try:
        verdict = asyncio.run(_take_part(flags.coordinator, me, credentials, box_of(flags)))
    except (RefusedError, SwitchboxError) as error:
        code, text = ExitCode.BAD_INPUT, str(error)
    except (CoordinatorLostError, MeasurementError, NoQuorumError, UnknownNodeError) as error:
        code, text = ExitCode.TRY_AGAIN, str(error)
    else:
        code, text = 0, f"{verdict.health}: {verdict.reason}"
        if flags.training and flags.hold and not verdict.avoid:
            print(
                f"{me.node} on {me.host}: {text}; waits {flags.hold:g} s for the training", file=sys.stderr, flush=True
            )
            key = start_key(flags.training, environment[POD_VARIABLE])
            token = environment["EVERSTEP_TRAINING_TOKEN"]
            if start := wait_for_start(open_store(environment["EVERSTEP_STORE"]), key, token, flags.hold):
                become_agent(start, environment)
            text = f"no training took it in {flags.hold:g} s"
    print(f"{me.node} on {me.host}: {text}", file=sys.stderr)
    return code


def wait_for_start(store: Store, key: str, token: str, hold_s: float) -> NodeStart | None:
    """What the training's master left for this pod; None: nothing in that time. Ends the process when told to.

    What another wrote there counts as nothing.
    """
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
    deadline = time.monotonic() + hold_s
    while time.monotonic() < deadline:
        try:
            return decode_start(store.get(key), key, token)
        except (NoSuchKey, StoreError, ValueError):
            time.sleep(LOOK_S)
    return None


def become_agent(start: NodeStart, environment: Mapping[str, str]) -> NoReturn:
    """Run the agent in this process's place."""
    more = {**start.environment, TOKEN_VARIABLE: environment["EVERSTEP_TRAINING_TOKEN"]}
    variables = {name: value for name, value in environment.items() if name != "EVERSTEP_TRAINING_TOKEN"}
    command = [sys.executable, "-m", "everstep.runtime.agent", *start.arguments]
    os.execve(sys.executable, command, {**variables, **more})


async def _take_part(coordinator: str, me: Arrive, credentials: Credentials, box: SwitchboxSpec | None) -> Verdict:
    async with start_measurement_process(threads=usable_cpus()) as measuring, aiohttp.ClientSession() as http:
        if box is not None and (why := missing_devices(box, await measuring.count_devices())):
            raise SwitchboxError(why)
        return (await check_node(HttpLink(http, coordinator, credentials), me, measuring, box)).verdict


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
