"""The simulated container runtime: records how it would create containers, and outlives the kubelet."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from ascend.errors import AscendError
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from sandbox.pods import ContainerSpec, FullPod

NODE_IP: Final = "127.0.0.1"
"""The address of the node and, as with host networking, of its pods."""


class CreateFailure(AscendError):
    """The runtime cannot create a container."""


@dataclass(frozen=True, slots=True)
class RuntimeContainer:
    """A container in the runtime.

    Attributes:
        id: its ``containerID``.
        pod_uid: uid of its pod.
        pod_key: ``namespace/name`` of its pod.
        name: its name in the pod.
        env: its environment.
        devices: host path and permissions by container path.
        mounts: host path and whether it is read-only, by container path.
        annotations: the container's annotations for the runtime, not those of the pod.
        cdi_devices: fully qualified names of CDI devices.
        running: whether it runs.
        exit_code: its exit code, once it has ended.
        restarts: how often it was restarted.
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
    """All containers of a node, including ended ones.

    Args:
        rng: for container ids.
        host_root: the directory below which the host paths of devices and mounts must exist.
    """

    def __init__(self, rng: random.Random, *, host_root: Path) -> None:
        self._rng = rng
        self._host_root = host_root
        self._containers: dict[tuple[str, str], RuntimeContainer] = {}

    @property
    def containers(self) -> Iterable[RuntimeContainer]:
        """All containers, in the order in which they were first created."""
        return self._containers.values()

    def find(self, pod_uid: str, name: str) -> RuntimeContainer | None:
        """Return a container of a pod, or None."""
        return self._containers.get((pod_uid, name))

    def is_running(self, pod_uid: str, name: str) -> bool:
        """Whether a container runs."""
        container = self.find(pod_uid, name)
        return container is not None and container.running

    def create(
        self, pod: FullPod, spec: ContainerSpec, responses: Iterable[pb.ContainerAllocateResponse]
    ) -> RuntimeContainer:
        """Create and start a container as the Allocate responses demand.

        Raises:
            CreateFailure: a device or mount does not exist on the host (docs/spec/kubelet.md#using-the-response).
        """
        before = self.find(pod.uid, spec.name)
        env: dict[str, str] = {}
        devices: dict[str, tuple[str, str]] = {}
        mounts: dict[str, tuple[str, bool]] = {}
        annotations: dict[str, str] = {}
        cdi_devices: dict[str, None] = {}
        for response in responses:
            # If several resources set the same thing, the first one wins (docs/spec/kubelet.md#using-the-response).
            env = {**response.envs, **env}
            devices = {
                **{device.container_path: (device.host_path, device.permissions) for device in response.devices},
                **devices,
            }
            mounts = {
                **{mount.container_path: (mount.host_path, mount.read_only) for mount in response.mounts},
                **mounts,
            }
            annotations = {**response.annotations, **annotations}
            cdi_devices.update(dict.fromkeys(device.name for device in response.cdi_devices))
        for host_path in (*(path for path, _ in devices.values()), *(path for path, _ in mounts.values())):
            if not (self._host_root / host_path.lstrip("/")).exists():
                raise CreateFailure(
                    f'failed to generate container "{spec.name}" spec: lstat {host_path}: no such file or directory'
                )
        container = RuntimeContainer(
            id=f"sandbox://{self._rng.getrandbits(256):064x}",
            pod_uid=pod.uid,
            pod_key=pod.key,
            name=spec.name,
            # The pod's own variables take precedence.
            env=env | {env_var.name: self._value(pod, env_var.value, env_var.value_from) for env_var in spec.env},
            devices=devices,
            mounts=mounts,
            annotations=annotations,
            cdi_devices=tuple(cdi_devices),
            restarts=0 if before is None else before.restarts + 1,
        )
        self._containers[pod.uid, spec.name] = container
        return container

    def end(self, pod_uid: str, name: str, exit_code: int) -> None:
        """End a running container; no effect on one that has ended."""
        container = self.find(pod_uid, name)
        if container is not None and container.running:
            self._containers[pod_uid, name] = replace(container, running=False, exit_code=exit_code)

    def end_all(self, pod_uid: str | None = None, exit_code: int = 137) -> None:
        """End all containers of a pod, or of the node."""
        for container in list(self.containers):
            if pod_uid in (None, container.pod_uid):
                self.end(container.pod_uid, container.name, exit_code)

    def remove(self, pod_uid: str) -> None:
        """Remove the containers of a deleted pod."""
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
            "status.hostIP": NODE_IP,
            "status.podIP": NODE_IP,
        }
        return fields.get(path, value)
