"""Who of a gang needs a seat is found out anew after every change, and remembered in between."""

from unittest import mock

import msgspec
import pytest

from allocator.gangs import pending_members
from allocator.gangs.pending_members import PendingMembers
from allocator.rules.request import ChipRequest
from allocator.state.job import Job
from ascend.kube.objects import Condition, Pod, PodStatus
from tests.allocator.builders import World, node
from tests.allocator.gangs import gang


class Rig:
    """Counts how often it is found out what a pod asks for."""

    def __init__(self) -> None:
        self.world = World()
        self.world.add(*(node(f"n{number}") for number in range(4)))
        self.asked = 0
        self.members = PendingMembers(self.world.cluster, self.world.ledger, self._ask)

    def needed(self, each: Pod) -> tuple[list[str], int]:
        job = self.world.cluster.jobs.job_of(each)
        entries, needed = self.members.needed(each, self.world.engine.request_of(each), job)
        return [entry.pod.name for entry in entries], needed

    def _ask(self, each: Pod) -> ChipRequest:
        self.asked += 1
        return self.world.engine.request_of(each)


def test_the_pods_without_a_place_need_one_by_rank_and_so_does_the_one_that_asks() -> None:
    rig = Rig()
    rig.world.add(*(pods := gang("train", 4)))
    names = [each.name for each in pods]
    assert rig.needed(pods[2]) == (names, 4)
    rig.world.engine.place(pods[0])
    assert rig.needed(pods[2]) == (names[2:3], 1)
    rig.world.ledger.release(pods[1].uid)
    assert rig.needed(pods[2]) == (names[1:3], 2)
    rig.world.ledger.release(pods[3].uid)
    assert rig.needed(pods[2]) == (names[1:], 3)


def test_what_the_pods_ask_for_is_found_out_once_while_nothing_of_theirs_changes() -> None:
    rig = Rig()
    rig.world.add(*(pods := gang("train", 4)), *(others := gang("other", 2)))
    for each in pods:
        rig.needed(each)
    assert rig.asked == 4
    rig.world.engine.place(others[0])
    rig.needed(pods[0])
    assert rig.asked == 4
    rig.world.cluster.pod_deleted(pods[3])
    assert rig.needed(pods[0]) == ([each.name for each in pods[:3]], 4 - 0)
    assert rig.asked == 7


def test_a_pod_that_leaves_its_place_has_nobody_looked_for_where_all_others_have_theirs() -> None:
    rig = Rig()
    rig.world.add(*(pods := gang("train", 4)))
    rig.world.engine.place(pods[0])
    with mock.patch.object(Job, "ranked") as looks:
        assert rig.needed(pods[2]) == (["train-2"], 1)
    assert not looks.called


def test_what_a_scheduler_writes_into_the_status_of_a_refused_pod_makes_nobody_ask_again() -> None:
    rig = Rig()
    rig.world.add(*(pods := gang("train", 4)))
    rig.needed(pods[0])
    told = PodStatus(phase="Pending", conditions=[Condition("PodScheduled", "False", "0/4 nodes are available")])
    metadata = msgspec.structs.replace(pods[1].metadata, resource_version="2")
    rig.world.add(msgspec.structs.replace(pods[1], metadata=metadata, status=told))
    rig.needed(pods[0])
    assert rig.asked == 4
    rig.world.add(msgspec.structs.replace(pods[1], metadata=msgspec.structs.replace(metadata, labels={"new": "one"})))
    rig.needed(pods[0])
    assert rig.asked == 8
    rig.world.add(msgspec.structs.replace(pods[1], status=PodStatus(phase="Failed")))
    assert rig.needed(pods[0])[0] == [pods[0].name, pods[2].name, pods[3].name]


def test_gangs_not_asked_about_for_long_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_members, "_LIMIT", 2)
    rig = Rig()
    jobs = [gang(name, 2) for name in ("one", "two", "three")]
    for pods in jobs:
        rig.world.add(*pods)
        rig.needed(pods[0])
    assert len(rig.members._cached) == 2
    rig.needed(jobs[2][0])
    assert rig.asked == 6
