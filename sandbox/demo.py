"""``make demo``: the main flow in one process, from a pod's request for chips to the container with the chips."""

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import reduce
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from allocator.app import AllocatorApp
from allocator.settings import Settings as AllocatorSettings
from ascend.annotations import ALLOCATED, REAL
from ascend.chips import NAME_PREFIX, RESOURCE, ChipSet, chip_ids, chip_set, parse_chip_name, parse_names
from ascend.deviceinfo import NAMESPACE, DeviceReport, config_map_name, decode_report
from ascend.grammar import count
from ascend.kube import objects
from ascend.kube.objects import Pod
from ascend.observe.logs import configure_logs
from ascend.products import ASCEND_910A, PRODUCTS, Product
from ascend.rules.families import RULES
from device_plugin.app import Plugin
from device_plugin.pods.container_edits import VISIBLE_DEVICES
from device_plugin.settings import Settings as PluginSettings
from npuctl.output import make_console
from npuctl.reading.listing import list_objects
from npuctl.topo.chip_map import node_map
from npuctl.topo.nodes import node_views
from sandbox.cluster import SandboxCluster, SandboxNode, pod_manifest

LATE_POD, FAULT_CODE = "train-c", "80E18402"
STEP_TIMEOUT_S = 30.0


def pods_for(product: Product) -> dict[str, int]:
    """The pods of the demo and their chips: they fill most of one server and begin another."""
    half, quarter = product.chips // 2, product.chips // 4
    return {"train-a": half, "train-b": quarter, "notebook": 1, "serve": max(quarter, 2)}


def late_pod_for(product: Product, free: ChipSet) -> tuple[int, int]:
    """A number of chips that fits into the free ones, and a chip with whose fault it does not fit any more.

    If the links of the chips allow it, so many chips are free without that chip all the same.
    """
    place = RULES[product.family].place
    found = [
        (request, chip)
        for request in reversed(product.requests)
        if place(product, free, request) is not None
        for chip in chip_ids(free)
        if place(product, free & ~chip_set([chip]), request) is None
    ]
    return next((pair for pair in found if pair[0] < free.bit_count()), found[0])


class Demo:
    """The steps of the demo.

    Args:
        product: the product of the nodes.
        cluster: the cluster.
        settings: the allocator's settings.
        console: where the demo prints.
    """

    def __init__(
        self, product: Product, cluster: SandboxCluster, settings: AllocatorSettings, console: Console
    ) -> None:
        self._product = product
        self._pods = pods_for(product)
        self._cluster = cluster
        self._settings = settings
        self._client = cluster.client
        self._console = console
        self._started_s = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line with the seconds since the start."""
        self._print((f"{time.monotonic() - self._started_s:5.1f} s", "dim"), f"  {text}")

    async def run(self) -> None:
        """Run all steps."""
        product = self._product
        await self._until(self._all_allocatable)
        servers = f"{product.name} servers ({product.chips} chips, {product.family})"
        self.say(f"both device plugins are registered: each of 2 {servers} has {product.chips} allocatable {RESOURCE}")
        self.say("pods are created: " + ", ".join(f"{name} requests {chips}" for name, chips in self._pods.items()))
        for name, chips in self._pods.items():
            await self._client.create(objects.PODS, pod_manifest(name, chips), "default")
        await self._until(lambda: self._have_chips(*self._pods))
        await self._check()
        self.say("all pods run, each with exactly the chips in its annotation:")
        await self._show()
        self.say("the annotations of train-a:")
        self._show_annotations(await self._pod("train-a"))
        node = max(self._cluster.nodes, key=lambda node: self._free(node).bit_count())
        await self._fail_and_recover(node, *late_pod_for(product, self._free(node)))

    async def _fail_and_recover(self, node: SandboxNode, request: int, chip: int) -> None:
        node.edit_chip(chip, health="Unhealthy", fault_codes=[FAULT_CODE])
        await self._until(lambda: self._is_allocatable(node, self._product.chips - 1))
        self.say(f"chip {chip} of {node.name} fails; then {LATE_POD} requests {request} chips")
        await self._client.create(objects.PODS, pod_manifest(LATE_POD, request), "default")
        await self._until(lambda: self._is_unschedulable(LATE_POD))
        free = (await self._report(node)).free.bit_count()
        counted = ", enough for a scheduler that only counts" if free >= request else ""
        self.say(f"{node.name} has {count(free, 'free chip')}{counted}; but {LATE_POD} stays pending:")
        self._print("         ", (_unschedulable_message(await self._pod(LATE_POD)), "yellow"))
        await self._show()
        node.edit_chip(chip, health="Healthy", fault_codes=[])
        self.say(f"chip {chip} of {node.name} recovers")
        await self._until(lambda: self._have_chips(LATE_POD))
        self.say(f"{LATE_POD} runs:")
        await self._show()

    async def _check(self) -> None:
        """Check the claims that the demo prints.

        Raises:
            RuntimeError: A pod has other chips than its annotation, or chips that are not linked as they must be.
        """
        for node in self._cluster.nodes:
            for (pod, container), ids in node.kubelet.ledger().items():
                allocated = parse_names((await self._pod(pod.partition("/")[2])).metadata.annotations[ALLOCATED])
                visible = node.kubelet.container(pod, container).env[VISIBLE_DEVICES]
                chips = chip_set(allocated)
                if chips != chip_set(map(parse_chip_name, ids)) or visible != ",".join(map(str, allocated)):
                    raise RuntimeError(f"pod {pod} has other chips than its annotation {ALLOCATED}")
                if RULES[self._product.family].place(self._product, chips, len(allocated)) is None:
                    raise RuntimeError(f"pod {pod} has chips that are not linked with each other")

    def _free(self, node: SandboxNode) -> ChipSet:
        """The chips that no container has; the report of the node follows later."""
        held = (chip_set(map(parse_chip_name, ids)) for ids in node.kubelet.ledger().values())
        return reduce(lambda free, chips: free & ~chips, held, self._product.all_chips)

    async def _report(self, node: SandboxNode) -> DeviceReport:
        name = config_map_name(node.name)
        return decode_report((await self._client.get(objects.CONFIG_MAPS, name, NAMESPACE)).data)

    async def _show(self) -> None:
        snapshot = await list_objects(self._client)
        self._console.print(node_map(node_views(snapshot, self._settings, time.time_ns())))
        table = Table(box=None, padding=(0, 2))
        for title in ("pod", "requests", "node", "chips"):
            table.add_column(title, header_style="bold")
        for pod in sorted(snapshot.pods, key=lambda pod: pod.metadata.creation_timestamp or ""):
            requested = str(sum(container.chips for container in pod.spec.containers))
            chips = pod.metadata.annotations.get(REAL, "").replace(NAME_PREFIX, "")
            table.add_row(pod.name, requested, pod.spec.node_name or "pending", chips)
        self._console.print(table)

    def _show_annotations(self, pod: Pod) -> None:
        for key, text in sorted(pod.metadata.annotations.items()):
            self._print("         ", (key, "cyan"), f": {text}")

    def _print(self, *parts: str | tuple[str, str]) -> None:
        """Print a line of parts, each of which may have a style."""
        self._console.print(Text.assemble(*parts), soft_wrap=True)

    async def _pod(self, name: str) -> Pod:
        return await self._client.get(objects.PODS, name, "default")

    async def _all_allocatable(self) -> bool:
        return all([await self._is_allocatable(node, self._product.chips) for node in self._cluster.nodes])

    async def _is_allocatable(self, node: SandboxNode, chips: int) -> bool:
        return (await self._client.get(objects.NODES, node.name)).allocatable_chips == chips

    async def _have_chips(self, *names: str) -> bool:
        return all([REAL in (await self._pod(name)).metadata.annotations for name in names])

    async def _is_unschedulable(self, name: str) -> bool:
        return bool(_unschedulable_message(await self._pod(name)))

    async def _until(self, check: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(STEP_TIMEOUT_S):
            while not await check():  # noqa: ASYNC110 - the condition is in the API server, not in this process
                await asyncio.sleep(0.05)


def _unschedulable_message(pod: Pod) -> str:
    return next((condition.message for condition in pod.status.conditions if condition.type == "PodScheduled"), "")


@asynccontextmanager
async def _running(*plugins: Plugin) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(plugin.run(), name="device plugin") for plugin in plugins]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        if failures := [outcome for outcome in outcomes if isinstance(outcome, Exception)]:
            raise ExceptionGroup("a device plugin failed", failures)


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


async def run(product: Product) -> None:
    """Start a cluster of servers of a product, and both programs, and run the demo.

    Raises:
        TimeoutError: A step did not finish in time.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aa-", ignore_cleanup_errors=True)))
        cluster = await stack.enter_async_context(SandboxCluster(folder, ("node-a", "node-b"), product=product))
        kubeconfig = cluster.write_kubeconfig("programs")
        settings = AllocatorSettings(
            kubeconfig=str(kubeconfig), extender_address="127.0.0.1:0", grpc_address="127.0.0.1:0"
        )
        demo = Demo(product, cluster, settings, make_console())
        demo.say("a cluster runs in this process: API server, scheduler, two nodes with kubelets; no root is needed")
        allocator = await stack.enter_async_context(AllocatorApp(settings))
        await allocator.wait_until_synced()
        await cluster.start_scheduler(f"http://{allocator.extender_address}/scheduler")
        demo.say("the scheduler uses the allocator as its extender")
        await stack.enter_async_context(_running(*(_plugin(node, kubeconfig) for node in cluster.nodes)))
        await demo.run()
        demo.say("done; `make cluster-up` starts both programs on a real cluster")


def main() -> None:
    """Run the demo; exit with status 1 and a message if a step does not finish in time."""
    parser = argparse.ArgumentParser("sandbox.demo", description=__doc__)
    parser.add_argument("--version", action="version", version=f"sandbox.demo {version('ascend-affinity-sandbox')}")
    parser.add_argument(
        "product", nargs="?", default=ASCEND_910A.name, choices=PRODUCTS, help="the product of the nodes"
    )
    product = PRODUCTS[parser.parse_args().product]
    configure_logs("demo", level="ERROR", stream=sys.stderr)
    logging.captureWarnings(capture=True)
    try:
        asyncio.run(run(product))
    except TimeoutError:
        sys.stderr.write(f"the demo failed: a step did not finish within {STEP_TIMEOUT_S:.0f} s\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
