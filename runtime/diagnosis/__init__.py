"""The node check: is a machine fit to train? Rounds of real work in small groups, and rules that name unfit nodes.

These are pure and need only the standard library (msgspec for messages):

- `evidence`: what measurements prove;
- `rounds`: the groups of the next round; start here;
- `verdicts`: the verdict on each node;
- `session`: one check as a state machine in virtual time;
- `switchbox`: reader of and rule for links within a machine.

Around them:

- `workload`: the measured work (torch); `devices`: that of CUDA devices;
- `self_test`: a machine tests itself before a restart;
- `measurement_server`: a process that forks measurements, forked itself by an agent's fork server;
  `measurement_process` is a handle on it;
- `node`: the loop of one node; `coordinator`: the side that all nodes ask; `http_link`: both ends of HTTP;
- `single_machine`, `multi_machine`: a check by itself; `admission`, `admission_client`: checks within a job;
- `report`: the output.

Inside a job ============ The master serves a `Coordinator` with `serve_coordinator`, beside its own server. A node that
is to be checked runs, on its event loop:

    async with start_measurement_process() as measuring:  # imports torch once; keep it for later checks
        over = await check_node(HttpLink(http, address, credentials), Arrive(node, host, ip), measuring)
    # over.verdict.health, .avoid, .reason; over.faulty, .stragglers, .undecided: names; over.usable: how many

The master decides which nodes are checked when: at the start all nodes; later a new node with a healthy partner, which
it trusts. The partner may be training: it leaves its devices alone, the work is half a second of one core, and a slow
partner only makes a slow new node look better.

    missing = await coordinator.wait_for_arrivals({"worker-0-0", "worker-2-1"}, timeout_s)
    verdicts = await coordinator.check(["worker-0-0", "worker-2-1"], trusted=["worker-0-0"])
    # verdict.avoid: exclude verdict.host and replace verdict.node

`coordinator.mark_lost(node, reason)` reports a node that the platform says is gone. Nothing is journaled: a new master
starts the check again, and an agent that gets UnknownNodeError calls `check_node` again.
"""
