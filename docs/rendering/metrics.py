"""docs/reference/metrics.md, from `FAMILIES` of `runtime/master/metrics.py`."""

from docs.rendering.source import cell
from everstep.runtime.master.metrics import FAMILIES, Family

SUFFIX = {"counter": "_total", "info": "_info"}
HEAD = """\
# Metrics

What a master serves at `/metrics`, in the OpenMetrics format. [Prometheus and Grafana](../how-to/metrics.md) says how
to scrape it. Counters restart from 0 with each master.

| metric | type | unit | labels | meaning |
|---|---|---|---|---|
"""


def render() -> str:
    """The page."""
    return HEAD + "".join(map(_row, FAMILIES))


def _row(family: Family) -> str:
    cells = (
        f"`{family.name}{SUFFIX.get(family.type, '')}`",
        family.type,
        family.unit,
        ", ".join(family.labels),
        cell(family.help),
    )
    return f"| {' | '.join(cells)} |\n"
