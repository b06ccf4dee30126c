"""How the fields of a spec are spelled in YAML, and how each value is read: what `reader` reads and `writer` writes."""

from collections.abc import Callable
from typing import Any

from everstep.runtime.job import values
from everstep.runtime.job.spec import (
    CleanPodPolicy,
    EndingPolicy,
    HangPolicy,
    Placement,
    RestartPolicy,
    RestartScope,
    StragglerPolicy,
)

Fields = dict[str, tuple[str, Callable[[Any], Any]]]
"""Name in the file -> name in the struct, reader of its value (raises `values.Wrong`)."""

PATIENCE: Fields = {
    "joinWindow": ("join_window_s", values.number),
    "joinTimeout": ("join_timeout_s", values.number),
    "replacementWait": ("replacement_wait_s", values.number),
    "coolDown": ("cooldown_s", values.number),
    "silence": ("silence_s", values.number),
    "leave": ("leave_s", values.number),
    "handOver": ("handover_s", values.number),
    "dump": ("dump_s", values.number),
    "maxRestarts": ("max_restarts", values.whole),
    "sameError": ("same_error", values.whole),
    "maxRelaunches": ("max_relaunches", values.whole),
    "noProgress": ("no_progress", values.whole),
}
HANG: Fields = {
    "policy": ("policy", values.one_of(HangPolicy)),
    "timeout": ("timeout_s", values.number),
    "startTimeout": ("start_timeout_s", values.number),
}
OOM: Fields = {
    "factor": ("factor", values.factor),
    "increment": ("increment_bytes", lambda value: int(values.quantity(value))),
    "limit": ("limit_bytes", lambda value: int(values.quantity(value))),
}
RULE: Fields = {
    "exitCodes": ("exit_codes", values.codes),
    "exceptionalEvent": ("events", values.events),
    "restartPolicy": ("restart_policy", values.one_of(RestartPolicy)),
    "restartScope": ("restart_scope", values.one_of(RestartScope)),
}
ROLE: Fields = {
    "replicas": ("nodes", values.whole),
    "minReplicas": ("min_nodes", values.whole),
    "maxReplicas": ("max_nodes", values.whole),
    "slots": ("slots", values.whole),
    "nodeUnit": ("node_unit", values.whole),
    "priority": ("priority", values.whole),
    "waitsFor": ("waits_for", values.texts),
    "restartPolicy": ("restart_policy", values.one_of(RestartPolicy)),
    "restartScope": ("restart_scope", values.one_of(RestartScope)),
    "restartLimit": ("restart_limit", values.whole),
    "restartTimeLimit": ("restart_time_limit_s", values.number),
    "restartTimeout": ("restart_timeout_s", values.number),
    "scaleOutTimeout": ("scale_out_timeout_s", values.number),
    "completePolicy": ("complete_policy", values.one_of(EndingPolicy)),
    "failPolicy": ("fail_policy", values.one_of(EndingPolicy)),
}
JOB: Fields = {
    "job": ("job", values.text),
    "placement": ("placement", values.one_of(Placement)),
    "avoidHosts": ("avoid_hosts", values.texts),
    "hosts": ("hosts", values.text),
    "topology": ("topology", values.lines),
    "stragglers": ("stragglers", values.one_of(StragglerPolicy)),
    "hardwareExitCodes": ("hardware_exit_codes", values.codes),
    "completePolicy": ("complete_policy", values.one_of(EndingPolicy)),
    "failPolicy": ("fail_policy", values.one_of(EndingPolicy)),
    "cleanPodPolicy": ("clean_pod_policy", values.one_of(CleanPodPolicy)),
    "keepLast": ("keep_last", values.whole),
    "keepEvery": ("keep_every", values.whole),
}
