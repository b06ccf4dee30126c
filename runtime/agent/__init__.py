"""The agent, one per node: gets a seat from the master, runs the workers, holds what they stage, reports events.

Start reading in `agent` and `life`. `client` talks to the master, `master_dialogue` decides what to say, `workers` and
`forkserver` run the script, `worker_server` answers the workers, `node_watch` measures them and the node, `peer_server`
serves staged shards to other agents, and `shutdown` handles the end. Workers import only
`everstep.runtime.protocol.worker_link`.
"""
