"""Why each round ended, from the records of a journal: the first cause, the hang's culprit, the judgement. Pure."""

from collections import defaultdict
from collections.abc import Iterable

from everstep.runtime.diagnosis.first_cause import Attribution, ProcessEnd, attribute
from everstep.runtime.job import records as job

_CLIPPED = 4096
"""Characters of an error that are looked at: its last ones."""


def death_time(fault: job.WorkerFaulted) -> float:
    """When the worker died; if that is not known, when it was reported."""
    return fault.died or fault.time


class Causes:
    """What the records say about the ends of rounds."""

    def __init__(self, records: Iterable[job.Record]) -> None:
        self._faults: defaultdict[int, list[job.WorkerFaulted]] = defaultdict(list)
        self._judged: defaultdict[int, list[job.FaultJudged]] = defaultdict(list)
        self._hangs: dict[int, job.HangExplained] = {}
        self._hung_since: dict[int, float] = {}
        self._silent: dict[int, job.NodeSuspected] = {}
        for record in records:
            match record:
                case job.WorkerFaulted():
                    self._faults[record.round].append(record)
                case job.FaultJudged():
                    self._judged[record.round].append(record)
                case job.HangExplained():
                    self._hangs[record.round] = record
                case job.HangSeen():
                    self._hung_since[record.round] = record.time - record.still_s
                case job.NodeSuspected():
                    self._silent.setdefault(record.round, record)

    def first_fault(self, number: int) -> job.WorkerFaulted | None:
        """The fault of the round that is the cause of the others."""
        attribution = self._attribution(number)
        if attribution is None:
            return None
        return next(fault for fault in self._faults[number] if _process_end(fault) == attribution.first)

    def hung_since(self, round_broken: job.RoundBroken) -> float | None:
        """When the round last made progress that a hang has ended; None: another cause has."""
        return self._hung_since.get(round_broken.round) if round_broken.reason is job.Reason.HANG else None

    def silent_node(self, round_broken: job.RoundBroken) -> job.NodeSuspected | None:
        """The node that fell silent in that round, if all ends of its ranks, or its failed connections, are echoes."""
        attribution = self._attribution(round_broken.round)
        is_echo = attribution.kind.is_echo if attribution else round_broken.reason is job.Reason.DISCONNECTED
        return self._silent.get(round_broken.round) if is_echo else None

    def ends(self, number: int) -> tuple[tuple[str, int], ...]:
        """(Node, rank) of all workers that ended, the first one first."""
        return tuple((fault.node, fault.rank) for fault in sorted(self._faults.get(number, ()), key=death_time))

    def judgement(self, number: int) -> str:
        """`restart in place`; with the reason, where it says more."""
        sentences = {
            judgement.decision.value
            if judgement.detail == judgement.decision.value
            else f"{judgement.decision.value}: {judgement.detail}": None
            for judgement in self._judged.get(number, ())
        }
        return "; ".join(sentences)

    def paragraph(self, round_broken: job.RoundBroken, decision: str) -> str:
        """Why that round ended, and what was done."""
        decision_text = "; ".join(part for part in (self.judgement(round_broken.round), decision) if part)
        attribution = self._attribution(round_broken.round)
        hang = self._hangs.get(round_broken.round)
        if (silent := self.silent_node(round_broken)) is not None:
            if attribution is None:
                echo = f"It follows that {round_broken.detail.rstrip('. ')}. A restart helps."
            else:
                who = ", ".join(dict.fromkeys(end.who for end in (attribution.first, *attribution.echoes)))
                echo = (
                    f"What others ended with is an echo of it ({who}: {attribution.kind.name}). A restart "
                    f"{attribution.kind.hope.value}."
                )
            return (
                f"First, node {silent.node} fell silent: it answered neither the master nor {', '.join(silent.by)}. "
                f"{echo} To fix it: find what ended that node, or cut it off. Done: {decision_text}."
            )
        if attribution is not None and hang is None:
            return attribution.paragraph(decision_text)
        what = (hang.detail if hang else round_broken.detail).rstrip(". ")
        if round_broken.reason is job.Reason.DISCONNECTED:  # What was judged was told later, and explains it.
            found = [f"{judged.node}: {judged.reason.value}" for judged in self._judged.get(round_broken.round, ())]
            what = "; ".join([*found, what])
        if round_broken.reason.value not in what:
            what = f"{round_broken.reason.value}: {what}" if what else round_broken.reason.value
        return f"Round {round_broken.round} ended, {what}. Done: {decision_text}."

    def _attribution(self, number: int) -> Attribution | None:
        return attribute([_process_end(fault) for fault in self._faults.get(number, ())])


def _process_end(fault: job.WorkerFaulted) -> ProcessEnd:
    return ProcessEnd(
        f"rank {fault.rank} on {fault.node}", death_time(fault), fault.exit_code, fault.error[-_CLIPPED:],
        fault.iteration, fault.kernel, fault.reason is job.Reason.OOM, fault.failed,
    )  # fmt: skip
