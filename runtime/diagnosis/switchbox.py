"""Links between the devices of one machine through its switch boxes: the pairs, their bandwidth, and the rule.

As `--switchbox-check` of DLRover: each pair GPU - switch box - GPU is measured. A pair below the minimum bandwidth is a
faulty link, and a machine with fewer than `min_channels` working pairs is a faulty node.
"""

import argparse
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

COPIED_BYTES = 256 << 20
COPIES = 8
_PAIR = re.compile(r"(\d+):(\d+)")


class SwitchboxError(ValueError):
    """Invalid pairs, or missing devices: one line."""


@dataclass(frozen=True)
class SwitchboxSpec:
    """The required links of a machine."""

    pairs: tuple[tuple[int, int], ...]
    """Numbers of the devices at both ends."""
    min_bandwidth: float = 10000.0
    """MB/s (10^6 bytes), in each direction."""
    min_channels: int = 2
    """Number of pairs that must reach it."""

    @property
    def devices(self) -> int:
        """Number of devices that a machine needs for these pairs."""
        return 1 + max(max(pair) for pair in self.pairs)


class LinkProbe(Protocol):
    """Measures links."""

    def bandwidth(self, first: int, second: int) -> float:
        """MB/s between two devices, in the slower direction. Raises RuntimeError if the copy fails."""
        ...


def parse_switchbox(pairs: str, min_bandwidth: float, min_channels: int) -> SwitchboxSpec:
    """Parse `--box-pairs "0:1 2:4 3:5 6:7"`. Raises SwitchboxError with the word that is wrong."""
    device_pairs: list[tuple[int, int]] = []
    devices_seen: set[int] = set()
    for word in pairs.split():
        match = _PAIR.fullmatch(word)
        if match is None:
            raise SwitchboxError(f"--box-pairs: {word!r} is not DEVICE:DEVICE, as in '0:1 2:4'")
        pair = int(match[1]), int(match[2])
        for device in pair:
            if device in devices_seen:
                raise SwitchboxError(f"--box-pairs: device {device} of {word!r} is named twice; each has one partner")
            devices_seen.add(device)
        device_pairs.append(pair)
    if not device_pairs:
        raise SwitchboxError("--box-pairs: no pairs; write DEVICE:DEVICE, as in '0:1 2:4'")
    if not 0 < min_bandwidth < math.inf:
        raise SwitchboxError(f"--min-bandwidth {min_bandwidth:g}: must be above 0 (MB/s)")
    if not 1 <= min_channels <= len(device_pairs):
        raise SwitchboxError(
            f"--min-channels {min_channels}: must be from 1 to {len(device_pairs)}, the --box-pairs given"
        )
    return SwitchboxSpec(tuple(device_pairs), min_bandwidth, min_channels)


def box_flags(pairs: str, min_bandwidth: float, min_channels: int) -> list[str]:
    """The flags that tell a node's process to check the links between its machine's own devices."""
    return ["--box-pairs", pairs, "--min-bandwidth", f"{min_bandwidth}", "--min-channels", f"{min_channels}"]


def add_box_flags(parser: argparse.ArgumentParser) -> None:
    """Add those flags to the parser of a node's process."""
    parser.add_argument("--box-pairs", default="", help="pairs of CUDA devices whose links are checked, too")
    parser.add_argument("--min-bandwidth", type=float, default=0.0, help="MB/s; a pair below it is a faulty link")
    parser.add_argument("--min-channels", type=int, default=0, help="with fewer working pairs the node is faulty")


def box_of(flags: argparse.Namespace) -> SwitchboxSpec | None:
    """What these flags ask for; None if they were not given. Raises SwitchboxError."""
    return parse_switchbox(flags.box_pairs, flags.min_bandwidth, flags.min_channels) if flags.box_pairs else None


def missing_devices(box: SwitchboxSpec, visible: int) -> str:
    """Why this machine cannot be measured, in one line; empty if it can."""
    if visible >= box.devices:
        return ""
    has = "no CUDA device" if visible == 0 else f"{visible} CUDA device{'' if visible == 1 else 's'}"
    return f"--switchbox-check: --box-pairs needs devices 0 to {box.devices - 1}, this machine has {has}"


def measure(box: SwitchboxSpec, links: LinkProbe) -> tuple[dict[str, float], str]:
    """MB/s of each pair (`0:1`; 0 if the copy failed), and why the machine is faulty: empty if it is not."""
    bandwidths: dict[str, float] = {}
    for first, second in box.pairs:
        try:
            bandwidths[f"{first}:{second}"] = links.bandwidth(first, second)
        except RuntimeError:
            bandwidths[f"{first}:{second}"] = 0.0
    return bandwidths, fault_reason(box, bandwidths)


def fault_reason(box: SwitchboxSpec, bandwidths: Mapping[str, float]) -> str:
    """Why a machine with these bandwidths is faulty; empty if it is not. Pure."""
    slow = slow_pairs(box.min_bandwidth, bandwidths)
    working = len(bandwidths) - len(slow)
    if working >= box.min_channels:
        return ""
    worst = ", ".join(f"{pair} {bandwidths[pair]:.0f} MB/s" for pair in slow)
    return f"switchbox: {working} of {len(bandwidths)} pairs work, {box.min_channels} needed ({worst})"


def slow_pairs(min_bandwidth: float, bandwidths: Mapping[str, float]) -> list[str]:
    """The pairs below the minimum bandwidth: faulty links."""
    return [pair for pair, bandwidth in bandwidths.items() if bandwidth < min_bandwidth]


class CudaLinkProbe:
    """Peer copies between CUDA devices. Initializes CUDA in this process."""

    def bandwidth(self, first: int, second: int) -> float:
        """MB/s in the slower direction: the best of COPIES copies of COPIED_BYTES."""
        return min(self._copy(first, second), self._copy(second, first))

    def _copy(self, source: int, target: int) -> float:
        import torch

        sent = torch.full((COPIED_BYTES,), 7, dtype=torch.uint8, device=f"cuda:{source}")
        received = torch.zeros(COPIED_BYTES, dtype=torch.uint8, device=f"cuda:{target}")
        best_s = float("inf")
        with torch.cuda.device(source):
            received.copy_(sent)  # The first copy sets up peer access.
            torch.cuda.synchronize(source)
            torch.cuda.synchronize(target)
            for _ in range(COPIES):
                began, end_event = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                began.record()
                received.copy_(sent, non_blocking=True)
                end_event.record()
                end_event.synchronize()
                best_s = min(best_s, began.elapsed_time(end_event) / 1000)
        torch.cuda.synchronize(target)
        if int(received.min()) != 7 or int(received.max()) != 7:
            raise RuntimeError(f"the bytes copied from device {source} arrived wrong at device {target}")
        return COPIED_BYTES / 1e6 / best_s
