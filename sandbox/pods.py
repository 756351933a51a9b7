"""Pods with all their fields, as the kubelet and the scheduler pass them on.

``ascend.kube.objects`` decodes only the fields that our programs read; ``GET /pods`` and ``ExtenderArgs`` carry all.
"""

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import msgspec

from ascend.errors import InvalidValue
from ascend.kube.objects import JsonObject, KubeObject, Metadata, Resource

CPU = "cpu"
TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})


class FullMetadata(Metadata, frozen=True, omit_defaults=True):
    """The metadata of a pod, with the fields that ``Metadata`` omits."""

    generate_name: str = ""
    generation: int = 0
    deletion_grace_period_seconds: int | None = None
    finalizers: list[str] = msgspec.field(default_factory=list)


class PodEnvVar(msgspec.Struct, rename="camel", frozen=True):
    """An environment variable in a pod's spec."""

    name: str = ""
    value: str = ""
    value_from: dict[str, Any] = {}


class ResourceAmounts(msgspec.Struct, frozen=True):
    """The resources of a container, all of them: the two programs keep only those of the maker."""

    limits: dict[str, str] = {}
    requests: dict[str, str] = {}


class ContainerSpec(msgspec.Struct, rename="camel", frozen=True):
    """A container in a pod's spec, with the fields that the simulated runtime uses."""

    name: str = ""
    image: str = ""
    resources: ResourceAmounts = ResourceAmounts()
    restart_policy: str = ""
    env: list[PodEnvVar] = []

    @property
    def is_sidecar(self) -> bool:
        """Whether this init container runs beside the app containers."""
        return self.restart_policy == "Always"

    @property
    def extended_resources(self) -> dict[str, int]:
        """The requested amount of every extended resource: the limit, equal to the request.

        See docs/spec/kubelet.md#allocation.

        Raises:
            InvalidValue: a quantity is not a whole number.
        """
        amounts = {**self.resources.requests, **self.resources.limits}
        return {name: _whole(name, text) for name, text in amounts.items() if is_extended(name)}


class FullPod(KubeObject, frozen=True, gc=True, kw_only=True, dict=True):
    """A pod with its whole spec and status."""

    metadata: FullMetadata = FullMetadata()
    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    status: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def phase(self) -> str:
        """Its phase in the API server."""
        return str(self.status.get("phase", ""))

    @property
    def node_name(self) -> str:
        """The node it is bound to; empty if unbound."""
        return str(self.spec.get("nodeName", ""))

    @property
    def node_selector(self) -> dict[str, str]:
        """The labels that its node must have."""
        return self.spec.get("nodeSelector") or {}

    @property
    def nominated_node(self) -> str:
        """The node nominated for it; empty if there is none."""
        return str(self.status.get("nominatedNodeName") or "")

    @property
    def priority(self) -> int:
        """Its priority."""
        return int(self.spec.get("priority") or 0)

    @property
    def is_gated(self) -> bool:
        """Whether schedulers ignore it until its gates are removed."""
        return bool(self.spec.get("schedulingGates"))

    @property
    def is_terminating(self) -> bool:
        """Whether it is being deleted; its containers may still run."""
        return bool(self.metadata.deletion_timestamp)

    @cached_property
    def init_containers(self) -> list[ContainerSpec]:
        """The init containers, including sidecars."""
        return self._containers("initContainers")

    @cached_property
    def containers(self) -> list[ContainerSpec]:
        """The app containers."""
        return self._containers("containers")

    @cached_property
    def requests(self) -> dict[str, int]:
        """The requests of the whole pod: the maximum of each init container and what runs together.

        See docs/spec/kubelet.md#containers-of-a-pod.

        Raises:
            InvalidValue: a quantity is not a whole number.
        """
        beside: Counter[str] = Counter()
        peak: Counter[str] = Counter()
        for container in self.init_containers:
            requested = Counter(container.extended_resources)
            if container.is_sidecar:
                beside += requested
                peak |= beside
            else:
                peak |= beside + requested
        for container in self.containers:
            beside += Counter(container.extended_resources)
        return {name: count for name, count in (peak | beside).items() if count}

    @cached_property
    def scheduling_requests(self) -> dict[str, int]:
        """What a scheduler counts: the requests of the whole pod, and the CPU of its containers in millicores.

        Raises:
            InvalidValue: a quantity is malformed.
        """
        cpu = sum(millicores(container.resources.requests.get(CPU, "0")) for container in self.containers)
        return {CPU: cpu, **self.requests} if cpu else self.requests

    def _containers(self, field: str) -> list[ContainerSpec]:
        try:
            return msgspec.convert(self.spec.get(field) or [], list[ContainerSpec])
        except msgspec.ValidationError as error:
            raise InvalidValue(f"pod {self.key}: {field}: {error}") from error

    def as_json(self, status: JsonObject | None = None) -> JsonObject:
        """Return the object as JSON, optionally with another status."""
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": msgspec.to_builtins(self.metadata),
            "spec": self.spec,
            "status": self.status if status is None else status,
        }


ALL_OF_PODS = Resource(FullPod, "Pod", "api/v1", "pods", namespaced=True)


def is_extended(resource: str) -> bool:
    """Whether a resource is extended: it has a domain other than kubernetes.io, and no quota prefix.

    See docs/spec/kubelet.md#extended-resource-names.
    """
    domain, slash, name = resource.partition("/")
    own = domain == "kubernetes.io" or domain.endswith(".kubernetes.io") or resource.startswith("requests.")
    return bool(slash and domain and name) and not own


def matches(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether labels match a node selector."""
    return all(labels.get(key) == value for key, value in selector.items())


def millicores(text: str) -> int:
    """Return a quantity of CPU, whole or in millicores.

    Raises:
        InvalidValue: it is malformed.
    """
    return _whole(CPU, text[:-1]) if text.endswith("m") else 1000 * _whole(CPU, text)


def timestamp_now() -> str:
    """Return the current time as a timestamp of the API."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _whole(resource: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise InvalidValue(f"{resource}: {text!r} is not a whole number")
    return int(text)
