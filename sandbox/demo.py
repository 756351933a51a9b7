"""``make demo``: the main job, from a pod that asks for chips to the container that has them, in one process."""

import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from allocator.app import AllocatorApp
from allocator.settings import Settings as AllocatorSettings
from ascend.annotations import ALLOCATED, REAL
from ascend.chips import NAME_PREFIX, RESOURCE, chip_set, parse_chip_name, parse_names
from ascend.deviceinfo import NAMESPACE, DeviceReport, config_map_name, decode_report
from ascend.kube import objects
from ascend.kube.objects import Pod
from ascend.observe.logs import configure_logs
from ascend.products import ASCEND_910A
from device_plugin.app import Plugin
from device_plugin.pods.container_edits import VISIBLE_DEVICES
from device_plugin.settings import Settings as PluginSettings
from npuctl.render import node_map
from npuctl.snapshot import Snapshot
from npuctl.view import node_views
from sandbox.cluster import SandboxCluster, SandboxNode, pod_manifest

PODS = {"train-a": 4, "train-b": 2, "notebook": 1, "serve": 2}
LATE_POD, LATE_CHIPS = "train-c", 4
FAILING_CHIP, FAULT_CODE = 5, "80E18402"
PATIENCE_S = 30.0


class Demo:
    """Tells the story on a console.

    Args:
        cluster: where it happens.
        settings: the allocator's.
        console: where it is told.
    """

    def __init__(self, cluster: SandboxCluster, settings: AllocatorSettings, console: Console) -> None:
        self._cluster = cluster
        self._settings = settings
        self._client = cluster.client
        self._console = console
        self._started_s = time.monotonic()

    def say(self, text: str) -> None:
        """A step, with the seconds since the start."""
        self._console.print(
            f"[dim]{time.monotonic() - self._started_s:5.1f} s[/]  {text}", highlight=False, soft_wrap=True
        )

    async def tell(self) -> None:
        """The whole story."""
        await self._until(self._nodes_offer)
        self.say(
            f"{len(self._cluster.nodes)} nodes offer 8 chips each as {RESOURCE}: both device plugins are registered"
        )
        self.say("pods are submitted: " + ", ".join(f"{name} asks for {chips}" for name, chips in PODS.items()))
        for name, chips in PODS.items():
            await self._client.create(objects.PODS, pod_manifest(name, chips), "default")
        await self._until(lambda: self._given(*PODS))
        await self._check()
        self.say("each runs with exactly the chips written on it, and none spans two rings:")
        await self._show()
        self.say("what is written on train-a:")
        self._annotations(await self._pod("train-a"))
        await self._fail_and_recover(self._cluster.nodes[-1])

    async def _fail_and_recover(self, node: SandboxNode) -> None:
        node.edit_chip(FAILING_CHIP, health="Unhealthy", fault_codes=[FAULT_CODE])
        await self._until(lambda: self._offered(node, 7))
        self.say(f"chip {FAILING_CHIP} of {node.name} fails; then {LATE_POD} asks for {LATE_CHIPS} chips")
        await self._client.create(objects.PODS, pod_manifest(LATE_POD, LATE_CHIPS), "default")
        await self._until(lambda: self._refused(LATE_POD))
        free = (await self._report(node)).free.bit_count()
        self.say(f"{free} chips are free there, enough for who only counts; but no ring has {LATE_CHIPS}, so it waits:")
        self._console.print(f"         [yellow]{_why(await self._pod(LATE_POD))}[/]", highlight=False, soft_wrap=True)
        await self._show()
        node.edit_chip(FAILING_CHIP, health="Healthy", fault_codes=[])
        self.say("the chip recovers:")
        await self._until(lambda: self._given(LATE_POD))
        await self._show()

    async def _check(self) -> None:
        """Make sure that what is told is so."""
        for node in self._cluster.nodes:
            for (pod, container), ids in node.kubelet.ledger().items():
                written = parse_names((await self._pod(pod.partition("/")[2])).metadata.annotations[ALLOCATED])
                seen = node.kubelet.container(pod, container).env[VISIBLE_DEVICES]
                chips = chip_set(written)
                if chips != chip_set(map(parse_chip_name, ids)) or seen != ",".join(map(str, written)):
                    raise RuntimeError(f"{pod} was given other chips than are written on it")
                if not any(chips & ring == chips for ring in ASCEND_910A.rings):
                    raise RuntimeError(f"{pod} spans two rings")

    async def _report(self, node: SandboxNode) -> DeviceReport:
        name = config_map_name(node.name)
        return decode_report((await self._client.get(objects.CONFIG_MAPS, name, NAMESPACE)).data)

    async def _show(self) -> None:
        snapshot = await Snapshot.fetch(self._client)
        self._console.print(node_map(node_views(snapshot, self._settings, time.time_ns())))
        table = Table(box=None, padding=(0, 2))
        for title in ("pod", "asks for", "node", "was given"):
            table.add_column(title, header_style="bold")
        for pod in sorted(snapshot.pods, key=lambda pod: pod.metadata.creation_timestamp or ""):
            asked = str(sum(container.chips for container in pod.spec.containers))
            given = pod.metadata.annotations.get(REAL, "").replace(NAME_PREFIX, "")
            table.add_row(pod.name, asked, pod.spec.node_name or "pending", given)
        self._console.print(table)

    def _annotations(self, pod: Pod) -> None:
        for key, text in sorted(pod.metadata.annotations.items()):
            self._console.print(f"         [cyan]{key}[/]: {text}", highlight=False, soft_wrap=True)

    async def _pod(self, name: str) -> Pod:
        return await self._client.get(objects.PODS, name, "default")

    async def _nodes_offer(self) -> bool:
        return all([await self._offered(node, 8) for node in self._cluster.nodes])

    async def _offered(self, node: SandboxNode, chips: int) -> bool:
        return (await self._client.get(objects.NODES, node.name)).allocatable_chips == chips

    async def _given(self, *names: str) -> bool:
        return all([REAL in (await self._pod(name)).metadata.annotations for name in names])

    async def _refused(self, name: str) -> bool:
        return bool(_why(await self._pod(name)))

    async def _until(self, check: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not await check():  # noqa: ASYNC110 - the API server has the answer, not this process
                await asyncio.sleep(0.05)


def _why(pod: Pod) -> str:
    return next((each.message for each in pod.status.conditions if each.type == "PodScheduled"), "")


@asynccontextmanager
async def _running(*plugins: Plugin) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(plugin.run(), name="device plugin") for plugin in plugins]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        if failures := [end for end in ends if isinstance(end, Exception)]:
            raise ExceptionGroup("a device plugin ended", failures)


def _plugin(node: SandboxNode, kubeconfig: Path) -> Plugin:
    settings = PluginSettings(
        node_name=node.name,
        kubeconfig=str(kubeconfig),
        device_plugin_dir=node.kubelet.socket_dir,
        injection="both",
        pod_resources_socket=node.kubelet.pod_resources_socket,
        kubelet_pods_url=node.kubelet.pods_url,
        driver="simulated",
        simulated_state=node.state_file,
        device_root=node.device_root,
        http_address="127.0.0.1:0",
        scan_period_s=0.1,
    )
    return Plugin(settings)


async def run(console: Console) -> None:
    """Build the sandbox, start both programs on it, tell the story."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aa-", ignore_cleanup_errors=True)))
        cluster = await stack.enter_async_context(SandboxCluster(folder, ("node-a", "node-b")))
        kubeconfig = cluster.write_kubeconfig("programs")
        settings = AllocatorSettings(
            kubeconfig=str(kubeconfig), extender_address="127.0.0.1:0", grpc_address="127.0.0.1:0"
        )
        demo = Demo(cluster, settings, console)
        demo.say("a sandbox cluster is up: API server, scheduler loop, two nodes with kubelets (one process, no root)")
        allocator = await stack.enter_async_context(AllocatorApp(settings))
        await allocator.synced()
        await cluster.start_scheduler(f"http://{allocator.extender_address}/scheduler")
        demo.say("the allocator answers the scheduler as its extender")
        await stack.enter_async_context(_running(*(_plugin(node, kubeconfig) for node in cluster.nodes)))
        await demo.tell()
        demo.say("done; `make cluster-up` plays the same on a real cluster")


def main() -> None:
    """Run the demo; exit status 1 with a sentence if something did not come about in time."""
    configure_logs("demo", level="ERROR", stream=sys.stderr)
    logging.captureWarnings(capture=True)
    try:
        asyncio.run(run(Console()))
    except TimeoutError:
        sys.stderr.write(f"the demo got stuck: a step took longer than {PATIENCE_S:.0f} s\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
