"""Which of a round's ends was first, which are echoes of it, and what that means: one paragraph. Pure.

The first cause is the earliest end that is not of a kind that follows from another's; if all are, the earliest.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from everstep.runtime.job.error_kinds import OOM_KILLED, ErrorKind, evidence_line, kind_of
from everstep.runtime.watch.merge import fold_ranks


@dataclass(frozen=True)
class ProcessEnd:
    """A worker's end."""

    who: str
    """`rank 3 on worker-1-0`"""
    time: float
    """Unix time of its death."""
    exit_code: int
    """Negative for a signal."""
    error: str = ""
    iteration: int = 0
    kernel: tuple[str, ...] = ()
    """What the kernel said about that time."""
    oom: bool = False
    """Its cgroup counted a kill."""
    failed: tuple[int, ...] = ()
    """The ranks of its node that had failed by then with errors of their own; empty: not known."""

    @property
    def kind(self) -> ErrorKind:
        """What it died of; the kernel knows better."""
        if self.oom:
            return OOM_KILLED
        kernel_kind = kind_of("\n".join(self.kernel), 0) if self.kernel else None
        return kernel_kind if kernel_kind is not None and kernel_kind.words else kind_of(self.error, self.exit_code)


@dataclass(frozen=True)
class Attribution:
    """Why a round ended."""

    first: ProcessEnd
    kind: ErrorKind
    evidence: str
    echoes: tuple[ProcessEnd, ...]

    @property
    def failed(self) -> tuple[int, ...]:
        """The ranks of all nodes that had errors of their own; empty: not known."""
        return tuple(rank for end in (self.first, *self.echoes) for rank in end.failed) if self.first.failed else ()

    def paragraph(self, what_was_done: str = "") -> str:
        """First cause, evidence, echoes, whether a restart can help, what was done."""
        first, kind = self.first, self.kind
        how = f"signal {-first.exit_code}" if first.exit_code < 0 else f"exit code {first.exit_code}"
        sentences = [f"First, {first.who} ended ({how}) at iteration {first.iteration}: {kind.name}."]
        if len(self.failed) > 1:
            sentences.append(f"Ranks {fold_ranks(self.failed)} had errors of their own.")
        elif self.failed:
            who = f"Rank {self.failed[0]}" if kind.is_echo else "No other rank"
            sentences.append(f"{who} had an error of its own.")
        if self.evidence:
            sentences.append(f"Its last words: “{self.evidence}”.")
        if first.kernel:
            sentences.append(f"The kernel: “{first.kernel[-1]}”.")
        echoes = [end for end in self.echoes if end.kind.is_echo or not end.failed]
        if echoes:
            kinds = Counter(echo.kind.name for echo in echoes)
            echo_text = ", ".join(f"{name} ({count})" if count > 1 else name for name, count in kinds.items())
            count = len(echoes)
            sentences.append(f"{count} other end{' is an echo' if count == 1 else 's are echoes'} of it: {echo_text}.")
        sentences.append(f"A restart {kind.hope.value}." + (f" To fix it: {kind.mend}." if kind.mend else ""))
        if what_was_done:
            sentences.append(f"Done: {what_was_done}.")
        return " ".join(sentences)


def attribute(ends: Sequence[ProcessEnd]) -> Attribution | None:
    """The first cause among the ends of one round; None if nothing ended."""
    if not ends:
        return None
    ends_in_order = sorted(ends, key=lambda end: (end.time, end.who))
    first = next((end for end in ends_in_order if not end.kind.is_echo), ends_in_order[0])
    echoes = tuple(end for end in ends_in_order if end is not first)
    return Attribution(first, first.kind, evidence_line(first.error), echoes)
