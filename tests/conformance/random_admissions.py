"""Random pods on a real node, many at a time: they come, are rejected, end and are deleted at every moment."""

import asyncio
import base64
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ascend.annotations import ALLOCATED, CLAIMED, KUBELET_IDS, PREDICATE_TIME, REAL, Grant
from ascend.chips import RESOURCE, ChipSet, chip_ids, chip_set
from ascend.kube.client import KubeClient
from ascend.kube.objects import PODS, Pod
from ascend.kube.reflector import Reflector
from ascend.slices import ContainerRequest, effective_request
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from tests.cluster.cluster import Cluster
from tests.cluster.images import BUSYBOX_IMAGE
from tests.cluster.manifests import STAY
from tests.cluster.nodes import Node
from tests.conformance.wire import list_ledger, pod_resources
from tests.device_plugin.test_races import CROWDED, SIMPLE
from tests.device_plugin.whole import asking, written

RUNTIME_CLASS: Final = "never-started"
"""The kubelet admits pods of this class and allocates their chips; then no container of theirs can be created."""

_CLASSES: Final = "/apis/node.k8s.io/v1/runtimeclasses"
_PATIENCE_S: Final = 60.0
_PERIOD_S: Final = 0.015
"""Between two readings of the kubelet's ledger, which answers 100 times a second at most."""
_DELETED_AFTER_S: Final = (0.0, 0.005, 0.02, 0.1, 0.5)
"""After its creation, at most: before its admission, during that, after that."""
_KEPT_S: Final = (0.0, 0.0, 0.0, 0.0, 0.3, 2.0)
"""How long a pod stays after its records are compared, at most."""
_ALL: Final = 0xFF
_KINDS: Final = {"plain": 60, "deleted": 24, "forbidden": 10, "too large": 3, "rash": 3}
"""With their weights: pods that must run; those deleted at a random moment; those that the kubelet rejects before it
calls the plugin; those that it rejects after that; those whose chips the kubelet may still count for a deleted pod."""
_STARTED: Final = 0.08
"""The share of the pods whose containers are started."""
_UID: Final = "io.kubernetes.cri.sandbox-uid"
_NAME: Final = "io.kubernetes.cri.container-name"
_REJECTED: Final = {"forbidden": "SysctlForbidden", "too large": "OutOfcpu"}


def make_runtime_class(cluster: Cluster) -> None:
    """Make the class, unless the cluster has it."""
    if not cluster.api.answers(f"{_CLASSES}/{RUNTIME_CLASS}"):
        cluster.api.request("POST", _CLASSES, {"metadata": {"name": RUNTIME_CLASS}, "handler": RUNTIME_CLASS})


class Disagreement(Exception):
    """Two records of a pod's chips differ."""


@dataclass(slots=True)
class Tally:
    """What happened.

    Attributes:
        pods: how many pods came, by their kind.
        agreed: admitted pods whose records were compared.
        looked_into: containers of these that were created.
        under_other_ids: how many of these have chips under other ids in the kubelet's ledger, as their annotation says.
        refused: pods of kinds that can be refused, by the reason.
    """

    pods: Counter[str] = field(default_factory=Counter)
    agreed: int = 0
    looked_into: int = 0
    under_other_ids: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"{self.pods.total():,} pods {dict(self.pods)}; {self.agreed:,} compared, with {self.looked_into:,} "
            f"containers; {self.under_other_ids} under other ids; refused: {dict(self.refused)}"
        )


@dataclass(slots=True)
class _Placed:
    kind: str
    chips: tuple[int, ...]
    asks: tuple[ContainerRequest, ...]
    starts: bool
    since_s: float
    uid: str = ""
    keep_until_s: float = 0.0
    seen: bool = False
    leaving: asyncio.Task[int] | None = None

    @property
    def kept(self) -> list[ContainerRequest]:
        return [ask for ask in self.asks if ask.keeps]


class Admissions:
    """The pods of one node, whose allocator the test is.

    Args:
        node: the node.
        client: the API server.
        rng: makes all random choices.
    """

    def __init__(self, node: Node, client: KubeClient, rng: random.Random) -> None:
        self._node = node
        self._client = client
        self._rng = rng
        self._watch = Reflector(client, PODS, field_selector=f"spec.nodeName={node.name}")
        self._placed: dict[str, _Placed] = {}
        self.tally = Tally()

    async def run(self, count: int) -> None:
        """Let this many pods come and go.

        Raises:
            Disagreement: two records of a pod's chips differ, or a pod was refused that must run.
        """
        watching = asyncio.create_task(self._watch.run())
        try:
            await self._watch.synced.wait()
            with pod_resources(self._node.pod_resources_socket) as stub:
                while self.tally.pods.total() < count or self._placed:
                    ledger = await asyncio.to_thread(list_ledger, stub)
                    self._look(ledger)
                    if self.tally.pods.total() < count:
                        await self._fill(chip_set(chip for held in ledger.values() for chip in chip_ids(held)))
                    await asyncio.sleep(_PERIOD_S)
        finally:
            watching.cancel()
            leaving = (placed.leaving for placed in self._placed.values() if placed.leaving is not None)
            await asyncio.gather(watching, *leaving, return_exceptions=True)

    async def _fill(self, counted: ChipSet) -> None:
        """Let pods come at once for the chips that are free, and for the kubelet too, unless a pod is rash."""
        free = _ALL & ~chip_set(chip for placed in self._placed.values() for chip in placed.chips)
        coming = []
        while free and self._rng.random() < 0.9:
            (kind,) = self._rng.choices(list(_KINDS), list(_KINDS.values()))
            usable = chip_ids(free if kind == "rash" else free & ~counted)
            asks = asking(self._rng.choice(self._rng.choice((SIMPLE, CROWDED))))
            if (size := effective_request(asks)) > len(usable):
                break
            chips = tuple(self._rng.sample(usable, size))
            free &= ~chip_set(chips)
            coming.append(self._come(kind, chips, asks))
        await asyncio.gather(*coming)

    async def _come(self, kind: str, chips: tuple[int, ...], asks: tuple[ContainerRequest, ...]) -> None:
        name = f"p{self.tally.pods.total()}"
        self.tally.pods[kind] += 1
        placed = _Placed(kind, chips, asks, self._rng.random() < _STARTED, time.monotonic())
        self._placed[name] = placed
        grant = Grant(chips, self._rng.randrange(1, 1_000_000)).annotations()
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "annotations": grant},
            "spec": {"nodeName": self._node.name, **_spec(asks)},
        }
        spec: dict[str, Any] = body["spec"]  # type: ignore[assignment]  # the spec is an object
        if not placed.starts:
            spec["runtimeClassName"] = RUNTIME_CLASS
        if kind == "forbidden":
            spec["securityContext"] = {"sysctls": [{"name": "kernel.msgmax", "value": "65536"}]}
        if kind == "too large":
            spec["containers"][-1].setdefault("resources", {}).setdefault("limits", {})["cpu"] = "1000"
        placed.uid = (await self._client.create(PODS, body, "default")).uid
        if kind == "deleted":
            self._delete(name, placed, after_s=self._rng.choice(_DELETED_AFTER_S) * self._rng.random())

    def _delete(self, name: str, placed: _Placed, after_s: float = 0.0) -> None:
        async def delete() -> int:
            await asyncio.sleep(after_s)
            grace_s = self._rng.choice((0, 0, 0, 0, 0, 0, 0, 5))
            body = {"gracePeriodSeconds": grace_s, "preconditions": {"uid": placed.uid}}
            await self._client.request("DELETE", PODS.path(namespace="default", name=name), body=body)
            return grace_s

        placed.leaving = asyncio.create_task(delete())

    def _look(self, ledger: dict[tuple[str, str], ChipSet]) -> None:
        """Compare the records of the pods that are settled; delete some."""
        now_s = time.monotonic()
        answers = None
        for name, placed in list(self._placed.items()):
            pod = self._watch.objects.get(f"default/{name}")
            placed.seen = placed.seen or pod is not None
            if placed.leaving is not None:
                if placed.leaving.done() and pod is None and (placed.seen or placed.leaving.result() == 0):
                    del self._placed[name]
            elif pod is not None and pod.status.phase == "Failed":
                self._judge(pod, placed)
                self._delete(name, placed)
            elif pod is not None and placed.kind not in _REJECTED and _is_settled(pod, placed, ledger):
                if not placed.keep_until_s:
                    answers = answers or _answers(self._node.device_plugin_dir)
                    self._compare(pod, placed, ledger, answers)
                    placed.keep_until_s = now_s + self._rng.choice(_KEPT_S) * self._rng.random()
                if now_s >= placed.keep_until_s:
                    self._delete(name, placed)
            elif now_s - placed.since_s > _PATIENCE_S:
                raise Disagreement(f"{name} ({placed}) is not settled: {pod}; {ledger}")

    def _judge(self, pod: Pod, placed: _Placed) -> None:
        """Check that a pod was rejected for a reason that is none of the plugin's."""
        reason = f"{pod.status.reason}: {pod.status.message}"
        if placed.kind == "plain" or not reason.startswith(_REJECTED.get(placed.kind, "")):
            raise Disagreement(f"{pod.name} ({placed}) was refused: {reason}")
        self.tally.refused[f"{placed.kind}: {pod.status.reason}"] += 1

    def _compare(
        self,
        pod: Pod,
        placed: _Placed,
        ledger: dict[tuple[str, str], ChipSet],
        answers: dict[tuple[str, str], tuple[int, ...]],
    ) -> None:
        """Compare annotation, claim, the kubelet's ledger, the answer it keeps, and the containers."""
        notes = pod.metadata.annotations
        counted, has = 0, 0
        for ask in placed.kept:
            held, given = ledger[pod.name, ask.container], answers[pod.uid, ask.container]
            seen = [given, *([self._visible(pod, ask.container)] if placed.starts else [])]
            if len(set(seen)) > 1 or len(given) != ask.count or held.bit_count() != ask.count:
                raise Disagreement(f"{pod.name} {ask}: answered and visible {seen}, counted {chip_ids(held)}")
            if chip_set(given) & has:
                raise Disagreement(f"{pod.name} {ask}: {given} are another container's too")
            counted, has = counted | held, has | chip_set(given)
            self.tally.looked_into += placed.starts
        same = counted == has
        expected = {ALLOCATED: chip_set(placed.chips), REAL: chip_set(placed.chips)}
        if same:
            expected[KUBELET_IDS] = chip_set(placed.chips)
        wrong = {key: notes.get(key) for key, chips in expected.items() if written(pod, key) != chips}
        if wrong or has & ~chip_set(placed.chips) or counted & ~written(pod, KUBELET_IDS):
            raise Disagreement(
                f"{pod.name} ({placed}): {dict(notes)}, it has {chip_ids(has)}, {chip_ids(counted)} counted"
            )
        if notes[PREDICATE_TIME] != str(CLAIMED):
            raise Disagreement(f"{pod.name} is not claimed: {dict(notes)}")
        self.tally.agreed += 1
        self.tally.under_other_ids += not same

    def _visible(self, pod: Pod, container: str) -> tuple[int, ...]:
        """The chips in the environment of a container, as its runtime was told."""
        bundles = self._node.folder / "containerd/state/io.containerd.runtime.v2.task/k8s.io"
        for file in bundles.glob("*/config.json"):
            try:
                config = json.loads(file.read_text())
            except OSError:
                continue  # removed meanwhile
            names = config.get("annotations", {})
            if names.get(_UID) == pod.uid and names.get(_NAME) == container:
                env = dict(line.split("=", 1) for line in config["process"]["env"])
                return tuple(map(int, env["ASCEND_VISIBLE_DEVICES"].split(",")))
        raise Disagreement(f"{pod.name} has no container {container}")


def _is_settled(pod: Pod, placed: _Placed, ledger: dict[tuple[str, str], ChipSet]) -> bool:
    if REAL not in pod.metadata.annotations or any((pod.name, ask.container) not in ledger for ask in placed.kept):
        return False
    return pod.status.phase == "Running" if placed.starts else bool(pod.status.container_statuses)


def _answers(folder: Path) -> dict[tuple[str, str], tuple[int, ...]]:
    """The chips of each container by (uid, container), from the answers of Allocate that the kubelet keeps."""
    entries = json.loads((folder / "kubelet_internal_checkpoint").read_text())["Data"]["PodDeviceEntries"] or ()
    found = {}
    for entry in entries:
        answer = pb.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))
        found[entry["PodUID"], entry["ContainerName"]] = tuple(
            map(int, answer.envs["ASCEND_VISIBLE_DEVICES"].split(","))
        )
    return found


def _spec(asks: Sequence[ContainerRequest]) -> dict[str, Any]:
    def container(ask: ContainerRequest) -> dict[str, Any]:
        return {
            "name": ask.container,
            "image": BUSYBOX_IMAGE,
            "imagePullPolicy": "Never",
            "command": ["true"] if ask.kind == "init" else ["sh", "-c", STAY],
            "resources": {"limits": {RESOURCE: str(ask.count)}},
            **({"restartPolicy": "Always"} if ask.kind == "sidecar" else {}),
        }

    idle = {"name": "idle", "image": BUSYBOX_IMAGE, "imagePullPolicy": "Never", "command": ["sh", "-c", STAY]}
    return {
        "hostNetwork": True,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "restartPolicy": "Never",
        "initContainers": [container(ask) for ask in asks if ask.kind != "app"],
        "containers": [container(ask) for ask in asks if ask.kind == "app"] or [idle],
    }
