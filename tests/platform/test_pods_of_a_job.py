"""A real master whose nodes are pods: agents that only speak, an API server that only remembers."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from everstep.runtime.job.events import ScaleRequested
from everstep.runtime.job.spec import GIB, JobSpec, Patience, Resources, RoleSpec
from everstep.runtime.master import AgentCommand, Control, Outcome, run
from everstep.runtime.platform.kubernetes import Access, KubeApi, KubernetesPlatform, Owner, ensure_sizes, watch_sizes
from everstep.runtime.platform.kubernetes.platform import shared_token
from everstep.runtime.platform.kubernetes.pods import NODE, pod_name
from everstep.runtime.protocol.messages import Ack, Action, Finished
from everstep.runtime.store import DirectoryStore
from tests.credentials import credentials
from tests.master.test_master_run import TOKEN, Agent
from tests.platform.pod_api import PodApi

UID = "0f9c3a1e-77aa-4b0e-9d6a-2f6f5f1f9a10"
JOB, OWNER = f"{UID}-train", Owner("llama-finetune-x7k2", UID)
TEMPLATE = {"containers": [{"name": "agent", "image": "everstep:1"}]}
MEMORY = RoleSpec(2, 1, resources=Resources(memory_bytes=4 * GIB))
SPEC = JobSpec(JOB, {"worker": MEMORY}, Patience(leave_s=0.2), hosts="")
DEADLINE_S = 90
CREDENTIALS = credentials(TOKEN, JOB)


class Job:
    """One job in one namespace; masters come and go."""

    def __init__(self, folder: Path, server: PodApi, api: KubeApi, session: aiohttp.ClientSession) -> None:
        self.server = server
        self._api = api
        self._store = DirectoryStore(folder)
        self._session = session

    async def master(self, stop: asyncio.Event, remove: bool = True, say: Callable[[str], None] = print) -> Outcome:
        """One master's life."""
        await ensure_sizes(self._api, JOB, OWNER, {"worker": 2})
        async with KubernetesPlatform(self._api, JOB, OWNER, TEMPLATE) as platform:
            return await run(
                SPEC, self._store, platform, CREDENTIALS, AgentCommand(["--", "x.py"]),
                Control(stop, lambda: remove, watch_sizes(self._api, JOB, say, lambda _: asyncio.sleep(0.01))),
            )  # fmt: skip

    async def agent(self, node: str) -> Agent:
        """The agent in the node's pod, as soon as there is one."""
        name = pod_name(JOB, OWNER, node)
        await self.server.until(lambda: name in self.server.pods)
        variables = {variable["name"]: variable.get("value") for variable in self.container(node)["env"]}
        self.server.become(name, phase="Running")
        scheme, _, address = str(variables["EVERSTEP_MASTER"]).partition("://")
        return Agent(self._session, address, node, scheme)

    def container(self, node: str) -> dict[str, Any]:
        """Of the node's pod."""
        return self.server.pods[pod_name(JOB, OWNER, node)]["spec"]["containers"][0]

    def edit(self, text: str) -> None:
        """Somebody edits the ConfigMap's `replicas`."""
        (wish,) = self.server.configmaps.values()
        wish["data"]["replicas"] = text

    def nodes(self) -> list[str]:
        """Whose pods exist."""
        return sorted(pod["metadata"]["labels"][NODE] for pod in self.server.pods.values())

    async def finish(self, round_: int, *agents: Agent) -> None:
        """The agents train to the end, and leave."""
        for agent in agents:
            await agent.ask("finished", Finished(agent.name, round_), Ack)
        for agent in agents:
            await agent.wait_for_directive(Action.LEAVE, round_)
            statuses = [{"state": {"terminated": {"exitCode": 0}}}]
            name = pod_name(JOB, OWNER, agent.name)
            if name in self.server.pods:  # A master whose patience is over may have deleted it first.
                self.server.become(name, phase="Succeeded", containerStatuses=statuses)


def play(folder: Path, story: Callable[[Job], Any]) -> None:
    """Run the story with a deadline."""

    async def play() -> None:
        server = PodApi()
        async with (
            asyncio.timeout(DEADLINE_S),
            server as url,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=CREDENTIALS.client or True)) as session,
            KubeApi(Access(url, server.namespace)) as api,
        ):
            await shared_token(api, JOB, OWNER)
            await story(Job(folder, server, api, session))

    asyncio.run(play())


def test_a_job_trains_on_pods_and_a_killed_one_is_replaced_with_more_memory(tmp_path: Path) -> None:
    async def story(job: Job) -> None:
        master = asyncio.create_task(job.master(asyncio.Event()))
        first, second = await job.agent("worker-0-0"), await job.agent("worker-1-0")
        await asyncio.gather(first.join(), second.join())
        dead = [{"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]
        job.server.become(pod_name(JOB, OWNER, "worker-1-0"), phase="Failed", containerStatuses=dead)
        await first.wait_for_directive(Action.REJOIN, 1)
        fresh = await job.agent("worker-1-1")
        assert job.container("worker-1-0")["resources"]["limits"]["memory"] == str(4 * GIB)
        assert job.container("worker-1-1")["resources"]["limits"]["memory"] == str(8 * GIB)
        one, two = await asyncio.gather(first.join(1), fresh.join())
        assert (one.round, two.round, two.world_size) == (2, 2, 2)
        await job.finish(2, first, fresh)
        assert (await master).state == "succeeded"

    play(tmp_path, story)


def test_agents_in_pods_speak_tls_and_no_pod_holds_the_token_or_a_key(tmp_path: Path) -> None:
    async def story(job: Job) -> None:
        stop = asyncio.Event()
        master = asyncio.create_task(job.master(stop))
        first, second = await job.agent("worker-0-0"), await job.agent("worker-1-0")
        assert first.scheme == "https"
        await asyncio.gather(first.join(), second.join())
        assert not [word for word in (TOKEN, "BEGIN") if word in str(job.server.pods)]
        stop.set()
        assert (await master).exit_code == 143

    play(tmp_path, story)


def test_a_retried_master_adopts_the_pods_of_the_one_before(tmp_path: Path) -> None:
    async def story(job: Job) -> None:
        stop = asyncio.Event()
        master = asyncio.create_task(job.master(stop, remove=False))
        first, second = await job.agent("worker-0-0"), await job.agent("worker-1-0")
        await asyncio.gather(first.join(), second.join())
        stop.set()
        assert (await master).state == "stopped"
        uids_before = {name: pod["metadata"]["uid"] for name, pod in job.server.pods.items()}
        again = asyncio.Event()
        master = asyncio.create_task(job.master(again))
        await job.server.until(lambda: [method for method, _ in job.server.asked].count("WATCH") >= 2)
        assert {name: pod["metadata"]["uid"] for name, pod in job.server.pods.items()} == uids_before
        again.set()
        assert (await master).exit_code == 143
        assert job.nodes() == []

    play(tmp_path, story)


def test_a_pod_that_is_deleted_while_the_api_is_away_is_replaced_when_it_is_back(tmp_path: Path) -> None:
    async def story(job: Job) -> None:
        stop = asyncio.Event()
        master = asyncio.create_task(job.master(stop))
        first, second = await job.agent("worker-0-0"), await job.agent("worker-1-0")
        await asyncio.gather(first.join(), second.join())
        with job.server.away():
            before = len(job.server.asked)
            job.server.remove(pod_name(JOB, OWNER, "worker-1-0"))
            job.server.forget()
            await job.server.until(lambda: len(job.server.asked) > before)
            assert first.name in job.nodes()
        await first.wait_for_directive(Action.REJOIN, 1)
        fresh = await job.agent("worker-1-1")
        one, _ = await asyncio.gather(first.join(1), fresh.join())
        assert one.round == 2
        stop.set()
        assert (await master).exit_code == 143
        assert job.nodes() == []

    play(tmp_path, story)


def test_a_config_map_brings_the_time_that_new_nodes_have() -> None:
    async def play() -> None:
        server, lines_said = PodApi(), list[str]()
        async with server as url, KubeApi(Access(url, server.namespace)) as api:
            await ensure_sizes(api, JOB, OWNER, {"worker": 2})
            requests = watch_sizes(api, JOB, lines_said.append, lambda _: asyncio.sleep(0.01))
            assert await anext(requests) == ScaleRequested("worker", 2, stamp=0)
            (config_map,) = server.configmaps.values()
            config_map["data"] |= {"replicas": "worker: 4\n", "scaleOutTimeout": "worker: 300\n"}
            assert await anext(requests) == ScaleRequested("worker", 4, 300, stamp=0)
            config_map["data"] |= {"scaleOutTimeout": "worker: 60\n"}
            assert await anext(requests) == ScaleRequested("worker", 4, 60, stamp=0)
            config_map["data"] |= {"requestedAt": "worker: 5\n"}
            assert await anext(requests) == ScaleRequested("worker", 4, 60, stamp=5)
            config_map["data"] |= {"replicas": "worker: 3\n", "scaleOutTimeout": "worker: -5\n"}
            assert await anext(requests) == ScaleRequested("worker", 3, stamp=5)
            config_map["data"] |= {"replicas": "worker: 2\n", "scaleOutTimeout": "soon"}
            asyncio.get_running_loop().call_later(0.1, config_map["data"].update, {"scaleOutTimeout": ""})
            assert await anext(requests) == ScaleRequested("worker", 2, stamp=5)
            assert "scaleOutTimeout: 'soon' is not `role: number`" in lines_said[0]

    asyncio.run(asyncio.wait_for(play(), DEADLINE_S))


def test_editing_the_config_map_scales_the_job_and_what_it_cannot_be_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(job: Job) -> None:
        stop, lines_said = asyncio.Event(), []
        master = asyncio.create_task(job.master(stop, say=lines_said.append))
        first, second = await job.agent("worker-0-0"), await job.agent("worker-1-0")
        await asyncio.gather(first.join(), second.join())
        job.edit("worker: many")
        await job.server.until(lambda: lines_said)
        assert "replicas: 'worker: many' is not `role: number`" in lines_said[0]
        job.edit("worker: 9\n")
        await job.server.until(lambda: "not scaled" in caplog.text)
        assert "9 is not between 1 and 2" in caplog.text
        job.edit("worker: 1\n")
        await second.wait_for_directive(Action.LEAVE, 1)
        await first.wait_for_directive(Action.REJOIN, 1)
        assert (await first.join(1)).world_size == 1
        job.edit("worker: 2\n")
        await job.agent("worker-1-1")
        stop.set()
        await master

    play(tmp_path, story)
