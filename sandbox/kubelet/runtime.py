"""The simulated container runtime: records what a container would have got, and survives the kubelet as a real one."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ascend.errors import AscendError
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from sandbox.pods import ContainerSpec, FullPod


class CreateFailure(AscendError):
    """The runtime could not create a container."""


@dataclass(frozen=True, slots=True)
class Container:
    """A container as the runtime has it.

    Attributes:
        id: as in ``containerID``.
        pod_uid: its pod.
        pod_key: ``namespace/name`` of its pod.
        name: its name in the pod.
        env: its environment.
        devices: container path to (host path, permissions).
        mounts: container path to (host path, whether read-only).
        annotations: for the runtime; not those of the pod.
        cdi_devices: fully qualified names.
        running: it runs.
        exit_code: of a container that has ended.
        restarts: how often it was started again.
    """

    id: str
    pod_uid: str
    pod_key: str
    name: str
    env: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    mounts: Mapping[str, tuple[str, bool]] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()
    running: bool = True
    exit_code: int | None = None
    restarts: int = 0


class Runtime:
    """All containers of a node, ended ones included.

    Args:
        rng: for container ids.
        host_root: where the host's paths are looked up: a device's path must exist below it.
        node_ip: for the downward API.
    """

    def __init__(self, rng: random.Random, *, host_root: Path, node_ip: str) -> None:
        self._rng = rng
        self._host_root = host_root
        self._node_ip = node_ip
        self._containers: dict[tuple[str, str], Container] = {}

    @property
    def containers(self) -> Iterable[Container]:
        """All containers."""
        return self._containers.values()

    def find(self, pod_uid: str, name: str) -> Container | None:
        """A container of a pod, or None."""
        return self._containers.get((pod_uid, name))

    def is_running(self, pod_uid: str, name: str) -> bool:
        """Whether a container runs."""
        container = self.find(pod_uid, name)
        return container is not None and container.running

    def create(self, pod: FullPod, spec: ContainerSpec, responses: Iterable[pb.ContainerAllocateResponse]) -> Container:
        """Create and start a container with what the plugins answered.

        Raises:
            CreateFailure: a device or mount does not exist on the host (spec/kubernetes.md §1.9).
        """
        before = self.find(pod.uid, spec.name)
        env: dict[str, str] = {}
        devices: dict[str, tuple[str, str]] = {}
        mounts: dict[str, tuple[str, bool]] = {}
        annotations: dict[str, str] = {}
        cdi_devices: dict[str, None] = {}
        for response in responses:
            # Of several resources that say something about the same thing the first wins (§1.9).
            env = {**response.envs, **env}
            devices = {
                **{each.container_path: (each.host_path, each.permissions) for each in response.devices},
                **devices,
            }
            mounts = {**{each.container_path: (each.host_path, each.read_only) for each in response.mounts}, **mounts}
            annotations = {**response.annotations, **annotations}
            cdi_devices.update(dict.fromkeys(each.name for each in response.cdi_devices))
        for host_path in (*(path for path, _ in devices.values()), *(path for path, _ in mounts.values())):
            if not (self._host_root / host_path.lstrip("/")).exists():
                raise CreateFailure(
                    f'failed to generate container "{spec.name}" spec: lstat {host_path}: no such file or directory'
                )
        container = Container(
            id=f"sandbox://{self._rng.getrandbits(256):064x}",
            pod_uid=pod.uid,
            pod_key=pod.key,
            name=spec.name,
            # The pod's own variables come last and win.
            env=env | {each.name: self._value(pod, each.value, each.value_from) for each in spec.env},
            devices=devices,
            mounts=mounts,
            annotations=annotations,
            cdi_devices=tuple(cdi_devices),
            restarts=0 if before is None else before.restarts + 1,
        )
        self._containers[pod.uid, spec.name] = container
        return container

    def end(self, pod_uid: str, name: str, exit_code: int) -> None:
        """A container ends; one that does not run is left as it is."""
        container = self.find(pod_uid, name)
        if container is not None and container.running:
            self._containers[pod_uid, name] = replace(container, running=False, exit_code=exit_code)

    def end_all(self, pod_uid: str | None = None, exit_code: int = 137) -> None:
        """Every container of a pod, or of the node, ends."""
        for each in list(self.containers):
            if pod_uid in (None, each.pod_uid):
                self.end(each.pod_uid, each.name, exit_code)

    def remove(self, pod_uid: str) -> None:
        """Clean up after a pod that the API server has no more."""
        for key in [key for key in self._containers if key[0] == pod_uid]:
            del self._containers[key]

    def _value(self, pod: FullPod, value: str, value_from: Mapping[str, Mapping[str, str]]) -> str:
        path = value_from.get("fieldRef", {}).get("fieldPath", "")
        if path.endswith("']"):
            kind, _, key = path.removesuffix("']").partition("['")
            source = {"metadata.annotations": pod.metadata.annotations, "metadata.labels": pod.metadata.labels}
            return source.get(kind, {}).get(key, "")
        fields = {
            "metadata.name": pod.name,
            "metadata.namespace": pod.metadata.namespace,
            "metadata.uid": pod.uid,
            "spec.nodeName": pod.node_name,
            "status.hostIP": self._node_ip,
            "status.podIP": self._node_ip,
        }
        return fields.get(path, value)
