"""The commands ``npuctl`` and ``kubectl npu``."""

import asyncio
import logging
import sys
from enum import StrEnum
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from ascend.deviceinfo import NAMESPACE
from ascend.errors import AscendError
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, NODES, PODS
from npuctl.render import node_map
from npuctl.view import NodeView, node_views

app = typer.Typer(
    help="Look at the Ascend NPUs of a cluster.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class Output(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    JSON = "json"


@app.callback()
def _npuctl() -> None:
    """Look at the Ascend NPUs of a cluster."""


@app.command()
def topo(
    nodes: Annotated[list[str] | None, typer.Argument(help="Only these nodes.", show_default=False)] = None,
    output: Annotated[Output, typer.Option("-o", "--output", help="How to print.")] = Output.TABLE,
    kubeconfig: Annotated[str | None, typer.Option(help="Which kubeconfig file.", show_default="$KUBECONFIG")] = None,
    context: Annotated[str | None, typer.Option(help="Which of its contexts.", show_default="current")] = None,
) -> None:
    """Show nodes, rings and chips: who holds what, and what is unhealthy."""
    views = asyncio.run(_read(kubeconfig, context))
    if nodes:
        if missing := set(nodes) - {view.node for view in views}:
            raise typer.BadParameter(f"not an NPU node: {', '.join(sorted(missing))}")
        views = [view for view in views if view.node in nodes]
    if output is Output.JSON:
        typer.echo(msgspec.json.format(msgspec.json.encode({"nodes": views}), indent=2).decode())
    else:
        Console().print(node_map(views))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def doctor(
    context: typer.Context,
    output: Annotated[Output, typer.Option("-o", "--output", help="How to print.")] = Output.TABLE,
) -> None:
    """Tell what is wrong with this node, in words; run it on the node, or in the plugin's pod.

    Flags, $ASCEND_DP_... variables and --config are those of ascend-device-plugin. Exit status 1 where there are
    problems.
    """
    # Not above: looking at a cluster from afar needs nothing of the node's side.
    from npuctl.doctor import diagnose

    raise typer.Exit(asyncio.run(diagnose(context.args, as_json=output is Output.JSON)))


async def _read(kubeconfig: str | None, context: str | None) -> list[NodeView]:
    async with await KubeClient.connect(kubeconfig, context) as client:
        nodes, pods, reports = await asyncio.gather(
            client.list_objects(NODES), client.list_objects(PODS), client.list_objects(CONFIG_MAPS, NAMESPACE)
        )
    return node_views(nodes, pods, reports)


def main() -> None:
    """Run the command line; exit status 1 with one line on standard error when the cluster can't be read."""
    logging.getLogger().addHandler(logging.NullHandler())  # what libraries log is not an answer to anybody
    try:
        app()
    except AscendError as error:
        sys.stderr.write(f"npuctl: {error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
