"""The refusals in a pod's status, through a kubelet: a reason word for programs, a sentence for people."""

import asyncio
from pathlib import Path

import pytest

from ascend.annotations import ALLOCATED, PREDICATE_TIME, REAL
from ascend.chips import chip_name, join_names
from ascend.kube.objects import PODS, Pod
from device_plugin.pods import admission_matcher as allocation_module
from sandbox.cluster import pod_manifest
from tests.device_plugin.api import NODE, until
from tests.device_plugin.whole import Whole, asking, check_hand_over, whole_node
from tests.e2e.proxy import ApiProxy


async def bind_as(whole: Whole, name: str, count: int, annotation: str | None) -> Pod:
    """Bind a pod with this annotation."""
    pod = await whole.client.create(PODS, pod_manifest(name, count), "default")
    annotations = {PREDICATE_TIME: "7"} | ({ALLOCATED: annotation} if annotation is not None else {})
    await whole.client.bind(namespace="default", name=name, uid=pod.uid, node=NODE, annotations=annotations)
    return pod


async def refusal(whole: Whole, name: str) -> str:
    """The message in the status of a refused pod, which has no claim and keeps its predicate-time."""
    await until(lambda: (found := whole.find(name)) is not None and found.status.phase == "Failed")
    found = whole.find(name)
    assert found is not None
    assert found.status.reason == "UnexpectedAdmissionError"
    assert found.metadata.annotations[PREDICATE_TIME] == "7"
    assert REAL not in found.metadata.annotations
    return found.status.message


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (None, "NotPlaced: annotation huawei.com/Ascend910 is missing"),
        ("Ascend910-0,chip1", "MalformedAnnotation: annotation huawei.com/Ascend910: 'chip1' is not a chip name"),
        ("Ascend910-0,Ascend910-0", "MalformedAnnotation: annotation huawei.com/Ascend910: "),
        ("Ascend910-0", "WrongCount: annotation huawei.com/Ascend910 names 1 chip, the pod requests 2"),
        ("", "WrongCount: annotation huawei.com/Ascend910 names 0 chips, the pod requests 2"),
        (join_names((0, 1, 2)), "WrongCount: annotation huawei.com/Ascend910 names 3 chips, the pod requests 2"),
        (join_names((7, 8)), "UnknownChip: this node has no Ascend910-8"),
        (join_names((2, 3)), "ChipUnhealthy: Ascend910-3 is unhealthy"),
        (join_names((1, 2)), "ChipHeld: Ascend910-1 is held by pod default/holder"),
    ],
)
async def test_a_refused_pod_has_the_reason_in_its_status_and_the_next_one_works(
    folder: Path, annotation: str | None, words: str
) -> None:
    async with whole_node(folder) as whole, whole.plugin() as plugin:
        await whole.bind("holder", 1)
        await whole.claimed("holder")
        whole.node.edit_chip(3, health="Unhealthy")
        await until(lambda: (snapshot := plugin.snapshots.value) is not None and not snapshot.healthy >> 3 & 1)
        await bind_as(whole, "refused", 2, annotation)
        assert f"Allocate failed due to rpc error: code = FailedPrecondition desc = {words}" in await refusal(
            whole, "refused"
        )
        await whole.bind("next", 5, 4)
        check_hand_over(whole, await whole.claimed("next"))
        assert [each.pod for each in plugin.allocations] == ["default/holder", "default/next"]


async def test_without_device_nodes_a_pod_is_refused(folder: Path) -> None:
    async with whole_node(folder) as whole, whole.plugin(injection="devices"):
        (whole.node.device_root / "davinci_manager").unlink()
        await bind_as(whole, "one", 1, chip_name(0))
        assert "DeviceNodeMissing: " in await refusal(whole, "one")


async def test_an_unknown_pod_gets_its_chips_while_the_api_server_is_away(folder: Path) -> None:
    async with whole_node(folder) as whole, ApiProxy(whole.cluster.server.url) as proxy:
        behind = str(whole.cluster.write_kubeconfig("behind", proxy.url))
        async with whole.plugin(kubeconfig=behind) as plugin:
            await proxy._runner.cleanup()
            pod = await whole.bind("unseen", 4, 5)
            await until(lambda: whole.ledger("unseen"))
            (allocation,) = plugin.allocations
            assert (allocation.uid, allocation.chips, whole.ledger("unseen")) == (pod.uid, (4, 5), 0b110000)
            assert plugin.pods.get(pod.uid) is None


async def test_an_unknown_pod_is_refused_while_kubelet_and_api_server_do_not_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocation_module, "PREFER_CAP_S", 0.05)
    monkeypatch.setattr(allocation_module, "LIST_AFTER_S", 0.05)
    async with whole_node(folder) as whole, ApiProxy(whole.cluster.server.url) as proxy:
        behind = str(whole.cluster.write_kubeconfig("behind", proxy.url))
        async with whole.plugin(kubeconfig=behind):
            await proxy._runner.cleanup()
            whole.node.kubelet.pods_answer.forbidden = True
            await bind_as(whole, "unseen", 1, chip_name(0))
            loop = asyncio.get_running_loop()
            started_s = loop.time()
            refused_with = await refusal(whole, "unseen")
            assert "ApiServerAway: no pod waits for 1 chip, and neither the kubelet nor the API server" in refused_with
            assert loop.time() - started_s < allocation_module.CAP_S


async def test_while_the_watch_is_stuck_pods_can_reuse_each_others_chips(
    folder: Path,
) -> None:
    async with whole_node(folder) as whole, ApiProxy(whole.cluster.server.url) as proxy:
        behind = str(whole.cluster.write_kubeconfig("behind", proxy.url))
        async with proxy.gate("GET", r"/pods\?.*watch=") as watching, whole.plugin(kubeconfig=behind):
            for name in ("first", "second", "third"):
                await watching.reached.wait()
                await whole.bind(name, 4, 5)
                check_hand_over(whole, await whole.claimed(name))
                await whole.client.delete(PODS, name, "default")
                await until(lambda name=name: whole.find(name) is None)  # type: ignore[misc]  # used in this iteration only


async def test_a_pod_of_several_containers_is_refused_as_a_whole(folder: Path) -> None:
    async with whole_node(folder) as whole, whole.plugin() as plugin:
        await whole.bind("holder", 3)
        await whole.claimed("holder")
        await whole.bind("crowded", 0, 1, 2, 3, asks=asking("s1 i1 a2 a1"), predicate_time=7)
        assert "ChipHeld: Ascend910-3 is held by pod default/holder" in await refusal(whole, "crowded")
        assert [each.pod for each in plugin.allocations] == ["default/holder"]


async def test_a_pod_the_kubelet_rejects_by_itself_leaves_others_their_chips(folder: Path) -> None:
    async with whole_node(folder) as whole, whole.plugin() as plugin:
        kubelet = whole.node.kubelet
        kubelet.hold_admission()
        whole.cluster.server.delay("/pods/elsewhere/status", 3.0)
        body = pod_manifest("elsewhere", 2, nodeSelector={"kubernetes.io/hostname": "another"})
        pod = await whole.client.create(PODS, body, "default")
        written = {ALLOCATED: join_names((0, 1)), PREDICATE_TIME: "1"}
        await whole.client.bind(namespace="default", name="elsewhere", uid=pod.uid, node=NODE, annotations=written)
        await whole.bind("next", 5, 4, predicate_time=2)
        await until(lambda: len(list(plugin.pods)) == 2)
        kubelet.release_admission()
        check_hand_over(whole, await whole.claimed("next"))
        assert kubelet.status("default/elsewhere")["reason"] == "NodeAffinity"
        whole.cluster.server.delay("/pods/elsewhere/status", 0.0)


async def test_a_chip_a_restarted_kubelet_has_not_freed_is_refused_to_found_pods(
    folder: Path,
) -> None:
    async with whole_node(folder) as whole, whole.plugin() as plugin:
        kubelet = whole.node.kubelet
        await whole.bind("ended", 1)
        await whole.claimed("ended")
        await whole.client.delete(PODS, "ended", "default")
        await until(lambda: whole.find("ended") is None)
        kubelet.hold_admission()
        await whole.bind("found", 1, predicate_time=7)
        await whole.bind("unconcerned", 5, 4, predicate_time=8)
        await until(lambda: len(list(plugin.pods)) == 2)
        await kubelet.restart()
        await until(lambda: kubelet.registrations and whole.offers_chips())
        kubelet.release_admission()
        refused_with = await refusal(whole, "found")
        assert "desc = ChipNotFreed: the kubelet does not offer Ascend910-1 yet: after a restart" in refused_with
        assert refused_with.endswith("a new pod can get it, which is unexpected")
        check_hand_over(whole, await whole.claimed("unconcerned"))
        await whole.bind("again", 1)
        check_hand_over(whole, await whole.claimed("again"))
