"""The changes that ``npuctl whatif`` is asked about, made to the objects of a cluster: nothing is written.

Pods of nodes that are drained or lost, and of chips that are lost, end; where a controller has created them, it creates
their successors, which wait. A drain leaves the pods of DaemonSets alone, as kubectl's does.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from ascend.annotations import SERVER_INDEX, UNKNOWN
from ascend.base_device_infos import BASE_DEVICE_INFOS, read_base_device_infos
from ascend.chips import ChipSet, chip_ids, chip_name
from ascend.deviceinfo import NAMESPACE, DeviceReport, config_map_name, decode_report, encode_report
from ascend.errors import InvalidReport, InvalidValue
from ascend.grammar import count, some
from ascend.kube.objects import ConfigMap, Metadata, Node, Pod
from ascend.printable import shown
from npuctl.chips import numbers, read_numbers
from npuctl.offline_allocator import OfflineAllocator
from npuctl.plan.rescheduling import anew
from npuctl.reading.changed import ALL_CHIPS, cordoned, offering, ready, recovered, rewritten, withdrawing
from npuctl.reading.objects import ClusterObjects
from npuctl.reading.source import rfc3339

_DAEMON_SET: Final = "DaemonSet"
_HOSTNAME: Final = "kubernetes.io/hostname"
_MOST_NODES: Final = 10_000
_NUMBER: Final = re.compile(r"-?[0-9]{1,10}")
_PRIORITIES: Final = range(-(1 << 31), 1 << 31)
"""What ``spec.priority`` can be."""


@dataclass(frozen=True, slots=True)
class WhatIfChanges:
    """What is asked about, as it was typed.

    Attributes:
        drain: nodes that are drained.
        lose: nodes that are lost, or chips of a node, as in ``node-a:0-3``.
        add: nodes that others are added like, with their number, as in ``node-a=10``.
        end: jobs that end: ``NAME`` or ``NAMESPACE/NAME``.
        priority: jobs and their new priorities, as in ``train=1000``.
    """

    drain: Sequence[str] = ()
    lose: Sequence[str] = ()
    add: Sequence[str] = ()
    end: Sequence[str] = ()
    priority: Sequence[str] = ()


class ChangedCluster:
    """The objects of a cluster, and what becomes of them by changes.

    Args:
        objects: the objects.
        allocator: what an allocator makes of them: it says which chips pods hold, and to which jobs they belong.
        now_ns: the time, Unix nanoseconds.

    Attributes:
        made: the changes so far, a sentence each.
        successors: how many pods controllers have created in the place of those that ended. Whether others gate them
            (Kueue does, with another name in each cluster) is not known from the objects. The allocator's own gate
            changes nothing: it is lifted from a pod that has a place, or would get one by preemption.
    """

    def __init__(self, objects: ClusterObjects, allocator: OfflineAllocator, now_ns: int) -> None:
        self._objects = objects
        self._allocator = allocator
        self._now_ns = now_ns
        self._nodes = {node.name: node for node in objects.nodes}
        self._reports = dict(objects.reports)
        self._pods = {pod.uid: pod for pod in objects.pods}
        self.made: list[str] = []
        self.successors = 0

    def make(self, changes: WhatIfChanges) -> ClusterObjects:
        """Make changes: jobs end or get priorities, then nodes come and go; returns the objects afterwards.

        Raises:
            InvalidValue: a change names what the cluster has not, or is malformed.
        """
        for text in changes.end:
            self._end(text)
        for text in changes.priority:
            self._set_priority(text)
        for text in changes.add:
            self._add(text)
        for text in changes.lose:
            node, colon, chips = text.partition(":")
            if colon:
                self._lose_chips(node, chips)
            else:
                self._lose_node(node)
        for text in changes.drain:
            self._drain(text)
        pods = sorted(self._pods.values(), key=lambda pod: pod.key)
        return self._objects.with_pods(pods).with_changed([*self._nodes.values(), *self._reports.values()])

    def _end(self, text: str) -> None:
        job, pods = self._job("--end", text)
        for pod in pods:
            del self._pods[pod.uid]
        self.made.append(f"job {job} ends ({count(len(pods), 'pod')})")

    def _set_priority(self, text: str) -> None:
        name, equals, number = text.rpartition("=")
        if not equals or not _NUMBER.fullmatch(number) or int(number) not in _PRIORITIES:
            raise InvalidValue(f"--priority: {shown(text)} is not JOB=NUMBER, as in train=1000")
        job, pods = self._job("--priority", name)
        for pod in pods:
            self._pods[pod.uid] = structs.replace(pod, spec=structs.replace(pod.spec, priority=int(number)))
        self.made.append(f"job {job} has the priority {int(number)}")

    def _job(self, option: str, text: str) -> tuple[str, list[Pod]]:
        """A job and its pods."""
        space, _, name = text.rpartition("/")
        found = defaultdict[str, list[Pod]](list)
        for pod in self._pods.values():
            if pod.is_live and pod.requests_chips:
                key = self._allocator.job_of(pod).key
                if key.name == name and space in {"", key.namespace}:
                    found[str(key)].append(pod)
        if not found:
            raise InvalidValue(
                f"{option}: no pod with chips is of a job {shown(text)}; npuctl usage --by job lists jobs"
            )
        if len(found) > 1:
            raise InvalidValue(f"{option}: name the namespace of the job: {some(sorted(found))}")
        return next(iter(found.items()))

    def _add(self, text: str) -> None:
        name, equals, digits = text.partition("=")
        number = int(digits) if digits.isdecimal() and len(digits) <= len(str(_MOST_NODES)) else 0
        if equals and not 0 < number <= _MOST_NODES:
            raise InvalidValue(f"--add: {shown(text)} is not NODE=NUMBER with a number from 1 to {_MOST_NODES}")
        like, number = self._node("--add", name), number or 1
        report = self._reports.get(name)
        fresh = None if report is None else self._fresh(report)
        added = 0
        for at in range(1, len(self._nodes) + number + 1):
            new = f"{name}-new-{at}"
            if added == number:
                break
            if new in self._nodes:
                continue
            added += 1
            self._nodes[new] = _like(like, new)
            if fresh is not None:
                metadata = structs.replace(fresh.metadata, name=config_map_name(new), uid=config_map_name(new))
                self._reports[new] = structs.replace(fresh, metadata=metadata)
        self.made.append(f"{count(number, 'node')} like {name} {'is' if number == 1 else 'are'} added")

    def _fresh(self, report: ConfigMap) -> ConfigMap | None:
        """A report of now without a fault; None for an invalid one, without which all chips count as healthy."""
        try:
            known = decode_report(report.data)
        except InvalidReport:
            return None
        healthy = recovered(known, ALL_CHIPS)
        everything = known.free | known.unhealthy | known.recovering | known.manually_separated
        now_s = self._now_ns // 10**9
        return rewritten(
            report, replace(healthy, free=everything, upgrades={}, update_time_s=now_s, server_index=UNKNOWN)
        )

    def _drain(self, name: str) -> None:
        self._nodes[name] = cordoned(self._node("--drain", name), is_cordoned=True)
        ended = self._end_pods(name, lambda pod: _owner_kind(pod) != _DAEMON_SET)
        self.made.append(f"node {name} is drained{ended}")

    def _lose_node(self, name: str) -> None:
        self._nodes[name] = ready(self._node("--lose", name), is_ready=False)
        self.made.append(f"node {name} is lost{self._end_pods(name, lambda _pod: True)}")

    def _lose_chips(self, name: str, text: str) -> None:
        node = self._node("--lose", name)
        try:
            lost = read_numbers(text)
            there = read_base_device_infos(node.metadata.annotations.get(BASE_DEVICE_INFOS, "")).chips
        except InvalidValue as error:
            raise InvalidValue(f"--lose: node {name}: {error.message}") from None
        if absent := lost & ~there:
            have = numbers(tuple(map(chip_name, chip_ids(there)))) or "no chips"
            raise InvalidValue(f"--lose: node {name} has no {chip_name(chip_ids(absent)[0])}; it has {have}")
        config_map = self._reports.get(name)
        try:
            report = decode_report(config_map.data) if config_map is not None else self._first_report(there)
        except InvalidReport as error:
            raise InvalidValue(f"--lose: the report of node {name} is invalid: {error.message}") from None
        before = report.unhealthy | report.recovering | report.manually_separated
        changed = replace(report, free=report.free & ~lost, unhealthy=report.unhealthy | lost)
        if config_map is None:
            metadata = Metadata(name=config_map_name(name), namespace=NAMESPACE, uid=config_map_name(name))
            self._reports[name] = ConfigMap(metadata=metadata, data=encode_report(changed))
        else:
            self._reports[name] = rewritten(config_map, changed)
        self._nodes[name] = withdrawing(node, lost & ~before)
        record = self._allocator.cluster.nodes.get(name)  # None of a node that --add has added
        holdings = record.holdings if record is not None else {}
        holders = {uid for uid, holding in holdings.items() if holding.occupied & lost}
        names = numbers(tuple(map(chip_name, chip_ids(lost))))
        one = lost.bit_count() == 1
        which = f"{'chip' if one else 'chips'} {names} of node {name} {'is' if one else 'are'} lost"
        self.made.append(f"{which}{self._end_pods(name, lambda pod: pod.uid in holders)}")

    def _first_report(self, chips: ChipSet) -> DeviceReport:
        return DeviceReport(free=chips, unhealthy=0, network_unhealthy=0, update_time_s=self._now_ns // 10**9)

    def _end_pods(self, node: str, ends: Callable[[Pod], bool]) -> str:
        """End pods with chips on a node, and create their successors; says how many."""
        there = [pod for pod in self._pods.values() if pod.spec.node_name == node and pod.is_live and ends(pod)]
        gone = [pod for pod in there if pod.requests_chips]
        for pod in gone:
            del self._pods[pod.uid]
            if not pod.is_terminating and _owner_kind(pod) not in {"", _DAEMON_SET}:
                successor = anew(pod)
                self.successors += 1
                created = structs.replace(successor.metadata, creation_timestamp=rfc3339(self._now_ns))
                self._pods[successor.uid] = structs.replace(successor, metadata=created)
        return f" ({count(len(gone), 'pod')} {'ends' if len(gone) == 1 else 'end'})" if gone else ""

    def _node(self, option: str, name: str) -> Node:
        node = self._nodes.get(name)
        if node is None:
            raise InvalidValue(f"{option}: there is no node {shown(name)}")
        return node


def _owner_kind(pod: Pod) -> str:
    owner = pod.metadata.controller
    return owner.kind if owner is not None else ""


def _like(node: Node, name: str) -> Node:
    """A new node like this one: uncordoned, Ready, with all of its chips, at no known address or index."""
    metadata = node.metadata
    labels = metadata.labels | ({_HOSTNAME: name} if _HOSTNAME in metadata.labels else {})
    annotations = {key: text for key, text in metadata.annotations.items() if key != SERVER_INDEX}
    new = structs.replace(
        node,
        metadata=structs.replace(metadata, name=name, uid=name, labels=labels, annotations=annotations),
        status=structs.replace(node.status, addresses=()),
    )
    return ready(cordoned(offering(new, ALL_CHIPS), is_cordoned=False), is_ready=True)
