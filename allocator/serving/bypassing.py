"""Which schedulers bind pods with chips without calling the allocator, and no more pods for these.

Such a pod has no chips written on it. Its node refuses it, and its controller creates the next one at once, ten in a
second. So as soon as a node has refused one, the webhook for pods denies those that controllers create for the same
scheduler, until that calls the allocator, or a pod that it binds has chips. Controllers try again by themselves. Pods
without a controller are created as before: nobody creates them again, and the first one that the scheduler calls for
ends the denial.

Nothing is stored: a new leader finds the refused pods among all others. A scheduler of which nothing is known yet, as
after the installation, shows with the first pod of a controller what it does: the others wait for that for a moment.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import structlog

from ascend.annotations import CLAIMED, REAL, read_predicate_time
from ascend.chips import RESOURCE
from ascend.errors import Refusal
from ascend.grammar import some
from ascend.kube.objects import Pod, unix_seconds
from ascend.rate_limiters import ItemBackoff
from ascend.reasons import Reason
from ascend.templates import RESOURCE_CORES
from ascend.vnpus import RESOURCES

log = structlog.get_logger()

SETTLED_S: Final = 1.0
"""How long the second pod of a controller waits for what becomes of the first one; the API server waits for 2 s."""
TRIAL_S: Final = 600.0
"""After this time one pod is created nevertheless, in case its scheduler calls again and nobody has noticed; after
twice this time if that one is refused too, and so on."""
LONGEST_TRIAL_S: Final = 86_400.0
_CONTROLLERS: Final = 10_000
"""Controllers whose first pod is remembered."""
_KEPT: Final = 1000
"""Schedulers that are remembered for refused pods, by resource: more than a cluster has."""
_REJECTED: Final = "UnexpectedAdmissionError"
"""The reason in the status of a pod that a device plugin has refused, which the sentence of the refusal follows."""

_COUNTED: Final = frozenset({RESOURCE, RESOURCE_CORES, *RESOURCES})

_Key: TypeAlias = tuple[str, str]
"""A scheduler, and the resource of its pods: it may call for some resources only (``managedResources``)."""


@dataclass(slots=True)
class _Bypass:
    """The last pod that a scheduler bound without calling.

    Attributes:
        pod: its namespace and name.
        node: the node that refused it.
        refused_s: when, Unix seconds.
    """

    pod: str
    node: str
    refused_s: float


class Bypasses:
    """Knows which schedulers bypass the allocator.

    Args:
        monotonic: the clock.
        now_s: the wall clock, Unix seconds.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, now_s: Callable[[], float] = time.time) -> None:
        self._monotonic = monotonic
        self._now_s = now_s
        self._bypasses: dict[_Key, _Bypass] = {}
        self._trials = ItemBackoff[_Key](monotonic, TRIAL_S, LONGEST_TRIAL_S, remembered_s=2 * LONGEST_TRIAL_S)
        self._worked_s: dict[_Key, float] = {}
        self._refused: set[str] = set()  # the uids of the refused pods that were counted
        self._unsettled: defaultdict[str, set[str]] = defaultdict(set)  # by controller, bound pods without chips
        self._first_s: dict[str, float] = {}  # when the first pod of a controller was created
        self._changed = asyncio.Event()

    def on_call(self, pod: Pod) -> None:
        """The scheduler of a pod has called the allocator for it."""
        for key in _keys(pod):
            self._on_work(key, self._now_s())
            self._forget(key)

    def pod_applied(self, pod: Pod) -> None:
        """A pod was added or has changed."""
        if not pod.spec.node_name or not pod.requests_chips:
            return
        annotations, keys = pod.metadata.annotations, _keys(pod)
        if REAL in annotations or any(resource in annotations for _, resource in keys):
            self._settle(pod)
            self._had_chips(pod, keys)
        elif _is_refused(pod):
            self._was_refused(pod)
            self._settle(pod)
        elif pod.status.phase in {"", "Pending"}:
            self._unsettled[_controller(pod)].add(pod.uid)
        else:
            self._settle(pod)

    def pod_deleted(self, pod: Pod) -> None:
        """A pod was deleted."""
        self._refused.discard(pod.uid)
        self._settle(pod)

    async def require_called(self, pod: Pod, *, dry_run: bool = False) -> None:
        """Accept a new pod unless its controller would create pods in vain again and again.

        Args:
            pod: the pod.
            dry_run: whether it is not really created.

        Raises:
            Refusal: its scheduler has bound a pod like it without calling the allocator.
        """
        controller = _controller(pod)
        if not controller or pod.spec.node_name or not pod.requests_chips:
            return
        keys = _keys(pod)
        if not dry_run:
            await self._wait_for_the_first(controller, keys)
        for key in keys:
            bypass = self._bypasses.get(key)
            if bypass is None:
                continue
            if dry_run or self._trials.is_waiting(key):
                raise _refusal(pod, bypass, sorted(name for name, resource in self._worked_s if resource == key[1]))
            self._trials.fail(key)

    async def _wait_for_the_first(self, controller: str, keys: Collection[_Key]) -> None:
        """Wait until the fate of this controller's pods is known; the first pod need not wait."""
        if self._is_settled(controller, keys):
            return
        now_s, is_first = self._monotonic(), controller not in self._first_s
        left_s = self._first_s.setdefault(controller, now_s + SETTLED_S) - now_s
        if len(self._first_s) > _CONTROLLERS:
            del self._first_s[next(iter(self._first_s))]
        if controller in self._unsettled:
            left_s = SETTLED_S
        elif is_first:
            return
        try:
            async with asyncio.timeout(left_s):
                while not self._is_settled(controller, keys):
                    await self._changed.wait()
        except TimeoutError:
            return

    def _is_settled(self, controller: str, keys: Collection[_Key]) -> bool:
        if any(key in self._bypasses for key in keys):
            return True
        return controller not in self._unsettled and all(key in self._worked_s for key in keys)

    def _had_chips(self, pod: Pod, keys: Collection[_Key]) -> None:
        decided = read_predicate_time(pod.metadata.annotations)
        since_s = (
            (unix_seconds(pod.metadata.creation_timestamp) or 0.0)
            if decided in {None, CLAIMED}
            else (decided or 0) / 1e9
        )
        for key in keys:
            self._on_work(key, since_s)
            bypass = self._bypasses.get(key)
            if bypass is not None and since_s > bypass.refused_s:
                self._forget(key)

    def _was_refused(self, pod: Pod) -> None:
        if pod.uid in self._refused:
            return
        self._refused.add(pod.uid)
        refused_s = unix_seconds(pod.status.start_time or pod.metadata.creation_timestamp) or 0.0
        for key in _keys(pod):
            known = self._bypasses.get(key)
            # Times of the API are whole seconds.
            if refused_s < int(self._worked_s.get(key, 0.0)) or (known is not None and known.refused_s > refused_s):
                continue
            if known is None and len(self._bypasses) < _KEPT:
                log.warning(
                    "a scheduler binds pods without calling the allocator: pods of controllers that name it are denied",
                    scheduler=key[0],
                    resource=key[1],
                    pod=pod.key,
                    node=pod.spec.node_name,
                )
            elif known is None:
                continue
            if known is None:
                self._trials.fail(key)
            self._bypasses[key] = _Bypass(pod.key, pod.spec.node_name, refused_s)
            self._worked_s.pop(key, None)
            self._wake()

    def _on_work(self, key: _Key, since_s: float) -> None:
        known_s = self._worked_s.get(key)
        if known_s is None or known_s < since_s:
            self._worked_s[key] = since_s
        if known_s is None:
            self._wake()

    def _forget(self, key: _Key) -> None:
        if self._bypasses.pop(key, None) is not None:
            self._trials.forget(key)
            log.info("a scheduler calls the allocator again", scheduler=key[0], resource=key[1])
            self._wake()

    def _settle(self, pod: Pod) -> None:
        controller = _controller(pod)
        unsettled = self._unsettled.get(controller)
        if unsettled is not None:
            unsettled.discard(pod.uid)
            if not unsettled:
                del self._unsettled[controller]
                self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _keys(pod: Pod) -> set[_Key]:
    """The scheduler of a pod with each requested resource; the annotation with the chips has the resource's name."""
    scheduler, keys = pod.spec.scheduler_name, set()
    for container, _ in pod.ordered_containers:
        for quantities in (container.resources.limits, container.resources.requests):
            keys |= {(scheduler, name) for name, number in quantities.items() if number != "0" and name in _COUNTED}
    return keys


def _controller(pod: Pod) -> str:
    """The uid of the controller of a pod; empty if it has none."""
    owner = pod.metadata.controller
    return owner.uid if owner is not None else ""


def _is_refused(pod: Pod) -> bool:
    """Whether the node has refused a pod without chips written on it."""
    status = pod.status
    return status.phase == "Failed" and status.reason == _REJECTED and f"{Reason.NOT_PLACED}:" in status.message


def _refusal(pod: Pod, bypass: _Bypass, connected: Sequence[str]) -> Refusal:
    others = f", or give the pods the schedulerName of one that calls it ({some(connected)})" if connected else ""
    return Refusal(
        Reason.SCHEDULER_NOT_CONNECTED,
        f"pod {pod.key}: its scheduler {pod.spec.scheduler_name!r} has bound pod {bypass.pod} without calling the "
        f"allocator, so node {bypass.node} refused it; further pods of controllers would fail like it. Connect the "
        f"scheduler (docs/kube-scheduler.md){others}; then delete the failed pods",
    )
