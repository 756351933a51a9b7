"""Carries out ``npuctl topo``."""

from collections.abc import Collection

from ascend.errors import InvalidValue
from npuctl.output import Output, show
from npuctl.reading.source import Source
from npuctl.topo.chip_map import node_map
from npuctl.topo.nodes import node_views


async def run_topo(nodes: Collection[str], source: Source, output: Output) -> int:
    """Print the nodes of a cluster.

    Args:
        nodes: the names of the nodes to show; all if empty.
        source: where the objects come from.
        output: how to print.

    Raises:
        InvalidValue: one of the names is not an NPU node, or the input is invalid.
    """
    views = node_views(await source.read(), source.settings, source.now_ns)
    if missing := set(nodes) - {view.node for view in views}:
        raise InvalidValue(f"not an NPU node: {', '.join(sorted(missing))}")
    shown = [view for view in views if not nodes or view.node in nodes]
    show({"nodes": shown}, output, lambda: node_map(shown))
    return 0
