"""Pods as their kubelet and their scheduler see them: whole, because both hand them on whole.

``ascend.kube.objects`` keeps only what our programs read; ``GET /pods`` and ``ExtenderArgs`` carry everything.
"""

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec

from ascend.errors import InvalidValue
from ascend.kube.objects import JsonObject, KubeObject, Metadata, Resource, Resources

TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})


class FullMetadata(Metadata, frozen=True, omit_defaults=True):
    """The metadata of a pod, with what the slim view leaves out."""

    generate_name: str = ""
    generation: int = 0
    deletion_grace_period_seconds: int | None = None
    finalizers: list[str] = msgspec.field(default_factory=list)


class EnvVar(msgspec.Struct, rename="camel", frozen=True):
    """An environment variable as specified."""

    name: str = ""
    value: str = ""
    value_from: dict[str, Any] = {}


class ContainerSpec(msgspec.Struct, rename="camel", frozen=True):
    """A container as specified, as far as a simulated runtime cares."""

    name: str = ""
    image: str = ""
    resources: Resources = Resources()
    restart_policy: str = ""
    env: list[EnvVar] = []

    @property
    def is_sidecar(self) -> bool:
        """Only init containers may restart always; such a one runs beside the app containers."""
        return self.restart_policy == "Always"

    @property
    def extended_resources(self) -> dict[str, int]:
        """How much it asks for of every extended resource: limits, which equal requests (kubernetes.md §1.6).

        Raises:
            InvalidValue: a quantity is not a whole number.
        """
        asked = {**self.resources.requests, **self.resources.limits}
        return {name: _whole(name, text) for name, text in asked.items() if is_extended(name)}


class FullPod(KubeObject, frozen=True, kw_only=True, dict=True):
    """A pod with all of its spec and status."""

    metadata: FullMetadata = FullMetadata()
    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    status: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def phase(self) -> str:
        """The phase the API server has."""
        return str(self.status.get("phase", ""))

    @property
    def node_name(self) -> str:
        """The node it is bound to, or the empty text."""
        return str(self.spec.get("nodeName", ""))

    @property
    def node_selector(self) -> dict[str, str]:
        """Labels its node must have."""
        return self.spec.get("nodeSelector") or {}

    @property
    def is_terminating(self) -> bool:
        """Deleted, but its containers may still run."""
        return bool(self.metadata.deletion_timestamp)

    @cached_property
    def init_containers(self) -> list[ContainerSpec]:
        """The init containers, sidecars among them."""
        return self._containers("initContainers")

    @cached_property
    def containers(self) -> list[ContainerSpec]:
        """The app containers."""
        return self._containers("containers")

    @cached_property
    def requests(self) -> dict[str, int]:
        """What the pod as a whole takes: the larger of its init containers and of what runs together (§1.10).

        Raises:
            InvalidValue: a quantity is not a whole number.
        """
        beside: Counter[str] = Counter()
        peak: Counter[str] = Counter()
        for each in self.init_containers:
            asked = Counter(each.extended_resources)
            if each.is_sidecar:
                beside += asked
                peak |= beside
            else:
                peak |= beside + asked
        for each in self.containers:
            beside += Counter(each.extended_resources)
        return {name: count for name, count in (peak | beside).items() if count}

    def _containers(self, field: str) -> list[ContainerSpec]:
        try:
            return msgspec.convert(self.spec.get(field) or [], list[ContainerSpec])
        except msgspec.ValidationError as error:
            raise InvalidValue(f"pod {self.key}: {field}: {error}") from error

    def as_json(self, status: JsonObject | None = None) -> JsonObject:
        """The object as the API has it, with another status if one is given."""
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": msgspec.to_builtins(self.metadata),
            "spec": self.spec,
            "status": self.status if status is None else status,
        }


ALL_OF_PODS = Resource(FullPod, "api/v1", "pods", namespaced=True)


def is_extended(resource: str) -> bool:
    """Whether a name is that of an extended resource: domain-qualified, not Kubernetes' own, no quota prefix (§1.3)."""
    domain, slash, name = resource.partition("/")
    own = domain == "kubernetes.io" or domain.endswith(".kubernetes.io") or resource.startswith("requests.")
    return bool(slash and domain and name) and not own


def matches(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether labels satisfy a node selector."""
    return all(labels.get(key) == value for key, value in selector.items())


def _whole(resource: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise InvalidValue(f"{resource}: {text!r} is not a whole number")
    return int(text)
