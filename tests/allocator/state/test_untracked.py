"""Pods are not tracked by the garbage collector, whose pauses would grow with their number."""

import asyncio
import gc
from typing import Any

import msgspec

from allocator.decision.backlog import BacklogReader
from allocator.decision.drain_order import DrainOrder
from allocator.observe.unasked import UnaskedPods
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from ascend.annotations import MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.kube.objects import Node, Pod
from ascend.turn import at_once
from tests.allocator.builders import GROUP, World, container, node, pod, report
from tests.allocator.harness import node_manifest, pod_manifest

_OWNER = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "train", "uid": "t", "controller": True}


def _bound(number: int) -> dict[str, Any]:
    """Alternately a pod alone, and one of a gang."""
    manifest = pod_manifest(f"train-{number}", 1, uid=f"uid-{number}", labels={"a": "b", "c": str(number)})
    if number % 2:
        manifest["metadata"] |= {"ownerReferences": [_OWNER], "annotations": {MIN_AVAILABLE: "9"}}
    manifest["spec"]["nodeName"] = "n1"
    manifest["spec"]["tolerations"] = [{"key": "a"}]
    manifest["spec"]["volumes"] = [{"name": "a", "persistentVolumeClaim": {"claimName": "b"}}]
    manifest["spec"]["containers"][0]["env"] = [{"name": "VC_TASK_INDEX", "value": str(number)}]
    manifest["status"] = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "main"}],
    }
    return manifest


class Tracked:
    """A cluster, and the number of objects that the collector tracks."""

    def __init__(self) -> None:
        self.cluster = Cluster(Ledger(ttl_s=60, monotonic=lambda: 0.0))
        self.seen: dict[str, Pod] = {}

    def pods(self, numbers: range) -> int:
        """Apply pods as the informer does; how many more objects are tracked after a collection."""
        raws = [msgspec.json.encode(_bound(number)) for number in numbers]
        gc.collect()
        before = len(gc.get_objects())
        for raw in raws:
            pod = self.seen[str(len(self.seen))] = msgspec.json.decode(raw, type=Pod)
            self.cluster.pod_applied(pod)
        gc.collect()
        return len(gc.get_objects()) - before

    def nodes(self, numbers: range) -> int:
        """Apply nodes; how many more objects are tracked after a collection."""
        raws = [msgspec.json.encode(node_manifest(f"n{number}")) for number in numbers]
        gc.collect()
        before = len(gc.get_objects())
        for raw in raws:
            self.cluster.node_applied(msgspec.json.decode(raw, type=Node))
        gc.collect()
        return len(gc.get_objects()) - before


def test_pods_are_not_tracked() -> None:
    tracked = Tracked()
    tracked.nodes(range(2))
    tracked.pods(range(10))
    assert tracked.pods(range(10, 210)) < 20
    assert tracked.pods(range(210)) < 20  # changed


def test_one_object_is_tracked_for_each_node() -> None:
    tracked = Tracked()
    tracked.nodes(range(10))
    assert tracked.nodes(range(10, 110)) < 120
    assert tracked.nodes(range(110)) < 20


def test_what_is_known_of_waiting_pods_is_not_tracked() -> None:
    world, known = World(), []
    world.add(node("n1"), report("n1"))
    reader = BacklogReader(world.cluster, world.ledger, world.engine)

    def tracked(count: int) -> int:
        pods = [
            pod(f"train-{number}", 8, annotations={GROUP: f"train-{number // 64}", MIN_AVAILABLE: "64"})
            for number in range(count)
        ]
        world.add(*pods)
        known.extend(pods)
        asyncio.run(reader.read())
        for each in pods[::64]:
            world.engine.may_fit(each)
        gc.collect()
        return len(gc.get_objects())

    before = tracked(128)
    assert tracked(640) - before < 200


def test_what_is_known_of_nodes_that_drain_is_not_tracked() -> None:
    world = World()
    order = DrainOrder(world.cluster, world.ledger)

    def tracked(nodes: range) -> int:
        for number in nodes:
            world.add(node(f"n{number}"), report(f"n{number}"))
        at_once(order.refresh())
        gc.collect()
        return len(gc.get_objects())

    before = tracked(range(100))
    assert tracked(range(100, 500)) - before < 450  # the records of the nodes


def test_what_is_known_of_pods_without_an_answer_is_not_tracked() -> None:
    world = World()
    world.add(node("n1"), report("n1"))
    schedulers = {pod("any").spec.scheduler_name}
    look = UnaskedPods(
        world.engine, lambda _pod, _why: True,
        schedulers=schedulers, monotonic=lambda: 0.0,
    )  # fmt: skip

    def tracked(numbers: range) -> int:
        world.add(*(pod(f"waits-{number}", 8) for number in numbers))
        asyncio.run(look.look())
        gc.collect()
        return len(gc.get_objects())

    before = tracked(range(100))
    assert tracked(range(100, 600)) - before < 100


def test_pods_whose_requests_are_invalid_leave_nothing_behind() -> None:
    world, marks = World(), {GROUP: "train", MIN_AVAILABLE: "2"}
    world.add(node("n1"), report("n1"), pod("invalid", containers=[container("main", "x1")], annotations=marks))

    def tracked(times: int) -> int:
        for number in range(times):
            world.add(changed := pod("valid", 8, annotations=marks, labels={"change": str(number)}))
            assert isinstance(world.refusal(changed), Refusal)
        gc.collect()
        return len(gc.get_objects())

    before = tracked(200)  # fills the caches
    assert tracked(200) - before < 20
