"""How the fields of a spec are spelled in YAML, and how each value is read: what `reader` reads and `writer` writes."""

from collections.abc import Callable
from typing import Any

from everstep.runtime.job import spec_values
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
    "joinWindow": ("join_window_s", spec_values.number),
    "joinTimeout": ("join_timeout_s", spec_values.number),
    "replacementWait": ("replacement_wait_s", spec_values.number),
    "coolDown": ("cooldown_s", spec_values.number),
    "silence": ("silence_s", spec_values.number),
    "leave": ("leave_s", spec_values.number),
    "handOver": ("handover_s", spec_values.number),
    "dump": ("dump_s", spec_values.number),
    "maxRestarts": ("max_restarts", spec_values.whole),
    "sameError": ("same_error", spec_values.whole),
    "maxRelaunches": ("max_relaunches", spec_values.whole),
    "noProgress": ("no_progress", spec_values.whole),
}
HANG: Fields = {
    "policy": ("policy", spec_values.one_of(HangPolicy)),
    "timeout": ("timeout_s", spec_values.number),
    "startTimeout": ("start_timeout_s", spec_values.number),
}
OOM: Fields = {
    "factor": ("factor", spec_values.factor),
    "increment": ("increment_bytes", lambda value: int(spec_values.quantity(value))),
    "limit": ("limit_bytes", lambda value: int(spec_values.quantity(value))),
}
RULE: Fields = {
    "exitCodes": ("exit_codes", spec_values.codes),
    "exceptionalEvent": ("events", spec_values.events),
    "restartPolicy": ("restart_policy", spec_values.one_of(RestartPolicy)),
    "restartScope": ("restart_scope", spec_values.one_of(RestartScope)),
}
ROLE: Fields = {
    "replicas": ("nodes", spec_values.whole),
    "minReplicas": ("min_nodes", spec_values.whole),
    "maxReplicas": ("max_nodes", spec_values.whole),
    "slots": ("slots", spec_values.whole),
    "nodeUnit": ("node_unit", spec_values.whole),
    "priority": ("priority", spec_values.whole),
    "waitsFor": ("waits_for", spec_values.texts),
    "restartPolicy": ("restart_policy", spec_values.one_of(RestartPolicy)),
    "restartScope": ("restart_scope", spec_values.one_of(RestartScope)),
    "restartLimit": ("restart_limit", spec_values.whole),
    "restartTimeLimit": ("restart_time_limit_s", spec_values.number),
    "restartTimeout": ("restart_timeout_s", spec_values.number),
    "scaleOutTimeout": ("scale_out_timeout_s", spec_values.number),
    "completePolicy": ("complete_policy", spec_values.one_of(EndingPolicy)),
    "failPolicy": ("fail_policy", spec_values.one_of(EndingPolicy)),
}
JOB: Fields = {
    "job": ("job", spec_values.text),
    "placement": ("placement", spec_values.one_of(Placement)),
    "avoidHosts": ("avoid_hosts", spec_values.texts),
    "hosts": ("hosts", spec_values.text),
    "topology": ("topology", spec_values.lines),
    "stragglers": ("stragglers", spec_values.one_of(StragglerPolicy)),
    "hardwareExitCodes": ("hardware_exit_codes", spec_values.codes),
    "completePolicy": ("complete_policy", spec_values.one_of(EndingPolicy)),
    "failPolicy": ("fail_policy", spec_values.one_of(EndingPolicy)),
    "cleanPodPolicy": ("clean_pod_policy", spec_values.one_of(CleanPodPolicy)),
    "keepLast": ("keep_last", spec_values.whole),
    "keepEvery": ("keep_every", spec_values.whole),
}
