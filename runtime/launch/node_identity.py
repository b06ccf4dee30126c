"""A node's identity: its job, its name, its address, the master's host, the store."""

import hashlib
import random
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from everstep.runtime.agent.ports import free_port_pair
from everstep.runtime.journal.journal import find_master
from everstep.runtime.launch import endpoint
from everstep.runtime.launch.job import Launch
from everstep.runtime.launch.local_state import LocalState
from everstep.runtime.launch.probe import Answer, is_master, listening_process, probe_endpoint, process_text
from everstep.runtime.net.tls import TLS_HINT, Credentials, credentials_of
from everstep.runtime.net.token import TOKEN_VARIABLE
from everstep.runtime.store import Store, open_store


@dataclass(frozen=True)
class NodeIdentity:
    """This node's identity, after a look at the machine and the network."""

    job: str
    node: str
    credentials: Credentials
    host: str
    """Address of the master."""
    port: int
    address: str
    """This node's address for the others."""
    hosts_master: bool
    """This node starts the master."""
    store: Store
    private_store: Path | None
    """The store's folder if the user named none: for this node, and the master that it starts."""


def identify_node(
    options: Launch, environment: Mapping[str, str], scratch: LocalState, chance: random.Random
) -> NodeIdentity:
    """Find out this node's identity from the machine and the network. Raises ValueError, StoreError with one line."""
    node = f"{options.role}-{options.index}" if options.index >= 0 else f"{options.role}-{secrets.token_hex(4)}"
    if options.endpoint is None:
        job = _job_name(options.run_id)
        credentials = Credentials(endpoint.token_of(environment, None, job))
        private = None if options.store else scratch.make_store_folder()
        store = open_store(options.store or str(private), bytes_per_s=options.saving.bytes_per_s)
        return NodeIdentity(
            job, node, credentials, "127.0.0.1", free_port_pair(chance), "127.0.0.1", True, store, private
        )
    host, port = options.endpoint.host, options.endpoint.port
    local = options.local_addr
    if local and not endpoint.is_local(local):
        raise ValueError(f"--local-addr {local}: this machine has no such address; give one of its own")
    ip = endpoint.common_address(host, port, local) if options.nodes > 1 else endpoint.resolve(host, port)
    job = _job_name(options.run_id if options.store else f"{options.run_id}-{port}")
    token = endpoint.token_of(environment, ip, job)
    credentials = credentials_of(token, job, tls=options.tls and not endpoint.is_loopback(ip))
    address = local or ("127.0.0.1" if endpoint.is_loopback(ip) else endpoint.own_address(ip, port))
    hosts = options.endpoint.is_host
    if hosts is None:
        hosts = options.rendezvous.is_host if options.rendezvous.is_host is not None else endpoint.is_this_machine(host)
    store = open_store(options.store, bytes_per_s=options.saving.bytes_per_s) if options.store else None
    master_elsewhere = find_master(store, job) if store else None
    if hosts and master_elsewhere:
        newest_host, _, at = master_elsewhere.address.rpartition(":")
        newest = newest_host.strip("[]"), int(at)
        if newest != (ip, port) and probe_endpoint(*newest, credentials, job).answer in (Answer.MASTER, Answer.SILENT):
            (ip, port), hosts = newest, False  # A takeover moved the master there.
    if hosts:
        ip = ip if endpoint.is_local(ip) else address  # A service's address leads here: listen on our own.
        hosts = is_endpoint_free(ip, port, credentials, job)
    private = None if store else scratch.make_store_folder()
    return NodeIdentity(job, node, credentials, ip, port, address, hosts, store or open_store(str(private)), private)


def is_endpoint_free(ip: str, port: int, credentials: Credentials, job: str) -> bool:
    """Is this machine's endpoint free? False: this job's master is there. Raises ValueError otherwise. Blocks 3 s."""
    answer, probed_answer = probe_endpoint(ip, port, credentials, job)
    process = listening_process(ip, port) if answer in (Answer.OTHER, Answer.SILENT) else None
    if answer is Answer.OTHER or (process is not None and not is_master(process)):
        who = process_text(process) if process else "something"
        raise ValueError(
            f"{ip}:{port}: {who} is there, not a master of this job: it {probed_answer}; choose another port"
        )
    if answer is Answer.NOT_ALLOWED:
        raise ValueError(
            f"{ip}:{port}: the master there refuses this token; set {TOKEN_VARIABLE} to the one that it has"
        )
    if answer is Answer.IN_TLS:
        raise ValueError(f"{ip}:{port}: the master there speaks TLS; {TLS_HINT}")
    if answer is Answer.IN_CLEAR:
        raise ValueError(f"{ip}:{port}: the server there does not speak TLS; {TLS_HINT}, or choose another port")
    return answer is Answer.NOBODY


def _job_name(run_id: str) -> str:
    """The job's name from the run's id: illegal characters are replaced, and a digest keeps such names distinct."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", run_id)[:150].lstrip("._-")
    return name if name == run_id else f"{name or 'job'}-{hashlib.sha256(run_id.encode()).hexdigest()[:8]}"
