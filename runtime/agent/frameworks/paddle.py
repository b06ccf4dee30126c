"""The variables of Paddle's collective training, by `paddle.distributed.launch` (its collective controller)."""

from everstep.runtime.protocol.rounds import Seat


def variables(seat: Seat, local_rank: int) -> dict[str, str]:
    """All workers' endpoints in rank order, and this worker's. Those of one node have consecutive ports."""
    endpoints = [
        member.endpoint(slot) for members in seat.members.values() for member in members for slot in range(member.slots)
    ]
    rank = seat.first_rank + local_rank
    return {
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_TRAINERS_NUM": str(seat.world_size),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
        "PADDLE_RANK_IN_NODE": str(local_rank),
        "PADDLE_MASTER": endpoints[0],
        "PADDLE_NNODES": str(seat.group_world_size),
    }
