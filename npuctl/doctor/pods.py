"""The checks of pods: chips held twice, chips held but not recorded, and devices that nobody has allocated."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from msgspec import structs

from allocator.binding.binding import grant_of
from allocator.rules.own_devices import named_devices, named_node
from allocator.rules.request import counted_vnpus
from allocator.state.holding import Holding
from allocator.state.node import NodeRecord, Server
from ascend.annotations import REAL
from ascend.chips import chip_ids, chip_name, chip_set
from ascend.errors import InvalidValue
from ascend.grammar import count, some
from ascend.kube.objects import Pod
from ascend.pod_devices import Held, read_held
from ascend.reasons import Reason
from ascend.templates import VnpuTemplate
from npuctl.doctor.details import VariableSource
from npuctl.doctor.finding import Finding, ok, problem, warning
from npuctl.doctor.programs import PAGE, nodes_of_mindclusters_plugin


def _names(held: Held) -> tuple[str, ...]:
    return (*map(chip_name, chip_ids(held.chips)), *(part.name for part in held.parts))


def _conflicts(first: Holding, second: Holding) -> tuple[str, ...]:
    """The devices that two pods share, whole or in part."""
    whole = chip_set(
        chip for chip in chip_ids(first.occupied & second.occupied) if (first.chips | second.chips) >> chip & 1
    )
    ids = {vnpu.vdev_id for vnpu in first.vnpus} & {vnpu.vdev_id for vnpu in second.vnpus}
    names: dict[str, None] = {}
    for held in first, second:
        vnpus = tuple(vnpu for vnpu in held.vnpus if vnpu.vdev_id in ids or whole >> vnpu.chip & 1)
        names |= dict.fromkeys(_names(Held(held.chips & whole, vnpus)))
    return tuple(names)


def check_holders(npu_nodes: Sequence[NodeRecord]) -> list[Finding]:
    """Whether each chip, vNPU and AI core is held once."""
    twice = []
    for record in npu_nodes:
        holdings = sorted(record.holdings.values(), key=lambda holding: holding.pod)
        for first, second in combinations(holdings, 2):
            if both := _conflicts(first, second):
                sentence = f"{','.join(both)} of node {record.name}: held by {first.pod} and {second.pod}"
                both_pods = (first.pod, second.pod)
                twice.append(problem(sentence, "delete one of these pods", nodes=(record.name,), pods=both_pods))
        twice += _check_cuts(record)
    return twice or [ok("none is held by two pods")]


def _check_cuts(record: NodeRecord) -> Iterator[Finding]:
    """Whether pods have more of a chip than it has."""
    if not isinstance(record.server, Server) or record.server.kind is None:
        return
    kind, cuts = record.server.kind, defaultdict[int, list[tuple[str, VnpuTemplate]]](list)
    for holding in record.holdings.values():
        for cut in holding.cuts:
            cuts[cut.chip].append((holding.pod, cut.size))
    for chip, held in sorted(cuts.items()):
        cores, cpus = sum(size.cores for _, size in held), sum(size.cpus for _, size in held)
        if cores > kind.cores or cpus > kind.cpus:
            has = f"{chip_name(chip)} of node {record.name} has {kind.cores} AI cores and {kind.cpus} AI CPUs"
            pods = tuple(sorted(pod for pod, _ in held))
            sentence = f"{has}, but {cores} and {cpus} are held: by {some(pods)}"
            yield problem(sentence, "delete one of these pods", nodes=(record.name,), pods=pods)


def check_pods(pods: Sequence[Pod]) -> Iterator[Finding]:
    """Whether pods hold what is written on them, and take nothing by themselves."""
    right = 0
    theirs = nodes_of_mindclusters_plugin(pods)
    for pod in pods:
        for sentence in named_devices(pod) if pod.is_live else ():
            yield warning(f"pod {pod.key}: {sentence}", "docs/security.md#isolation", pods=(pod.key,))
        if pod.spec.node_name and pod.is_live and pod.requests_chips:
            found = _check_pod(pod, is_theirs=pod.spec.node_name in theirs)
            if found is None:
                right += 1
            else:
                yield structs.replace(found, nodes=(pod.spec.node_name,), pods=(pod.key,))
    hold = "holds its" if right == 1 else "hold their"
    yield ok(f"{count(right, 'pod')} {hold} chips as recorded, or will soon")


def _check_pod(pod: Pod, *, is_theirs: bool) -> Finding | None:
    where = f"pod {pod.key} on node {pod.spec.node_name}"
    try:
        grant = grant_of(pod)
        real = _names(read_held({REAL: pod.metadata.annotations.get(REAL, "")}))
    except InvalidValue as error:
        return problem(f"{where}: {error}", Reason.UNREADABLE_POD.cure)
    if grant is None and not real:
        return _without_chips(pod, where, is_theirs=is_theirs)
    if pod.status.phase != "Running":
        return None
    if not real:
        return _unclaimed(pod, where, is_theirs=is_theirs)
    if grant is not None and set(real) != set(grant.take.names):
        sentence = f"{where} was given {','.join(real)} instead of {','.join(grant.take.names)}"
        advice = "all of them count as held until the pod ends; with MindCluster's device plugin this happens"
        return warning(sentence, advice)
    return None


def _without_chips(pod: Pod, where: str, *, is_theirs: bool) -> Finding:
    if is_theirs and counted_vnpus(pod):
        advice = f"until this project's device plugin runs there, no other pod gets a vNPU of that size ({PAGE})"
        return warning(f"{where}: MindCluster's device plugin does not say which vNPU it has", advice)
    if (sentence := named_node(pod)) is not None:
        return problem(f"{where} has no chips: {sentence}", "docs/security.md#a-node-by-name")
    advice = (
        "its scheduler neither asked the allocator nor chose them itself; use one that asks, and list the resource "
        "in managedResources (deploy/charts/ascend-affinity/kube-scheduler.yaml)"
    )
    return problem(f"{where} was bound without chips", advice)


def _unclaimed(pod: Pod, where: str, *, is_theirs: bool) -> Finding | None:
    if is_theirs and counted_vnpus(pod):
        return None  # that plugin never writes which one it was given
    if is_theirs:
        advice = (
            "check again in a few seconds; if MindCluster's device plugin has restarted it stays so, and the pod may "
            f"have other chips than those that are written on it: delete it ({PAGE})"
        )
        return warning(f"{where} runs, but has no annotation {REAL} yet", advice)
    advice = "the device plugin of that node did not claim it; the plugin's log says why"
    return problem(f"{where} runs, but has no annotation {REAL}", advice)


def check_taken(found: Iterable[VariableSource]) -> Iterator[Finding]:
    """A warning for each ConfigMap."""
    for source in found:
        sentence = (
            f"ConfigMap {source.config_map} sets {', '.join(source.keys)} in pod {source.pod}: where "
            "ascend-docker-runtime is the runtime, its containers get the chips named there"
        )
        yield warning(sentence, "remove these keys (docs/security.md#isolation)")
