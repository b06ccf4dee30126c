"""A picture of several outcomes: goodput, and how many nodes trained when. SVG, without a library."""

from collections.abc import Sequence
from html import escape
from itertools import pairwise

from everstep.runtime.simulation.outcome import Outcome

WIDTH, LEFT, RIGHT, LANE, TOP = 960, 190, 20, 46, 54
COLUMNS = 720
_GOOD, _DOWN, _TEXT, _SOFT = "#2f9e5d", "#d9483b", "#1b2230", "#566072"


def draw(outcomes: Sequence[Outcome], title: str) -> str:
    """One lane a policy: its goodput, and the share of the nodes that trained over the time."""
    height = TOP + LANE * len(outcomes) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        _text(16, 26, title, 15, _TEXT, "600"),
    ]
    for number, outcome in enumerate(outcomes):
        parts += _lane(outcome, TOP + LANE * number)
    seconds = outcomes[0].seconds if outcomes else 0.0
    axis = TOP + LANE * len(outcomes)
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = LEFT + share * (WIDTH - LEFT - RIGHT)
        parts.append(_text(x - 16, axis + 16, f"{share * seconds / 86400:.3g} d", 11, _SOFT))
    return "\n".join([*parts, "</svg>", ""])


def _lane(outcome: Outcome, top: int) -> list[str]:
    """Its name and goodput on the left; on the right a column for each moment, red where nothing trained."""
    width = (WIDTH - LEFT - RIGHT) / COLUMNS
    parts = [
        _text(16, top + 16, outcome.policy, 13, _TEXT, "600"),
        _text(16, top + 32, f"goodput {outcome.goodput:.2%}", 12, _SOFT),
        f'<rect x="{LEFT}" y="{top}" width="{WIDTH - LEFT - RIGHT}" height="{LANE - 10}" fill="#eef0f3"/>',
    ]
    shares = column_shares(outcome, COLUMNS)
    start = 0
    for at in range(1, COLUMNS + 1):
        if at < COLUMNS and abs(shares[at] - shares[start]) < 0.004:
            continue
        tall = (LANE - 10) * shares[start]
        x, w = LEFT + start * width, (at - start) * width
        colour = _GOOD if shares[start] > 0.02 else _DOWN
        y, h = (top + LANE - 10 - tall, tall) if shares[start] > 0.02 else (top, LANE - 10)
        parts.append(f'<rect x="{x:.2f}" y="{y:.2f}" width="{w + 0.05:.2f}" height="{h:.2f}" fill="{colour}"/>')
        start = at
    return parts


def column_shares(outcome: Outcome, columns: int) -> list[float]:
    """The mean share of the nodes that trained in each of that many equal spans."""
    span, seconds_spent = outcome.seconds / columns, [0.0] * columns
    samples = [*outcome.samples, (outcome.seconds, 0)]
    for (begin, nodes), (end, _) in pairwise(samples):
        at = begin
        while nodes and at < min(end, outcome.seconds):
            column = min(int(at / span), columns - 1)
            until = min(end, span * (column + 1), outcome.seconds)
            if until <= at:
                break
            seconds_spent[column] += (until - at) * nodes / outcome.nodes
            at = until
    return [value / span for value in seconds_spent]


def _text(x: float, y: float, text: str, size: int, colour: str, weight: str = "400") -> str:
    return f'<text x="{x:.0f}" y="{y}" font-size="{size}" fill="{colour}" font-weight="{weight}">{escape(text)}</text>'
