"""The pods of a gang that need a seat are read after every change, and cached in between; so are outcomes of plans."""

from unittest import mock

import pytest
from msgspec.structs import replace

from allocator.gangs import pending
from allocator.gangs.pending import PendingMembers
from allocator.rules.request import ChipRequest
from allocator.state.job import Job
from ascend.kube.objects import Condition, Pod, PodStatus
from tests.allocator.builders import World, node
from tests.allocator.gangs.builders import gang

pytestmark = pytest.mark.usefixtures("unchecked_memos")


class Members:
    """The pending members of a world; counts how often a pod's request is read."""

    def __init__(self) -> None:
        self.world = World()
        self.world.add(*(node(f"n{number}") for number in range(4)))
        self.read = 0
        self.pending = PendingMembers(self.world.cluster, self.world.ledger, self._request_of)

    def needed(self, each: Pod) -> tuple[list[str], int]:
        """The names of the pods that need a seat, and how many of them must get one."""
        job = self.world.cluster.jobs.job_of(each)
        entries, needed = self.pending.needed(each, self.world.engine.request_of(each), job)
        return [entry.pod.name for entry in entries], needed

    def _request_of(self, each: Pod) -> ChipRequest:
        self.read += 1
        return self.world.engine.request_of(each)


def test_pods_without_a_seat_are_returned_by_rank() -> None:
    members = Members()
    members.world.add(*(pods := gang("train", 4)))
    names = [each.name for each in pods]
    assert members.needed(pods[2]) == (names, 4)
    members.world.engine.place(pods[0])
    assert members.needed(pods[2]) == (names[2:3], 1)
    members.world.ledger.release(pods[1].uid)
    assert members.needed(pods[2]) == (names[1:3], 2)
    members.world.ledger.release(pods[3].uid)
    assert members.needed(pods[2]) == (names[1:], 3)


def test_requests_are_read_once_until_a_pod_changes() -> None:
    members = Members()
    members.world.add(*(pods := gang("train", 4)), *(others := gang("other", 2)))
    for each in pods:
        members.needed(each)
    assert members.read == 4
    members.world.engine.place(others[0])
    members.needed(pods[0])
    assert members.read == 4
    members.world.cluster.pod_deleted(pods[3])
    assert members.needed(pods[0]) == ([each.name for each in pods[:3]], 4)
    assert members.read == 7


def test_peers_are_not_read_while_all_of_them_are_placed() -> None:
    members = Members()
    members.world.add(*(pods := gang("train", 4)))
    members.world.engine.place(pods[0])
    with mock.patch.object(Job, "by_rank") as ranked:
        assert members.needed(pods[2]) == (["train-2"], 1)
    assert not ranked.called


def test_a_status_update_does_not_invalidate_the_cache() -> None:
    members = Members()
    members.world.add(*(pods := gang("train", 4)))
    members.needed(pods[0])
    status = PodStatus(phase="Pending", conditions=(Condition("PodScheduled", "False", "0/4 nodes are available"),))
    metadata = replace(pods[1].metadata, resource_version="2")
    members.world.add(replace(pods[1], metadata=metadata, status=status))
    members.needed(pods[0])
    assert members.read == 4
    members.world.add(replace(pods[1], metadata=replace(metadata, labels={"new": "one"})))
    members.needed(pods[0])
    assert members.read == 8
    members.world.add(replace(pods[1], status=PodStatus(phase="Failed")))
    assert members.needed(pods[0])[0] == [pods[0].name, pods[2].name, pods[3].name]


def test_the_least_recently_used_gang_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "_MOST_GANGS", 2)
    members = Members()
    jobs = [gang(name, 2) for name in ("one", "two", "three")]
    for pods in jobs:
        members.world.add(*pods)
        members.needed(pods[0])
    assert len(members.pending._read_members) == 2
    members.needed(jobs[2][0])
    assert members.read == 6


def test_outcomes_of_plans_are_dropped_when_nodes_change() -> None:
    members = Members()
    planner = members.world.engine.gangs.planner
    outcomes = planner._known_outcomes()
    outcomes[mock.sentinel.key] = None
    assert planner._known_outcomes() is outcomes
    members.world.add(node("another"))
    assert planner._known_outcomes() == {}


def test_outcomes_of_many_plans_stay_below_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allocator.gangs.planning._MOST_OUTCOMES", 3)
    planner = Members().world.engine.gangs.planner
    for key in range(5):
        planner._known_outcomes()[key] = None  # type: ignore[index]  # any key
    assert len(planner._known_outcomes()) == 2
