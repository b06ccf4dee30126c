"""torch's rendezvous settings (`--rdzv-conf`, `elasticPolicy.rdzvConf`) as a job spec's `patience`.

Their meaning is that of torch.distributed.elastic.rendezvous 2.x: `join_timeout` bounds the whole rendezvous
(`timeout` in etcd's), `last_call_timeout` is the wait for more nodes than the minimum, and a node is dead that has not
been heard for `keep_alive_interval` times `keep_alive_max_attempt`.
"""

import math
from collections.abc import Mapping

_EITHER = {"timeout": "joinTimeout", "join_timeout": "joinTimeout", "last_call_timeout": "joinWindow"}
"""Of two with one meaning the later counts."""
_KEEP_ALIVE = {"keep_alive_interval": 5.0, "keep_alive_max_attempt": 3.0}
"""Their product is `silence`; each with torch's default."""
_MEETING = "not needed: the step decides where the nodes meet"
_NEAREST = {
    "close_timeout": "leave in a job spec's patience: how long a node may take to end that was told to",
    "heartbeat": "silence in a job spec's patience", "heartbeat_timeout": "silence in a job spec's patience",
    "read_timeout": "not needed: a node that gets no answer asks again, as long as it takes",
    "pend_timeout": "not needed: a node without a place in a round waits, as long as it takes",
    "cas_backoff_max_seconds": "not needed: one master decides, and no node writes against others",
    **dict.fromkeys(("is_host", "store_type", "protocol", "rank", "use_libuv"), _MEETING),
    **dict.fromkeys(("cert", "key", "cacert", "ssl_cert", "ssl_cert_key", "ca_cert"), "--tls of the train step"),
}  # fmt: skip
_OTHERWISE = "a job spec's patience"


def parse_settings(text: str) -> dict[str, str]:
    """Those of `key=value,key=value`."""
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    return {key.strip(): value.strip() for key, _, value in pairs}


def patience_of(settings: Mapping[str, str]) -> dict[str, float]:
    """What they say, in the spelling of a job spec."""
    known = {key: seconds for key, text in settings.items() if (seconds := _number(text))}
    patience = {name: known[key] for key, name in _EITHER.items() if key in known}
    if known.keys() & _KEEP_ALIVE.keys():
        patience["silence"] = math.prod((_KEEP_ALIVE | known)[key] for key in _KEEP_ALIVE)
    return patience


def without_counterpart(settings: Mapping[str, str]) -> dict[str, str]:
    """What comes nearest to each that `patience_of` does not take."""
    taken = (*_EITHER, *_KEEP_ALIVE)
    return {
        key: _NEAREST.get(key, _OTHERWISE)
        for key, text in settings.items()
        if key not in taken or not _number(text)
    }  # fmt: skip


def _number(text: str) -> float:
    """0: not a number above 0."""
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if 0 < number < math.inf else 0.0
