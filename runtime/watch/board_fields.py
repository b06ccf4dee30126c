"""What a worker's board says. Pure; `board` is its file."""

from typing import NamedTuple

LOOP_PHASES = frozenset({"", "start", "batch", "step", "shards", "save", "end"})
"""Phases that Everstep's loops show by beacons. Any other the script names: a job spec may have a limit for it."""
GROUP_PHASE = "process group"
"""The phase of a worker while torch makes a process group: it waits for all other ranks."""
EVALUATION, SAVE, EXPORT = "evaluation", "torch.save", "export"
"""The model was told to evaluate; the worker saves, by torch or by another library; it copies results."""
FETCH, MEMORY, FLUSH = "fetch", "memory", "flush"
"""The worker waits for its agent: until the state that it starts from is in memory, until there is memory for a save,
until a state is in the store."""


class Board(NamedTuple):
    """What a board says."""

    pid: int
    rank: int
    world_size: int
    local_rank: int
    round: int
    job: str = ""
    iteration: int = 0
    """Optimizer steps since the process began."""
    changes: int = 0
    """Rises with each sign of progress."""
    changed_at: float = 0.0
    """Unix time of the newest one."""
    phase: str = ""
    """What the worker does, as seen from outside."""
    entered: int = 0
    """Collectives of all groups of the round that were entered: their number."""
    completed: int = 0
    """Of these, finished."""
    samples: int = 0
    """How often the worker counted them."""
    waits: int = 0
    """How often one was unfinished then: that share of its time the rank waited for others."""
    sampled_at: float = 0.0
    """Unix time at which the worker counted them; 0: they are not known. Old: the process stands as a whole."""
    collective: str = ""
    """The newest one: `all_reduce [1024]`."""
    recent: tuple[float, ...] = ()
    """Seconds of the newest iterations, each at its number modulo their count; 0: not known."""
    data_s: float = 0.0
    """Seconds that it has waited for its data loader so far."""
    staging_s: float = 0.0
    """Seconds that saves have kept it from training so far."""
    evaluation_s: float = 0.0
    """Seconds that it has evaluated so far, as the model's `eval()` shows."""
    tokens: float = 0.0
    """Tokens of all ranks that it has reported so far; 0: its script reports none, or another rank reports."""
    earlier: int = 0
    """Optimizer steps that earlier processes made, if the restored state of the optimizer counts them; else the
    iteration that everstep's checkpointer restored."""
    ended_at: float = 0.0
    """Unix time of the newest iteration's end; 0: there is none."""
    store: str = ""
    """URI of the job's store."""
    first_ended_at: float = 0.0
    """Unix time of the first iteration's end."""
    first_staging_s: float = 0.0
    """Of `staging_s`: up to that time."""
    first_evaluation_s: float = 0.0
    """Of `evaluation_s`: up to that time."""
    named: str = ""
    """What the script says that it does (`everstep.phase`)."""

    @property
    def number(self) -> int:
        """The newest iteration, from the beginning of the training as far as that is known."""
        return self.earlier + self.iteration

    @property
    def doing(self) -> str:
        """Its phase, for people: as seen from outside, else as the script names it; "": it trains."""
        return self.phase or self.named

    @property
    def awaits_others(self) -> bool:
        """Whether it waits for other ranks, in a collective or for a process group."""
        return self.entered > self.completed or self.phase == GROUP_PHASE

    @property
    def pace_s(self) -> float:
        """The median of the newest iterations, in seconds; 0: there are none."""
        in_order = sorted(seconds for seconds in self.recent if seconds > 0)
        return in_order[len(in_order) // 2] if in_order else 0.0
