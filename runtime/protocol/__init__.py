"""The messages between the two sides of each connection in a job. Neither side is imported.

`messages`: agent and master, JSON over HTTP; `rounds` and `holdings`: the rounds, seats and shards that these name.
`worker_link`: worker and agent, JSON lines over a Unix socket. `keeper`: the interface through which an agent uses the
keeper of its node's staged shards. Workers import this package, so it uses only the standard library and msgspec.
"""
