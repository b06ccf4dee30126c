"""Endpoints and `--rdzv-conf`, read as torch reads them, and the master's patience that follows."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

_HOST = re.compile(r"[\w.:-]+")
_TRUE = ("1", "true", "t", "yes", "y")
_FALSE = ("0", "false", "f", "no", "n")
_BOUNDS = ("close_timeout", "heartbeat_timeout", "cas_backoff_max_seconds")
"""Limits inside torch's c10d backend; nothing here takes as long."""
_SECONDS = ("join_timeout", "last_call_timeout", "read_timeout", "timeout", "pend_timeout")
_NUMBERS = ("keep_alive_interval", "keep_alive_max_attempt")


@dataclass(frozen=True)
class Rendezvous:
    """How patient the nodes are with each other. All times are in seconds."""

    join_timeout_s: float = 600.0
    """The job ends after this long without the minimum of nodes."""
    last_call_s: float = 30.0
    """Once the minimum is there, the round begins this long after the last join."""
    connect_s: float = 60.0
    """How long a node tries to reach the master for the first time."""
    pend_timeout_s: float = math.inf
    """dlrover-run's: a node without a seat in any round leaves after this long."""
    silence_s: float = 30.0
    """A node that is silent for this long is lost."""
    is_host: bool | None = None
    """This node hosts the master; None: if the endpoint is this machine."""


def split_endpoint(endpoint: str, default_port: int, what: str) -> tuple[str, int]:
    """HOST[:PORT] or [IPV6][:PORT]; localhost if empty. Raises ValueError."""
    text = endpoint.strip()
    if not text:
        return "localhost", default_port
    host, colon, port = (text, "", "") if text.startswith("[") and text.endswith("]") else text.rpartition(":")
    if not colon:
        host = text
    if colon and (not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535):
        raise ValueError(f"{what} {endpoint}: {port!r} is not a port; use HOST:PORT with a port up to 65535")
    host = host[1:-1] if len(host) > 1 and host[0] == "[" and host[-1] == "]" else host
    if not _HOST.fullmatch(host):
        raise ValueError(f"{what} {endpoint}: {host!r} is neither a host's name nor an address")
    return host, int(port) if colon else default_port


def parse_conf(text: str, static: bool) -> Rendezvous:
    """`KEY=VALUE,...` -> patience. Raises ValueError for an unknown key or an invalid value."""
    conf = _pairs(text)
    conf_keys = {*_SECONDS, *_NUMBERS, *_BOUNDS, "is_host", "store_type", "rank"}
    if unknown := sorted(set(conf) - conf_keys):
        raise ValueError(f"--rdzv-conf: {unknown[0]} is unknown; known are {', '.join(sorted(conf_keys))}")
    if conf.get("store_type", "tcp") != "tcp":
        raise ValueError(f"--rdzv-conf store_type={conf['store_type']}: only tcp is supported")
    seconds = {key: _positive(key, conf[key]) for key in (*_SECONDS, *_NUMBERS) if key in conf}
    for key in _BOUNDS:
        if key in conf and key != "cas_backoff_max_seconds":
            _positive(key, conf[key])
    usual = Rendezvous()
    # torch's static rendezvous has one limit, `timeout` (900 s by default); the dynamic one has `join_timeout`.
    join = seconds.get("timeout", 900.0) if static else seconds.get("join_timeout", usual.join_timeout_s)
    silence = usual.silence_s
    if any(key in seconds for key in _NUMBERS):
        silence = seconds.get("keep_alive_interval", 5.0) * seconds.get("keep_alive_max_attempt", 3.0)
    return Rendezvous(
        join_timeout_s=join,
        last_call_s=seconds.get("last_call_timeout", usual.last_call_s),
        connect_s=join if static else seconds.get("read_timeout", usual.connect_s),
        pend_timeout_s=seconds.get("pend_timeout", usual.pend_timeout_s),
        silence_s=silence,
        is_host=_parse_is_host(conf),
    )


def _pairs(text: str) -> Mapping[str, str]:
    pairs = {}
    for pair in text.split(",") if text.strip() else ():
        key, _, value = (part.strip() for part in pair.partition("="))
        if not key or not value:
            raise ValueError(f"--rdzv-conf {text}: {pair!r} is not KEY=VALUE")
        pairs[key] = value
    return pairs


def _positive(key: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf and (key, number) != ("pend_timeout", math.inf):
        raise ValueError(f"--rdzv-conf {key}={text}: not a number above 0")
    return number


def _parse_is_host(conf: Mapping[str, str]) -> bool | None:
    if "is_host" not in conf:
        return None
    text = conf["is_host"].lower()
    if text not in _TRUE + _FALSE:
        raise ValueError(f"--rdzv-conf is_host={conf['is_host']}: give true or false")
    return text in _TRUE
