"""Calls of somebody who reached the extender: pods that do not exist, and pods of other schedulers."""

import asyncio
from typing import Any

import aiohttp

from ascend.kube.objects import PODS, Pod
from tests.e2e.test_main_job import check_hand_over
from tests.e2e.world import World


async def call(world: World, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer of a verb of the extender."""
    async with aiohttp.ClientSession() as http, http.post(f"{world.extender_url}/{verb}", json=body) as response:
        answer: dict[str, Any] = await response.json()
        return answer


async def bind(world: World, name: str, uid: str, node: str) -> str:
    body = {"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": node}
    return str((await call(world, "bind", body))["Error"])


async def payroll(world: World, chips: int) -> Pod:
    """A pod of another scheduler, which wants other nodes than there are."""
    return await world.create("payroll", chips, schedulerName="nobody", nodeSelector={"trusted": "yes"})


async def test_the_pod_of_another_scheduler_stays_unbound_and_its_uid_untold(world: World) -> None:
    node = world.nodes[0].name
    for chips in (0, 8):
        pod = await payroll(world, chips)
        guessed = await bind(world, "payroll", "guess", node)
        assert guessed == "PodUnknown: the API server has no pod default/payroll with uid 'guess'"
        refused = await bind(world, "payroll", pod.uid, node)
        assert refused.startswith("SchedulerNotServed: pod default/payroll names the scheduler 'nobody'")
        assert not (await world.pod("payroll")).spec.node_name
        await world.delete("payroll")


async def test_a_pod_recreated_meanwhile_is_not_bound_and_its_uid_untold(world: World) -> None:
    node = world.nodes[0].name
    for chips in (0, 8):
        where = {"trusted": "yes"}
        pod = await world.create("payroll", chips, nodeSelector=where)
        async with world.api.gate("POST", "/pods/payroll/binding") as posted:
            binding = asyncio.create_task(bind(world, "payroll", pod.uid, node))
            await posted.reached.wait()
            await world.client.delete(PODS, "payroll", "default", grace_s=0)
            new = await world.create("payroll", chips, nodeSelector=where)
        error = await binding
        assert error
        assert new.uid not in error
        assert not (await world.pod("payroll")).spec.node_name
        await world.delete("payroll")


async def test_pods_that_do_not_exist_leave_all_chips_to_those_that_do(world: World) -> None:
    names = [node.name for node in world.nodes]
    for number in range(2 * len(names)):
        metadata = {"name": f"ghost-{number}", "namespace": "nowhere", "uid": f"ghost-{number}"}
        quantities = {"limits": {"huawei.com/Ascend910": "8"}}
        pod = {"metadata": metadata, "spec": {"containers": [{"name": "c", "resources": quantities}]}}
        answer = await call(world, "filter", {"Pod": pod, "NodeNames": names})
        assert (answer["NodeNames"], answer["Error"].partition(":")[0]) == (None, "PodUnknown")
    for name in names:
        await world.create(f"honest-{name}", 8)
    for name in names:
        await check_hand_over(world, f"honest-{name}", 8)
