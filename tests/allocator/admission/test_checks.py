"""Kueue's admission checks: what is answered to a workload, and what is kept for it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from allocator.admission import checks, delays
from allocator.admission.checks import AdmissionChecks
from allocator.admission.delays import Delays
from allocator.admission.objects import CONTROLLER, Workload
from allocator.admission.statuses import Statuses
from allocator.decision.expected import ExpectedPods
from ascend.kube.objects import Pod
from sandbox.apiserver import ApiServer
from sandbox.apiserver.resources import SERVED, ServedResource
from tests.allocator.harness import Allocator, Json, events_of, node_manifest, running, until

STATUS = {"status": ("get", "patch", "update")}
KUEUE = "kueue.x-k8s.io"
NOW_S = 1_800_000_000
VERSIONS = ("v1beta2", "v1beta1")


def kinds(version: str) -> tuple[ServedResource, ...]:
    """Kueue's kinds of a version; objects are the same in both."""
    return (
        ServedResource(KUEUE, version, "workloads", "workload", "Workload", subresources=STATUS),
        ServedResource(
            KUEUE, version, "admissionchecks", "admissioncheck", "AdmissionCheck", namespaced=False, subresources=STATUS
        ),
        ServedResource(KUEUE, version, "resourceflavors", "resourceflavor", "ResourceFlavor", namespaced=False),
    )


ROOT = f"apis/{KUEUE}/v1beta1"
WORKLOADS = f"{ROOT}/namespaces/default/workloads"
OTHER = {"name": "other", "state": "Pending", "message": "of others", "lastTransitionTime": "2026-01-01T00:00:00Z"}
OWN = {**OTHER, "name": "chips", "message": ""}


class Kueue:
    """The API server's client that does what Kueue does."""

    def __init__(self, server: ApiServer, http: aiohttp.ClientSession) -> None:
        self._server = server
        self._http = http

    async def get(self, path: str) -> Json:
        async with self._http.get(f"{self._server.url}/{path}") as response:
            answer: Json = await response.json()
            return answer

    async def patch(self, path: str, **body: Any) -> None:
        headers = {"Content-Type": "application/merge-patch+json"}
        async with self._http.patch(f"{self._server.url}/{path}", json=body, headers=headers) as response:
            assert response.status == 200

    async def delete(self, path: str) -> None:
        async with self._http.delete(f"{self._server.url}/{path}") as response:
            assert response.status == 200

    async def check(self, name: str = "chips", controller: str = CONTROLLER) -> None:
        await self.create("AdmissionCheck", name, spec={"controllerName": controller})

    async def queue(self, name: str, pods: int, chips: int, **given: Any) -> Json:
        """Queue a Job, without quota for it."""
        limits = {"huawei.com/Ascend910": str(chips)}
        template = {
            "metadata": {"annotations": {"huawei.com/schedule_minAvailable": str(pods)}},
            "spec": {"containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}]},
        }
        spec = {"parallelism": pods, "completions": pods, "completionMode": "Indexed", "template": template}
        job = await self._server.create(
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}
        )
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": name,
            "uid": job["metadata"]["uid"],
            "controller": True,
        }
        pod_sets = [{"name": "main", "count": pods, "template": template}]
        metadata = {"name": name, "ownerReferences": [owner]}
        return await self.create("Workload", name, metadata=metadata, spec={"podSets": pod_sets, **given})

    async def reserve(self, name: str, **more: Any) -> None:
        """Reserve quota for a workload, whose checks are not answered yet."""
        conditions = [{"type": "QuotaReserved", "status": "True"}]
        admission = {"clusterQueue": "q", "podSetAssignments": [{"name": "main", "flavors": {}}]}
        status = {"conditions": conditions, "admission": admission, "admissionChecks": [OTHER, OWN], **more}
        await self.patch(f"{WORKLOADS}/{name}/status", status=status)

    async def withdraw(self, name: str, own: Json = OWN, **more: Any) -> None:
        """Withdraw the quota of a workload, and reset its checks."""
        status = {"conditions": [{"type": "QuotaReserved", "status": "False"}], "admission": None}
        await self.patch(f"{WORKLOADS}/{name}/status", status={**status, "admissionChecks": [OTHER, own], **more})

    async def status(self, name: str) -> Json:
        status: Json = (await self.get(f"{WORKLOADS}/{name}"))["status"]
        return status

    async def until(self, name: str, is_so: Callable[[Json], bool]) -> Json:
        """Wait until the status of a workload is so; returns it."""
        async with asyncio.timeout(10.0):
            while not is_so(status := await self.status(name)):
                pass
        return status

    async def answer(self, name: str, other: Json = OTHER, *, but: str = "Pending") -> Json:
        """Wait for an answer to a workload, another one than ``but``."""
        status = await self.until(name, lambda status: status["admissionChecks"][1]["state"] != but)
        (untouched, own) = status["admissionChecks"]
        assert untouched == other
        answered: Json = own
        return answered

    async def refused(self, name: str, before: str = "") -> str:
        """Wait until a workload is refused, evict it, and wait for its delay, another one than ``before``."""
        assert (await self.answer(name))["state"] == "Retry"
        await self.withdraw(name)
        status = await self.until(
            name, lambda status: status.get("requeueState", {}).get("requeueAt", before) != before
        )
        due: str = status["requeueState"]["requeueAt"]
        return due

    async def delay_ended(self, name: str, due: str) -> None:
        """Wait until the delay of a workload ends at another time than this."""
        await self.until(name, lambda status: status["requeueState"].get("requeueAt") != due)

    async def create(self, kind: str, name: str, **given: Any) -> Json:
        return await self._server.create(
            {"apiVersion": f"{KUEUE}/v1beta1", "kind": kind, "metadata": {"name": name}, **given}
        )


@asynccontextmanager
async def answering(
    folder: Path, versions: Sequence[str] = VERSIONS, **settings: Any
) -> AsyncIterator[tuple[Allocator, Kueue]]:
    """An allocator that answers admission checks, on a server that serves Kueue's kinds in these versions."""
    given = {"admission_checks": True, **settings}
    async with (
        ApiServer(resources=(*SERVED, *(kind for version in versions for kind in kinds(version)))) as server,
        aiohttp.ClientSession() as http,
        running(server, folder, **given) as allocator,
    ):
        yield allocator, Kueue(server, http)


async def test_what_fits_is_ready_and_its_chips_are_kept(tmp_path: Path) -> None:
    async with answering(tmp_path) as (allocator, kueue):
        await kueue.check()
        for number in range(3):
            await allocator.node(f"n{number}")
        for name in ("one", "two"):
            await kueue.queue(name, 2, 8)
            await kueue.reserve(name)
            assert (await kueue.answer(name))["state"] == ("Ready" if name == "one" else "Retry")
        assert len(allocator.app.ledger) == 2
        await kueue.withdraw("one")
        await until(lambda: not allocator.app.ledger)


@pytest.mark.parametrize(("versions", "used"), [(VERSIONS, "v1beta2"), (VERSIONS[1:], "v1beta1")])
async def test_the_newest_version_that_is_served_is_used(tmp_path: Path, versions: Sequence[str], used: str) -> None:
    async with answering(tmp_path, versions) as (allocator, kueue):
        await kueue.check()
        await kueue.queue("job", 1, 8)
        await kueue.reserve("job")
        assert (await kueue.answer("job"))["state"] == "Retry"
        told = [event["regarding"] for event in await events_of(allocator)]
        assert [regarding["apiVersion"] for regarding in told] == [f"{KUEUE}/{used}"]


async def test_what_does_not_fit_is_retried_with_the_reason(tmp_path: Path) -> None:
    async with answering(tmp_path) as (allocator, kueue):
        await kueue.check()
        await allocator.node("n0")
        await kueue.queue("large", 3, 8)
        await kueue.reserve("large")
        said = await kueue.answer("large")
        assert said["state"] == "Retry"
        assert "of 3 such pods 1 fit on the present nodes" in said["message"]
        told = [event for event in await events_of(allocator) if event["regarding"]["kind"] == "Workload"]
        assert [(event["reason"], event["note"]) for event in told] == [("GangDoesNotFit", said["message"])]


@pytest.mark.parametrize("versions", [VERSIONS, VERSIONS[1:]])
async def test_each_refusal_of_a_workload_delays_it_longer(tmp_path: Path, versions: Sequence[str]) -> None:
    async with answering(tmp_path, versions, now_ns=lambda: NOW_S * 10**9) as (_, kueue):
        await kueue.check()
        await kueue.queue("job", 1, 8)
        due = ""
        for delay_s in (60, 120, 240):
            await kueue.reserve("job")
            due = await kueue.refused("job", due)
            assert datetime.fromisoformat(due).timestamp() == NOW_S + delay_s


async def test_a_delay_that_is_over_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Kueue 0.17 can't remove a field that it has not written, and waits for ever.
    monkeypatch.setattr(checks, "LOOK_S", 0.01)
    clock = [NOW_S]
    async with answering(tmp_path, now_ns=lambda: clock[0] * 10**9) as (_, kueue):
        await kueue.check()
        await kueue.queue("job", 1, 8)
        await kueue.reserve("job")
        await kueue.refused("job")
        clock[0] += 60
        assert await kueue.until("job", lambda status: "requeueAt" not in status["requeueState"])


async def test_a_delay_begins_when_kueue_has_evicted_the_workload(tmp_path: Path) -> None:
    # Kueue 0.17 lets a workload that has a delay keep its quota until that is over.
    async with answering(tmp_path) as (_, kueue):
        await kueue.check()
        await kueue.queue("job", 1, 8)
        await kueue.reserve("job")
        await kueue.answer("job")
        await kueue.queue("next", 1, 8)
        await kueue.reserve("next")
        await kueue.answer("next")
        assert "requeueState" not in await kueue.status("job")
        conditions = [{"type": kind, "status": "True"} for kind in ("QuotaReserved", "Evicted")]
        await kueue.patch(f"{WORKLOADS}/job/status", status={"conditions": conditions})
        await kueue.until("job", lambda status: "requeueState" in status)


async def test_a_delay_ends_when_the_pods_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delays, "LEAST_S", 0.0)
    monkeypatch.setattr(checks, "LOOK_S", 0.01)
    async with answering(tmp_path) as (allocator, kueue):
        await kueue.check()
        await allocator.node("n0")
        await kueue.queue("large", 2, 8)
        await kueue.reserve("large")
        due = await kueue.refused("large")
        await allocator.node("n1")
        await kueue.delay_ended("large", due)
        await kueue.reserve("large")
        assert (await kueue.answer("large"))["state"] == "Ready"


async def test_nothing_is_written_about_a_delay_that_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delays, "LEAST_S", 0.0)
    monkeypatch.setattr(checks, "LOOK_S", 0.01)
    look, patch, looks, written = Delays.look, Statuses._patch, list[int](), list[Json]()
    async with answering(tmp_path) as (allocator, kueue):

        async def looking(part: Delays) -> None:
            await look(part)
            looks.append(allocator.app.cluster.changes.revision)

        async def patching(part: Statuses, workload: Workload, status: Json) -> None:
            written.append(status)
            await patch(part, workload, status)

        monkeypatch.setattr(Delays, "look", looking)
        monkeypatch.setattr(Statuses, "_patch", patching)
        await kueue.check()
        await kueue.queue("job", 1, 8)
        await kueue.reserve("job")
        due = await kueue.refused("job")
        await allocator.node("n0")
        await kueue.delay_ended("job", due)
        # Kueue may lack quota for it, while chips become free time and again.
        for number in range(1, 4):
            await allocator.node(f"n{number}")
            await until(lambda: looks[-1] == allocator.app.cluster.changes.revision)
        assert [sorted(status) for status in written] == [["admissionChecks"], ["requeueState"], ["requeueState"]]


@pytest.mark.parametrize("state", [{}, {"count": 3}])
async def test_the_count_of_requeues_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Json) -> None:
    # Kueue to 0.16 leaves an invalid status, and the workload for ever, if no count is there when it removes the time.
    monkeypatch.setattr(delays, "LEAST_S", 0.0)
    monkeypatch.setattr(checks, "LOOK_S", 0.01)
    async with answering(tmp_path) as (allocator, kueue):
        await kueue.check()
        await kueue.queue("job", 1, 8)
        await kueue.reserve("job", requeueState=state)
        due = await kueue.refused("job")
        assert (await kueue.status("job"))["requeueState"]["count"] == state.get("count", 0)
        await allocator.node("n0")
        await kueue.delay_ended("job", due)
        assert (await kueue.status("job"))["requeueState"]["count"] == state.get("count", 0)


@pytest.mark.parametrize(("retry_count", "next_s"), [(None, 120), (3, 480)])
async def test_a_delay_of_an_earlier_leader_ends_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retry_count: int | None, next_s: int
) -> None:
    monkeypatch.setattr(delays, "LEAST_S", 0.0)
    monkeypatch.setattr(checks, "LOOK_S", 0.01)
    due = "2099-01-01T00:00:00Z"
    async with answering(tmp_path, now_ns=lambda: NOW_S * 10**9) as (allocator, kueue):
        await kueue.check()
        for name, state in (("of-others", "Ready"), ("own", "Retry")):
            await kueue.queue(name, 1, 8)
            reset = {"message": f"Reset to Pending after eviction. Previously: {state}"}
            counted = {"retryCount": retry_count} if retry_count is not None else {}
            await kueue.withdraw(name, {**OWN, **reset, **counted}, requeueState={"requeueAt": due, "count": 7})
        await allocator.node("n0")
        await kueue.delay_ended("own", due)
        # Kueue's own delay after waitForPodsReady, or that of another check, is not the allocator's to end.
        assert (await kueue.status("of-others"))["requeueState"]["requeueAt"] == due
        await allocator.remove_node("n0")
        await kueue.reserve("own")
        assert datetime.fromisoformat(await kueue.refused("own")).timestamp() == NOW_S + next_s


async def test_every_refused_workload_has_its_turn_while_nodes_change_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delays, "LEAST_S", 0.0)
    monkeypatch.setattr(checks, "LOOK_S", 0.01)
    monkeypatch.setattr(delays, "MOST_LOOKS", 2)
    keep = ExpectedPods.keep
    async with answering(tmp_path) as (allocator, kueue):

        async def changing(expected: ExpectedPods, pods: Sequence[Pod], ttl_s: float) -> tuple[str, ...]:
            allocator.app.cluster.changes.note("n0")
            return await keep(expected, pods, ttl_s)

        monkeypatch.setattr(ExpectedPods, "keep", changing)
        await kueue.check()
        for name, pods in (("large", 3), ("larger", 4), ("largest", 5), ("small", 1)):
            await kueue.queue(name, pods, 8, priority=pods)
            await kueue.reserve(name)
            due = await kueue.refused(name)
        await allocator.node("n0")
        await kueue.delay_ended("small", due)


async def test_nothing_stays_of_a_workload_that_is_deleted_while_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse, answer, parts = AdmissionChecks._refuse, Statuses.answer, list[AdmissionChecks]()
    async with answering(tmp_path) as (_, kueue):

        async def refusing(part: AdmissionChecks, *given: Any) -> None:
            parts.append(part)
            await refuse(part, *given)

        async def deleting(part: Statuses, workload: Workload, *given: Any) -> None:
            await answer(part, workload, *given)
            if workload.name == "first":
                await kueue.delete(f"{WORKLOADS}/first")
                await until(lambda: workload.uid not in parts[0]._workloads)

        monkeypatch.setattr(AdmissionChecks, "_refuse", refusing)
        monkeypatch.setattr(Statuses, "answer", deleting)
        await kueue.check()
        await kueue.queue("first", 1, 8)
        await kueue.reserve("first")
        await until(lambda: parts and not parts[0]._workloads)
        await kueue.queue("second", 1, 8)
        await kueue.reserve("second")
        await until(lambda: list(parts[0]._delays))
        assert [delay.workload.name for delay in parts[0]._delays] == ["second"]


async def test_no_answer_waits_for_that_to_another_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, is_told = Statuses.answer, asyncio.Event()

    async def slow(part: Statuses, workload: Workload, *given: Any) -> None:
        if workload.name == "first":
            await is_told.wait()
        await answer(part, workload, *given)

    monkeypatch.setattr(Statuses, "answer", slow)
    async with answering(tmp_path) as (allocator, kueue):
        await kueue.check()
        for number in range(2):
            await allocator.node(f"n{number}")
        for name in ("first", "second"):
            await kueue.queue(name, 1, 8)
            await kueue.reserve(name)
            await until(lambda: allocator.app.ledger)
        assert (await kueue.answer("second"))["state"] == "Ready"
        is_told.set()
        assert (await kueue.answer("first"))["state"] == "Ready"


async def test_the_delays_of_all_that_fit_beside_each_other_end_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delays, "LEAST_S", 0.0)
    monkeypatch.setattr(checks, "LOOK_S", 0.01)
    look, has_grown, looks = Delays.look, False, list[Delays]()
    async with answering(tmp_path) as (allocator, kueue):

        async def looking(part: Delays) -> None:
            if has_grown:
                looks.append(part)
                await look(part)

        monkeypatch.setattr(Delays, "look", looking)
        await kueue.check()
        due = {}
        for name in ("first", "second", "third"):
            await kueue.queue(name, 1, 8)
            await kueue.reserve(name)
            due[name] = await kueue.refused(name)
        for number in range(2):
            await allocator.node(f"n{number}")
        await until(lambda: len(allocator.app.cluster.nodes) == 2)
        has_grown = True
        for name in ("first", "second"):
            await kueue.delay_ended(name, due[name])
        seen = len(looks)
        await until(lambda: len(looks) > seen + 2)
        assert (await kueue.status("third"))["requeueState"]["requeueAt"] == due["third"]
        assert not allocator.app.ledger


async def test_a_delay_ends_for_nodes_of_the_flavor_that_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delays, "LEAST_S", 0.0)
    monkeypatch.setattr(checks, "LOOK_S", 0.01)
    look, looked = Delays.look, list[int]()

    async def looking(part: Delays) -> None:
        revision = allocator.app.cluster.changes.revision
        await look(part)
        looked.append(revision)

    async def add(pool: str) -> None:
        made = node_manifest(pool, chips=8)
        made["metadata"]["labels"] = {"pool": pool}
        await allocator.server.create(made)
        await until(lambda: pool in allocator.app.cluster.nodes)

    monkeypatch.setattr(Delays, "look", looking)
    given = {"name": "main", "flavors": {"huawei.com/Ascend910": "own"}}
    async with answering(tmp_path) as (allocator, kueue):
        await kueue.check()
        await kueue.create("ResourceFlavor", "own", spec={"nodeLabels": {"pool": "own"}})
        await kueue.queue("job", 1, 8)
        await kueue.reserve("job", admission={"clusterQueue": "q", "podSetAssignments": [given]})
        due = await kueue.refused("job")
        await add("other")
        revision = allocator.app.cluster.changes.revision
        await until(lambda: looked[-1] >= revision)
        assert (await kueue.status("job"))["requeueState"]["requeueAt"] == due
        assert not allocator.app.ledger
        await add("own")
        await kueue.delay_ended("job", due)


async def test_after_an_end_in_vain_a_delay_ends_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Kueue may choose the same place again, though the pods fit elsewhere only.
    monkeypatch.setattr(checks, "LOOK_S", 0.01)
    clock, look, looks = [0.0], Delays.look, list[float]()

    async def looking(part: Delays) -> None:
        now_s = clock[0]
        await look(part)
        looks.append(now_s)

    monkeypatch.setattr(Delays, "look", looking)
    place = {"levels": ["kubernetes.io/hostname"], "domains": [{"values": ["small"], "count": 1}]}
    given = {"name": "main", "flavors": {}, "topologyAssignment": place}
    async with answering(tmp_path, monotonic=lambda: clock[0]) as (allocator, kueue):
        await kueue.check()
        for name, chips in (("small", 4), ("large", 8)):
            made = node_manifest(name, chips=chips)
            made["metadata"]["labels"] = {"kubernetes.io/hostname": name}
            await allocator.server.create(made)
        await until(lambda: len(allocator.app.cluster.nodes) == 2)
        await kueue.queue("job", 1, 8)
        due, waited_s = "", []
        for _ in range(3):
            await kueue.reserve("job", admission={"clusterQueue": "q", "podSetAssignments": [given]})
            due, since_s = await kueue.refused("job", due), clock[0]
            while (await kueue.status("job"))["requeueState"].get("requeueAt") == due:
                clock[0] += 1.0
                allocator.app.cluster.changes.note("large")
                await until(lambda: looks[-1] == clock[0])
            waited_s.append(clock[0] - since_s)
        assert waited_s == [1.0, 2.0, 4.0]


async def test_a_workload_changes_when_kueue_has_queued_what_it_was_before_its_delay_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Kueue 0.14 keeps a timer of 60 s, and then waits for a change of a workload that has waited for quota since.
    monkeypatch.setattr(delays, "LEAST_S", 0.0)
    monkeypatch.setattr(checks, "LOOK_S", 0.01)
    clock = [NOW_S]
    async with answering(tmp_path, VERSIONS[1:], now_ns=lambda: clock[0] * 10**9) as (allocator, kueue):
        await kueue.check()
        await kueue.queue("job", 1, 8)
        await kueue.reserve("job")
        due = await kueue.refused("job")
        clock[0] += 1
        await allocator.node("n0")
        await kueue.delay_ended("job", due)
        ended = (await kueue.status("job"))["requeueState"]["requeueAt"]
        clock[0] += 65
        await kueue.delay_ended("job", ended)


async def test_a_new_leader_writes_nothing_about_what_another_one_has_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, ready = AdmissionChecks._work, AdmissionChecks._ready
    parts, told = set[AdmissionChecks](), list[str]()

    async def following(part: AdmissionChecks) -> None:
        parts.add(part)

    async def telling(part: AdmissionChecks, workload: Workload, names: set[str], why: str) -> None:
        told.append(workload.name)
        await ready(part, workload, names, why)

    monkeypatch.setattr(AdmissionChecks, "_work", following)
    monkeypatch.setattr(AdmissionChecks, "_ready", telling)
    async with answering(tmp_path) as (allocator, kueue):
        await kueue.check()
        await allocator.node("n0")
        await kueue.queue("running", 1, 8)
        await kueue.reserve("running")
        await until(lambda: parts)
        (part,) = parts
        await until(lambda: part._due)
        admitted = [{"type": kind, "status": "True"} for kind in ("QuotaReserved", "Admitted")]
        await kueue.reserve("running", conditions=admitted, admissionChecks=[OTHER, {**OWN, "state": "Ready"}])
        await until(lambda: any(each.is_true("Admitted") for each in part._workloads.values()))
        monkeypatch.setattr(AdmissionChecks, "_work", work)
        await kueue.queue("new", 1, 8)
        await kueue.reserve("new")
        await kueue.answer("new")
        assert told == ["new"]


@pytest.mark.parametrize(("is_on", "controller"), [(False, CONTROLLER), (True, "example.org/other")])
async def test_only_own_checks_are_answered_and_only_with_the_setting(
    tmp_path: Path, controller: str, *, is_on: bool
) -> None:
    async with answering(tmp_path, admission_checks=is_on) as (allocator, kueue):
        await allocator.node("n0")
        await kueue.check("chips", controller)
        await kueue.queue("job", 1, 8)
        await kueue.reserve("job")
        if is_on:
            await kueue.check("own")  # what is done with checks has been done when this one is active
            async with asyncio.timeout(10.0):
                while not (await kueue.get(f"{ROOT}/admissionchecks/own")).get("status"):
                    pass
        assert "status" not in await kueue.get(f"{ROOT}/admissionchecks/chips")
        assert [each["state"] for each in (await kueue.status("job"))["admissionChecks"]] == ["Pending", "Pending"]
        assert not allocator.app.ledger


@pytest.mark.parametrize("change", ["finished", "deleted", "deactivated"])
async def test_nothing_is_kept_for_a_workload_that_has_ended(tmp_path: Path, change: str) -> None:
    async with answering(tmp_path) as (allocator, kueue):
        await kueue.check()
        await allocator.node("n0")
        await kueue.queue("job", 1, 8)
        await kueue.reserve("job")
        assert (await kueue.answer("job"))["state"] == "Ready"
        assert len(allocator.app.ledger) == 1
        if change == "deleted":
            await kueue.delete(f"{WORKLOADS}/job")
        elif change == "deactivated":
            await kueue.patch(f"{WORKLOADS}/job", spec={"active": False})
        else:
            await kueue.patch(
                f"{WORKLOADS}/job/status", status={"conditions": [{"type": "Finished", "status": "True"}]}
            )
        await until(lambda: not allocator.app.ledger)


async def test_it_is_said_if_the_pods_fit_elsewhere_than_kueue_has_chosen(tmp_path: Path) -> None:
    async with answering(tmp_path) as (allocator, kueue):
        await kueue.check()
        for name, chips in (("small", 4), ("large", 8)):
            made = node_manifest(name, chips=chips)
            made["metadata"]["labels"] = {"kubernetes.io/hostname": name}
            await allocator.server.create(made)
        await until(lambda: len(allocator.app.cluster.nodes) == 2)
        await kueue.queue("job", 1, 8)
        place = {"levels": ["kubernetes.io/hostname"], "domains": [{"values": ["small"], "count": 1}]}
        given = {"name": "main", "flavors": {}, "topologyAssignment": place}
        await kueue.reserve("job", admission={"clusterQueue": "q", "podSetAssignments": [given]})
        said = (await kueue.answer("job"))["message"]
        assert said.endswith("; the pods fit on other nodes than Kueue has chosen")


async def test_a_workload_that_runs_is_not_refused_by_a_new_check(tmp_path: Path) -> None:
    async with answering(tmp_path) as (allocator, kueue):
        await kueue.check()
        await kueue.queue("job", 1, 8)
        conditions = [{"type": kind, "status": "True"} for kind in ("QuotaReserved", "Admitted")]
        await kueue.reserve("job", conditions=conditions)
        assert (await kueue.answer("job"))["state"] == "Ready"
        assert not allocator.app.ledger


async def test_what_was_ready_is_refused_if_its_node_fails_before_it_is_admitted(tmp_path: Path) -> None:
    async with answering(tmp_path) as (allocator, kueue):
        await kueue.check()
        await allocator.node("n0")
        await kueue.queue("job", 1, 8)
        await kueue.reserve("job")
        assert (await kueue.answer("job"))["state"] == "Ready"
        await allocator.remove_node("n0")
        allocator.app.engine.gangs.prune()
        assert (await kueue.answer("job", but="Ready"))["state"] == "Retry"


async def test_a_new_leader_keeps_chips_for_what_was_ready(tmp_path: Path) -> None:
    async with answering(tmp_path) as (allocator, kueue):
        await kueue.check()
        await allocator.node("n0")
        await kueue.queue("job", 1, 8)
        await kueue.reserve("job", admissionChecks=[OTHER, {**OWN, "state": "Ready"}])
        await until(lambda: len(allocator.app.ledger) == 1)


async def test_pods_that_request_no_chips_are_admitted(tmp_path: Path) -> None:
    async with answering(tmp_path) as (allocator, kueue):
        await kueue.check()
        await kueue.queue("job", 2, 0)
        await kueue.reserve("job")
        assert (await kueue.answer("job"))["message"] == "its pods request no chips"
        assert not allocator.app.ledger


@pytest.mark.parametrize(
    ("pods", "updates", "said"),
    [
        (10_001, [], "spec of Job default/job: Expected `int` <= 10000 - at `$.parallelism`"),
        (1, "none", "podSetUpdates of an admission check: Expected `array`, got `str`"),
    ],
)
async def test_a_workload_whose_pods_cannot_be_known_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pods: int, updates: object, said: str
) -> None:
    monkeypatch.setattr(delays, "LEAST_S", 0.0)
    monkeypatch.setattr(checks, "LOOK_S", 0.01)
    place = {"levels": ["rack"], "domains": [{"values": ["r"], "count": pods}]}
    given = {"name": "main", "flavors": {}, "topologyAssignment": place}
    other = {**OTHER, "podSetUpdates": updates}
    async with answering(tmp_path) as (allocator, kueue):
        await kueue.check()
        await kueue.queue("job", pods, 8)
        admission = {"clusterQueue": "q", "podSetAssignments": [given]}
        await kueue.reserve("job", admission=admission, admissionChecks=[other, OWN])
        own = await kueue.answer("job", other)
        assert own["state"] == "Retry"
        assert own["message"] == f"the pods of workload default/job can't be known: {said}"
        told = [event for event in await events_of(allocator) if event["regarding"]["kind"] == "Workload"]
        assert [(event["reason"], event["note"]) for event in told] == [("InvalidRequest", own["message"])]
        await kueue.withdraw("job")
        await allocator.node("n0")  # the pods are asked about again, and other workloads are answered
        await kueue.queue("next", 1, 8)
        await kueue.reserve("next")
        assert (await kueue.answer("next"))["state"] == "Ready"


async def test_a_flavor_that_is_missing_is_waited_for(tmp_path: Path) -> None:
    async with answering(tmp_path) as (allocator, kueue):
        await kueue.check()
        await allocator.node("n0")
        await kueue.queue("job", 1, 8)
        given = {"clusterQueue": "q", "podSetAssignments": [{"name": "main", "flavors": {"huawei.com/Ascend910": "a"}}]}
        await kueue.reserve("job", admission=given)
        await kueue.create("ResourceFlavor", "a", spec={"nodeLabels": {"pool": "b"}})
        assert (await kueue.answer("job"))["state"] == "Retry"
