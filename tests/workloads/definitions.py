"""Custom resource definitions of kinds whose own controllers do not run here: names as they are, any content."""

from typing import Any


def definition(group: str, version: str, kind: str, *, status: bool, scope: str = "Namespaced") -> dict[str, Any]:
    """Return a definition.

    Args:
        group: the API group.
        version: its version.
        kind: the kind; the plural has an added s.
        status: whether the status is a subresource.
        scope: ``Namespaced`` or ``Cluster``.
    """
    plural = f"{kind.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        # The group k8s.io is protected: its definitions need an approval.
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {
            "group": group,
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()},
            "scope": scope,
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                    "subresources": {"status": {}} if status else {},
                }
            ],
        },
    }


POD_GROUP = definition("scheduling.x-k8s.io", "v1alpha1", "PodGroup", status=True)
# As in Volcano 1.9: its status is not a subresource.
VOLCANO_POD_GROUP = definition("scheduling.volcano.sh", "v1beta1", "PodGroup", status=False)
VOLCANO_JOB = definition("batch.volcano.sh", "v1alpha1", "Job", status=True)
ASCEND_JOB = definition("mindxdl.gitee.com", "v1", "AscendJob", status=True)
HYPER_NODE = definition("topology.volcano.sh", "v1alpha1", "HyperNode", status=True, scope="Cluster")
