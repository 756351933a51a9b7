"""Whom Volcano evicts: sessions of its actions allocate, preempt and reclaim, as 1.14 runs them, with one resource.

The names of functions are Volcano's (pkg/scheduler/actions, pkg/scheduler/framework). Nodes come in the worst order, in
which Volcano may go through nodes of equal scores: the node for which a pod is nominated is the last one.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
import pytest
from msgspec.structs import replace

from allocator.decision.preemption import DEFAULT_KEEP_S
from allocator.serving.volcano_wire import StatusCode
from ascend.annotations import CLAIMED, KUBELET_IDS, MIN_AVAILABLE, PREDICATE_TIME
from ascend.chips import RESOURCE
from ascend.kube.objects import Pod
from tests.allocator.builders import GROUP, node, pod
from tests.allocator.decision.test_part_promises import nominated, terminating
from tests.allocator.expiry import expire
from tests.allocator.serving.test_volcano import Rig, amount

_PENDING, _ALLOCATED, _PIPELINED, _RUNNING, _RELEASING = 1, 2, 4, 32, 64
_CHIPS: Final = 8


class Volcano:
    """Volcano, with a cache of its own.

    Args:
        nodes: the names of nodes of eight chips.
        action: the action after ``allocate``: ``preempt`` or ``reclaim``.

    Attributes:
        rig: the allocator.
        evicted: the names of the pods that were evicted.
    """

    def __init__(self, nodes: Iterable[str], action: str = "preempt") -> None:
        self.rig = Rig()
        self.rig.world.add(*map(node, nodes))
        self.evicted: list[str] = []
        self._action = {"preempt": self._preempt, "reclaim": self._reclaim}[action]
        self._nodes = tuple(nodes)
        self._cache: dict[str, Pod] = {}
        self._session: dict[str, tuple[int, str]] = {}  # status and node, by uid

    def see(self, *pods: Pod) -> None:
        """Show pods to Volcano and to the allocator."""
        self.rig.world.add(*pods)
        self._cache |= {each.uid: each for each in pods}

    def end(self, names: Iterable[str]) -> None:
        """Show Volcano that pods are gone; the allocator sees it when its own informers do."""
        for name in names:
            del self._cache[f"uid-{name}"]

    def session(self, *jobs: list[Pod]) -> dict[str, str]:
        """Schedule jobs, those of the highest priority first; the nodes of the pods that are bound, by name."""
        self._session = {uid: (_status(each), each.spec.node_name) for uid, each in self._cache.items()}
        bound: dict[str, str] = {}
        for job in jobs:
            self._allocate([self._cache[each.uid] for each in job])
            statuses = {self._session[each.uid][0] for each in job}
            if statuses == {_ALLOCATED} and self.rig.ready(*(self._task(each.uid) for each in job)):
                bound |= {each.name: self._session[each.uid][1] for each in job}
        for job in jobs:
            if any(self._session[each.uid][0] == _PENDING for each in job):
                self._evict_for([self._cache[each.uid] for each in job])
        self.rig.volcano.session_closed(b"{}")
        return bound

    @property
    def waiting(self) -> dict[str, str]:
        """The nodes on which pods wait for others to end, by name of the pod, as of the last session."""
        return {self._cache[uid].name: name for uid, (status, name) in self._session.items() if status == _PIPELINED}

    def _allocate(self, job: list[Pod]) -> None:
        done: list[Pod] = []
        for each in job:
            there = each.status.nominated_node_name
            is_first = there and _size(each) <= self._future_idle(there)
            names = [name for name in [there] if is_first and self._predicate(each, name)[0]]
            if not names:
                fitting = (name for name in self._nodes if _size(each) <= self._future_idle(name))
                names = [name for name in fitting if self._predicate(each, name)[0]]
            names = [name for name in names if _size(each) <= self._idle(name)] or names
            if not names:
                break
            status = _ALLOCATED if _size(each) <= self._idle(names[0]) else _PIPELINED
            if not self._place(each, names[0], status):
                break
            done.append(each)
        else:
            return
        for each in done:
            self._unplace(each)

    def _evict_for(self, job: list[Pod]) -> None:
        """Statements of preempt and reclaim: committed if the whole job is placed or waits, else discarded."""
        victims: dict[str, str] = {}
        for each in job:
            if self._session[each.uid][0] == _PENDING:
                self._action(each, victims)
        if any(self._session[each.uid][0] == _PENDING for each in job):
            for uid in victims:
                self._session[uid] = (_RUNNING, self._cache[uid].spec.node_name)
            for each in job:
                self._unplace(each)
            return
        for each in job:  # EvictionOccurred
            if (name := self._session[each.uid][1]) in victims.values():
                self.see(nominated(each, name))
        for uid in victims:
            self.evicted.append(self._cache[uid].name)
            self.see(terminating(self._cache[uid]))

    def _preempt(self, each: Pod, victims: dict[str, str]) -> None:
        there = each.status.nominated_node_name
        if there:  # taskEligibleToPreempt
            fits, code = self._predicate(each, there)
            ending = any(
                self._session[uid] == (_RELEASING, there) and one.priority < each.priority
                for uid, one in self._cache.items()
            )
            if fits or (code != StatusCode.UNRESOLVABLE and ending):
                return
        for name in self._candidates(each):
            chosen = self._victims(each, name, lambda one: one.priority < each.priority)
            if _size(each) > self._future_idle(name) + sum(_size(self._cache[uid]) for uid in chosen):
                continue  # ValidateVictims: no victims are enough if what is idle is enough
            while chosen and _size(each) > self._future_idle(name):
                self._evict(chosen.pop(0), name, victims)
            if _size(each) <= self._future_idle(name):
                self._place(each, name, _PIPELINED)
                return

    def _reclaim(self, each: Pod, victims: dict[str, str]) -> None:
        for name in self._candidates(each):
            if (_RUNNING, name) not in self._session.values():
                continue
            chosen = self._victims(each, name, lambda _one: True)
            if _size(each) > self._future_idle(name) + sum(_size(self._cache[uid]) for uid in chosen):
                continue  # ValidateVictims: no victims are enough if what is idle is enough
            while chosen:  # one is evicted even if enough is idle
                self._evict(chosen.pop(0), name, victims)
                if _size(each) <= self._future_idle(name):
                    break
            if _size(each) <= self._future_idle(name):
                self._place(each, name, _PIPELINED)
                return

    def _candidates(self, each: Pod) -> list[str]:
        """PredicateForPreemptAction, and the worst order."""
        found = [
            name
            for name in self._nodes
            if self._predicate(each, name)[1] not in {StatusCode.ERROR, StatusCode.UNRESOLVABLE}
        ]
        return sorted(found, key=lambda name: name == each.status.nominated_node_name)

    def _victims(self, each: Pod, name: str, may_end: Callable[[Pod], bool]) -> list[str]:
        evictees = [one for uid, one in self._cache.items() if self._session[uid] == (_RUNNING, name) and may_end(one)]
        if not evictees:
            return []
        return sorted(self.rig.victims(each, *evictees, on=name))

    def _evict(self, uid: str, name: str, victims: dict[str, str]) -> None:
        self._session[uid] = (_RELEASING, name)
        victims[uid] = name
        self.rig.deallocate(self._cache[uid])

    def _place(self, each: Pod, name: str, status: int) -> bool:
        if self.rig.allocate(each, name, status):
            return False
        self._session[each.uid] = (status, name)
        return True

    def _unplace(self, each: Pod) -> None:
        if self._session[each.uid][0] != _PENDING:
            self._session[each.uid] = (_PENDING, "")
            self.rig.deallocate(each)

    def _predicate(self, each: Pod, name: str) -> tuple[bool, int]:
        there = {uid: self._task(uid) for uid, (_, at) in self._session.items() if at == name}
        call = {
            "task": {**self._task(each.uid), "InitResreq": amount(_size(each))},
            "node": {"Name": name, "Tasks": there, "Idle": amount(self._idle(name))},
        }
        answer = self.rig.volcano.predicate(msgspec.json.encode(call))
        return not answer.status, answer.code

    def _task(self, uid: str) -> dict[str, Any]:
        status, name = self._session[uid]
        return {"UID": uid, "NodeName": name, "Status": status, "Pod": msgspec.to_builtins(self._cache[uid])}

    def _idle(self, name: str) -> int:
        return _CHIPS - self._sum(name, {_ALLOCATED, _RUNNING, _RELEASING})

    def _future_idle(self, name: str) -> int:
        return _CHIPS - self._sum(name, {_ALLOCATED, _RUNNING, _PIPELINED})

    def _sum(self, name: str, statuses: set[int]) -> int:
        return sum(
            _size(self._cache[uid]) for uid, (status, at) in self._session.items() if at == name and status in statuses
        )


def _status(each: Pod) -> int:
    if not each.spec.node_name:
        return _PENDING
    return _RELEASING if each.is_terminating else _RUNNING


def _size(each: Pod) -> int:
    return sum(int(one.resources.limits[RESOURCE]) for one in each.spec.containers)


def singles(name: str, *, is_reported: bool = True) -> list[Pod]:
    """Pods of one chip that fill a node; on each is written which chip it got, if the device plugin says so."""
    written = {KUBELET_IDS: "x"} if is_reported else {}
    return [
        pod(f"{name}-{chip}", 1, node=name, chips=[chip], phase="Running", annotations=written)
        for chip in range(_CHIPS)
    ]


def handed_over(each: Pod) -> Pod:
    annotations = each.metadata.annotations | {PREDICATE_TIME: str(CLAIMED)}
    return replace(each, metadata=replace(each.metadata, annotations=annotations))


def gone(volcano: Volcano, names: Iterable[str]) -> None:
    """Show the allocator that pods are gone."""
    for name in names:
        volcano.rig.world.cluster.pod_deleted(volcano.rig.world.cluster.pods[f"uid-{name}"])


@pytest.mark.parametrize("action", ["preempt", "reclaim"])
def test_pods_are_evicted_once_however_long_they_take_to_end(action: str) -> None:
    volcano = Volcano(["n1", "n2", "n3"], action)
    high = pod("high", 4, priority=10)
    volcano.see(*singles("n1"), *singles("n2"), *singles("n3"), high)
    for _ in range(4):
        assert volcano.session([high]) == {}
    assert len(volcano.evicted) == 4
    volcano.end(volcano.evicted)
    assert volcano.session([high]) == {}  # the allocator has not seen yet that they are gone
    gone(volcano, volcano.evicted)
    assert volcano.session([high]).keys() == {"high"}
    assert len(volcano.evicted) == 4


@pytest.mark.parametrize("action", ["preempt", "reclaim"])
def test_nodes_whose_free_chips_are_not_linked_keep_no_pod_from_evicting_elsewhere(action: str) -> None:
    volcano = Volcano(["n1", "n2"], action)
    high = pod("high", 4, priority=10)
    volcano.see(*(each for each in singles("n1") if each.name[-1] in "0145"), *singles("n2"), high)
    volcano.session([high])
    assert len(volcano.evicted) == 4
    assert {name.partition("-")[0] for name in volcano.evicted} == {"n2"}


@pytest.mark.parametrize("action", ["preempt", "reclaim"])
def test_while_it_is_in_doubt_which_chips_are_free_no_others_are_evicted(action: str) -> None:
    volcano = Volcano(["n1", "n2", "n3"], action)
    low = [each for name in ("n1", "n2", "n3") for each in singles(name, is_reported=False)]
    high = pod("high", 4, priority=10)
    volcano.see(*low, high)
    volcano.see(*map(handed_over, low))  # each may have the chips of one that started with it
    volcano.session([high])
    assert len(volcano.evicted) == 4
    volcano.end(volcano.evicted)
    gone(volcano, volcano.evicted)
    for _ in range(3):
        assert volcano.session([high]) == {}
    assert len(volcano.evicted) == 4
    volcano.rig.world.now_s += DEFAULT_KEEP_S + 60
    expire(volcano.rig.world.ledger)
    volcano.session([high])
    assert len(volcano.evicted) == 8  # it does not wait for ever


@pytest.mark.parametrize("action", ["preempt", "reclaim"])
def test_nobody_is_evicted_for_a_pod_that_has_to_wait_only_for_pods_that_end(action: str) -> None:
    volcano = Volcano(["n1", "n2"], action)
    low, high = [*singles("n1"), *singles("n2")], pod("high", 4, priority=10)
    volcano.see(*low, high, *map(terminating, low[12:]))
    for _ in range(2):
        volcano.session([high])
        assert volcano.waiting == {"high": "n2"}
    assert not volcano.evicted


@pytest.mark.parametrize(("size", "evicted"), [(2, 4), (4, 0)])
def test_a_gang_evicts_pods_for_all_of_its_pods_or_nobody(size: int, evicted: int) -> None:
    names = ["n1", "n2", "n3"]
    volcano = Volcano(names)
    low = [
        pod(
            f"{name}-{at}",
            4,
            node=name,
            chips=range(4 * at, 4 * at + 4),
            phase="Running",
            annotations={KUBELET_IDS: "x"},
        )
        for name in names
        for at in range(2)
    ]
    own = {GROUP: "g", MIN_AVAILABLE: str(size)}
    gang = [pod(f"g{rank}", 8, annotations=own, priority=10) for rank in range(size)]
    volcano.see(*low, *gang)
    for _ in range(3):
        assert volcano.session(gang) == {}
    assert len(volcano.evicted) == evicted
    volcano.end(volcano.evicted)
    volcano.session(gang)
    gone(volcano, volcano.evicted)
    assert len(volcano.session(gang)) == (size if evicted else 0)
    assert len(volcano.evicted) == evicted
