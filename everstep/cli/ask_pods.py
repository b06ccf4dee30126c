"""Runs a command in every pod of a job at the same time, through the Kubernetes API."""

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from everstep.cli.find_job import ClusterJob


def running_pods(job: ClusterJob) -> list[dict[str, Any]]:
    """The metadata of the job's pods that have not ended. Raises ApiError."""
    from everstep.runtime.platform.kubernetes.pods import has_ended, selector

    return [pod["metadata"] for pod in job.route.pods(selector(job.job)) if not has_ended(pod)]


def ask_pods(job: ClusterJob, pods: Sequence[dict[str, Any]], words: Sequence[str], limit_s: float) -> list[str]:
    """What `everstep WORDS` prints in each of these pods; a pod without an answer is said on stderr.

    `limit_s`: how long one pod may take.
    """
    from everstep.runtime.platform.kubernetes.pods import AGENT_CONTAINER, NODE
    from everstep.runtime.submission.route import ApiError

    command, trouble = ["python", "-m", "everstep", *words], list[str]()

    def ask(pod: dict[str, Any]) -> list[str]:
        try:
            return [job.route.execute(pod["name"], AGENT_CONTAINER, command, limit_s).decode(errors="replace")]
        except ApiError as error:
            trouble.append(f"{pod['labels'][NODE]}: {error}")
            return []

    with ThreadPoolExecutor(max(len(pods), 1)) as threads:
        answers = [answer for some in threads.map(ask, pods) for answer in some]
    for line in trouble:
        print(line, file=sys.stderr)
    return answers
