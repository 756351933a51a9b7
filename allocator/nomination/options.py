"""Which pods are nominated, and how many at once."""

from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

from allocator.settings import Settings
from ascend.kube.objects import Pod

Mode: TypeAlias = Literal["off", "pending", "gated"]


@dataclass(frozen=True, slots=True)
class NominationOptions:
    """Which pods are nominated.

    Attributes:
        mode: ``off``, ``pending`` or ``gated``.
        schedulers: the names of the schedulers that call the extender.
        from_nodes: with fewer nodes pods that fit are not nominated.
        gate_from_nodes: with fewer nodes single pods that fit are not gated.
        window: the most pods that are nominated and not filtered yet.
        per_s: the most requests per second.
        gate_limit_s: seconds after which a gated pod that does not fit is let through; 0 for no limit.
    """

    mode: Mode = "pending"
    schedulers: frozenset[str] = frozenset({"default-scheduler"})
    from_nodes: int = 500
    gate_from_nodes: int = 2_000
    window: int = 128
    per_s: float = 500.0
    gate_limit_s: float = 0.0

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return what the settings say."""
        return cls(
            mode=settings.nominate,
            schedulers=frozenset(settings.scheduler_names),
            from_nodes=settings.nominate_from_nodes,
            gate_from_nodes=settings.gate_from_nodes,
            window=settings.nominate_window,
            per_s=settings.nominate_per_s,
            gate_limit_s=settings.gate_limit_s,
        )

    @property
    def nominates(self) -> bool:
        """Whether pods are nominated."""
        return self.mode != "off"

    def names(self, pod: Pod) -> bool:
        """Whether a pod names a scheduler that is served."""
        return pod.spec.scheduler_name in self.schedulers

    def serves(self, pod: Pod) -> bool:
        """Whether a pod waits for chips, for a scheduler that is served, and for nothing else but our own gate."""
        return pod.waits_for_chips and not pod.is_terminating and self.names(pod)
