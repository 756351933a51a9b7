"""What other programs read of rescheduling has their format, whatever was there before."""

import json
from pathlib import Path

import pytest

from allocator.rescheduling import records
from allocator.rescheduling.decision import JobPod, PodChoice
from allocator.rescheduling.faults import FaultKind, PodFault
from allocator.rescheduling.memory import Memory, Recovery
from allocator.rescheduling.records import (
    MAX_BYTES,
    PERIOD_S,
    REASONS_KEY,
    RETRIES_KEY,
    RecordWriter,
    job_id,
    stated_retries,
    with_record,
)
from ascend.annotations import RANK
from ascend.errors import NotFound
from ascend.jobs.kind import JobFacts
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, KubeObject, Resource
from sandbox.cluster import SandboxCluster
from tests.allocator.builders import GROUP, World, node, owned_by, pod

NAMESPACES = Resource(KubeObject, "Namespace", "api/v1", "namespaces", namespaced=False)
NOON_S = 1_795_435_200.0


def choice(name: str = "a-1") -> PodChoice:
    faulty = JobPod(pod(name, node="n1", annotations={RANK: "1"}), PodFault(FaultKind.CHIP, "why"))
    return PodChoice((faulty, JobPod(pod("peer", node="n2"))), FaultKind.CHIP)


def test_a_record_has_the_faulty_pods_only_and_the_last_one_is_first() -> None:
    once = with_record({}, "default/train", choice(), NOON_S)
    twice = json.loads(with_record(once, "default/train", choice("a-2"), NOON_S + 60)[REASONS_KEY])
    (job,) = twice.values()
    assert (job["JobID"], job["TotalRescheduleTimes"]) == ("default/train", 2)
    last, first = job["RescheduleRecords"]
    assert last["ReasonOfTask"][0]["PodName"] == "a-2"
    assert first == {
        "LogFileFormatTime": "I1123 12:00:00",
        "RescheduleTimeStamp": int(NOON_S),
        "ReasonOfTask": [
            {"RescheduleReason": "CardUnhealthy", "PodName": "a-1", "NodeName": "n1", "NodeRankIndex": "1"}
        ],
    }


def test_ten_records_are_kept_and_the_total_counts_on() -> None:
    data: dict[str, str] = {}
    for number in range(12):
        data = with_record(data, "default/train", choice(), NOON_S + number)
    (job,) = json.loads(data[REASONS_KEY]).values()
    assert (job["TotalRescheduleTimes"], len(job["RescheduleRecords"])) == (12, 10)


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 5}', ""])
def test_records_that_can_not_be_read_are_replaced(text: str) -> None:
    assert list(json.loads(with_record({REASONS_KEY: text}, "d/a", choice(), NOON_S)[REASONS_KEY])) == ["d/a"]


def test_the_oldest_jobs_are_dropped_if_there_are_too_many() -> None:
    old = {f"d/{n}": {"JobID": f"d/{n}", "TotalRescheduleTimes": 1, "RescheduleRecords": []} for n in range(20_000)}
    data = with_record({REASONS_KEY: json.dumps(old)}, "d/new", choice(), NOON_S)
    assert len(data[REASONS_KEY]) <= MAX_BYTES
    kept = list(json.loads(data[REASONS_KEY]))
    assert kept[-1] == "d/new"
    assert "d/0" not in kept


def retrying_world() -> World:
    world = World()
    world.add(node("n1"))
    labels = {"fault-retry-times": "3"}
    world.add(
        owned_by(pod("a-0", node="n1", chips=[0], annotations={GROUP: "train"}, labels=labels), "Job"),
        owned_by(pod("b-0", node="n1", chips=[1], labels=labels), "AscendJob", "mindxdl.gitee.com/v1", name="b"),
        owned_by(pod("c-0", node="n1", chips=[2]), "StatefulSet", "apps/v1", name="c"),
    )
    return world


def test_the_id_of_a_job_is_that_of_its_pod_group_or_the_one_its_operator_looks_for() -> None:
    ids = {job_id(job, job.pods.values()): stated_retries(job) for job in retrying_world().cluster.jobs}
    assert ids == {"default/train": 3, "default/b-u": 3, "default/c-u": 0}


def test_retries_are_stated_by_the_pod_group_before_the_pods() -> None:
    (job,) = (each for each in retrying_world().cluster.jobs if each.key.name == "train")
    job.set_facts(JobFacts(labels={"fault-retry-times": "1"}), None)
    assert stated_retries(job) == 1


async def written(client: KubeClient) -> dict[str, dict[str, object]]:
    found = await client.get(CONFIG_MAPS, records.RETRIES_NAME, records.RETRIES_NAMESPACE)
    entries: dict[str, dict[str, object]] = json.loads(found.data[RETRIES_KEY])
    return entries


async def test_the_retries_of_jobs_are_there_before_a_pod_fails_and_beside_what_others_write(tmp_path: Path) -> None:
    world, now_s = retrying_world(), [0.0]
    async with SandboxCluster(tmp_path, ()) as cluster:
        await cluster.client.create(NAMESPACES, {"metadata": {"name": records.RETRIES_NAMESPACE}})
        writer = RecordWriter(cluster.client, world.cluster, lambda: now_s[0])
        metadata = {"name": records.RETRIES_NAME, "namespace": records.RETRIES_NAMESPACE}
        await cluster.client.create(
            CONFIG_MAPS, {"metadata": metadata, "data": {"fault-node": "[]"}}, records.RETRIES_NAMESPACE
        )
        await writer.count_retries(Memory())
        assert await written(cluster.client) == {
            "default/train": {"UUID": "default/train", "Times": 3},
            "default/b-u": {"UUID": "default/b-u", "Times": 3},
        }
        now_s[0] = PERIOD_S
        plan = next(job.key.plan for job in world.cluster.jobs if job.key.name == "train")
        await writer.count_retries(Memory({plan: Recovery(["u"], retries=2)}))
        assert (await written(cluster.client))["default/train"]["Times"] == 1
        found = await cluster.client.get(CONFIG_MAPS, records.RETRIES_NAME, records.RETRIES_NAMESPACE)
        assert found.data["fault-node"] == "[]"


async def test_retries_that_an_earlier_leader_wrote_are_removed_with_their_jobs(tmp_path: Path) -> None:
    async with SandboxCluster(tmp_path, ()) as cluster:
        await cluster.client.create(NAMESPACES, {"metadata": {"name": records.RETRIES_NAMESPACE}})
        await RecordWriter(cluster.client, retrying_world().cluster, lambda: 0.0).count_retries(Memory())
        assert await written(cluster.client)
        await RecordWriter(cluster.client, World().cluster, lambda: 0.0).count_retries(Memory())
        assert await written(cluster.client) == {}


async def test_without_any_retries_nothing_is_written(tmp_path: Path) -> None:
    async with SandboxCluster(tmp_path, ()) as cluster:
        await cluster.client.create(NAMESPACES, {"metadata": {"name": records.RETRIES_NAMESPACE}})
        await RecordWriter(cluster.client, World().cluster, lambda: 0.0).count_retries(Memory())
        with pytest.raises(NotFound):
            await written(cluster.client)


async def test_a_rescheduled_job_is_recorded_where_nothing_was_before(tmp_path: Path) -> None:
    world = retrying_world()
    (job,) = (each for each in world.cluster.jobs if each.key.name == "train")
    async with SandboxCluster(tmp_path, ()) as cluster:
        await cluster.client.create(NAMESPACES, {"metadata": {"name": records.REASONS_NAMESPACE}})
        writer = RecordWriter(cluster.client, world.cluster, lambda: 0.0)
        for _ in range(2):
            await writer.record(job, choice(), NOON_S)
        found = await cluster.client.get(CONFIG_MAPS, records.REASONS_NAME, records.REASONS_NAMESPACE)
        assert json.loads(found.data[REASONS_KEY])["default/train"]["TotalRescheduleTimes"] == 2
