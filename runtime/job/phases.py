"""The phases of a job and their transition table; an unlisted pair raises. The nodes' table is in `nodes`."""

from enum import StrEnum

from everstep.runtime.job.records import (
    BatchSkipped,
    CheckOver,
    CheckRequested,
    Committed,
    DataShardEnded,
    DataShardTaken,
    DesiredChanged,
    FaultJudged,
    Forgotten,
    HangExplained,
    HangOver,
    HangSeen,
    JobEnded,
    JobReopened,
    MasterAway,
    MasterClaimed,
    NodeAppeared,
    NodeFinished,
    NodeJoined,
    NodeLeaving,
    NodeLost,
    NodeReleased,
    NodeRequested,
    NodeStrayed,
    NodeSuspected,
    NodeTested,
    PassedOver,
    RoundBroken,
    RoundFormed,
    ShardPersisted,
    SlowSeen,
    StateCertified,
    StateRejected,
    StoreSurveyed,
    WorkerFaulted,
)


class JobPhase(StrEnum):
    """What a job is doing."""

    FORMING = "forming"
    """No round runs."""
    RUNNING = "running"
    ENDED = "ended"


F, R, E = JobPhase.FORMING, JobPhase.RUNNING, JobPhase.ENDED

JOB_TRANSITIONS: dict[tuple[JobPhase, type], JobPhase] = {
    (F, RoundFormed): R,
    (R, RoundBroken): F,
    **{(F, kind): F for kind in (CheckRequested, NodeTested, CheckOver, NodeSuspected, BatchSkipped)},
    (F, JobEnded): E,
    (R, JobEnded): E,
    (E, JobReopened): F,
    **{
        (phase, kind): phase
        for phase in (F, R)
        for kind in (
            MasterClaimed, MasterAway, NodeRequested, NodeAppeared, NodeJoined, NodeStrayed, NodeLeaving, NodeReleased,
            NodeLost, WorkerFaulted, FaultJudged, ShardPersisted, Committed, Forgotten, StoreSurveyed, PassedOver,
            DesiredChanged,
        )
    },
    **{
        (R, kind): R
        for kind in (
            NodeFinished, HangSeen, HangExplained, HangOver, SlowSeen, DataShardTaken, DataShardEnded, StateCertified,
            StateRejected,
        )
    },
    **{(E, kind): E for kind in (MasterClaimed, NodeLost, ShardPersisted, Committed, Forgotten)},
}  # fmt: skip
