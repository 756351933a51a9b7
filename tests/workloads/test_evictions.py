"""Pods with faults are evicted as PodDisruptionBudgets allow it, which their real controller counts."""

import asyncio
from typing import Any

import pytest

from allocator.rescheduling.announcer import HELD
from ascend.kube.objects import JsonObject, Pod
from tests.workloads.test_rescheduling import replaced, report, stateful_set
from tests.workloads.world import Workloads

CONTROLLERS = ()
DEFINITIONS = ()
SETTINGS = {"reschedule": "on", "reschedule_by": "evict", "reschedule_faulty_share": 1.0}

pytestmark = pytest.mark.real

_BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
_EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


async def read(workloads: Workloads, path: str) -> Any:
    return await asyncio.to_thread(workloads.cluster.api.get, path)


async def start(workloads: Workloads) -> list[Pod]:
    """Run a StatefulSet of two pods, each of which is rescheduled alone."""
    await workloads.add_nodes(3)
    await workloads.create(stateful_set(2, 8, {"huawei.com/recover_policy_path": "pod"}))
    pods = sorted(await workloads.bound(2), key=lambda pod: pod.name)
    await workloads.run(pods)
    return pods


async def protect(workloads: Workloads, unavailable: int) -> None:
    """Allow so many pods to be unavailable, and wait until the controller has counted them."""
    spec = {"maxUnavailable": unavailable, "selector": {"matchLabels": {"app": "train"}}}
    budget: JsonObject = {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "train"}, "spec": spec,
    }  # fmt: skip
    await workloads.create([budget])

    async def counted() -> bool:
        status = (await read(workloads, f"{_BUDGETS}/train")).get("status", {})
        return (status.get("currentHealthy"), status.get("disruptionsAllowed")) == (2, unavailable)

    await workloads.eventually(counted, "the budget is counted")


async def said(workloads: Workloads, pod: Pod, reason: str) -> list[str]:
    """The sentences of the Events on a pod."""
    events = (await read(workloads, _EVENTS))["items"]
    return [each["note"] for each in events if each["reason"] == reason and each["regarding"].get("uid") == pod.uid]


async def test_a_pod_is_evicted_where_its_budget_allows_it(workloads: Workloads) -> None:
    pods = await start(workloads)
    await protect(workloads, 1)
    await report(workloads, pods[1].spec.node_name, faulty=[5], chips=8)

    async def evicted() -> bool:
        status = (await read(workloads, f"/api/v1/namespaces/default/pods/{pods[1].name}"))["status"]
        return ("DisruptionTarget", "EvictionByEvictionAPI") in {
            (each["type"], each.get("reason")) for each in status["conditions"]
        }

    await workloads.eventually(evicted, "the pod is evicted")
    after = await replaced(workloads, pods, {pods[1].name})
    assert pods[1].spec.node_name not in {pod.spec.node_name for pod in after}


@pytest.mark.long
async def test_a_pod_stays_until_its_budget_allows_its_eviction_and_is_told_why(workloads: Workloads) -> None:
    pods = await start(workloads)
    await protect(workloads, 0)
    await report(workloads, pods[1].spec.node_name, faulty=[5], chips=8)

    async def held() -> list[str]:
        return await said(workloads, pods[1], HELD)

    (sentence,) = await workloads.eventually(held, "the pod is told why it stays")
    assert sentence.startswith(f"pod {pods[1].key} can't be evicted yet: ")
    assert "disruption budget" in sentence
    assert {pod.uid for pod in await workloads.pods()} == {pod.uid for pod in pods}
    change = {"spec": {"maxUnavailable": 1}}
    await asyncio.to_thread(workloads.cluster.api.patch, f"{_BUDGETS}/train", change)
    await replaced(workloads, pods, {pods[1].name})
