"""Pod groups are watched where the API server has them, and nobody misses them where it doesn't."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from allocator.rules.job import COSCHEDULING, VOLCANO
from allocator.state.cluster import Cluster
from allocator.state.jobs import Jobs
from allocator.state.kinds import KINDS
from allocator.state.ledger import Ledger
from allocator.watch.informers import OptionalInformer, make_reflector
from ascend.annotations import MIN_AVAILABLE
from ascend.kube.client import KubeClient
from sandbox.apiserver import ApiServer
from sandbox.apiserver.resources import COSCHEDULING_POD_GROUPS, SERVED, VOLCANO_POD_GROUPS, Catalogue
from tests.allocator.builders import pod
from tests.allocator.harness import Json, running, until

GROUP = "scheduling.k8s.io/group-name"


@asynccontextmanager
async def watching(server: ApiServer, folder: Path, kind: str) -> AsyncIterator[tuple[OptionalInformer, Jobs]]:
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(server.kubeconfig()))
    cluster = Cluster(Ledger(ttl_s=1, monotonic=lambda: 0.0))
    (watched,) = (each for each in KINDS if each.name == kind)
    async with await KubeClient.connect(str(kubeconfig)) as client:
        watch = OptionalInformer(
            client, cluster, watched, lambda: make_reflector(client, cluster, watched), discovery_s=0.02
        )
        task = asyncio.create_task(watch.run())
        try:
            yield watch, cluster.jobs
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def group(name: str, minimum: int, api: str = "scheduling.volcano.sh/v1beta1") -> Json:
    return {
        "apiVersion": api,
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"minMember": minimum},
    }


async def test_a_cluster_without_the_kind_is_waited_for_by_nobody_and_the_kind_is_found_when_it_comes(
    tmp_path: Path,
) -> None:
    each = pod("train-0", annotations={GROUP: "train"})
    async with ApiServer() as server, watching(server, tmp_path, VOLCANO) as (watch, jobs):
        await watch.synced.wait()
        assert watch.age_s == 0
        jobs.pod_applied(each)
        assert not jobs.lacks_group(jobs.job_of(each))
        server._catalogue = Catalogue((*SERVED, VOLCANO_POD_GROUPS))
        await until(lambda: jobs.lacks_group(jobs.job_of(each)))
        await server.create(group("train", 3))
        await until(lambda: jobs.job_of(each).min_available == 3)
        server._catalogue = Catalogue()
        await until(lambda: jobs.job_of(each).min_available == 1)
        assert not jobs.lacks_group(jobs.job_of(each))


async def test_groups_of_the_coscheduling_plugin_are_read_too(tmp_path: Path) -> None:
    async with (
        ApiServer(resources=(*SERVED, COSCHEDULING_POD_GROUPS)) as server,
        watching(server, tmp_path, COSCHEDULING) as (watch, jobs),
    ):
        await server.create(group("train", 4, "scheduling.x-k8s.io/v1alpha1"))
        await watch.synced.wait()
        each = pod("train-0")
        each.metadata.labels["scheduling.x-k8s.io/pod-group"] = "train"
        await until(lambda: jobs.job_of(each).min_available == 4)


async def test_the_view_is_complete_only_with_the_groups(tmp_path: Path) -> None:
    async with (
        ApiServer(resources=(*SERVED, VOLCANO_POD_GROUPS)) as server,
        running(server, tmp_path, synced=False) as allocator,
    ):
        await server.create(group("train", 2))
        await allocator.app.synced()
        assert allocator.app.missing() is None
        await allocator.node("n1")
        await allocator.node("n2")
        one = await allocator.pod("train-0", 8, annotations={GROUP: "train"})
        answer = await allocator.filter(one, ["n1", "n2"])
        assert not answer["NodeNames"]
        assert "GangIncomplete" in str(answer)


async def test_kube_schedulers_way_through_a_gang(tmp_path: Path) -> None:
    marks: dict[str, Any] = {"annotations": {GROUP: "train", MIN_AVAILABLE: "3"}}
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        names = ["n1", "n2", "n3", "n4"]
        for name in names:
            await allocator.node(name)
        pods = [await allocator.pod(f"train-{number}", 8, **marks) for number in range(2)]
        for each in pods:
            assert await allocator.schedule(each, names) == ""
        pods.append(await allocator.pod("train-2", 8, **marks))
        nodes = [await allocator.schedule(each, names) for each in reversed(pods)]
        assert sorted(nodes) == ["n1", "n2", "n3"]
        stored = await allocator.read("train-1")
        assert stored["metadata"]["annotations"]["distributed-job"] == "true"
        assert stored["metadata"]["annotations"]["hccl/rankIndex"] == "1"
