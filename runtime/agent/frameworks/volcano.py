"""The variables of Volcano's job plugins env and svc, by their user guides ("Env User Guidance", "SVC User Guidance").

There a pod keeps its number, and the hosts are names of all pods. Here both are those of the round: a node's number is
below the number of nodes, and its hosts are addresses. The plugin's files in /etc/volcano are not made.
"""

from itertools import accumulate

from everstep.runtime.protocol.rounds import Seat


def variables(seat: Seat) -> dict[str, str]:
    """This node's place in its role, and of each role the number and addresses of its nodes."""
    first_ranks = [*accumulate((member.slots for member in seat.members[seat.role]), initial=0)]
    index = str(first_ranks.index(seat.role_first_rank))
    found = {"VC_TASK_INDEX": index, "VK_TASK_INDEX": index}
    for role, members in seat.members.items():
        found[f"VC_{role.upper()}_NUM"] = str(len(members))
        found[f"VC_{role.upper()}_HOSTS"] = ",".join(member.machine_address for member in members)
    return found
