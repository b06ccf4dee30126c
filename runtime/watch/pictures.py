"""Merged stacks as pictures: an SVG (callers above, width by ranks), and JSON for speedscope. Pure."""

import json
from html import escape

from everstep.runtime.watch.merge import Call, MergedStacks, fold_ranks, label
from everstep.runtime.watch.stacks import RankStacks

_WIDTH, _ROW, _MARGIN = 1200, 18, 10
_CHARACTER = 6.6
"""Width of a character of the font, in pixels."""
_FILLS = ("#f4b678", "#f2a27a", "#f7cd85", "#eebd9a")


def svg(merged_stacks: MergedStacks, title: str) -> str:
    """The tree as a picture. Calls that not all ranks are in have a dark frame."""
    boxes: list[str] = []
    total = sum(len(call.ranks) for call in merged_stacks.threads.values()) or 1
    depth = _draw(merged_stacks.threads, merged_stacks, 0, _MARGIN, (_WIDTH - 2 * _MARGIN) / total, boxes)
    height = (depth + 3) * _ROW + 2 * _MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'font-family="monospace" font-size="11"><title>{escape(title)}</title>'
        f'<rect width="100%" height="100%" fill="#ffffff"/>'
        f'<text x="{_MARGIN}" y="{_MARGIN + 12}" font-size="13">{escape(title)}</text>\n'
        + "\n".join(boxes)
        + "\n</svg>\n"
    )


def _draw(
    calls: dict[str, Call], merged_stacks: MergedStacks, depth: int, x: float, per_rank: float, boxes: list[str]
) -> int:
    """Draw calls side by side and theirs below; returns the number of rows."""
    deepest = depth
    for call in calls.values():
        width = len(call.ranks) * per_rank
        inner = sum(len(callee.ranks) for callee in call.calls.values())
        top = (depth + 2) * _ROW + _MARGIN
        text, room = label(call, merged_stacks.ranks), int((width - 4) / _CHARACTER)
        label_text = text if len(text) <= room else text[: room - 1] + "…" if room > 3 else ""
        stroke = "#333333" if call.ranks != merged_stacks.ranks else "#ffffff"
        fill = _FILLS[sum(call.name.encode()) % len(_FILLS)]
        boxes.append(
            f'<g><title>{escape(text)}</title><rect x="{x:.1f}" y="{top}" width="{max(width - 1, 1):.1f}" '
            f'height="{_ROW - 1}" fill="{fill}" stroke="{stroke}" rx="2"/>'
            f'<text x="{x + 3:.1f}" y="{top + 12}">{escape(label_text)}</text></g>'
        )
        # A rank may have several threads of one name, which then call more than one function.
        share = per_rank * min(1.0, len(call.ranks) / inner) if inner else per_rank
        deepest = max(deepest, _draw(call.calls, merged_stacks, depth + 1, x, share, boxes))
        x += width
    return max(deepest, depth + bool(calls))


def speedscope(stacks: list[RankStacks], name: str) -> str:
    """JSON that https://www.speedscope.app opens ("file format"): one profile per rank, one sample per thread."""
    numbers: dict[str, int] = {}
    profiles = []
    for stack in stacks:
        samples = [
            [numbers.setdefault(place, len(numbers)) for place in (thread.name, *(f.place for f in thread.frames))]
            for thread in stack.threads
        ]
        profiles.append({
            "type": "sampled", "name": f"rank {stack.rank}", "unit": "none", "startValue": 0, "endValue": len(samples),
            "samples": samples, "weights": [1] * len(samples),
        })  # fmt: skip
    return json.dumps({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": f"{name}: ranks {fold_ranks(stack.rank for stack in stacks)}",
        "exporter": "everstep", "activeProfileIndex": 0,
        "shared": {"frames": [{"name": place} for place in numbers]},
        "profiles": profiles,
    })  # fmt: skip
