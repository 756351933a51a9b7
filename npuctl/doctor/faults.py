"""The check of faults: chips that don't work, by code, and the pods that run on them or have a part of them."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from allocator.state.holding import Holding
from allocator.state.node import NodeRecord, Server
from ascend.annotations import DISTRIBUTED
from ascend.chips import ChipSet, chip_set
from ascend.cordons import Cordon
from ascend.deviceinfo import DeviceReport
from ascend.grammar import count, several, some
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from ascend.templates import Divisible
from npuctl.chips import ChipFault, chip_faults, port_faults
from npuctl.doctor.finding import Finding, ok, problem, warning

_NOT_TRUSTED = {Reason.STALE_REPORT, Reason.INVALID_REPORT}


def check_faults(
    npu_nodes: Iterable[NodeRecord],
    reports: Mapping[str, DeviceReport],
    cordons: Mapping[str, Mapping[int, Cordon]],
    on_network: Collection[str],
) -> Iterator[Finding]:
    """Check the chips of nodes.

    Args:
        npu_nodes: the nodes.
        reports: their reports, by node; those that another check finds too old or invalid are not used.
        cordons: the chips that operators have taken out of use, by node and physical id.
        on_network: the pods that need the network ports of their chips.
    """
    faults, silent, chips = list[ChipFault](), list[str](), 0
    for record in npu_nodes:
        if getattr(record.offer, "reason", None) in _NOT_TRUSTED or not isinstance(record.server, Server):
            continue
        own = list(chip_faults(record, reports.get(record.name), cordons.get(record.name, {})))
        chips += record.server.reported.bit_count()
        faults += port_faults(record, reports.get(record.name))
        if _is_silent(record, own):
            silent.append(record.name)
        else:
            faults += own
    if silent:
        sentence = f"the driver does not answer on {several('node', silent)}, or did not until now"
        sentence += ": no chip there is given to a pod"
        yield problem(sentence, "npuctl doctor there says more; dmesg; restart the server", nodes=tuple(silent))
    alike: dict[tuple[bool, bool, tuple[str, ...], str, str], list[ChipFault]] = {}
    for fault in faults:
        alike.setdefault((not fault.pods, fault.may_go_on, fault.codes, fault.cause, fault.what), []).append(fault)
    yield from (_finding(same, on_network) for _, same in sorted(alike.items()))
    if not silent and not faults:
        yield ok(f"none of {count(chips, 'chip')} has a fault that bars its use")


def _finding(same: list[ChipFault], on_network: Collection[str]) -> Finding:
    """What is said of chips with the same codes, all of which are in use, or none."""
    first, names = same[0], [fault.name for fault in same]
    pods = tuple(dict.fromkeys(pod for fault in same for pod in fault.pods))
    nodes = tuple(dict.fromkeys(fault.node for fault in same))
    have = f"{'has' if len(same) == 1 else 'have'} a fault" + (" of its network port" if first.cause == "port" else "")
    if not pods:
        sentence = f"{_chips(names)} {have}: {first.what}" if first.codes else f"{_chips(names)}: {first.what}"
        return warning(sentence, first.advice, nodes=nodes, codes=first.codes)
    sentence = (
        f"{several('pod', pods)} {'runs' if len(pods) == 1 else 'run'} on {_chips(names)}"
        + (f", which {have}: " if first.codes else ": ")
        + first.what
    )
    # Of a chip without a code nothing bad is known.
    suffers = (
        any(pod in on_network for pod in pods) if first.cause == "port" else bool(first.codes) and not first.may_go_on
    )
    found = problem if suffers else warning
    return found(sentence, first.advice, nodes=nodes, pods=pods, codes=first.codes)


def _is_silent(record: NodeRecord, faults: list[ChipFault]) -> bool:
    """Whether the device plugin knows nothing of all chips that it may report; chips in use are not reported."""
    if not isinstance(record.server, Server):
        return False
    held = 0
    for holding in record.holdings.values():
        held |= holding.occupied
    chips, silent = record.server.reported, chip_set(fault.chip for fault in faults if fault.cause == "silent")
    idle = chips & ~held
    # A single chip may be held back after a fault of its own.
    return idle.bit_count() > 1 and not idle & ~silent


def _chips(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} chips ({some(names)})"


def spread(pods: Iterable[Pod]) -> frozenset[str]:
    """The pods whose controller has pods on several nodes: they need the network ports of their chips.

    Those that work alone don't, as the replicas of a Deployment: the allocator says so on each.
    """
    nodes = defaultdict[str, dict[str, str]](dict)
    for pod in pods:
        works_alone = pod.metadata.annotations.get(DISTRIBUTED) == "false"
        if pod.spec.node_name and pod.is_live and not works_alone and (controller := pod.metadata.controller):
            nodes[controller.uid][pod.key] = pod.spec.node_name
    return frozenset(key for found in nodes.values() if len(set(found.values())) > 1 for key in found)


class UnhealthyDevices(NamedTuple):
    """What running pods have of unhealthy chips: healthy for the kubelet until the pods have ended.

    The kubelet counts it as taken, so it offers that much more than is healthy. MindCluster's plugin does not keep it,
    so any number in between is right.

    Attributes:
        chips: the number of whole chips.
        cores: the number of AI cores, where these are offered.
        vnpus: by size, the number of vNPUs that were cut beforehand.
    """

    chips: int
    cores: int
    vnpus: Mapping[str, int]

    @classmethod
    def of(cls, holdings: Iterable[Holding], unhealthy: ChipSet, kind: Divisible | None) -> "UnhealthyDevices":
        """The unhealthy devices of these holdings, in words; ``kind`` is the kind of chip if chips are cut for pods."""
        chips, cut, vnpus = 0, 0, Counter[str]()
        for holding in holdings:
            chips += (holding.chips & unhealthy).bit_count()
            cut += sum(part.size.cores for part in holding.cuts if unhealthy >> part.chip & 1)
            vnpus.update(part.suffix for part in holding.vnpus if unhealthy >> part.chip & 1)
        return cls(chips, cut + chips * kind.cores if kind is not None else 0, vnpus)
