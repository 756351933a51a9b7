"""Pods with AI cores that come, are bound, end and are forgotten in any order: no chip gives more than it has."""

from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from allocator.state.reservation import Reservation
from ascend.annotations import REAL
from ascend.errors import Refusal
from ascend.kube.objects import Node, Pod
from ascend.templates import RESOURCE_CORES
from ascend.vnpus import Vnpu
from tests.allocator.audit import audit, by_kind
from tests.allocator.builders import World
from tests.allocator.cores import B1, B3, B4, core_node, core_pod

NODES: Final = (core_node("b1", B1, chips=[0, 1]), core_node("b3", B3, chips=[0, 1]), core_node("b4", B4, chips=[0, 1]))
REQUESTS: Final = (
    *((cores, {}) for cores in (5, 6, 10, 12, 20, 25, 40)),
    *((10, {"vnpu-dvpp": value}) for value in ("yes", "no")),
)

STEP: Final = st.tuples(
    st.sampled_from(["place", "place", "bind", "report", "end", "leave", "expire", "restart"]), st.integers(0, 999)
)


class _Cluster:
    """The objects of a cluster, and an allocator that sees them."""

    def __init__(self) -> None:
        self.bound: dict[str, Pod] = {}
        self.waiting: dict[str, Pod] = {}
        self.number = 0
        self.world = World()
        self.restart()

    def restart(self) -> None:
        """Another allocator, that has the objects only."""
        self.world = World(vnpus_per_job=0)
        self.world.add(*self.objects)

    def step(self, action: str, choice: int) -> None:
        if action == "restart":
            self.restart()
        elif action == "expire":
            self.world.now_s += 1000
        elif action == "place":
            cores, labels = REQUESTS[choice % len(REQUESTS)]
            self.number += 1
            pod = core_pod(f"p{self.number}", cores, labels=labels)
            self.waiting[pod.uid] = pod
            self.world.add(pod)
            self.place(pod)
        elif action in {"bind", "leave"} and self.waiting:
            pod = self.waiting.pop(sorted(self.waiting)[choice % len(self.waiting)])
            made = self.place(pod) if action == "bind" else None
            if made is None:
                self.world.cluster.pod_deleted(pod)
                return
            cores, labels = next(iter(pod.spec.containers)).cores, pod.metadata.labels
            self.show(core_pod(pod.name, cores, annotations=made.grant.annotations(), node=made.node, labels=labels))
        elif action in {"report", "end"} and self.bound:
            uid = sorted(self.bound)[choice % len(self.bound)]
            if action == "end":
                self.world.cluster.pod_deleted(self.bound.pop(uid))
            else:
                self.report(self.bound[uid], choice)

    def place(self, pod: Pod) -> Reservation | None:
        try:
            return self.world.engine.place(pod)
        except Refusal:
            return None

    def report(self, pod: Pod, vdev_id: int) -> None:
        """The device plugin says what it has made."""
        holding = self.world.cluster.nodes[pod.spec.node_name].holdings[pod.uid]
        names = [f"{Vnpu(cut.size.suffix, cut.chip, 100 + vdev_id).name}_1" for cut in holding.cuts]
        names = names or [f"Ascend910-{chip}" for chip in pod.metadata.annotations[RESOURCE_CORES].split(",")]
        annotations = dict(pod.metadata.annotations) | {REAL: ",".join(names)}
        cores = next(iter(pod.spec.containers)).cores
        self.show(core_pod(pod.name, cores, annotations=annotations, node=pod.spec.node_name))

    def show(self, pod: Pod) -> None:
        self.bound[pod.uid] = pod
        self.world.add(pod)

    @property
    def objects(self) -> list[Node | Pod]:
        return [*NODES, *self.bound.values(), *self.waiting.values()]


@given(st.lists(STEP, max_size=40))
def test_no_chip_gives_more_than_it_has_and_a_restart_forgets_nothing(steps: list[tuple[str, int]]) -> None:
    cluster = _Cluster()
    for action, choice in steps:
        cluster.step(action, choice)
        world = cluster.world
        assert audit(world.cluster, world.ledger, by_kind(*cluster.objects)) == []
