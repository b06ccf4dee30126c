"""The journal of a job: the records of what its master learned and decided, and snapshots that bound the replay.

The master writes it. Agents read it to find their master, and reports are made from it. Start reading in `journal`;
`segments` stores its parts, `snapshots` the state after one of them.
"""
