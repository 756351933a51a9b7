"""Ways of a pod's author around the allocator: naming the chips in the environment, or the node.

Admission policies of the chart deny both (docs/security.md). Where there are none, its author is told.
"""

from collections.abc import Iterator
from typing import Final

from ascend.annotations import is_ours
from ascend.kube.objects import Pod
from ascend.printable import printable

NODE_CURE: Final = "remove spec.nodeName, and select the node by spec.nodeSelector kubernetes.io/hostname"

_MIRROR: Final = "kubernetes.io/config.mirror"
"""An annotation of the pod that stands for a static one; the device plugin refuses these in another sentence."""


def named_devices(pod: Pod) -> Iterator[str]:
    """Yield a sentence for each container with devices named in its environment."""
    spec = pod.spec
    for container in (*spec.init_containers, *spec.containers, *spec.ephemeral_containers):
        if container.own_devices:
            names = printable(", ".join(container.own_devices))
            yield (
                f"container {printable(container.name)} sets {names}: where ascend-docker-runtime is the runtime, it "
                "gets the chips named there, also those of other pods; remove it: the device plugin sets it"
            )


def named_node(pod: Pod) -> str | None:
    """A sentence about a pod with devices whose author has named the node; None for other pods.

    Only a pod whose containers have not started counts: what a running one has, another device plugin gave it.
    """
    spec, annotations = pod.spec, pod.metadata.annotations
    if not spec.node_name or not pod.requests_chips or pod.status.phase not in {"", "Pending"}:
        return None
    if _MIRROR in annotations or any(map(is_ours, annotations)):
        return None
    return (
        f"its node was named by hand (spec.nodeName: {printable(spec.node_name)}): no scheduler chooses its devices, "
        f"and the device plugin refuses it; {NODE_CURE}"
    )
