"""The brain of an elastic job: who is in, what a fault means, what a round starts from. No IO, no clock.

The story: an event enters `brain.Brain.handle` and becomes records (`records`); the state is the fold of those
records (`state`, with the tables of all transitions). What follows from a state are pure functions: the next round
(`rounds`), what it restores (`restore`), what a death means (`policy`), which nodes shall exist (`sizes`), what an
agent is told (`seats`). `runtime.master` journals the records before anything is done about them.
Imports the standard library and msgspec only; `messages` is the wire, `spec` what a job is asked to be.
"""
