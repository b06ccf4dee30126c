"""What two sides of a job say to each other; neither side is imported.

`messages`: agent and master, JSON over HTTP. `worker_link`: worker and agent, JSON lines over a Unix socket.
`keeper`: what an agent asks of the keeper of its node's staged shards. Standard library and msgspec only, as workers
import it.
"""
