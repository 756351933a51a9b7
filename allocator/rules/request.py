"""How many chips a pod asks for, and whether it may ask like that at all."""

from ascend.chips import RESOURCE
from ascend.errors import InvalidValue, Refusal
from ascend.kube.objects import Pod


def requested_chips(pod: Pod) -> int:
    """The number of chips a pod asks for, at least 1.

    Exactly one regular container may ask: the kubelet admits containers one by one, and the pod's list of chips does
    not say which of them are whose (spec/kubernetes.md §1.10).

    Raises:
        Refusal: ``InvalidRequest`` where the quantity makes no sense, ``SeveralContainers`` where more than one
            container asks, or an init container.
    """
    if not pod.asks_for_chips:
        raise Refusal("InvalidRequest", f"pod {pod.key} does not ask for {RESOURCE}")
    try:
        containers = pod.npu_containers
    except InvalidValue as error:
        raise Refusal("InvalidRequest", f"pod {pod.key}: {error}") from error
    if not containers:
        raise Refusal("InvalidRequest", f"pod {pod.key} asks for 0 of {RESOURCE}")
    if len(containers) > 1 or containers[0] not in pod.spec.containers:
        names = ", ".join(container.name for container in containers)
        raise Refusal(
            "SeveralContainers",
            f"pod {pod.key}: one container, and no init container, may ask for {RESOURCE}; these ask: {names}",
        )
    return containers[0].chips


def counted_chips(pod: Pod) -> int:
    """How many chips the kubelet counts for a pod, however it asks; an unreadable quantity counts as none.

    The kubelet hands devices of init containers on to the regular ones, so a pod counts for the larger of both.
    """
    try:
        regular = sum(container.chips for container in pod.spec.containers)
        initial = max((container.chips for container in pod.spec.init_containers), default=0)
    except InvalidValue:
        return 0
    return max(regular, initial)
