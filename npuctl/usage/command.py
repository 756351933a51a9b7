"""Carries out ``npuctl usage``: counts the chips that pods hold and wait for."""

from collections import Counter, defaultdict
from typing import Literal, TypeAlias

import msgspec
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from allocator.rules.cores import fewest_chips
from allocator.rules.request import counted_chips, counted_cores
from allocator.state.node import NodeRecord
from ascend.chips import ChipSet, chip_set
from ascend.kube.objects import Pod
from npuctl.offline_allocator import OfflineAllocator
from npuctl.output import FittingTable, Output, show
from npuctl.reading.source import Source, rfc3339

By: TypeAlias = Literal["namespace", "job", "product"]
"""By what chips are counted."""


class ChipUsage(msgspec.Struct, frozen=True):
    """What the pods of a namespace, of a job, or on servers of a product have of whole chips; parts count as none.

    Attributes:
        name: the namespace, the job (``namespace/name``), or the product.
        pods: the number of pods that hold chips.
        chips: the number of chips that they hold.
        not_running: how many of these are held by pods whose containers don't run yet: the chips are idle.
        unhealthy: how many of these are unhealthy.
        waiting_pods: the number of pods that wait for chips; of a product none is known.
        waiting_chips: the number of chips that they request.
    """

    name: str
    pods: int
    chips: int
    not_running: int
    unhealthy: int
    waiting_pods: int
    waiting_chips: int


class UsageAnswer(msgspec.Struct, frozen=True, tag_field="schema", tag="npuctl/usage/v1"):
    """The answer at a time (RFC 3339): who has how much, the most first; ``chips`` are those of complete servers."""

    time: str
    by: By
    chips: int
    used: int
    users: tuple[ChipUsage, ...]


async def run_usage(source: Source, by: By, namespace: str | None, output: Output) -> int:
    """Print who holds how many chips, of all namespaces or of one.

    Raises:
        InvalidValue: the input is invalid.
        ApiError: the API server refused.
        Unreachable: the API server did not answer.
    """
    objects = await source.read()
    allocator = OfflineAllocator(objects, source.settings, source.now_ns)
    counted: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for pod in objects.pods:
        if namespace not in {None, pod.metadata.namespace} or not pod.is_live or not pod.requests_chips:
            continue
        record = allocator.cluster.nodes.get(pod.spec.node_name) if pod.spec.node_name else None
        name = _name(by, pod, record, allocator)
        if pod.spec.node_name:
            counted[name] += _held(pod, record)
        elif by != "product" and allocator.waits(pod):
            chips = counted_chips(pod) or fewest_chips(counted_cores(pod))
            counted[name] += Counter(waiting_pods=1, waiting_chips=chips)
    users = [
        ChipUsage(name, *(numbers[field] for field in ChipUsage.__struct_fields__[1:]))
        for name, numbers in counted.items()
    ]
    users.sort(key=lambda use: (-use.chips, -use.waiting_chips, use.name))
    records = allocator.cluster.nodes.values()
    total = sum(record.product.chips for record in records if record.product is not None)
    used = sum(record.held.bit_count() for record in records)
    answer = UsageAnswer(rfc3339(source.now_ns), by, total, used, tuple(users))
    show(answer, output, lambda: _render(answer))
    return 0


def _name(by: By, pod: Pod, record: NodeRecord | None, allocator: OfflineAllocator) -> str:
    if by == "namespace":
        return pod.metadata.namespace
    if by == "job":
        return str(allocator.job_of(pod).key)
    return record.product.name if record is not None and record.product is not None else ""


def _held(pod: Pod, record: NodeRecord | None) -> Counter[str]:
    holding = record.holdings.get(pod.uid) if record is not None else None
    chips: ChipSet = holding.chips if holding is not None else chip_set(())
    unhealthy = record.unhealthy if record is not None and isinstance(record.unhealthy, int) else 0
    number = chips.bit_count()
    return Counter(
        pods=1,
        chips=number,
        not_running=0 if pod.status.phase == "Running" else number,
        unhealthy=(chips & unhealthy).bit_count(),
    )


def _render(answer: UsageAnswer) -> RenderableType:
    if not answer.users:
        return Text("no pod requests chips")
    numbers = ("PODS", "CHIPS", "SHARE", "NOT RUNNING", "UNHEALTHY", "WAITING PODS", "WAITING CHIPS")
    drop = ("SHARE", "UNHEALTHY", "NOT RUNNING", "WAITING PODS")
    table = FittingTable((answer.by.upper(), *numbers), numeric=numbers, drop=drop)
    for use in answer.users:
        share = f"{100 * use.chips / answer.chips:.1f} %" if answer.chips else "-"
        cells = (use.pods, use.chips, share, use.not_running, use.unhealthy, use.waiting_pods, use.waiting_chips)
        table.add_row(use.name or "-", *map(str, cells))
    legend = "NOT RUNNING: chips of pods whose containers don't run yet; parts of chips count as none"
    return Stack(table, Text(f"{answer.used} of {answer.chips} chips are held"), Text(legend, style="dim"))
