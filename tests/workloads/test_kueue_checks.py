"""Kueue asks the allocator before it admits a workload: an AdmissionCheck, on the real Kueue."""

from typing import Any

import pytest

from allocator.admission.objects import CONTROLLER
from tests.workloads.world import KUEUE, Workloads, chips, example

CONTROLLERS = (KUEUE,)
DEFINITIONS = ()
SETTINGS = {"admission_checks": True}
API = "kueue.x-k8s.io/v1beta1"
WORKLOADS = f"/apis/{API}/namespaces/default/workloads"

pytestmark = [pytest.mark.real, pytest.mark.long]


def queue(quota: int) -> list[dict[str, Any]]:
    """A queue with an admission check and a quota of chips."""
    objects = [each for each in example("kueue.yaml") if each["kind"] != "Pod"]
    objects[1]["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = quota
    objects[1]["spec"]["admissionChecks"] = ["chips"]
    check = {"apiVersion": API, "kind": "AdmissionCheck", "metadata": {"name": "chips"}}
    return [{**check, "spec": {"controllerName": CONTROLLER}}, *objects]


def job(name: str, pods: int, number: int) -> dict[str, Any]:
    """A Job of so many pods, each with this number of chips."""
    (made,) = example("indexed-job.yaml")
    made["metadata"] = {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "team"}}
    spec = made["spec"]
    spec["parallelism"] = spec["completions"] = pods
    spec["template"]["metadata"]["annotations"]["huawei.com/schedule_minAvailable"] = str(pods)
    spec["template"]["spec"]["containers"][0]["resources"]["limits"]["huawei.com/Ascend910"] = number
    return made


def holder(name: str, number: int, node: str) -> dict[str, Any]:
    """A pod without a queue on a node."""
    (made,) = example("pod.yaml")
    made["metadata"] = {"name": name}
    made["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    made["spec"]["containers"][0]["resources"]["limits"]["huawei.com/Ascend910"] = number
    return made


def condition(workload: dict[str, Any], kind: str) -> dict[str, Any] | None:
    """A condition of a workload, if it is true."""
    found = (each for each in workload.get("status", {}).get("conditions", ()) if each["type"] == kind)
    return next((each for each in found if each["status"] == "True"), None)


async def test_a_job_that_does_not_fit_is_admitted_when_its_chips_are_free(workloads: Workloads) -> None:
    await workloads.add_nodes(2)
    holders = [holder(f"holder-{number}", 4, workloads.node_name(f"fake-{number}")) for number in range(2)]
    await workloads.create([*queue(8), *holders])
    held = await workloads.bound(2)
    await workloads.create([job("whole", 1, 8)])
    api = workloads.cluster.api

    async def evicted() -> dict[str, Any] | None:
        (found,) = api.get(WORKLOADS)["items"] or [{}]
        return condition(found, "Evicted")

    # By its quota the job would be admitted, but no server has eight chips left.
    assert (await workloads.eventually(evicted, "the workload was evicted"))["reason"] == "AdmissionCheck"
    assert len(await workloads.pods()) == 2
    events = api.get("/apis/events.k8s.io/v1/namespaces/default/events")["items"]
    told = [event for event in events if event.get("action") == "AdmissionCheck"]
    told = [event for event in told if event["regarding"]["name"].startswith("job-whole-")]
    assert [(event["regarding"]["kind"], event["reason"]) for event in told] == [("Workload", "NotEnoughChips")]
    api.delete(f"/api/v1/namespaces/default/pods/{held[0].name}")
    await workloads.end_terminating()
    pods = [pod for pod in await workloads.bound(2) if pod.name != held[1].name]
    assert [chips(pod) for pod in pods] == [8]


async def test_of_two_jobs_that_each_fit_alone_one_is_admitted(workloads: Workloads) -> None:
    await workloads.add_nodes(3)
    await workloads.create([*queue(32), job("one", 2, 8), job("two", 2, 8)])
    api = workloads.cluster.api

    async def decided() -> list[bool]:
        found = api.get(WORKLOADS)["items"]
        states = [(condition(each, "Admitted"), condition(each, "Evicted")) for each in found]
        return [bool(admitted) for admitted, _ in states] if len(found) == 2 and all(map(any, states)) else []

    assert sorted(await workloads.eventually(decided, "both were answered")) == [False, True]
    assert len({pod.spec.node_name for pod in await workloads.bound(2)}) == 2

    async def confirmed() -> bool:
        return not workloads.app.ledger

    await workloads.eventually(confirmed, "nothing is reserved beside the bound pods")
