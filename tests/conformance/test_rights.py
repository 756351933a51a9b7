"""Each right of the device plugin that a real API server or kubelet refuses is told by ``/readyz``."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest

from ascend.deviceinfo import NAMESPACE, config_map_name
from device_plugin.publish.rights import KUBELET_PODS, Right, rights
from tests.conformance.node import GatedNode, Kubeconfig, PluginNode

pytestmark = pytest.mark.long

RBAC: Final = "rbac.authorization.k8s.io"
ROLES: Final = f"/apis/{RBAC}/v1/clusterroles"
ACCOUNT: Final = {"name": "restricted"}
ALL: Final = (*rights(job_files=False), *KUBELET_PODS)
REPORT: Final = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{{}}"
PATCH_PODS: Final = next(right for right in ALL if str(right) == "patch pods")
RARE: Final = ("get pods", "patch events.events.k8s.io")
"""What a plugin needs only once a claim was refused, or an Event is repeated."""


def rules(granted: Sequence[Right]) -> list[dict[str, Any]]:
    """The rules of a ClusterRole with these rights."""
    return [
        {
            "apiGroups": [right.group],
            "resources": [f"{right.resource}/{right.subresource}" if right.subresource else right.resource],
            "verbs": [right.verb],
        }
        for right in granted
    ]


@pytest.fixture
def restricted(node: GatedNode) -> Iterator[PluginNode]:
    """The node, whose plugin has an account of its own with all rights."""
    api, version = node.cluster.api, f"{RBAC}/v1"
    subject = {"kind": "ServiceAccount", "namespace": "default", **ACCOUNT}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": "default", **ACCOUNT}}
    reference = {"apiGroup": RBAC, "kind": "ClusterRole", **ACCOUNT}
    binding = {"kind": "ClusterRoleBinding", "metadata": ACCOUNT, "roleRef": reference, "subjects": [subject]}
    api.create(account)
    api.create({"apiVersion": version, "kind": "ClusterRole", "metadata": ACCOUNT, "rules": rules(ALL)})
    api.create({"apiVersion": version, **binding})
    usual = node.access
    node.access = Kubeconfig(
        node.cluster.write_kubeconfig("restricted", node.cluster.service_account_token("restricted"))
    )
    try:
        yield node
    finally:
        node.access = usual
        for path in (f"/apis/{version}/clusterrolebindings", ROLES, "/api/v1/namespaces/default/serviceaccounts"):
            api.delete(f"{path}/restricted")


@pytest.mark.parametrize(
    "lost",
    [*([right] for right in rights(job_files=False) if str(right) not in RARE), KUBELET_PODS],
    ids=lambda lost: str(lost[0]),
)
def test_a_right_that_is_refused_is_told_until_it_is_granted(restricted: PluginNode, lost: Sequence[Right]) -> None:
    node, role = restricted, f"{ROLES}/{ACCOUNT['name']}"
    node.cluster.api.patch(role, {"rules": rules([right for right in ALL if right not in lost])})
    node.plugin.process.stop()
    node.cluster.api.delete(REPORT.format(config_map_name(node.node.name)))  # the plugin has to create it
    node.chips.fail(7)  # of which an Event tells
    with node.plugin_instead("restricted") as plugin:
        if lost == [PATCH_PODS]:
            node.wait_until(lambda: node.counts() == (8, 7), "the other chips are allocatable")
            node.place("claimed", 0)
        node.wait_until(lambda: told(lost) in plugin.problems(), "it tells what is refused")
        node.cluster.api.patch(role, {"rules": rules(ALL)})
        node.wait_until(lambda: plugin.is_ready, "it is ready", timeout_s=120)
        node.place("next", 1)
        node.check("next", 1)


def told(lost: Sequence[Right]) -> str:
    """What ``/readyz`` says without these rights."""
    if lost[0].subresource in {"pods", "metrics"}:
        return f"/{lost[0].subresource} answered 403 Forbidden"
    return f"the API server refuses to {lost[0]}, for: {lost[0].why}"
