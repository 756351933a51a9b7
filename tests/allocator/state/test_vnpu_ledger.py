"""No vNPU is given twice, whatever happens in whatever order."""

import functools
import operator

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from allocator.rules.vacancy import Vacancy
from allocator.state.reservation import Stage
from ascend.errors import Refusal
from ascend.kube.objects import ConfigMap, Node, Pod
from ascend.vnpus import Vnpu
from tests.allocator.audit import audit, by_kind
from tests.allocator.builders import World, pod, report
from tests.allocator.expiry import expire
from tests.allocator.vnpus import cut, cut_node, vnpu_pod

NODES = {"n1": [*cut([0, 1], parts=2), *cut([2], "4c", parts=2, first=200)], "n2": cut([0], parts=3)}
RECUT = {"n1": [*cut([1], "4c", parts=2), *cut([3], parts=2, first=102)], "n2": cut([1], parts=2)}
"""The same nodes, cut anew: the driver uses vdev ids again."""
TTL_S = 30.0


class Parts(RuleBasedStateMachine):
    """Pods with vNPUs and with chips are created, placed, bound, seen and end, while chips fail and leaders change."""

    waiting = Bundle("waiting")
    posted = Bundle("posted")
    bound = Bundle("bound")

    def __init__(self) -> None:
        super().__init__()
        self.names = iter(range(10_000))
        self.live: dict[str, Pod] = {}
        self.vnpus: dict[str, list[Vnpu]] = dict(NODES)
        self.nodes: dict[str, Node] = {name: cut_node(name, vnpus) for name, vnpus in NODES.items()}
        self.reports: dict[str, ConfigMap] = {}
        self._start()

    def _start(self) -> None:
        self.world = World(ttl_s=TTL_S, vnpus_per_job=0)
        self.world.add(*self.nodes.values(), *self.reports.values(), *self.live.values())

    def _made(self, name: str, size: str, vnpu: Vnpu | None = None, real: Vnpu | None = None, node: str = "") -> Pod:
        return vnpu_pod(name, size, vnpu=vnpu, real=real, node=node, phase="Running" if node else "Pending")

    @rule(target=waiting, size=st.sampled_from(["2c", "4c", ""]))
    def a_pod_is_created(self, size: str) -> Pod:
        name = f"p{next(self.names)}"
        new = self._made(name, size) if size else pod(name, 1)
        self.live[new.uid] = new
        self.world.add(new)
        return new

    @rule(each=waiting, candidates=st.sampled_from([None, ["n1"], ["n2"]]))
    def a_pod_is_placed(self, each: Pod, candidates: list[str] | None) -> None:
        try:
            self.world.engine.place(each, candidates)
        except Refusal:
            return

    @rule(each=waiting)
    def a_reservation_is_released(self, each: Pod) -> None:
        self.world.engine.release(each.uid)

    @rule(target=posted, each=consumes(waiting))
    def a_binding_is_posted(self, each: Pod) -> object:
        return each if self.world.ledger.advance(each.uid, Stage.ASSUMED) is not None else multiple()

    @rule(target=bound, each=consumes(posted))
    def a_pod_is_seen_bound(self, each: Pod) -> object:
        held = self.world.ledger.get(each.uid)
        if held is None:
            return multiple()
        vnpu = held.take.vnpu
        if vnpu is None:
            seen = pod(each.name, 1, node=held.node, chips=held.take.chips, phase="Running")
        else:
            seen = self._made(each.name, vnpu.suffix, vnpu, node=held.node)
        self.live[each.uid] = seen
        self.world.add(seen)
        return seen

    @rule(each=consumes(bound))
    def a_pod_ends(self, each: Pod) -> None:
        del self.live[each.uid]
        self.world.cluster.pod_deleted(each)

    @rule(name=st.sampled_from(sorted(NODES)), unhealthy=st.frozensets(st.integers(0, 7), max_size=2))
    def chips_fail_or_recover(self, name: str, unhealthy: frozenset[int]) -> None:
        self.reports[name] = report(name, unhealthy=unhealthy)
        self.world.add(self.reports[name])

    @rule(name=st.sampled_from(sorted(NODES)), cuts=st.sampled_from([NODES, RECUT, {}]))
    def a_node_is_read_again(self, name: str, cuts: dict[str, list[Vnpu]]) -> None:
        self.vnpus[name] = cuts.get(name, [])
        self.nodes[name] = cut_node(name, self.vnpus[name])
        self.world.add(self.nodes[name])

    @rule(seconds=st.sampled_from([1, 31]))
    def time_passes(self, seconds: int) -> None:
        self.world.now_s += seconds
        expire(self.world.ledger)

    @rule()
    def another_leader_takes_over(self) -> None:
        # The former one has handed over what it has posted.
        posted = [each for each in self.world.ledger if each.stage is Stage.ASSUMED]
        self._start()
        for each in posted:
            self.world.ledger.reserve(
                uid=each.uid, pod=each.pod, node=each.node, take=each.take, stage=Stage.DOUBTFUL
            )  # fmt: skip

    @invariant()
    def every_vnpu_is_free_held_or_reserved(self) -> None:
        for name, vnpus in self.vnpus.items():
            record = self.world.cluster.nodes[name]
            held = [vnpu for holding in record.holdings.values() for vnpu in holding.vnpus]
            reserved = self.world.ledger.on(name).values()
            held += [take.vnpu for take in reserved if take.vnpu is not None]
            ids = [each.vdev_id for each in held]
            assert len(ids) == len(set(ids))
            assert isinstance(record.offer, Vacancy)
            assert not record.offer.free & sum({1 << each.chip for each in held})
            if record.offer.vnpus is None:
                continue
            assert isinstance(record.unhealthy, int)
            healthy = {each for each in vnpus if not record.unhealthy >> each.chip & 1}
            whole = functools.reduce(operator.or_, (take.chip_set for take in reserved), record.held)
            free = {each for each in healthy if each.vdev_id not in ids and not whole >> each.chip & 1}
            assert set(record.offer.vnpus.free) == free

    @invariant()
    def the_state_is_as_if_read_anew(self) -> None:
        objects = by_kind(*self.nodes.values(), *self.reports.values(), *self.live.values())
        assert not audit(self.world.cluster, self.world.ledger, objects)


Parts.TestCase.settings = settings(stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow])
TestParts = Parts.TestCase
