"""Rounds of random events on a real node with pods of whole chips; after each of them all records of chips must agree.

Four records are compared, none of them through the plugin's code: the answers in the kubelet's checkpoint, its
pod-resources API, the configuration with which the container runtime runs each container, and what is written on pods,
report and Node.
"""

import base64
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ascend.annotations import ALLOCATED, KUBELET_IDS, PREDICATE_TIME, REAL, Grant
from ascend.chips import ChipSet, chip_ids, chip_set, parse_names
from ascend.errors import InvalidValue
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from tests.cluster.api import HTTPError
from tests.cluster.errors import ClusterError
from tests.cluster.nodes import Node
from tests.conformance.clock import Clock
from tests.conformance.node import ALL, PODS, PluginNode
from tests.conformance.random_admissions import RUNTIME_CLASS

_AGREED_S: Final = 90.0
_STARTED: Final = 0.4
"""The share of the pods whose containers are started."""
_SIZES: Final = (1, 1, 1, 2, 2, 2, 4, 4, 8)
_CLOCK_STEPS_S: Final = (0, 3600, -3600, 30 * 86400, -30 * 86400)
_FORGERIES: Final[tuple[dict[str, str | None], ...]] = (
    {ALLOCATED: ",".join(f"Ascend910-{chip}" for chip in range(8))},
    {ALLOCATED: None, PREDICATE_TIME: "1"},
    {REAL: "Ascend910-0", KUBELET_IDS: "Ascend910-1"},
    {ALLOCATED: "nonsense", REAL: None, KUBELET_IDS: None},
)


class Disagreement(Exception):
    """Two records differ, or a pod was refused although nothing was disturbed."""


@dataclass(slots=True)
class _Placed:
    uid: str
    chips: ChipSet
    is_started: bool


class Soak:
    """The pods of one node, whose allocator the soak is.

    Args:
        node: the node; its plugin has the clock.
        clock: the plugin's wall clock.
        rng: makes all random choices.
    """

    def __init__(self, node: PluginNode, clock: Clock, rng: random.Random) -> None:
        self._node = node
        self._clock = clock
        self._rng = rng
        self._placed: dict[str, _Placed] = {}
        self._number = 0
        self._failed: ChipSet = 0
        self._dropped: ChipSet = 0
        self._doubtful: ChipSet = 0
        """Those that were off the bus at a start of the plugin: it can't tell since when, and keeps them for the pod
        that has them (docs/device-plugin.md#who-is-told-of-a-fault)."""
        self._may_refuse = False
        """Whether the kubelet may refuse or end pods in this round."""
        self.tally: Counter[str] = Counter()

    def run(self, rounds: int) -> None:
        """Let this many events happen, and compare all records after each of them.

        Raises:
            Disagreement: records differ.
        """
        events: dict[Callable[[], None], int] = {
            self._come: 30,
            self._go: 16,
            self._end: 4,
            self._return_under_the_same_name: 4,
            self._forge: 6,
            self._fail: 8,
            self._recover: 8,
            self._restart_plugin: 4,
            self._restart_kubelet: 4,
            self._restart_both: 2,
            self._recreate_node: 3,
            self._come_while_clock_steps: 4,
            self._come_while_plugin_dies: 4,
            self._come_while_kubelet_dies: 2,
            self._come_while_api_server_hangs: 2,
        }
        for number in range(rounds):
            (event,) = self._rng.choices(list(events), list(events.values()))
            self.tally[what := event.__name__.strip("_").replace("_", " ")] += 1
            event()
            self._agree(f"round {number}, {what}")
        for name in list(self._placed):
            self._delete(name)
        self._agree("the end")

    # Pods.

    def _come(self) -> None:
        """Pods come at once."""
        for _ in range(self._rng.randint(1, 4)):
            self._number += 1
            self._place(f"p{self._number}")

    def _place(self, name: str) -> None:
        free = ALL & ~self._failed & ~_union(placed.chips for placed in self._placed.values())
        size = self._rng.choice(_SIZES)
        if size > free.bit_count():
            return
        chips = self._rng.sample(chip_ids(free), size)
        is_started = self._rng.random() < _STARTED
        spec: dict[str, Any] = {} if is_started else {"runtimeClassName": RUNTIME_CLASS}
        created = self._node.create(name, size, **spec)
        self._placed[name] = _Placed(created["metadata"]["uid"], chip_set(chips), is_started)
        binding = self._node.binding(name)
        binding["metadata"]["annotations"] = Grant(tuple(chips), self._rng.randrange(1, 1_000_000)).annotations()
        self._node.cluster.api.request("POST", f"{PODS}/{name}/binding", binding)
        self.tally[f"pods of {size}"] += 1

    def _go(self) -> None:
        for name in self._rng.sample(list(self._placed), min(self._rng.randint(1, 3), len(self._placed))):
            self._delete(name)

    def _delete(self, name: str) -> None:
        """Delete a pod, by force or not, and wait until the kubelet has freed its chips."""
        self._begin_deleting(name, self._rng.choice((0, 1)))
        self._node.wait_until(
            lambda: not self._node.cluster.api.answers(f"{PODS}/{name}") and self._counted(name) == 0, f"{name} is gone"
        )

    def _begin_deleting(self, name: str, grace_s: int) -> None:
        self._node.cluster.api.delete(f"{PODS}/{name}", grace_s=grace_s)
        del self._placed[name]

    def _counted(self, name: str) -> ChipSet:
        return _union(ids for (pod, _), ids in self._node.ledger().items() if pod == name)

    def _return_under_the_same_name(self) -> None:
        """A pod is deleted by force, and another one has its name before the kubelet knows that."""
        if self._placed:
            self._may_refuse = True
            name = self._rng.choice(list(self._placed))
            self._begin_deleting(name, 0)
            self._place(name)

    def _end(self) -> None:
        """The process of a pod ends: the pod stays, without its chips."""
        if started := [name for name, placed in self._placed.items() if placed.is_started]:
            self._node.signal_main(name := self._rng.choice(started))
            self._node.wait_until(lambda: self._node.phase(name) in {"Succeeded", "Failed"}, f"{name} has ended")
            self._delete(name)

    def _forge(self) -> None:
        """A stranger edits the annotations of a pod."""
        if self._placed:
            name, annotations = self._rng.choice(list(self._placed)), self._rng.choice(_FORGERIES)
            self._node.cluster.api.patch(f"{PODS}/{name}", {"metadata": {"annotations": annotations}})

    # Chips.

    def _fail(self) -> None:
        """A chip fails or drops off the bus, at times while pods come."""
        if self._rng.random() < 0.3:
            self._may_refuse = True
            self._come()
        chip = self._rng.choice(chip_ids(ALL & ~self._failed) or (0,))
        self._failed |= 1 << chip
        if self._rng.random() < 0.5:
            self._node.chips.fail(chip)
        else:
            self._node.chips.drop(chip)
            self._dropped |= 1 << chip

    def _recover(self) -> None:
        for chip in chip_ids(self._failed)[: self._rng.randint(1, 8)]:
            self._node.chips.repair(chip)
            self._failed &= ~(1 << chip)
        self._dropped &= self._failed
        self._doubtful &= self._failed

    # Programs.

    def _restart_plugin(self) -> None:
        process = self._node.plugin.process
        self._rng.choice((process.kill, process.stop))()
        if self._rng.random() < 0.3:
            self._fail_unseen()
        self._doubtful |= self._dropped
        process.start()

    def _fail_unseen(self) -> None:
        """A chip drops off the bus while no plugin runs."""
        if chips := chip_ids(ALL & ~self._failed):
            chip = self._rng.choice(chips)
            self._node.chips.drop(chip)
            self._failed |= 1 << chip
            self._dropped |= 1 << chip

    def _restart_kubelet(self) -> None:
        self._may_refuse = True  # pods whose containers never started are admitted again
        self._node.restart_kubelet()

    def _restart_both(self) -> None:
        self._may_refuse = True
        self._node.node.kubelet.kill()
        self._node.plugin.process.kill()
        self._doubtful |= self._dropped
        for start in self._rng.sample((self._node.node.start_kubelet, self._node.plugin.process.start), 2):
            start()

    def _recreate_node(self) -> None:
        self._node.cluster.api.delete(f"/api/v1/nodes/{self._node.node.name}")
        self._restart_kubelet()  # a kubelet makes its Node when it starts

    def _come_while_clock_steps(self) -> None:
        self._come()
        self._pause(0.2)
        self._clock.set(self._rng.choice(_CLOCK_STEPS_S))
        self._come()

    def _come_while_plugin_dies(self) -> None:
        self._may_refuse = True
        self._come()
        self._pause(0.3)
        self._restart_plugin()

    def _come_while_kubelet_dies(self) -> None:
        self._come()
        self._pause(0.3)
        self._restart_kubelet()

    def _come_while_api_server_hangs(self) -> None:
        self._may_refuse = True
        self._come()
        with self._node.cluster.control_plane.apiserver.paused():
            self._pause(3.0)

    def _pause(self, at_most_s: float) -> None:
        time.sleep(self._rng.uniform(0, at_most_s))

    # Records.

    def _agree(self, when: str) -> None:
        """Wait until all records agree.

        Raises:
            Disagreement: they don't in time.
        """
        problems: list[str] = []

        def agree() -> bool:
            problems[:] = self._problems()
            return not problems

        with contextlib.suppress(ClusterError):
            self._node.wait_until(agree, "all records agree", _AGREED_S)
        if problems:
            log = self._node.plugin.process.log_tail()
            raise Disagreement(f"{when}: {'; '.join(problems)}; {self._placed}, failed {chip_ids(self._failed)}{log}")
        self._may_refuse = False
        self.tally["compared pods"] += len(self._placed)

    def _problems(self) -> list[str]:
        """What does not agree at present.

        Raises:
            Disagreement: a pod was refused or has ended, which nothing in this round excuses.
        """
        try:
            pods = {pod["metadata"]["uid"]: pod for pod in self._node.cluster.api.get(PODS)["items"]}
            answers, started, ledger = _answers(self._node.node), _started(self._node.node), self._node.ledger()
            report, counts = self._node.report(), self._node.counts()
            listed = {pod["metadata"]["uid"]: pod["status"]["phase"] for pod in self._node.node.pods()}
        except (HTTPError, KeyError, OSError) as error:  # the Node or the report is being made
            return [f"can't be read: {error!r}"]
        problems: list[str] = []
        taken = under_other_ids = 0
        for name, placed in list(self._placed.items()):
            pod = pods.get(placed.uid)
            if pod is None or pod["status"]["phase"] in {"Failed", "Succeeded"}:
                self._dismiss(name, pod)
                return [f"{name} has ended"]
            counted = _union(ids for (owner, _), ids in ledger.items() if owner == name)
            if (phase := listed.get(placed.uid)) != pod["status"]["phase"]:  # a rejection may be on its way
                problems.append(f"{name}: {phase} for the kubelet, {pod['status']['phase']} for the API server")
            given = answers.get(placed.uid, 0), started.get(placed.uid, 0)
            problems += [f"{name}: {problem}" for problem in _differences(pod, placed, counted, *given)]
            if taken & placed.chips:
                problems.append(f"{name}: a chip is another pod's too")
            taken |= placed.chips
            if counted != placed.chips:
                under_other_ids |= placed.chips
        uids = {placed.uid for placed in self._placed.values()}
        problems += [f"a container of pod {uid} still has chips" for uid in started.keys() - uids if started[uid]]
        problems += [f"{pod} is still counted" for pod, _ in ledger if pod not in self._placed]
        if report.free != ALL & ~taken & ~self._failed:
            problems.append(f"reported free: {report.free:#x}")
        # The kubelet is told of a chip in use that is in doubt, or counted as another one, once its pod has ended.
        untold = (taken & self._failed & (self._doubtful | under_other_ids)).bit_count()
        if counts[0] != 8 or not 0 <= counts[1] - (8 - self._failed.bit_count()) <= untold:
            problems.append(f"capacity and allocatable: {counts}")
        if not self._node.plugin.is_ready:
            problems.append(f"the plugin is not ready: {self._node.plugin.problems()}")
        return problems

    def _dismiss(self, name: str, pod: dict[str, Any] | None) -> None:
        """Delete a pod that was refused or has ended; raise Disagreement unless something in this round excuses it."""
        status = {} if pod is None else pod["status"]
        why = f"{status.get('reason')}: {status.get('message')}"
        if not self._may_refuse or pod is None:
            raise Disagreement(f"{name}: {self._placed[name]}: {why}{self._node.plugin.process.log_tail()}")
        self.tally[f"refused: {_short(why)}"] += 1
        self._delete(name)


def _differences(
    pod: dict[str, Any], placed: _Placed, counted: ChipSet, answered: ChipSet, started: ChipSet
) -> Iterator[str]:
    """What differs from the chips that were written on a pod with its Binding."""
    notes = pod["metadata"]["annotations"]
    found = {"annotation": _named(notes, ALLOCATED), "claim": _named(notes, REAL), "answer": answered}
    if placed.is_started:
        found["container"] = started
        if pod["status"]["phase"] != "Running":
            yield "it does not run yet"
    for record, chips in found.items():
        if chips != placed.chips:
            yield f"{record} {chip_ids(chips)} instead of {chip_ids(placed.chips)}"
    if counted.bit_count() != placed.chips.bit_count() or counted != _named(notes, KUBELET_IDS):
        yield f"{chip_ids(counted)} are counted, {notes}"


def _answers(node: Node) -> dict[str, ChipSet]:
    """The chips of each pod by its uid, from the answers that the kubelet keeps for the starts of its containers."""
    found: dict[str, ChipSet] = {}
    checkpoint = json.loads((node.device_plugin_dir / "kubelet_internal_checkpoint").read_text())
    for entry in checkpoint["Data"]["PodDeviceEntries"] or ():
        answer = pb.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))
        chips = chip_set(map(int, answer.envs["ASCEND_VISIBLE_DEVICES"].split(",")))
        found[entry["PodUID"]] = found.get(entry["PodUID"], 0) | chips
    return found


def _started(node: Node) -> dict[str, ChipSet]:
    """The chips of each pod by its uid, from the device nodes of the containers that its container runtime runs."""
    found: dict[str, ChipSet] = {}
    for file in (node.folder / "containerd/state/io.containerd.runtime.v2.task/k8s.io").glob("*/config.json"):
        with contextlib.suppress(OSError, json.JSONDecodeError):  # it is being made or removed
            config = json.loads(file.read_text())
            names = (Path(device["path"]).name for device in config["linux"].get("devices", ()))
            chips = chip_set(int(number) for name in names if (number := name.removeprefix("davinci")).isdigit())
            uid = config["annotations"]["io.kubernetes.cri.sandbox-uid"]
            found[uid] = found.get(uid, 0) | chips
    return found


def _named(annotations: dict[str, str], key: str) -> ChipSet:
    try:
        return chip_set(parse_names(annotations.get(key, "")))
    except InvalidValue:
        return 0  # a stranger has written it


def _union(sets: Iterable[ChipSet]) -> ChipSet:
    union = 0
    for chips in sets:
        union |= chips
    return union


def _short(why: str) -> str:
    """The reason of a refusal without what differs from pod to pod."""
    return why.rsplit("desc = ", maxsplit=1)[-1].rsplit("due to ", maxsplit=1)[-1].split(":", maxsplit=1)[0][:60]
