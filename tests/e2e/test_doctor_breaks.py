"""Breaks of docs/failures.md on a real cluster, whose device plugins offer whole chips and vNPUs cut beforehand."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import pytest

from ascend.chips import RESOURCE
from ascend.deviceinfo import MANUALLY_SEPARATED, NAMESPACE, config_map_name
from ascend.kube.client import STRATEGIC_MERGE_PATCH
from ascend.kube.objects import CONFIG_MAPS, NODES, PODS
from device_plugin.publish.rights import KUBELET_PODS, Right, rights
from npuctl.doctor.program_objects import ALLOCATOR, OURS, PLUGIN, THEIR_PLUGIN, WRITERS_CONDITION
from tests.cluster.cluster import Cluster
from tests.e2e import breaks_of_nodes, breaks_of_pods, breaks_of_rescheduling, breaks_of_vnpus
from tests.e2e.lab import Break, Lab
from tests.e2e.programs import write_kubeconfig
from tests.e2e.told_breaks import SLOW_S, check_break
from tests.e2e.world import TIMEOUT_S, World

pytestmark = [
    pytest.mark.long,
    pytest.mark.parametrize("shared_world", [pytest.param("real", marks=pytest.mark.real)], indirect=True),
]

REPORT: Final = config_map_name("n1")
FAULT_RULES: Final = "mindx-dl-fault-config"
_RBAC: Final = "rbac.authorization.k8s.io"


@asynccontextmanager
async def a_free_chip_fails(lab: Lab) -> AsyncIterator[None]:
    lab.node.edit_chip(5, health="Unhealthy", fault_codes=["80E18402"])
    yield
    await lab.heal()


@asynccontextmanager
async def a_chip_in_use_fails(lab: Lab) -> AsyncIterator[None]:
    await lab.run("works", 8)
    lab.node.edit_chip(5, health="Unhealthy", fault_codes=["80E18402"])
    yield
    await lab.heal()


@asynccontextmanager
async def a_chip_drops_off(lab: Lab) -> AsyncIterator[None]:
    lab.node.edit_chip(5, health="Unhealthy")
    yield
    await lab.heal()


@asynccontextmanager
async def a_chip_is_off_the_bus_at_the_start(lab: Lab) -> AsyncIterator[None]:
    await lab.node.stop_plugin()
    lab.node.edit_chip(5, present=False)
    await lab.node.plugin.start()
    yield
    await lab.heal()


@asynccontextmanager
async def a_network_port_fails(lab: Lab) -> AsyncIterator[None]:
    await lab.run_job()
    lab.node.edit_chip(5, network_health="Unhealthy")
    yield
    await lab.heal()


@asynccontextmanager
async def all_calls_hang(lab: Lab) -> AsyncIterator[None]:
    lab.edit(delay_s=3600.0)
    yield
    await lab.node.plugin.kill()
    await lab.heal()


@asynccontextmanager
async def the_driver_fails_at_the_start(lab: Lab) -> AsyncIterator[None]:
    await lab.node.stop_plugin()
    lab.edit(error="dcmi_init: -8005")
    await lab.node.plugin.start()
    yield
    await lab.heal()


def without(*lost: str) -> Break:
    """The plugin begins anew with an account that lacks rights, and a pod is created for its node."""

    @asynccontextmanager
    async def restricted(lab: Lab) -> AsyncIterator[None]:
        granted = [right for right in (*rights(job_files=False), *KUBELET_PODS) if str(right) not in lost]
        token = await asyncio.to_thread(_account, lab.cluster, granted)
        await lab.node.stop_plugin()
        write_kubeconfig(lab.world.kubeconfig, lab.world.api.url, token)
        try:
            await lab.node.plugin.start()
            await lab.world.create("waits", 1, nodeSelector={"kubernetes.io/hostname": "n1"})
            yield
        finally:
            write_kubeconfig(lab.world.kubeconfig, lab.world.api.url, lab.cluster.admin_token)
            await lab.node.stop_plugin()
            await lab.node.plugin.start()
            await asyncio.to_thread(_forget, lab.cluster)

    return restricted


def _account(cluster: Cluster, granted: Sequence[Right]) -> str:
    """The token of an account that has these rights."""
    meta = {"name": "broken"}
    rules = [
        {
            "apiGroups": [right.group],
            "resources": [f"{right.resource}/{right.subresource}" if right.subresource else right.resource],
            "verbs": [right.verb],
        }
        for right in granted
    ]
    subject = {"kind": "ServiceAccount", "namespace": "default", **meta}
    role = {"apiGroup": _RBAC, "kind": "ClusterRole", **meta}
    cluster.api.create(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "broken", "namespace": "default"}}
    )
    version = f"{_RBAC}/v1"
    cluster.api.create({"apiVersion": version, "kind": "ClusterRole", "metadata": meta, "rules": rules})
    bound = {"roleRef": role, "subjects": [subject]}
    cluster.api.create({"apiVersion": version, "kind": "ClusterRoleBinding", "metadata": meta, **bound})
    return cluster.service_account_token("broken")


def _forget(cluster: Cluster) -> None:
    for path in (f"/apis/{_RBAC}/v1/clusterrolebindings", f"/apis/{_RBAC}/v1/clusterroles"):
        cluster.api.delete(f"{path}/broken")
    cluster.api.delete("/api/v1/namespaces/default/serviceaccounts/broken")


@asynccontextmanager
async def the_report_is_immutable(lab: Lab) -> AsyncIterator[None]:
    await lab.mark(CONFIG_MAPS, REPORT, {"immutable": True}, NAMESPACE)
    lab.node.edit_chip(5, health="Unhealthy", fault_codes=["80E18402"])
    yield
    await lab.world.client.delete(CONFIG_MAPS, REPORT, NAMESPACE)
    await lab.heal()


def separated(*names: str) -> Break:
    """An operator writes names into the list of separated chips."""

    @asynccontextmanager
    async def listed(lab: Lab) -> AsyncIterator[None]:
        await lab.mark(CONFIG_MAPS, REPORT, {"data": {MANUALLY_SEPARATED: ",".join(names)}}, NAMESPACE)
        yield
        await lab.mark(CONFIG_MAPS, REPORT, {"data": {MANUALLY_SEPARATED: ""}}, NAMESPACE)

    return listed


@asynccontextmanager
async def the_fault_rules_are_invalid(lab: Lab) -> AsyncIterator[None]:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": FAULT_RULES, "namespace": NAMESPACE}}
    await lab.world.client.create(CONFIG_MAPS, {**body, "data": {"faultCode.json": "{"}}, NAMESPACE)
    yield
    await lab.world.client.delete(CONFIG_MAPS, FAULT_RULES, NAMESPACE)


@asynccontextmanager
async def the_kubelet_does_not_run(lab: Lab) -> AsyncIterator[None]:
    await asyncio.to_thread(lab.cluster.node("n1").kubelet.stop)
    # As the node controller does, which this cluster has not.
    ready = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "stopped"}
    body = {"status": {"conditions": [ready]}}
    await lab.world.client.patch(NODES, "n1", body, subresource="status", content_type=STRATEGIC_MERGE_PATCH)
    yield
    await asyncio.to_thread(lab.cluster.node("n1").start_kubelet)


@asynccontextmanager
async def the_node_is_marked_unhealthy(lab: Lab) -> AsyncIterator[None]:
    await lab.mark(NODES, "n1", {"metadata": {"annotations": {"NodeHealthyStatus": "UnHealthy"}}})
    yield
    await lab.mark(NODES, "n1", {"metadata": {"annotations": {"NodeHealthyStatus": None}}})


@asynccontextmanager
async def the_node_is_cordoned(lab: Lab) -> AsyncIterator[None]:
    await lab.mark(NODES, "n1", {"spec": {"unschedulable": True}})
    yield
    await lab.mark(NODES, "n1", {"spec": {"unschedulable": None}})


@asynccontextmanager
async def the_plugin_is_stopped(lab: Lab) -> AsyncIterator[None]:
    await lab.node.stop_plugin()
    yield
    await lab.node.plugin.start()


@asynccontextmanager
async def the_plugin_is_killed(lab: Lab) -> AsyncIterator[None]:
    await lab.node.plugin.kill()
    yield
    await lab.node.plugin.start()


def programs(*given: Mapping[str, str], ready: bool = True, account: str = "default") -> Break:
    """Pods with the labels of this project's programs, which run another one."""

    @asynccontextmanager
    async def run(lab: Lab) -> AsyncIterator[None]:
        names = [f"program-{number}" for number, _ in enumerate(given)]
        for name, labels in zip(names, given, strict=True):
            made = lab.world.pod_manifest(name, 0, nodeName="n1", serviceAccountName=account)
            made["metadata"]["labels"] = dict(labels)
            if not ready:
                made["spec"]["containers"][0]["readinessProbe"] = {"exec": {"command": ["false"]}}
            await lab.world.client.create(PODS, made, "default")
        yield
        await lab.world.delete(*names)

    return run


@asynccontextmanager
async def a_node_is_named_by_hand(lab: Lab) -> AsyncIterator[None]:
    await lab.world.create("stray", 1, nodeName="n1")
    await lab.world.failed("stray")
    yield
    await lab.world.delete("stray")


@asynccontextmanager
async def the_scheduler_has_lost_its_extender(lab: Lab) -> AsyncIterator[None]:
    await asyncio.to_thread(lab.cluster.restart_scheduler)
    await lab.world.create("stray", 1)
    await lab.world.failed("stray")
    yield
    await lab.world.restart_scheduler()
    await lab.world.delete("stray")


@asynccontextmanager
async def no_allocator_answers(lab: Lab) -> AsyncIterator[None]:
    await lab.world.allocator.stop()
    await lab.world.create("waits", 1)
    yield
    await lab.world.allocator.start()
    await lab.world.running("waits")


def bound_with(text: str | None) -> Break:
    """Another scheduler binds a pod with this annotation; without a text, with the chips of another pod."""

    @asynccontextmanager
    async def bind(lab: Lab) -> AsyncIterator[None]:
        await lab.run("holder", 1)
        held = (await lab.world.pod("holder")).metadata.annotations[RESOURCE]
        pod = await lab.world.create("forged", 1, schedulerName="none")
        given = {RESOURCE: text or held, "predicate-time": "1"}
        await lab.world.client.bind(namespace="default", name=pod.name, uid=pod.uid, node="n1", annotations=given)
        await lab.world.failed("forged")
        yield
        await lab.world.delete("forged", "holder")

    return bind


@asynccontextmanager
async def a_device_node_is_missing(lab: Lab) -> AsyncIterator[None]:
    (lab.cluster.node("n1").folder / "chips" / "davinci5").unlink()
    await lab.world.create("fails", 8, nodeSelector={"kubernetes.io/hostname": "n1"})
    await lab.world.failed("fails")
    yield
    lab.node.add_device_nodes("davinci5")
    await lab.world.delete("fails")


def a_program_lacks_a_right(lost: str) -> Break:
    """A pod with the labels of the device plugin, whose account lacks a right."""

    @asynccontextmanager
    async def run(lab: Lab) -> AsyncIterator[None]:
        granted = [right for right in rights(job_files=False) if str(right) != lost]
        await asyncio.to_thread(_account, lab.cluster, granted)
        async with programs(UNREADY, account="broken")(lab):
            yield
        await asyncio.to_thread(_forget, lab.cluster)

    return run


@asynccontextmanager
async def mindclusters_writers_are_refused(lab: Lab) -> AsyncIterator[None]:
    condition = {"name": WRITERS_CONDITION, "expression": '!(request.userInfo.username in ["nobody"])'}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"]}
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "broken", "labels": dict(OURS)},
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "matchConditions": [condition],
            "validations": [{"expression": "false"}],
        },
    }
    await asyncio.to_thread(lab.cluster.api.create, policy)
    async with programs(ALLOCATOR, THEIR_PLUGIN)(lab):
        yield
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/broken"
    await asyncio.to_thread(lab.cluster.api.delete, path)


@asynccontextmanager
async def the_node_can_not_be_written_before_a_reset(lab: Lab) -> AsyncIterator[None]:
    flags = ("--hot-reset", "on", "--hot-reset-idle-s", "1")
    async with lab.plugin_with(*flags), without("patch nodes")(lab):
        await lab.world.delete("waits")  # chips are reset while nobody uses those of their ring
        lab.node.edit_chip(5, fault_codes=["80A18008"])
        yield
        await lab.heal()


WITHIN_S: Final[Mapping[str, float]] = {
    "a vNPU is removed while a pod has it": SLOW_S,
    "a chip is cut anew while a pod runs": SLOW_S,
    "the Node can't be written while": SLOW_S,  # it is tried for a minute
    "a container uses chips": 180.0,  # a process is told after a minute
    "the driver does not return from a reset": 400.0,  # which it may take 300 s for
    "a chip does not start after a reset": 300.0,  # which it may take 180 s for
}
"""How long doctor may take to have the line of a break that takes its time."""
UNREADY: Final = {**PLUGIN, "app.kubernetes.io/version": "1"}
BREAKS: Final[Mapping[str, Break]] = {
    "a free chip fails": a_free_chip_fails,
    "a chip in use fails": a_chip_in_use_fails,
    "at its start the plugin may not read": without("get configmaps in kube-system"),
    "a chip's network port fails": a_network_port_fails,
    "a chip drops off the bus": a_chip_drops_off,
    "a chip is off the bus when the plugin starts": a_chip_is_off_the_bus_at_the_start,
    "all calls hang": all_calls_hang,
    "the driver fails at the start": the_driver_fails_at_the_start,
    "a device node is missing": a_device_node_is_missing,
    "a node is not Ready": the_kubelet_does_not_run,
    "a node is cordoned": the_node_is_cordoned,
    "a node is unhealthy": the_node_is_marked_unhealthy,
    "it is not running": the_kubelet_does_not_run,
    "its `/pods` is forbidden": without("get nodes/pods", "get nodes/proxy"),
    "it denies the claims on pods": without("patch pods"),
    "it refuses the patch of the Node": without("patch nodes"),
    "somebody makes the report's ConfigMap immutable": the_report_is_immutable,
    "an operator [separates a chip]": separated("Ascend910-5"),
    "an entry of `ManuallySeparateNPU`": separated("Ascend910-77"),
    "the site's fault rules are invalid": the_fault_rules_are_invalid,
    "a right is missing": programs(UNREADY),
    "it is stopped": the_plugin_is_stopped,
    "it is killed and not restarted": the_plugin_is_killed,
    "its settings are invalid at the start": programs(UNREADY, ready=False),
    "the programs are of different versions": programs(UNREADY, {**ALLOCATOR, "app.kubernetes.io/version": "2"}),
    "the annotation of a pod is malformed": bound_with("nonsense"),
    "a pod claims chips by an annotation of its own": bound_with(None),
    "somebody sets `nodeName` by hand": a_node_is_named_by_hand,
    "a scheduler does not call the allocator": the_scheduler_has_lost_its_extender,
    "no allocator answers": no_allocator_answers,
    "the Node's status can't be written": a_program_lacks_a_right("patch nodes/status"),
    "a node is lost": the_kubelet_does_not_run,
    "MindCluster's plugin runs on the same node": programs(UNREADY, THEIR_PLUGIN),
    "another plugin or scheduler": mindclusters_writers_are_refused,
    "the Node can't be written while": the_node_can_not_be_written_before_a_reset,
    **breaks_of_nodes.BREAKS,
    **breaks_of_pods.BREAKS,
    **breaks_of_rescheduling.BREAKS,
    **breaks_of_vnpus.BREAKS,
}
"""What makes the break of a row, and mends it; by the first words of the row."""


@pytest.mark.parametrize(
    "what", [pytest.param(each, marks=pytest.mark.timeout(WITHIN_S.get(each, TIMEOUT_S) + 90.0)) for each in BREAKS]
)
async def test_a_break_has_the_line_of_its_row_until_it_is_mended(what: str, world: World, cluster: Cluster) -> None:
    await check_break(what, BREAKS[what], Lab(world, cluster), within_s=WITHIN_S.get(what, TIMEOUT_S))
