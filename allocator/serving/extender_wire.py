"""The extender's calls and answers on the wire (kubernetes/kube-scheduler:extender/v1/types.go).

Go's field names are the keys. A call names every node that passed kube-scheduler's own filters, possibly thousands; the
names are decoded only if all of them are needed.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Final, TypeVar

import msgspec

from allocator.binding.binding import PodRef
from allocator.decision.filtered import Filtered
from allocator.rules.summary import told_in
from allocator.rules.victims import VictimSet
from ascend.errors import UNREADABLE, AscendError, InvalidValue

NODE_CACHE: Final = "the extender has its own cache of nodes: set nodeCacheCapable: true in its configuration"

_SEARCHES: Final = 8
"""The most searches in the raw names; each takes a tenth of decoding them."""

_EACH: Final = 64
"""Up to this number of refused nodes, each has a sentence; beyond it, one node of each reason has one for all."""

_T = TypeVar("_T")


class NodeNames(Collection[str]):
    """The node names of a call, in their order.

    Args:
        raw: a JSON array of strings.
    """

    __slots__ = ("_has_escapes", "_names", "_raw", "_searched", "_set")

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._names: tuple[str, ...] | None = None  # garbage collections don't walk strings of tuples
        self._set: frozenset[str] | None = None
        # Node names need no escapes; with escapes, bytes can't be compared.
        self._has_escapes = b"\\" in raw
        self._searched = _SEARCHES if self._has_escapes else 0

    def __contains__(self, name: object) -> bool:
        if self._names is None and self._searched < _SEARCHES and isinstance(name, str):
            self._searched += 1
            return b'"%b"' % name.encode() in self._raw
        if self._set is None:
            self._set = frozenset(self._all())
        return name in self._set

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        if self._names is None and not self._has_escapes:
            return self._raw.count(b'"') // 2  # a tenth of decoding them
        return len(self._all())

    def __copy__(self) -> "NodeNames":
        """The names as they were sent: keeping them decoded takes many times the memory."""
        return NodeNames(self._raw)

    def _all(self) -> tuple[str, ...]:
        if self._names is None:
            self._names = decode(self._raw, tuple[str, ...])
        return self._names


class PodMeta(msgspec.Struct, rename="camel", gc=False):
    """What names a pod."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class NamedPod(msgspec.Struct, gc=False):
    """A pod in a call; the caller sends the whole object, but the API server's counts."""

    metadata: PodMeta

    @property
    def ref(self) -> PodRef:
        """The pod.

        Raises:
            InvalidValue: it has no uid.
        """
        found = PodRef(self.metadata.namespace, self.metadata.name, self.metadata.uid)
        if not found.uid:
            raise InvalidValue(f"pod {found.key} has no uid; chips are reserved by uid")
        return found

    @property
    def version(self) -> str:
        """The resourceVersion that the caller has seen."""
        return self.metadata.resource_version


class Args(msgspec.Struct, rename="pascal"):
    """The arguments of filter."""

    pod: NamedPod
    node_names: msgspec.Raw = msgspec.Raw(b"null")


class FilterResult(msgspec.Struct, rename="pascal"):
    """The result of filter."""

    node_names: list[str] | msgspec.Raw | None = None
    failed_nodes: dict[str, str] = {}
    failed_and_unresolvable_nodes: dict[str, str] = {}
    error: str = ""


class MetaPod(msgspec.Struct, gc=False):
    """A victim."""

    uid: str = msgspec.field(name="UID")


class MetaVictims(msgspec.Struct, gc=False):
    """The victims on a node."""

    pods: list[MetaPod] = msgspec.field(name="Pods")
    pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class PreemptionArgs(msgspec.Struct):
    """The arguments of preempt: the victims kube-scheduler would choose, ``MetaVictims``, by node."""

    pod: NamedPod = msgspec.field(name="Pod")
    victims: dict[str, msgspec.Raw] | None = msgspec.field(name="NodeNameToMetaVictims", default=None)


class PreemptionResult(msgspec.Struct):
    """The result of preempt: some of these nodes, each with at least one victim, the most important first."""

    victims: Mapping[str, MetaVictims | msgspec.Raw] = msgspec.field(name="NodeNameToMetaVictims")


class BindingArgs(msgspec.Struct):
    """The arguments of bind."""

    pod_name: str = msgspec.field(name="PodName")
    pod_namespace: str = msgspec.field(name="PodNamespace")
    pod_uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")


class BindingResult(msgspec.Struct, rename="pascal"):
    """The result of bind."""

    error: str = ""


def decode(body: bytes | msgspec.Raw, kind: type[_T]) -> _T:
    """Decode the body of a call.

    Raises:
        InvalidValue: it is malformed.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE as error:
        raise InvalidValue(f"the request can't be decoded: {error}") from error


def read_args(body: bytes) -> tuple[NamedPod, NodeNames]:
    """Decode the arguments of filter.

    Raises:
        InvalidValue: they are malformed, or without node names.
    """
    args = decode(body, Args)
    raw = bytes(args.node_names)
    if raw == b"null":
        raise InvalidValue(NODE_CACHE)
    if not raw.startswith(b"["):
        raise InvalidValue(f"the request can't be decoded: NodeNames is {raw[:40]!r}, not an array of strings")
    return args.pod, NodeNames(raw)


def text(error: Exception, namespace: str | None = None) -> str:
    """An error as a sentence that begins with its reason.

    Args:
        error: the error.
        namespace: that of the pod on which a scheduler will write the sentence; None if it is not about a pod.
    """
    sentence = f"{error.reason}: {error}" if isinstance(error, AscendError) else str(error)
    return sentence if namespace is None else told_in(namespace, sentence)


def preemption_result(chosen: VictimSet | None) -> PreemptionResult:
    """The result of preempt: one node, or none."""
    if chosen is None:
        return PreemptionResult({})
    victims = MetaVictims([MetaPod(victim.uid) for victim in chosen.victims], chosen.pdb_violations)
    return PreemptionResult({chosen.node: victims})


def refused_result(filtered: Filtered, waiting: Collection[str], namespace: str) -> FilterResult:
    """The result of filter for a pod that fits on none of the nodes.

    kube-scheduler treats a node that is in neither list as one where preemption can't help, so of many such nodes one
    for each reason is enough; its sentence counts the others.

    Args:
        filtered: the refusals, by node.
        waiting: the nodes where the pod only has to wait for terminating pods.
        namespace: the pod's.
    """
    refused = filtered.refused
    result = FilterResult(node_names=[], failed_nodes={name: text(refused[name], namespace) for name in waiting})
    if waiting:
        filtered = Filtered([], {name: refusal for name, refusal in refused.items() if name not in waiting})
    if len(filtered.refused) <= _EACH:
        sentences = {name: text(refusal, namespace) for name, refusal in filtered.refused.items()}
        result.failed_and_unresolvable_nodes = sentences
    else:
        result.failed_and_unresolvable_nodes = _one_per_reason(filtered, namespace)
    return result


def _one_per_reason(filtered: Filtered, namespace: str) -> dict[str, str]:
    sentences: dict[str, str] = {}
    missing = dict(filtered.reasons)
    for refusal, name in filtered.first.items():
        count = missing.pop(refusal.reason, 0)
        if count:
            on = f"{refusal.reason} on {count:,} nodes, here" if count > 1 else refusal.reason
            sentences[name] = f"{on}: {told_in(namespace, refusal.message)}"
    return sentences
