"""`python -m everstep.runtime.diagnosis.pod_node --coordinator HOST:PORT --node NAME`: one node of a check, in a pod.

EVERSTEP_JOB and EVERSTEP_JOB_TOKEN are the check's, EVERSTEP_HOST the machine's name, EVERSTEP_IP the pod's address.
Exit codes: 0 it has its verdict, 2 bad input (no such devices), 75 the coordinator went away.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence

import aiohttp

from everstep.runtime.diagnosis.errors import CoordinatorLostError, MeasurementError, NoQuorumError, RefusedError
from everstep.runtime.diagnosis.http_link import HttpLink
from everstep.runtime.diagnosis.measurement_process import start_measurement_process
from everstep.runtime.diagnosis.messages import Arrive
from everstep.runtime.diagnosis.node import check_node
from everstep.runtime.diagnosis.switchbox import SwitchboxError, SwitchboxSpec, missing_devices, parse_switchbox
from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.net.tls import Credentials, credentials_of
from everstep.runtime.system.cpus import usable_cpus


def node_arguments(address: str, node: str, box_flags: Sequence[str] = ()) -> list[str]:
    """The arguments of this module for a coordinator at that address."""
    return ["--coordinator", address, "--node", node, *box_flags]


def box_flags(pairs: str, min_bandwidth: float, min_channels: int) -> list[str]:
    """The arguments for a check of the links between a machine's own devices."""
    return ["--box-pairs", pairs, "--min-bandwidth", f"{min_bandwidth}", "--min-channels", f"{min_channels}"]


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Take part in one check; returns the exit code."""
    parser = argparse.ArgumentParser(description="One node of a check, in a pod.")
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--box-pairs", default="")
    parser.add_argument("--min-bandwidth", type=float, default=0.0)
    parser.add_argument("--min-channels", type=int, default=0)
    flags = parser.parse_args(arguments)
    me = Arrive(flags.node, environment["EVERSTEP_HOST"], environment["EVERSTEP_IP"])
    credentials = credentials_of(environment["EVERSTEP_JOB_TOKEN"], environment["EVERSTEP_JOB"], tls=True)
    try:
        box = parse_switchbox(flags.box_pairs, flags.min_bandwidth, flags.min_channels) if flags.box_pairs else None
        verdict = asyncio.run(_take_part(flags.coordinator, me, credentials, box))
    except (RefusedError, SwitchboxError) as error:
        code, text = ExitCode.BAD_INPUT, str(error)
    except (CoordinatorLostError, MeasurementError, NoQuorumError) as error:
        code, text = ExitCode.TRY_AGAIN, str(error)
    else:
        code, text = 0, verdict
    print(f"{me.node} on {me.host}: {text}", file=sys.stderr)
    return code


async def _take_part(coordinator: str, me: Arrive, credentials: Credentials, box: SwitchboxSpec | None) -> str:
    async with start_measurement_process(threads=usable_cpus()) as measuring, aiohttp.ClientSession() as http:
        if box is not None and (why := missing_devices(box, await measuring.count_devices())):
            raise SwitchboxError(why)
        over = await check_node(HttpLink(http, coordinator, credentials), me, measuring, box)
    return f"{over.verdict.health}: {over.verdict.reason}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
