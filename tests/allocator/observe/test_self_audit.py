"""A running allocator compares its state with the API server's objects."""

import asyncio
from pathlib import Path

import msgspec

from allocator.observe.self_audit import SelfAudit
from allocator.rules.job import STATEFUL_SET, VOLCANO, JobKey
from allocator.state.audit import Difference
from ascend.kube.client import KubeClient
from ascend.kube.objects import (
    Pod,
)
from sandbox.apiserver import ApiServer
from sandbox.apiserver.resources import SERVED, VOLCANO_POD_GROUPS, Catalogue
from tests.allocator.harness import Allocator, running, until

TRAIN = JobKey("default", "train", VOLCANO)
WEB = JobKey("default", "web", STATEFUL_SET)


async def compare(allocator: Allocator, kubeconfig: Path) -> list[Difference]:
    """The differences of an allocator's state."""
    async with await KubeClient.connect(str(kubeconfig)) as client:
        app = allocator.app
        audit = SelfAudit(
            client, app.cluster, app.ledger, show=lambda _count: None, period_s=1, second_comparison_s=0.01
        )
        return await audit.compare()


async def test_a_running_allocator_finds_a_pod_it_has_lost(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        for number in range(3):
            await allocator.schedule(await allocator.pod(f"p{number}", 2), ["n1"])
        await until(lambda: not len(allocator.app.ledger))
        assert await compare(allocator, tmp_path / "kubeconfig") == []
        cluster = allocator.app.cluster
        gone = next(iter(cluster.pods.values()))
        cluster.pod_deleted(gone)
        found = await compare(allocator, tmp_path / "kubeconfig")
        assert (f"pod {gone.key}", "missing") in [(each.object, each.kept) for each in found]


async def test_owners_and_pod_groups_are_compared(tmp_path: Path) -> None:
    async with (
        ApiServer(resources=(*SERVED, VOLCANO_POD_GROUPS)) as server,
        running(server, tmp_path) as allocator,
    ):
        for version, kind, name, spec in (
            ("apps/v1", "StatefulSet", "web", {"replicas": 2}),
            ("batch/v1", "Job", "batch", {"parallelism": 3}),
            ("scheduling.volcano.sh/v1beta1", "PodGroup", "train", {"minMember": 2}),
        ):
            metadata = {"name": name, "namespace": "default"}
            await server.create({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec})
        jobs = allocator.app.cluster.jobs
        await until(lambda: len(jobs.owners) == 2 and bool(jobs.groups))
        assert await compare(allocator, tmp_path / "kubeconfig") == []
        jobs._owners[WEB], jobs._groups[TRAIN] = 99, 77
        del jobs._owners[JobKey("default", "batch", "Indexed Job")]
        found = await compare(allocator, tmp_path / "kubeconfig")
        assert [(each.object, each.kept, each.rebuilt) for each in found] == [
            ("Indexed Job default/batch", "None", "3"),
            (f"{VOLCANO} default/train", "77", "2"),
            ("StatefulSet default/web", "99", "2"),
        ]
        # Until the informer has noticed that the kind is no longer served, its groups are not compared.
        jobs._owners.clear()
        server._catalogue = Catalogue()
        assert not any(VOLCANO in each.object for each in await compare(allocator, tmp_path / "kubeconfig"))


async def test_the_number_of_differences_is_a_metric(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path, audit_period_s=0.05) as allocator:
        await allocator.node("n1")
        each = await allocator.pod("p", 2)
        allocator.app.cluster.pod_deleted(msgspec.convert(each, Pod))

        async def shown() -> bool:
            _, text = await allocator.get("/metrics")
            return "ascend_allocator_state_differences 0.0" not in text

        async with asyncio.timeout(20):
            while not await shown():  # noqa: ASYNC110 - the state of another task
                await asyncio.sleep(0.01)
