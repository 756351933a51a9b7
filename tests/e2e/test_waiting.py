"""What is said of pods for which kube-scheduler never calls the allocator."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import aiohttp
import pytest

from allocator.observe.notices import REASON
from ascend.errors import NotFound
from ascend.kube.objects import EVENTS
from ascend.reasons import Reason
from npuctl.explain.command import run_explain
from npuctl.output import EXIT_NO_PLACE, Output
from npuctl.reading.source import Source
from tests.e2e.test_main_job import check_hand_over
from tests.e2e.world import World


async def metrics(world: World) -> str:
    """The metrics of the allocator that leads."""
    leader = await world.service.leader()
    assert leader is not None
    async with aiohttp.ClientSession() as http, http.get(f"{leader}/metrics") as answer:
        return await answer.text()


async def events(world: World, name: str) -> list[dict[str, Any]]:
    """The allocator's Events on a pod."""
    listed = json.loads(await world.client.request("GET", EVENTS.path(namespace="default")))["items"]
    ours = (each for each in listed if each.get("reportingController") == "ascend-allocator")
    return [each for each in ours if each["regarding"]["name"] == name]


async def told(world: World, name: str) -> dict[str, Any]:
    """The only Event of the allocator on a pod, once it is there."""

    async def found() -> list[dict[str, Any]] | None:
        return await events(world, name) or None

    (event,) = await world.eventually(found, f"pod {name} has an Event of the allocator")
    return event


@asynccontextmanager
async def tenant(world: World) -> AsyncIterator[Source]:
    """What a user sees who may view the namespace alone; in the sandbox, which knows no rights, all."""
    api, name = "rbac.authorization.k8s.io", {"metadata": {"name": "tenant"}}
    # What a controller would add to the ClusterRole view.
    role = {"apiGroup": api, "kind": "ClusterRole", "name": "system:aggregate-to-view"}
    user = "system:serviceaccount:default:tenant"
    binding = {**name, "roleRef": role, "subjects": [{"apiGroup": api, "kind": "User", "name": user}]}
    bindings = f"/apis/{api}/v1/namespaces/default/rolebindings"
    with suppress(NotFound):
        await world.client.request("POST", bindings, body=binding)
    may_list = partial(world.client.may, "list", "pods", namespace="default", subject={"user": user})
    try:
        await world.eventually(may_list, "the right is granted")
        yield Source.of(kubeconfig=str(world.kubeconfig), user=user)
    finally:
        with suppress(NotFound):
            await world.client.request("DELETE", f"{bindings}/tenant")


async def test_a_pod_that_fits_no_node_by_count_is_in_the_gauges_and_told(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, node in enumerate(world.nodes):
        selector = {"kubernetes.io/hostname": node.name}
        await world.create(f"busy-{number}", 2, nodeSelector=selector)
        await check_hand_over(world, f"busy-{number}", 2)
    await world.create("never", 8)
    await world.pending_because("never")

    async def counted() -> str | None:
        page = await metrics(world)
        return page if 'waiting_chips{namespace="default",waits_for="chips"} 8.0' in page else None

    page = await world.eventually(counted, "the gauge counts the chips of the waiting pod")
    assert 'ascend_allocator_waiting_pods{namespace="default",waits_for="chips"} 1.0' in page
    assert 'ascend_allocator_free_chips{product="910A"} 12.0' in page
    assert 'ascend_allocator_free_servers{product="910A"} 0.0' in page
    assert 'ascend_allocator_free_rings{product="910A"} 2.0' in page
    # kube-scheduler has counted chips itself, and has not called.
    event = await told(world, "never")
    assert (event["reason"], event["action"]) == (Reason.NOT_ENOUGH_CHIPS, "Wait")
    assert event["note"].endswith("it waits until other pods end")
    async with tenant(world) as source:
        assert await run_explain("never", None, source, Output.JSON) == EXIT_NO_PLACE
    answer = json.loads(capsys.readouterr().out)
    assert (answer["state"], answer["reason"], answer["requests"]) == ("waits", event["reason"], "8 chips")


@pytest.mark.long
async def test_a_pod_that_lacks_cpu_beside_free_chips_is_told_by_an_event(world: World) -> None:
    await world.create("wide", 2, cpu=100_000)
    assert "Insufficient cpu" in await world.pending_because("wide")
    event = await told(world, "wide")
    assert event["reason"] == Reason.REFUSED_BY_SCHEDULER
    assert "2 chips can be had on 2 nodes, but pod default/wide was refused: 0/2 nodes are available" in event["note"]
    assert "Insufficient cpu" in event["note"]


async def test_a_pod_with_devices_of_another_kind_is_told_by_an_event(world: World) -> None:
    resources = {"limits": {"huawei.com/Ascend310P": "1"}}
    containers = world.pod_manifest("other", 1)["spec"]["containers"]
    await world.create("other", 1, containers=[{**containers[0], "resources": resources}])

    event = await told(world, "other")
    assert event["reason"] == REASON
    assert event["note"].startswith("resource huawei.com/Ascend310P: the allocator does not place it")
