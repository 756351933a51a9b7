"""Taints that a pod does not tolerate. No I/O.

See k8s.io/component-helpers/scheduling/corev1/helpers.go, FindMatchingUntoleratedTaint.
"""

from collections.abc import Iterable
from functools import lru_cache

import msgspec

from ascend.kube.objects import Taint


class _Toleration(msgspec.Struct, frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        return self.operator == "Exists" or (bool(self.key) and self.value == taint.value)


def untolerated(taints: Iterable[Taint], tolerations: str | None) -> Taint | None:
    """The first taint that keeps a pod off a node, or evicts the pod; None if all are tolerated.

    Args:
        taints: those of the node.
        tolerations: those of the pod, JSON; other JSON than a list of tolerations tolerates nothing.
    """
    for taint in taints:
        repels = taint.effect in {"NoSchedule", "NoExecute"}
        if repels and not any(toleration.tolerates(taint) for toleration in _read(tolerations or "[]")):
            return taint
    return None


@lru_cache(maxsize=256)
def _read(tolerations: str) -> tuple[_Toleration, ...]:
    try:
        return msgspec.json.decode(tolerations, type=tuple[_Toleration, ...])
    except msgspec.DecodeError:
        return ()
