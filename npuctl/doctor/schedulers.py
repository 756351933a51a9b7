"""The check of schedulers: whether the served schedulers call the allocator, as far as their pods tell.

A pod that was bound without the allocator is refused by the device plugin of its node, and stays as *Failed*.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

import msgspec

from ascend.annotations import ALLOCATED, PREDICATE_TIME
from ascend.grammar import several
from ascend.kube.objects import Pod
from ascend.printable import printable
from ascend.reasons import Category, Reason
from npuctl.doctor.finding import Finding, problem, warning
from npuctl.evaluation import VOLCANO

_REFUSED: Final = "UnexpectedAdmissionError"
"""The reason of the status of a pod whose containers the device plugin refused."""
_REASON: Final = re.compile(r"desc = (\w+):")

_ANSWERED: Final = re.compile(
    f"binding rejected: .*({'|'.join(reason for reason in Reason if reason.category is not Category.ALLOCATOR)}): "
)
"""A Binding that the allocator has refused, as those of a gang that starts later."""

_SLOW_S: Final = 120.0
"""A scheduler tries a new pod within seconds, unless thousands of others are before it."""

_CONNECT: Final = "connect it by the extender (docs/kube-scheduler.md)"


def check_schedulers(
    pods: Sequence[Pod],
    served: Collection[str],
    command_lines: Sequence[str] | None,
    now_s: float,
    others: Iterable[str] = (),
) -> Iterator[Finding]:
    """Check schedulers.

    Args:
        pods: all pods.
        served: the names of the schedulers that the allocator serves.
        command_lines: those of kube-scheduler's pods; None if they are not known.
        now_s: the time, Unix seconds.
        others: the names of schedulers of which is told elsewhere how they ask the allocator.
    """
    asking = [pod for pod in pods if pod.requests_chips]
    found = [*_check_failed(asking, served), *_check_errors(asking), *_check_untried(asking, now_s)]
    yield from found
    told = {key for finding in found for key in finding.pods}
    placed = (pod.spec.scheduler_name for pod in asking if ALLOCATED in pod.metadata.annotations or pod.key in told)
    yield from _check_unserved(asking, served, {"", *served, *others, *placed})
    if command_lines and not any("--config" in line for line in command_lines):
        yield from _check_unconfigured(asking, served)


def _check_failed(pods: Iterable[Pod], served: Collection[str]) -> Iterator[Finding]:
    """Pods that the device plugins of their nodes have refused."""
    placed_s = defaultdict[str, float](float)
    failed = defaultdict[tuple[str, str], list[Pod]](list)
    for pod in pods:
        scheduler, reason = pod.spec.scheduler_name, _refusal(pod)
        if reason is not None:
            failed[reason, scheduler if reason == Reason.NOT_PLACED else ""].append(pod)
        elif ALLOCATED in pod.metadata.annotations:
            placed_s[scheduler] = max(placed_s[scheduler], _placed_s(pod))
    for (reason, scheduler), refused in sorted(failed.items()):
        keys = tuple(pod.key for pod in refused)
        failed_there = f"{several('pod', keys)} failed at {'its node' if len(keys) == 1 else 'their nodes'}"
        delete = "delete them (kubectl delete pods -A --field-selector status.phase=Failed)"
        if reason != Reason.NOT_PLACED:
            sentence = f"{reason}: {failed_there} when the device plugin was asked for chips"
            known = next((member for member in Reason if member == reason), None)
            advice = known.cure.replace("`", "") if known is not None else delete
            yield warning(sentence, advice, reason=reason, pods=keys)
            continue
        who = f"scheduler {printable(scheduler) or '(unnamed)'}"
        if placed_s[scheduler] > max(map(_created_s, refused)):
            sentence = f"{reason}: {several('pod', keys)} failed before {who} asked the allocator, which it does now"
            yield warning(sentence, delete, reason=reason, pods=keys)
            continue
        sentence = f"{reason}: {failed_there}, because {who} did not ask the allocator"
        yield problem(sentence, f"{_advice(scheduler, served)}; then {delete}", reason=reason, pods=keys)


def _check_errors(pods: Iterable[Pod]) -> Iterator[Finding]:
    """Pods that a scheduler could not try, because the allocator did not answer it."""
    errors = defaultdict[tuple[str, str], list[str]](list)
    for pod in pods:
        if not pod.waits_for_chips:
            continue
        for condition in pod.status.conditions:
            if condition.type != "PodScheduled" or condition.status != "False" or _ANSWERED.match(condition.message):
                continue
            if condition.reason == "SchedulerError":
                errors[pod.spec.scheduler_name, printable(condition.message)].append(pod.key)
    for (scheduler, message), keys in sorted(errors.items()):
        sentence = f"scheduler {printable(scheduler)} can't schedule {several('pod', keys)}: {message}"
        advice = "check that an allocator leads (kubectl get lease), and the address and certificates of the extender"
        yield problem(sentence, advice, pods=tuple(keys))


def _check_untried(pods: Iterable[Pod], now_s: float) -> Iterator[Finding]:
    """Pods that no scheduler has tried. Volcano is silent about pods of jobs that are not admitted."""
    untried, last_s = defaultdict[str, list[Pod]](list), defaultdict[str, float](float)
    for pod in pods:
        scheduler, created_s = pod.spec.scheduler_name, _created_s(pod)
        if any(condition.type == "PodScheduled" for condition in pod.status.conditions):
            last_s[scheduler] = max(last_s[scheduler], created_s)
            continue
        waits = pod.waits_for_chips and pod.status.phase and not pod.is_terminating and not pod.spec.scheduling_gates
        if waits and 0 < created_s < now_s - _SLOW_S and scheduler != VOLCANO:
            untried[scheduler].append(pod)
    for scheduler, waiting in sorted(untried.items()):
        keys = tuple(pod.key for pod in waiting)
        sentence = f"scheduler {printable(scheduler)} has not tried {several('pod', keys)}, for {_SLOW_S:.0f} s or more"
        if last_s[scheduler] > min(map(_created_s, waiting)):
            yield warning(f"{sentence}; it tries others", "its log says more", pods=keys)
        else:
            yield problem(sentence, "check that a scheduler with this name runs, and its log", pods=keys)


def _check_unserved(pods: Iterable[Pod], served: Collection[str], known: Collection[str]) -> Iterator[Finding]:
    """Pods of schedulers that are not known to ask the allocator."""
    waiting = defaultdict[str, list[str]](list)
    for pod in pods:
        if pod.waits_for_chips and not pod.is_terminating and pod.spec.scheduler_name not in known:
            waiting[pod.spec.scheduler_name].append(pod.key)
    for scheduler, keys in sorted(waiting.items()):
        sentence = f"no scheduler {printable(scheduler)} is known to ask the allocator for {several('pod', keys)}"
        yield warning(sentence, _advice(scheduler, served), pods=tuple(keys))


def _check_unconfigured(pods: Iterable[Pod], served: Collection[str]) -> Iterator[Finding]:
    """kube-scheduler's pods have no configuration file, so no extender."""
    name = "default-scheduler"
    own = [pod for pod in pods if pod.spec.scheduler_name == name]
    if name not in served or any(ALLOCATED in pod.metadata.annotations and pod.is_live for pod in own):
        return
    if len(served) > 1 and not own:
        return  # pods with chips name another one, that of the chart for example
    sentence = "kube-scheduler runs without --config, so it does not ask the allocator: pods with chips fail"
    yield problem(sentence, f"{_CONNECT}, or take {name} out of scheduler_names")


def _refusal(pod: Pod) -> str | None:
    """The reason for which the node's device plugin has refused a pod; None without a refusal."""
    if pod.status.phase != "Failed" or pod.status.reason != _REFUSED:
        return None
    found = _REASON.search(pod.status.message)
    return found[1] if found is not None else _REFUSED


def _advice(scheduler: str, served: Collection[str]) -> str:
    name = printable(scheduler)
    if scheduler in served:
        return f"{_CONNECT}: its --config was never given, or is lost"
    return f"give the pods a schedulerName that the allocator serves ({', '.join(sorted(served))}), or serve {name}"


def _placed_s(pod: Pod) -> float:
    text = pod.metadata.annotations.get(PREDICATE_TIME, "")
    return int(text) / 1e9 if text.isascii() and text.isdecimal() and len(text) < 20 else 0.0  # noqa: PLR2004 - 64 bits


def _created_s(pod: Pod) -> float:
    stamp = pod.metadata.creation_timestamp
    return msgspec.convert(stamp, datetime).timestamp() if stamp is not None else 0.0
