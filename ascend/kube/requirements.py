"""What a scheduler may ask of a node for a pod, as one number: pods that differ in it may fit on different nodes.

It is that of the whole spec without the fields that no scheduler filters nodes by
(k/k:pkg/scheduler/framework/plugins), so that a field which is unknown here counts. It is made while an object is read,
because the objects that are kept have few of these fields, and only for pods with chips that are not bound.
"""

from collections.abc import Iterable
from typing import Final, TypeAlias

import msgspec

from ascend.errors import UNREADABLE

_NOT_READ: Final = frozenset({
    "activeDeadlineSeconds", "automountServiceAccountToken", "dnsConfig", "dnsPolicy", "enableServiceLinks",
    "ephemeralContainers", "hostAliases", "hostIPC", "hostPID", "hostUsers", "hostname", "hostnameOverride",
    "imagePullSecrets", "nodeName", "priorityClassName", "readinessGates", "restartPolicy", "schedulingGates",
    "securityContext", "serviceAccount", "serviceAccountName", "setHostnameAsFQDN", "shareProcessNamespace",
    "subdomain", "terminationGracePeriodSeconds",
})  # fmt: skip
_NOT_READ_OF_CONTAINERS: Final = frozenset({
    "args", "command", "env", "envFrom", "image", "imagePullPolicy", "lifecycle", "livenessProbe", "name",
    "readinessProbe", "resizePolicy", "securityContext", "startupProbe", "stdin", "stdinOnce", "terminationMessagePath",
    "terminationMessagePolicy", "tty", "volumeDevices", "volumeMounts", "workingDir",
})  # fmt: skip
_ON_ANY_NODE: Final = frozenset({"configMap", "downwardAPI", "emptyDir", "hostPath", "image", "projected", "secret"})
"""Volumes that any node has. The API server names one of each pod at random."""

_Fields: TypeAlias = dict[str, msgspec.Raw]


class _Pod(msgspec.Struct):
    spec: _Fields = {}


def requirements_of(raw: bytes | msgspec.Raw) -> int:
    """The number of a pod. Another process has other numbers."""
    try:
        spec = msgspec.json.decode(raw, type=_Pod).spec
        return hash(tuple(sorted(_read(spec))))
    except UNREADABLE:
        return hash(bytes(raw))  # fields of other types than Kubernetes has


def _read(spec: _Fields) -> Iterable[tuple[str, bytes]]:
    for field, value in spec.items():
        if field in {"containers", "initContainers"}:
            for number, container in enumerate(_list(value)):
                yield from ((f"{field}/{number}/{name}", read) for name, read in _of_container(container))
        elif field == "volumes":
            yield from (
                (f"{field}/{name}", bytes(source))
                for volume in _list(value)
                if volume.keys().isdisjoint(_ON_ANY_NODE)
                for name, source in volume.items()
            )
        elif field not in _NOT_READ:
            yield field, bytes(value)


def _of_container(container: _Fields) -> Iterable[tuple[str, bytes]]:
    for field, value in container.items():
        if field == "ports":
            yield from (
                (f"{field}/{name}", bytes(read))
                for port in _list(value)
                if "hostPort" in port
                for name, read in port.items()
            )
        elif field not in _NOT_READ_OF_CONTAINERS:
            yield field, bytes(value)


def _list(value: msgspec.Raw) -> list[_Fields]:
    return msgspec.json.decode(value, type=list[_Fields] | None) or []
