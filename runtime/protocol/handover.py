"""What a checked pod that waits for a training is to run: the training's master leaves it in the store, the pod looks.

A pod calls no Kubernetes API, and knows neither the master's address nor the script before there is a master. Who can
write to the store cannot make it run anything: the message is signed with the job's token, for that pod only.
"""

import hashlib
import hmac
from collections.abc import Mapping

import msgspec


class NodeStart(msgspec.Struct, frozen=True):
    """How the pod becomes a node. Nothing secret: the pod has the job's token by its Secret."""

    arguments: tuple[str, ...]
    """For `python -m everstep.runtime.agent`."""
    environment: Mapping[str, str]
    """Besides the pod's own."""


class _Signed(msgspec.Struct, frozen=True):
    start: msgspec.Raw
    mac: str
    """Of the key in the store and of `start`, by the job's token (HMAC, RFC 2104, with SHA-256)."""


def start_key(job: str, pod: str) -> str:
    """Where in the store the pod of that name finds it."""
    return f"jobs/{job}/starts/{pod}.json"


def encode_start(start: NodeStart, key: str, token: str) -> bytes:
    """What stands there."""
    body = msgspec.json.encode(start)
    return msgspec.json.encode(_Signed(msgspec.Raw(body), _mac(body, key, token)))


def decode_start(data: bytes, key: str, token: str) -> NodeStart:
    """Raises ValueError for what the job's master did not write, or not for that pod."""
    signed = msgspec.json.decode(data, type=_Signed)
    body = bytes(signed.start)
    if not hmac.compare_digest(signed.mac, _mac(body, key, token)):
        raise ValueError("it is not signed with the job's token")
    return msgspec.json.decode(body, type=NodeStart)


def _mac(body: bytes, key: str, token: str) -> str:
    return hmac.new(token.encode(), key.encode() + b"\n" + body, hashlib.sha256).hexdigest()
