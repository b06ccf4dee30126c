"""Is a machine fit to train? The node check: rounds of real work in small groups, and rules that name who is unfit.

Pure, standard library only (msgspec for messages): `evidence` (what measurements prove), `rounds` (who works with whom
next), `verdicts` (what is said of each node), `session` (one check as a state machine in virtual time),
`switchbox` (reader and rule). Then the shells: `work` is what is measured (torch), `forks` the process of a node that
forks it, `measuring` its handle, `node` the loop of one node, `coordinator` the one that all nodes ask, `serving` both
ends of HTTP, `local` all nodes on this machine, `telling` what a person reads. The story begins in `rounds`.

Inside a job
============
A master makes one `Coordinator` and adds `serving.routes(coordinator)` to its server (its own guard checks the token).
An agent that is to be checked runs, on its event loop:

    async with measuring.started() as processes:          # imports torch once; keep it for later checks
        over = await check_node(HttpLink(http, address, token), Arrive(node, host, ip), processes)
    # over.verdict.health, .avoid, .reason; over.faulty, .stragglers, .undecided: names; over.usable: how many

The master decides who checks when. At the start everyone; for a replacement the new node, with a healthy partner that
it trusts. The partner may be training: the work is half a second of one core, and its time only makes a slow new node
look better.

    missing = await coordinator.arrived({"worker-0-0", "worker-2-1"}, timeout_s)
    verdicts = await coordinator.check(["worker-0-0", "worker-2-1"], trusted=["worker-0-0"])
    # verdict.avoid: exclude verdict.host and replace verdict.node

`coordinator.lose(node, reason)` tells it of a node that the platform says is gone. Nothing is journaled: a new master
begins the check again, and an agent that gets UnknownNodeError calls `check_node` again.
"""
