"""docs/reference/metrics.md, from `FAMILIES` of `runtime/master/metrics.py`."""

from docs.rendering.source import cell
from everstep.runtime.master.metrics import FAMILIES

SUFFIX = {"counter": "_total", "info": "_info"}
HEAD = """\
# Metrics

What a master serves at `/metrics`, in the OpenMetrics format. [Prometheus and Grafana](../how-to/metrics.md) says how to
scrape it. Counters begin anew with each master.

| metric | type | unit | labels | meaning |
|---|---|---|---|---|
"""


def render() -> str:
    """The page."""
    rows = (
        f"| `{one.name}{SUFFIX.get(one.type, '')}` | {one.type} | {one.unit} | {', '.join(one.labels)} | {cell(one.help)} |\n"
        for one in FAMILIES
    )
    return HEAD + "".join(rows)
