"""Pods without chips take next to no memory, and the others are not affected."""

import tracemalloc
from datetime import datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allocator.state.plain_pods import PlainPod, PlainPods, is_plain
from ascend.annotations import MIN_AVAILABLE
from ascend.kube.containers import Container, EnvVar, Resources
from ascend.kube.objects import Pod
from tests.allocator.builders import GROUP, World, container, node, owned_by, pod

_CPU = Container("main", Resources(limits={"cpu": "2"}, requests={"cpu": "2"}))
_VNPU = Container("main", Resources(limits={"huawei.com/Ascend910-2c": "1"}))
_SINCE, _UNTIL = datetime(1971, 1, 1), datetime(2400, 1, 1)  # noqa: DTZ001 - hypothesis wants bounds without a zone
_TIMES = st.just("") | st.datetimes(_SINCE, _UNTIL).map(lambda each: each.strftime("%Y-%m-%dT%H:%M:%SZ"))
_PLAIN = pod("p", containers=[_CPU])


@pytest.mark.parametrize(
    ("each", "expected"),
    [
        (_PLAIN, True),
        (owned_by(_PLAIN, "ReplicaSet"), True),
        (owned_by(_PLAIN, "StatefulSet"), True),
        (owned_by(_PLAIN, "Job", "batch/v1"), True),
        (owned_by(_PLAIN, "DaemonSet"), True),
        (pod("p", 1), False),
        (pod("p", 0), False),
        (pod("p", containers=[_CPU], init_containers=[container("first", 1)]), False),
        (pod("p", containers=[_VNPU]), False),
        (pod("p", containers=[_CPU], annotations={GROUP: "train"}), False),
        (pod("p", containers=[_CPU], labels={"training.kubeflow.org/job-name": "train"}), False),
        (owned_by(_PLAIN, "RayCluster"), False),
        (owned_by(_PLAIN, "Job", "batch.volcano.sh/v1alpha1"), False),
        (pod("p", containers=[_CPU], annotations={MIN_AVAILABLE: "4"}), False),
        (pod("p", containers=[_CPU], annotations={MIN_AVAILABLE: "four"}), False),
    ],
)
def test_a_pod_that_may_belong_to_a_gang_is_not_plain(each: Pod, expected: bool) -> None:  # noqa: FBT001 - a column
    assert is_plain(each) is expected


@given(
    uid=st.uuids().map(str) | st.text(min_size=1),
    priority=st.integers(-(1 << 31), (1 << 31) - 1),
    since=_TIMES,
    terminating=st.booleans(),
    served=st.booleans(),
)
def test_what_is_needed_of_a_pod_is_kept_exactly(
    uid: str, priority: int, since: str, *, terminating: bool, served: bool
) -> None:
    each = pod("p", None, priority=priority, since=since, terminating=terminating)
    each = replace(each, metadata=replace(each.metadata, uid=uid, deletion_timestamp="now" if terminating else None))
    pods = PlainPods()
    pods.schedulers = ["default-scheduler" if served else "another"]
    pods.put(each)
    assert uid in pods
    assert list(pods) == [uid]
    assert pods.get(uid) == PlainPod(priority, since, terminating, served)
    assert pods.discard(uid)
    assert pods.get(uid) is None
    assert not pods.discard(uid)


def test_plain_pods_missing_from_a_list_are_gone() -> None:
    pods = PlainPods()
    for names in ("ab", "bc"):
        pods.list_started()
        for name in names:
            pods.put(pod(name, None))
        pods.list_ended()
    assert set(pods) == {"uid-b", "uid-c"}


def test_a_list_that_fails_halfway_removes_nothing() -> None:
    pods = PlainPods()
    pods.put(pod("a", None))
    pods.list_started()
    pods.put(pod("b", None))
    pods.list_started()
    assert set(pods) == {"uid-a", "uid-b"}
    pods.put(pod("b", None))
    pods.list_ended()
    assert set(pods) == {"uid-b"}


def test_a_pod_that_joins_or_leaves_a_group_is_moved() -> None:
    world = World()
    for annotations in ({}, {GROUP: "train"}, {}):
        world.add(pod("p", None, annotations=annotations))
        assert ("uid-p" in world.cluster.plain) is not bool(annotations)
        assert ("uid-p" in world.cluster.pods) is bool(annotations)
        assert len(list(world.cluster.jobs)) == len(annotations)
    world.cluster.pod_deleted(pod("p", None))
    assert not world.cluster.plain
    assert not world.cluster.is_gone("uid-p")


def test_a_plain_pod_takes_at_most_200_bytes() -> None:
    count = 20_000
    raw = msgspec.json.encode(
        owned_by(
            pod("uid", containers=[replace(_CPU, env=[EnvVar("A", "b" * 500)])], annotations={"sidecar": "x" * 900}),
            "ReplicaSet",
        )
    )
    world = World()
    world.add(node("n0"))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(count):
            uid = f"00000000-0000-4000-8000-{number:012}"
            world.cluster.pod_applied(msgspec.json.decode(raw.replace(b"uid-uid", uid.encode()), type=Pod))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(world.cluster.plain) == count
    assert (after - before) / count <= 200
