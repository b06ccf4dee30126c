"""--logs-specs: a user's class decides where the workers' streams and error files go, as under torchrun.

The class is the entry point of that name in the group `torchrun.logs_specs`, a
`torch.distributed.elastic.multiprocessing.LogsSpecs`. It is constructed once; its `reify` is called for each attempt.
"""

import importlib.metadata
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from everstep.runtime.agent.environment import ERROR_FILE_VARIABLE
from everstep.runtime.agent.logs import DirectOutput, LaunchOutput, LogPlan, RedirectedOutput, Streams, TeedOutput
from everstep.runtime.agent.output import Output

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, Std

GROUP = "torchrun.logs_specs"
_Files = tuple[Mapping[int, str], Mapping[int, str]]
"""For one stream, by local rank: the file it is redirected to, and the file it is teed to."""


def check_name(name: str) -> None:
    """Raises ValueError if no installed package has an entry point of this name."""
    if not importlib.metadata.entry_points(group=GROUP, name=name):
        raise ValueError(f"--logs-specs {name}: no entry point {GROUP}[{name}]; install the package that has it")


def load(name: str, plan: LogPlan) -> "LogsSpecs":
    """Construct the user's object; imports torch. Raises ValueError if that fails."""
    (entry, *_) = importlib.metadata.entry_points(group=GROUP, name=name)
    try:
        return entry.load()(
            log_dir=plan.folder or None,
            redirects=_std(plan.redirects),
            tee=_std(plan.tee),
            local_ranks_filter=None if plan.shown_ranks is None else set(plan.shown_ranks),
        )
    except (ImportError, AttributeError, TypeError, OSError) as error:
        raise ValueError(f"--logs-specs {name} ({entry.value}): {error or type(error).__name__}") from error


def _std(streams: Streams) -> "Std | dict[int, Std]":
    from torch.distributed.elastic.multiprocessing import Std

    if streams.by_rank is None:
        return Std(streams.all)
    return {rank: Std(value) for rank, value in streams.by_rank.items()}


class SpecifiedLogs:
    """The outputs of one node's workers as a LogsSpecs lays them out."""

    def __init__(self, specs: "LogsSpecs", plan: LogPlan, role_name: str, console: Sequence[int] = (1, 2)) -> None:
        """`console`: descriptors of this process's stdout and stderr."""
        self._specs = specs
        self._plan = plan
        self._role_name = role_name
        self._console = console
        self._destinations: LogsDest | None = None
        self._environments: Sequence[dict[str, str]] = ()

    def begin(self, attempt: int, environments: Sequence[dict[str, str]]) -> None:
        """Ask for this attempt's files. Raises what `reify` raises, and ValueError if it leaves out a rank."""
        self._environments = environments
        self._destinations = destinations = self._specs.reify(dict(enumerate(environments)))
        for name, paths in (("stdouts", destinations.stdouts), ("stderrs", destinations.stderrs)):
            if set(paths) != set(range(len(environments))):
                who = f"{type(self._specs).__name__}.reify: {name}"
                raise ValueError(f"{who} are of local ranks {sorted(paths)}, not of 0 to {len(environments) - 1}")
        plan = self._plan
        for path, filters in (
            (destinations.filtered_stdout, plan.stdout_filters),
            (destinations.filtered_stderr, plan.stderr_filters),
        ):
            if filters:
                Path(path).write_bytes(b"")

    def open(self, local_rank: int, rank: int) -> Output:
        """The output of one worker."""
        destinations, plan = self._destinations, self._plan
        assert destinations is not None, "an attempt has begun"
        path = destinations.filtered_stdout if plan.stdout_filters else ""
        stdout = self._stream(
            0, local_rank, rank, (destinations.stdouts, destinations.tee_stdouts), path, plan.stdout_filters
        )
        path = destinations.filtered_stderr if plan.stderr_filters else ""
        stderr = self._stream(
            1, local_rank, rank, (destinations.stderrs, destinations.tee_stderrs), path, plan.stderr_filters
        )
        error_file = self._environments[local_rank].get(ERROR_FILE_VARIABLE)
        return LaunchOutput(
            stdout, stderr, destinations.error_files.get(local_rank, "") if error_file is None else error_file
        )

    def _stream(
        self, number: int, local_rank: int, rank: int, files: _Files, filter_path: str, filters: Sequence[str]
    ) -> DirectOutput | RedirectedOutput | TeedOutput:
        """A file if one is named, and the console too if teed; torch names no file for the console alone."""
        path, console = files[0][local_rank], self._console[number]
        if not path:
            return DirectOutput(console)
        if local_rank not in files[1] or path == os.devnull:
            return RedirectedOutput(Path(path))
        prefix = self._plan.prefix_of(self._role_name, local_rank, rank)
        return TeedOutput(Path(path), console, prefix, Path(filter_path) if filter_path else None, filters)
