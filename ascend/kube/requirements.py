"""A pod's demands on nodes as a number: pods with different numbers may fit on different nodes.

It is that of the whole spec without the fields that no scheduler filters nodes by
(k/k:pkg/scheduler/framework/plugins), so that a field which is unknown here counts, and of the labels whose keys the
pod's own affinity or spreading names: by these, pods with equal terms exclude each other, or not. It is made while
an object is read, because the objects that are kept have few of these fields, and only for pods with chips that are not
bound.
"""

from collections.abc import Hashable, Iterable, Iterator
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


class _Metadata(msgspec.Struct):
    labels: msgspec.Raw = msgspec.Raw(b"null")


class _Pod(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: msgspec.Raw = msgspec.Raw(b"{}")


_KNOWN: Final[dict[int, int]] = {}
"""The numbers of the last specs and labels, by their hashes: most changes of a pod that waits are of its status."""
_MOST_KNOWN: Final = 4096
_PODS: Final = msgspec.json.Decoder(_Pod)
_FIELDS: Final = msgspec.json.Decoder(_Fields | None)
_LISTS: Final = msgspec.json.Decoder(list[_Fields] | None)


def requirements_of(raw: bytes | msgspec.Raw) -> int:
    """The number of a pod. Another process has other numbers."""
    try:
        pod = _PODS.decode(raw)
        key = hash((bytes(pod.spec), bytes(pod.metadata.labels)))
        if (number := _KNOWN.get(key)) is None:
            spec, labels = _FIELDS.decode(pod.spec) or {}, _FIELDS.decode(pod.metadata.labels) or {}
            number = hash((frozenset(_read(spec)), frozenset(_selectable(spec, labels))))
            if len(_KNOWN) >= _MOST_KNOWN:
                _KNOWN.clear()
            _KNOWN[key] = number
    except UNREADABLE:
        return hash(bytes(raw))  # fields of other types than Kubernetes has
    return number


def _read(spec: _Fields) -> Iterator[tuple[str, Hashable]]:
    for field in spec.keys() - _NOT_READ:
        if field in {"containers", "initContainers"}:
            yield field, tuple(frozenset(_of_container(container)) for container in _LISTS.decode(spec[field]) or ())
        elif field != "volumes":
            yield field, bytes(spec[field])
        elif found := frozenset(_of_volumes(_LISTS.decode(spec[field]) or ())):
            yield field, found


def _selectable(spec: _Fields, labels: _Fields) -> Iterator[Hashable]:
    terms = b"".join(bytes(spec[field]) for field in ("affinity", "topologySpreadConstraints") if field in spec)
    return ((key, bytes(value)) for key, value in labels.items() if terms and b'"%b"' % key.encode() in terms)


def _of_container(container: _Fields) -> Iterator[tuple[str, Hashable]]:
    for field in container.keys() - _NOT_READ_OF_CONTAINERS:
        if field != "ports":
            yield field, bytes(container[field])
        elif found := frozenset(_items(port) for port in _LISTS.decode(container[field]) or () if "hostPort" in port):
            yield field, found


def _of_volumes(volumes: Iterable[_Fields]) -> Iterator[Hashable]:
    return (_items(volume) for volume in volumes if volume.keys().isdisjoint(_ON_ANY_NODE))


def _items(fields: _Fields) -> Hashable:
    return frozenset((field, bytes(value)) for field, value in fields.items())
