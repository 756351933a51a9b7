"""The check of faults: chips that don't work, by code, and the pods that run on them."""

from collections.abc import Collection, Iterable, Iterator, Mapping

from allocator.state.node import NodeRecord, Server
from ascend.chips import chip_set
from ascend.cordons import Cordon
from ascend.deviceinfo import DeviceReport
from ascend.grammar import count, some
from ascend.reasons import Reason
from npuctl.chip_faults import ChipFault, chip_faults, port_faults
from npuctl.doctor.finding import Finding, ok, problem, warning

_NOT_TRUSTED = {Reason.STALE_REPORT, Reason.INVALID_REPORT}


def check_faults(
    npu_nodes: Iterable[NodeRecord],
    reports: Mapping[str, DeviceReport],
    cordons: Mapping[str, Mapping[int, Cordon]],
    spread: Collection[str],
) -> Iterator[Finding]:
    """Check the chips of nodes.

    Args:
        npu_nodes: the nodes.
        reports: their reports, by node; those that another check finds too old or invalid are not used.
        cordons: the chips that operators have taken out of use, by node and physical id.
        spread: the pods that need the network ports of their chips.
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
        sentence = (
            f"the driver does not answer on {_nodes(silent)}, or did not until now: no chip there is given to a pod"
        )
        yield problem(sentence, "npuctl doctor there says more; dmesg; restart the server", nodes=tuple(silent))
    alike: dict[tuple[bool, bool, tuple[str, ...], str, str], list[ChipFault]] = {}
    for fault in faults:
        alike.setdefault((not fault.pods, fault.may_go_on, fault.codes, fault.cause, fault.what), []).append(fault)
    yield from (_finding(same, spread) for _, same in sorted(alike.items()))
    if not silent and not faults:
        yield ok(f"none of {count(chips, 'chip')} has a fault that bars its use")


def _finding(same: list[ChipFault], spread: Collection[str]) -> Finding:
    """What is said of chips with the same codes, all of which are in use, or none."""
    first, names = same[0], [fault.name for fault in same]
    pods = tuple(dict.fromkeys(pod for fault in same for pod in fault.pods))
    nodes = tuple(dict.fromkeys(fault.node for fault in same))
    have = f"{'has' if len(same) == 1 else 'have'} a fault" + (" of its network port" if first.cause == "port" else "")
    if not pods:
        sentence = f"{_chips(names)} {have}: {first.what}" if first.codes else f"{_chips(names)}: {first.what}"
        return warning(sentence, first.advice, nodes=nodes, codes=first.codes)
    run = f"pod {pods[0]} runs" if len(pods) == 1 else f"{len(pods)} pods ({some(pods)}) run"
    sentence = f"{run} on {_chips(names)}" + (f", which {have}: " if first.codes else ": ") + first.what
    # Of a chip without a code nothing bad is known.
    suffers = any(pod in spread for pod in pods) if first.cause == "port" else bool(first.codes) and not first.may_go_on
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


def _nodes(names: list[str]) -> str:
    return f"node {names[0]}" if len(names) == 1 else f"{len(names)} nodes ({some(names)})"
