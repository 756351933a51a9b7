"""A sandbox node with the plugin as a process; pods are created on it, and all records of their chips are compared.

Pods are created bound and with their chips in the annotations, as after an allocator's Binding but without its HTTP
requests, so that a soak spends its time on admissions.
"""

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ascend.annotations import ALLOCATED, CLAIMED, KUBELET_IDS, PREDICATE_TIME, REAL, Grant
from ascend.chips import RESOURCE, ChipSet, chip_ids, chip_set, parse_chip_name, parse_names
from ascend.daemon.observable import Observable, wait_until
from ascend.kube.objects import PODS, Pod
from ascend.kube.reflector import Reflector
from sandbox.cluster import SandboxCluster, SandboxNode, pod_manifest
from sandbox.kubelet import RuntimeContainer
from tests.soak.plugin_process import PluginProcess

NODE = "n1"
ALL: ChipSet = 0xFF
PATIENCE_S = 90.0


class Mismatch(Exception):
    """A violated invariant."""


class Lane:
    """A node and its pods.

    Args:
        cluster: the sandbox of the node.
        plugin: its device plugin.
        rng: makes all random choices.

    Attributes:
        granted: the chips in each pod's annotations, by pod name.
    """

    def __init__(self, cluster: SandboxCluster, plugin: PluginProcess, rng: random.Random) -> None:
        self.cluster = cluster
        self.plugin = plugin
        self.rng = rng
        self.granted: dict[str, tuple[int, ...]] = {}
        self.changes: Observable[None] = Observable(None)
        self.watch = Reflector(cluster.client, PODS, self)
        self._last: dict[str, Pod] = {}
        self._log_read = self._unanswered = 0

    # The reflector's handler.

    def on_apply(self, obj: Pod) -> None:
        self._last[obj.name] = obj
        self.changes.set(None)

    def on_delete(self, obj: Pod) -> None:
        if (known := self._last.get(obj.name)) is not None and known.uid == obj.uid:
            del self._last[obj.name]
        self.changes.set(None)

    @property
    def node(self) -> SandboxNode:
        return self.cluster.nodes[0]

    @property
    def free(self) -> ChipSet:
        """The chips that no pod's annotations name."""
        return ALL & ~chip_set(chip for chips in self.granted.values() for chip in chips)

    def find(self, name: str) -> Pod | None:
        return self._last.get(name)

    async def until(self, condition: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait for a condition on pods.

        Raises:
            Mismatch: it did not hold in time.
        """
        if not await wait_until(lambda: bool(condition()), (self.changes,), timeout_s):
            raise Mismatch(f"not within {timeout_s:.0f} s: {what}")

    async def place(self, name: str, chips: tuple[int, ...], *, grace_s: int = 0) -> None:
        """Create a pod as it is after its Binding, with a random decision time."""
        self.granted[name] = chips
        body = pod_manifest(name, len(chips), nodeName=NODE, terminationGracePeriodSeconds=grace_s)
        body["metadata"]["annotations"] = Grant(chips, self.rng.randrange(1, 1_000_000)).annotations()
        await self.cluster.server.create(body)

    async def delete(self, *names: str) -> None:
        """Delete pods and wait until they are gone; their chips can then be granted to others."""
        for name in names:
            await self.cluster.client.delete(PODS, name, "default")
        for name in names:
            await self.until(lambda name=name: self.find(name) is None, f"pod {name} is gone")  # type: ignore[misc]  # bound
            del self.granted[name]

    async def settled(self, name: str) -> Pod:
        """Wait until a pod runs with its claim or was refused; return it.

        Raises:
            Mismatch: neither happened in time.
        """

        def is_settled() -> bool:
            pod = self.find(name)
            if pod is None:
                return False
            return pod.status.phase == "Failed" or (pod.status.phase == "Running" and REAL in pod.metadata.annotations)

        await self.until(is_settled, f"pod {name} runs with its claim, or is refused: {self.describe(name)}")
        pod = self.find(name)
        assert pod is not None
        return pod

    def describe(self, name: str) -> str:
        """A pod in one line, for errors."""
        pod = self.find(name)
        if pod is None:
            return f"{name} does not exist"
        return f"{name} {pod.uid} {pod.status.phase} {pod.status.message} {dict(pod.metadata.annotations)}"

    def container(self, pod: Pod) -> RuntimeContainer | None:
        """The pod's container if it runs."""
        runtime = self.node.kubelet._runtime
        return runtime.find(pod.uid, "main") if runtime.is_running(pod.uid, "main") else None

    def ledger(self, pod: Pod) -> ChipSet:
        """The pod's chips in the kubelet's ledger."""
        held = self.node.kubelet._running.ledger.of_container(pod.uid, "main")
        return chip_set(parse_chip_name(each) for allocation in held for each in allocation.ids)

    def check(self, pod: Pod) -> None:
        """Check that annotation, kubelet's ledger, Allocate's answer and claim have the same chips.

        Raises:
            Mismatch: they differ.
        """
        notes = pod.metadata.annotations
        container = self.container(pod)
        records = {
            ALLOCATED: chip_set(self.granted[pod.name]),
            "the annotation": chip_set(parse_names(notes[ALLOCATED])),
            REAL: chip_set(parse_names(notes[REAL])),
            KUBELET_IDS: chip_set(parse_names(notes[KUBELET_IDS])),
            "the kubelet's ledger": self.ledger(pod),
            "the answer": chip_set(visible(container)),
        }
        if len(set(records.values())) > 1 or notes[PREDICATE_TIME] != str(CLAIMED):
            text = ", ".join(f"{record} {chip_ids(chips)}" for record, chips in records.items())
            raise Mismatch(f"pod {pod.name}: {text}; {notes}")
        if visible(container) != self.granted[pod.name]:
            raise Mismatch(
                f"pod {pod.name}: the order of its chips is {visible(container)}, not {self.granted[pod.name]}"
            )

    def has_true_claim(self, pod: Pod) -> bool:
        """Whether the claim has the chips of the container and of the kubelet's ledger, granted or not."""
        notes, container = pod.metadata.annotations, self.container(pod)
        return (
            chip_set(parse_names(notes[REAL])) == chip_set(visible(container))
            and chip_set(parse_names(notes[KUBELET_IDS])) == self.ledger(pod)
            and notes[PREDICATE_TIME] == str(CLAIMED)
        )

    def check_nothing_is_held_twice(self) -> None:
        """Check that no chip is in running containers of two pods.

        Raises:
            Mismatch: one is.
        """
        seen: dict[int, str] = {}
        for pod in self._last.values():
            if (container := self.container(pod)) is not None:
                for chip in visible(container):
                    if (other := seen.setdefault(chip, pod.name)) != pod.name:
                        raise Mismatch(f"chip {chip} is in the containers of {other} and {pod.name}")

    @property
    def unanswered(self) -> int:
        """The number of times the plugins could not list the kubelet's pods, from their log."""
        with self.plugin.log.open("rb") as log:
            log.seek(self._log_read)
            for line in log:
                self._unanswered += b"can't ask the kubelet which pod it admits" in line
                self._log_read += len(line)
        return self._unanswered

    @property
    def registered(self) -> bool:
        """Whether the kubelet has a live plugin with all chips."""
        kubelet = self.node.kubelet
        return kubelet.devices(RESOURCE) == {f"Ascend910-{chip}": "Healthy" for chip in range(8)}

    async def until_unregistered(self) -> None:
        """Wait until the kubelet has noticed the end of a killed plugin; it may receive a last list before."""
        await asyncio.gather(*self.node.kubelet._running.plugins._streams, return_exceptions=True)
        await self.node.kubelet.until(lambda: not self.registered)

    async def restart_kubelet(self) -> None:
        """Restart the kubelet; half the time it admits the pods it finds only after the plugin has registered."""
        if self.rng.random() < 0.5:
            self.node.kubelet.hold_admission()
        await self.node.kubelet.restart()

    async def until_registered(self) -> None:
        """Wait until the kubelet has the plugin's chips, the Node offers them, and the pods it found are admitted.

        A restarted kubelet frees the chips of ended pods only after that (docs/spec/kubelet.md#freed-devices).

        Raises:
            Mismatch: not in time.
        """
        kubelet = self.node.kubelet
        try:
            await kubelet.until(lambda: self.registered and kubelet.allocatable(RESOURCE) == 8, PATIENCE_S)
            kubelet.release_admission()
            await kubelet.until(lambda: kubelet.is_synced, PATIENCE_S)
        except TimeoutError:
            what = "admitted the pods it found" if self.registered else "registered the plugin"
            raise Mismatch(f"the kubelet has not {what} again within {PATIENCE_S:.0f} s") from None


def visible(container: RuntimeContainer | None) -> tuple[int, ...]:
    """Return the chips of a container in order; empty without a container."""
    return () if container is None else tuple(map(int, container.env["ASCEND_VISIBLE_DEVICES"].split(",")))


@asynccontextmanager
async def lane(seed: int, log: Path, **settings: Any) -> AsyncIterator[Lane]:
    """A node whose plugin is registered."""
    with tempfile.TemporaryDirectory(prefix="soak-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        async with SandboxCluster(Path(folder), (NODE,), seed=seed) as cluster:
            node = cluster.nodes[0]
            fields = {
                "node_name": NODE,
                "kubeconfig": str(cluster.write_kubeconfig("plugin")),
                "device_plugin_dir": node.kubelet.socket_dir,
                "pod_resources_socket": node.kubelet.pod_resources_socket,
                "kubelet_pods_url": node.kubelet.pods_url,
                "driver": "simulated",
                "simulated_state": node.state_file,
                "injection": "both",
                "device_root": node.device_root,
                "http_address": "127.0.0.1:0",
                **settings,
            }
            made = Lane(cluster, PluginProcess(fields, log), random.Random(seed))
            watching = asyncio.create_task(made.watch.run())
            try:
                await made.plugin.start()
                await made.watch.synced.wait()
                await made.until_registered()
                yield made
            finally:
                await made.plugin.kill()
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
