"""Which half of the cluster is whose: the device plugin of each node, and the program that chooses chips.

Each half of MindCluster can be replaced by itself. What works and what does not in each pairing is in
docs/mindcluster.md#by-halves.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from ascend.annotations import ALLOCATED, FENCE
from ascend.grammar import several
from ascend.kube.objects import Pod
from npuctl.doctor.details import Details
from npuctl.doctor.finding import Finding, ok, problem, warning
from npuctl.doctor.program_objects import ALLOCATOR, COMPONENT, OURS, PLUGIN, THEIR_PLUGIN, VOLCANO
from npuctl.reading.objects import ClusterObjects

PAGE: Final = "docs/mindcluster.md"
VOLCANO_PAGE: Final = "docs/volcano.md"

_VOLCANOS_NAME: Final = "volcano"

_COMMAND: Final = "device-plugin"
"""The executable of MindCluster's device plugin."""
_FOLLOWS: Final = re.compile(r"--?volcanoType(?:=(.*))?")
_SHELL_WORD: Final = re.compile(r"""&&|\|\||[;&|()\n]|(?:"[^"]*"|'[^']*'|\\.|\$\([^)]*\)|[^\s;&|()"']|["'])+""")
"""A word of a shell's script, or what ends a command; variables of Kubernetes, as in ``$(NAME)``, are words."""
_QUOTED: Final = re.compile(r"""^(["'])(.*)\1$""", re.DOTALL)
_ENDS: Final = frozenset({"&&", "||", ";", "&", "|", "(", ")", "\n"})
_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})


def check_programs(
    objects: ClusterObjects,
    npu_nodes: Iterable[str],
    details: Details,
    *,
    unserved: Collection[str] = (),
    is_asked: bool = True,
) -> Iterator[Finding]:
    """Say whose the halves are, and what follows.

    Args:
        objects: the objects of the cluster; the programs are known by the labels of their pods.
        npu_nodes: the names of the nodes with chips.
        details: what else is known of the programs.
        unserved: those of them whose kubelet offers no chips, or whose report is not renewed.
        is_asked: nothing is known of a scheduler that does not ask the allocator.
    """
    pods = [pod for pod in objects.pods if pod.is_live and pod.spec.node_name]
    ours = sorted({pod.spec.node_name for pod in pods if _is_plugin(pod)})
    theirs = sorted(nodes_of_mindclusters_plugin(pods))
    allocates = any(_has(pod, ALLOCATOR) for pod in pods)
    volcano = any(_has(pod, VOLCANO) for pod in pods) and details.chooses_by_volcano is not False
    if not (ours or theirs or allocates or volcano) and not details.is_whole:
        yield ok("whose they are is not known: none of their pods is among the objects")
        return
    plugins = [pod for pod in pods if _is_plugin(pod) or _has(pod, THEIR_PLUGIN)]
    unready = sorted({pod.spec.node_name for pod in plugins if _is_unready(pod)})
    yield from _check_plugins(ours, theirs, set(npu_nodes), unready, unserved)
    yield from _check_choosers(
        pods,
        allocates=allocates,
        volcano=volcano,
        is_sure=details.chooses_by_volcano is not None,
        is_asked=is_asked,
    )
    yield from _check_versions(details.versions)
    if allocates and theirs:
        yield from _check_their_plugin(theirs, details)
    if volcano and ours and not allocates and details.chooses_by_volcano:
        works = "whole chips, faults and rescheduling work, vNPUs that are cut beforehand only with chooseChips"
        yield ok(f"MindCluster's scheduler over this device plugin, on {several('node', ours)}", f"{works} ({PAGE})")
    if allocates and details.chooses_by_volcano is False and any(_has(pod, VOLCANO) for pod in pods):
        yield from _check_volcano(details.extender)
    if allocates:
        yield from _check_writers(details, volcano=volcano)
    for what, error in details.unread.items():
        yield warning(f"{what} can't be read: {error}", "what depends on it is not checked")


def _check_plugins(
    ours: Sequence[str],
    theirs: Sequence[str],
    npu_nodes: Collection[str],
    unready: Sequence[str],
    unserved: Collection[str],
) -> Iterator[Finding]:
    whose = {"this project's": ours, "MindCluster's": theirs}
    runs = [f"{maker} device plugin on {several('node', nodes)}" for maker, nodes in whose.items() if nodes]
    if runs:
        yield ok(", ".join(runs))
    if unready:
        advice = "pods that are bound there meanwhile can fail; its log, and npuctl doctor on the node, say why"
        yield problem(f"the device plugin is not ready on {several('node', unready)}", advice, nodes=tuple(unready))
    if both := sorted(set(ours) & set(theirs)):
        advice = f"this project's gives way; keep one of the two DaemonSets off the node ({PAGE})"
        yield problem(f"both device plugins on {several('node', both)}", advice, nodes=tuple(both))
    without = set(npu_nodes) - set(ours) - set(theirs)
    if gone := sorted(without.intersection(unserved)):
        advice = "install it there (docs/install.md); pods that run keep their chips, no new pod gets any"
        yield problem(f"no device plugin on {several('node', gone)}", advice, nodes=tuple(gone))
    if none := sorted(without.difference(unserved)):
        advice = (
            "no new pod gets chips there, unless a plugin runs that is no pod, or has other labels; while a node "
            f"changes from one plugin to the other, this is so for a moment ({PAGE})"
        )
        yield warning(f"no pod of a known device plugin on {several('node', none)}", advice, nodes=tuple(none))


def _check_versions(versions: Mapping[str, frozenset[str]]) -> Iterator[Finding]:
    """Whether the halves of this project are of one version, and each of them is."""
    known = {component: found for component, found in versions.items() if component in {"allocator", "device-plugin"}}
    if len(frozenset().union(*known.values())) > 1:
        named = "; ".join(f"{component} {', '.join(sorted(found))}" for component, found in sorted(known.items()))
        advice = "during an upgrade this is so for a moment; else finish it (docs/install.md#upgrade)"
        yield warning(f"the programs have several versions: {named}", advice)


def _check_choosers(
    pods: Sequence[Pod], *, allocates: bool, volcano: bool, is_sure: bool, is_asked: bool
) -> Iterator[Finding]:
    names = {"this project's allocator": allocates, "MindCluster's plugin of Volcano": volcano}
    choosers = [name for name, is_there in names.items() if is_there]
    if not choosers:
        advice = (
            "pods wait, or get no chips, unless the device plugin chooses them (devicePlugin.chooseChips), or a "
            "scheduler that is no pod or has other labels"
        )
        yield warning("no known program chooses chips", advice)
        return
    unsure = ", if ascend-for-volcano is in its configuration, which is not known" if volcano and not is_sure else ""
    if len(choosers) == 1:
        leads = not allocates or any(_has(pod, ALLOCATOR) and not _is_unready(pod) for pod in pods)
        if leads and is_asked:
            yield ok(f"chips are chosen by {choosers[0]}{unsure}")
        elif not leads:
            advice = "pods with chips wait until one leads; its log and /readyz say why none does"
            yield problem("no pod of the allocator is ready", advice)
        return
    mixed = _placed_by_both(pods)
    for node, (first, second) in mixed.items() if is_sure else ():
        sentence = f"node {node} has pods of both schedulers: {first} of this allocator, {second} of Volcano"
        advice = f"neither knows what the other is about to give away; keep them apart ({PAGE})"
        yield problem(sentence, advice, nodes=(node,), pods=(first, second))
    if not mixed or not is_sure:
        sentence = f"this project's allocator and Volcano both choose chips{unsure}"
        yield warning(sentence, f"keep their jobs on different nodes, or switch all nodes at once ({PAGE})")


def _placed_by_both(pods: Iterable[Pod]) -> dict[str, tuple[str, str]]:
    """The nodes with pods of both schedulers, with one of each.

    An allocator that has no leader election does not mark its pods: then those of Volcano may be anyone's.
    """
    placed = [pod for pod in pods if ALLOCATED in pod.metadata.annotations]
    are_marked = any(FENCE in pod.metadata.annotations for pod in placed)
    found = defaultdict[str, dict[bool, str]](dict)
    for pod in placed:
        is_ours = FENCE in pod.metadata.annotations or pod.spec.scheduler_name != _VOLCANOS_NAME
        if is_ours or are_marked:
            found[pod.spec.node_name].setdefault(is_ours, pod.key)
    return {node: (keys[True], keys[False]) for node, keys in sorted(found.items()) if len(keys) > 1}


def _check_their_plugin(theirs: Sequence[str], details: Details) -> Iterator[Finding]:
    ignoring = sorted(node for node, line in details.plugins.items() if node in theirs and _follows(line) is False)
    if ignoring:
        sentence = (
            f"MindCluster's device plugin ignores the chips that the allocator writes, on {several('node', ignoring)}"
        )
        yield problem(sentence, f"run it with -volcanoType=true ({PAGE})", nodes=tuple(ignoring))
    if following := sorted(set(theirs) - set(ignoring)):
        known = all(_follows(details.plugins.get(node, "")) for node in following)
        works = (
            "whole chips work" if known else "whole chips work if it runs with -volcanoType=true, which is not known"
        )
        limits = f"{works}; vNPUs and pods with chips in several containers need this project's device plugin"
        sentence = f"this allocator over MindCluster's device plugin, on {several('node', following)}"
        yield ok(sentence, f"{limits}; chips of pods that start together may be swapped ({PAGE})")


def _check_volcano(extender: Mapping[str, object] | None) -> Iterator[Finding]:
    """How Volcano, without MindCluster's plugin, asks this allocator."""
    label = "the namespaces of its jobs need the label ascend-affinity.io/bindings=webhook"
    if extender is None:
        yield ok("Volcano with the webhook alone", f"{label}; a gang can start in part ({VOLCANO_PAGE})")
        return
    yield ok("Volcano with its extender plugin", f"{label} ({VOLCANO_PAGE})")
    if str(extender.get("extender.ignorable")).lower() in {"true", "t", "1"}:
        advice = f"set extender.ignorable: false: it accepts a node otherwise ({VOLCANO_PAGE})"
        yield warning("Volcano may ignore calls of its extender plugin that fail", advice)
    if extender.get("extender.onSessionOpenVerb"):
        advice = f"leave out extender.onSessionOpenVerb ({VOLCANO_PAGE})"
        yield warning("Volcano sends its whole snapshot in each session", advice)
    for verb in ("predicate", "jobReady"):
        if extender.get(f"extender.{verb}Verb") != verb:
            advice = f"set extender.{verb}Verb: {verb} ({VOLCANO_PAGE})"
            yield warning(f"Volcano does not call {verb} of this allocator", advice)


def _check_writers(details: Details, *, volcano: bool) -> Iterator[Finding]:
    """Whether the admission policy lets MindCluster's programs write their annotations.

    Volcano writes none of them without MindCluster's plugin.
    """
    writers = dict.fromkeys(details.plugin_users, "MindCluster's device plugin")
    if volcano:
        writers |= dict.fromkeys(details.volcano_users, "Volcano's scheduler")
    for user, program in sorted(writers.items()):
        if details.policies and not any(f'"{user}"' in policy for policy in details.policies):
            advice = f"add {user} to allocator.policies.writers ({PAGE})"
            yield problem(f"the admission policy refuses what {program} writes on pods", advice)


def _follows(command_line: str) -> bool | None:
    """Whether a plugin follows the annotations of pods; None if its flags can't be told, as with variables.

    Without a command line they are in its image. As Go reads flags, those after another word count for nothing.
    """
    words = _flags(command_line)
    if words is None:
        return None
    given: list[str | None] = []
    for word in words:
        if found := _FOLLOWS.fullmatch(word):
            given.append(found[1])
        elif not word.startswith("-") or word == "--":
            break
    is_hidden = any(word.startswith("$") for word in words)
    if not given:
        return None if is_hidden else False
    value = given[-1]
    if value is None or value in _TRUE:
        return True
    return False if value in _FALSE else None


def _flags(command_line: str) -> list[str] | None:
    """The arguments of MindCluster's device plugin in a command line; None without the program.

    They may be in a script for a shell, quoted as a whole.
    """
    script = re.sub(r"(^|\s)#[^\n]*", " ", command_line.replace("\\\n", " "))
    words: list[str] = []
    for word in _SHELL_WORD.findall(script):
        quoted = _QUOTED.fullmatch(word)
        is_script = quoted is not None and _COMMAND in quoted[2].split()
        words += _SHELL_WORD.findall(quoted[2]) if quoted is not None and is_script else [word]
    plain = [word if word in _ENDS else re.sub("[\"']", "", word) for word in words]
    named = [number for number, word in enumerate(plain) if word.rpartition("/")[2] == _COMMAND]
    if not named:
        return None
    ends = (number for number, word in enumerate(plain) if number > named[-1] and word in _ENDS)
    return plain[named[-1] + 1 : next(ends, None)]


def _is_plugin(pod: Pod) -> bool:
    """Whether it is of this project's device plugin; a pool of nodes has a DaemonSet of its own."""
    labels = pod.metadata.labels
    return _has(pod, OURS) and f"{labels.get(COMPONENT, '')}-".startswith(f"{PLUGIN[COMPONENT]}-")


def _is_unready(pod: Pod) -> bool:
    """Whether its condition says so; files may have none."""
    return any(condition.type == "Ready" and condition.status != "True" for condition in pod.status.conditions)


def nodes_of_mindclusters_plugin(pods: Iterable[Pod]) -> frozenset[str]:
    """The nodes on which pods of MindCluster's device plugin run."""
    return frozenset(
        pod.spec.node_name for pod in pods if pod.is_live and pod.spec.node_name and _has(pod, THEIR_PLUGIN)
    )


def _has(pod: Pod, labels: Mapping[str, str]) -> bool:
    return labels.items() <= pod.metadata.labels.items()
