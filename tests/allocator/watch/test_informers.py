"""The informers: owners, NodeD's reports, and pod groups while the API server serves them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from allocator.rules.vacancy import Vacancy
from allocator.state.cluster import Cluster
from allocator.state.cluster_info import LABELS as CLUSTER_INFO_LABELS
from allocator.state.jobs import Jobs
from allocator.state.kinds import KINDS, WatchedKind
from allocator.state.ledger import Ledger
from allocator.state.report import NODE_INFO
from allocator.watch import informers
from allocator.watch.informers import OptionalInformer, make_reflector
from ascend.chips import RESOURCE
from ascend.deviceinfo import LABELS, NAMESPACE, DeviceReport, encode_report
from ascend.errors import Refusal
from ascend.kube.client import KubeClient
from ascend.reasons import Reason
from sandbox.apiserver import ApiServer
from sandbox.apiserver.resources import COSCHEDULING_POD_GROUPS, SERVED, VOLCANO_POD_GROUPS, Catalogue
from tests.allocator.builders import GROUP, noded_says, pod
from tests.allocator.harness import Json, node_manifest, running, until, write_kubeconfig

VOLCANO, COSCHEDULING = (f"PodGroup.{group.api_version}" for group in (VOLCANO_POD_GROUPS, COSCHEDULING_POD_GROUPS))


@asynccontextmanager
async def informing(
    server: ApiServer, folder: Path, kind: str, *, discovery_s: float = 0.02
) -> AsyncIterator[tuple[OptionalInformer, Jobs]]:
    """The informer of an optional kind, and the jobs it keeps current."""
    cluster = Cluster(Ledger(ttl_s=1, monotonic=lambda: 0.0))
    (watched,) = (each for each in KINDS if each.name == kind)
    async with await KubeClient.connect(str(write_kubeconfig(folder, server))) as client:
        informer = OptionalInformer(
            client, cluster, watched, lambda: make_reflector(client, cluster, watched), discovery_s=discovery_s
        )
        task = asyncio.create_task(informer.run())
        try:
            yield informer, cluster.jobs
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def group(name: str, minimum: int, api: str = "scheduling.volcano.sh/v1beta1") -> Json:
    """A PodGroup to create."""
    return {
        "apiVersion": api,
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"minMember": minimum},
    }


async def test_an_optional_kind_is_watched_while_it_is_served(tmp_path: Path) -> None:
    each = pod("train-0", annotations={GROUP: "train"})
    async with (
        ApiServer() as server,
        informing(server, tmp_path, VOLCANO) as (informer, jobs),
    ):
        await informer.synced.wait()
        assert informer.age_s == 0
        jobs.pod_applied(each)
        await until(lambda: not jobs.lacks_group(jobs.job_of(each)))
        server._catalogue = Catalogue((*SERVED, VOLCANO_POD_GROUPS))
        await until(lambda: jobs.lacks_group(jobs.job_of(each)))
        await server.create(group("train", 3))
        await until(lambda: jobs.job_of(each).min_available == 3)
        server._catalogue = Catalogue()
        await until(lambda: jobs.job_of(each).min_available == 1)
        assert not jobs.lacks_group(jobs.job_of(each))


async def test_pods_that_come_right_after_their_kind_is_installed_are_a_gang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informers, "LOOK_S", 0.01)
    each, unserved = pod("train-0", annotations={GROUP: "train"}), pod("alone", annotations={GROUP: "none"})
    async with (
        ApiServer() as server,
        informing(server, tmp_path, VOLCANO, discovery_s=3600) as (informer, jobs),
    ):
        await informer.synced.wait()
        jobs.pod_applied(unserved)
        assert jobs.gang(jobs.job_of(unserved)) is not None  # it waits for the answer
        assert jobs.unserved_group(jobs.job_of(unserved)) is None
        await until(lambda: jobs.gang(jobs.job_of(unserved)) is None)
        assert jobs.unserved_group(jobs.job_of(unserved)) is not None
        server._catalogue = Catalogue((*SERVED, VOLCANO_POD_GROUPS))
        await server.create(group("train", 2))
        jobs.pod_applied(each)
        assert jobs.lacks_group(jobs.job_of(each))
        await until(lambda: not jobs.lacks_group(jobs.job_of(each)))
        assert jobs.job_of(each).min_available == 2


async def test_groups_of_the_coscheduling_plugin_are_watched(tmp_path: Path) -> None:
    async with (
        ApiServer(resources=(*SERVED, COSCHEDULING_POD_GROUPS)) as server,
        informing(server, tmp_path, COSCHEDULING) as (informer, jobs),
    ):
        await server.create(group("train", 4, "scheduling.x-k8s.io/v1alpha1"))
        await informer.synced.wait()
        each = pod("train-0")
        each.metadata.labels["scheduling.x-k8s.io/pod-group"] = "train"
        await until(lambda: jobs.job_of(each).min_available == 4)


async def test_no_call_is_answered_before_the_groups_are_known(tmp_path: Path) -> None:
    async with (
        ApiServer(resources=(*SERVED, VOLCANO_POD_GROUPS)) as server,
        running(server, tmp_path, synced=False) as allocator,
    ):
        await server.create(group("train", 2))
        await allocator.app.wait_until_synced()
        assert allocator.app.missing() is None
        await allocator.node("n1")
        await allocator.node("n2")
        one = await allocator.pod("train-0", 8, annotations={GROUP: "train"})
        answer = await allocator.filter(one, ["n1", "n2"])
        assert not answer["NodeNames"]
        assert Reason.GANG_INCOMPLETE in str(answer)


OWNER = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "train", "uid": "u", "controller": True}


@pytest.mark.parametrize(
    ("owner", "labels", "size"),
    [
        ({"kind": "StatefulSet", "apiVersion": "apps/v1", "spec": {"replicas": 2}}, {}, 2),
        (
            {"kind": "Job", "apiVersion": "batch/v1", "spec": {"parallelism": 3, "completions": 2}},
            {"batch.kubernetes.io/job-completion-index": "0"},
            2,
        ),
    ],
)
async def test_owners_are_watched(owner: Json, labels: dict[str, str], size: int, tmp_path: Path) -> None:
    reference = {**OWNER, "kind": owner["kind"]}
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await server.create({**owner, "metadata": {"name": "train", "namespace": "default", "labels": {"a": "b"}}})
        created = await allocator.pod("train-0", 8, ownerReferences=[reference], labels=labels)
        cluster = allocator.app.cluster
        first = cluster.pods[created["metadata"]["uid"]]
        await until(lambda: cluster.jobs.job_of(first).cooperation_with(first).known == size)


async def test_noded_reports_are_watched_in_the_configured_namespace(tmp_path: Path) -> None:
    async with ApiServer() as server:
        await server.create(node_manifest("n1"))
        await server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "mindx-dl"}})
        async with running(server, tmp_path, node_health_namespace="mindx-dl") as allocator:
            nodes = allocator.app.cluster.nodes
            assert isinstance(nodes["n1"].offer, Vacancy)
            info = noded_says({"FaultDevList": None, "NodeStatus": "UnHealthy"})
            meta = {"name": "mindx-dl-nodeinfo-n1", "namespace": "mindx-dl", "labels": LABELS}
            await server.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {NODE_INFO: info}})
            await until(lambda: isinstance(nodes["n1"].offer, Refusal))


async def test_clusterds_reports_are_watched_in_the_same_namespace(tmp_path: Path) -> None:
    async with ApiServer() as server:
        await server.create(node_manifest("n1"))
        await server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "mindx-dl"}})
        async with running(server, tmp_path, node_health_namespace="mindx-dl") as allocator:
            nodes, name = allocator.app.cluster.nodes, "cluster-info-device-0"
            data = encode_report(DeviceReport(0xFF, 0, 0, update_time_s=1_800_000_000))
            meta = {"name": "mindx-dl-deviceinfo-n1", "namespace": NAMESPACE, "labels": LABELS}
            await server.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})
            said = {"DeviceList": {f"{RESOURCE}-Unhealthy": "Ascend910-3"}, "UpdateTime": 1_800_000_001}
            text = json.dumps({"mindx-dl-deviceinfo-n1": said})
            meta = {"name": name, "namespace": "mindx-dl", "labels": CLUSTER_INFO_LABELS}
            await server.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {name: text}})
            await until(lambda: isinstance(vacancy := nodes["n1"].offer, Vacancy) and vacancy.healthy == 7)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.is_optional], ids=lambda kind: kind.name)
def test_the_sandbox_serves_every_kind_that_is_not_optional(kind: WatchedKind) -> None:
    assert any(kind.resource.path().endswith(f"/{served.plural}") for served in SERVED)
