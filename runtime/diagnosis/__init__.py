"""Is a machine fit to train? The node check: rounds of real work in small groups, and rules that name who is unfit.

Pure, standard library only (msgspec for messages): `evidence` (what measurements prove), `rounds` (who works with whom
next), `verdicts` (what is said of each node), `session` (one check as a state machine in virtual time), `switchbox` and
`topology` (readers and rules). Then the shells: `work` is what is measured (torch), `forks` the process of a node that
forks it, `measuring` its handle, `node` the loop of one node, `coordinator` the one that all nodes ask, `serving` both
ends of HTTP, `local` all nodes on this machine, `telling` what a person reads. The story begins in `rounds`.

Inside a job
============
A master makes one `Coordinator` and adds `serving.routes(coordinator)` to its server (its own guard checks the token).
An agent asked to be checked runs, with its own event loop, before it joins a round:

    async with measuring.started() as processes:          # imports torch once, keep it for later checks
        over = await check_node(HttpLink(url, token, http), Arrive(node, host, address), processes)
    # over.verdict.health, .avoid, .reason; over.faulty, over.stragglers, over.undecided: names

The master decides who checks when. At the start: everyone. For a replacement: the new node, with a healthy one that is
between two rounds (its workers are stopped, so it is free) as its trusted partner:

    await coordinator.arrived({"worker-0-0", "worker-2-1"}, timeout_s)      # set of those who did not come
    verdicts = await coordinator.check(["worker-0-0", "worker-2-1"], trusted=["worker-0-0"])
    for verdict in verdicts: ...                         # avoid -> exclude the host, replace the node

`coordinator.lose(node, reason)` tells it of a node that the platform says is gone. Nothing is journaled: a new master
starts the check again, and agents whose coordinator answers 409 arrive again.
"""
