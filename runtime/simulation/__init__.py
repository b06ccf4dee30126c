"""Jobs of thousands of nodes in virtual time, decided by the brain that decides for real ones (`everstep simulate`).

The story begins in `simulate`: it builds a `world` of machines and agents around a Brain, lets the faults of a `trace`
happen to it at the `costs` that restarts have, and returns the `outcome`. A `policy` is what a user can choose. `draw`
makes a picture of several outcomes. Nothing here reads a clock or draws a random number without a seed.

What is not simulated: heartbeats (ten thousand nodes send four hundred million a week), so a silent node is lost by
the platform's word after the time that the brain would need; the network between agents and master; the journal.
"""

from everstep.runtime.simulation.costs import COSTS, Costs
from everstep.runtime.simulation.outcome import Outcome
from everstep.runtime.simulation.policy import POLICIES, Policy, parse_policy
from everstep.runtime.simulation.simulate import simulate
from everstep.runtime.simulation.trace import Failure, Trace, draw_trace, parse_trace

__all__ = [
    "COSTS",
    "POLICIES",
    "Costs",
    "Failure",
    "Outcome",
    "Policy",
    "Trace",
    "draw_trace",
    "parse_policy",
    "parse_trace",
    "simulate",
]
