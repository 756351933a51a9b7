"""The commands ``npuctl`` and ``kubectl npu``."""

import asyncio
import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from ascend.daemon.run import EXIT_USAGE
from ascend.deviceinfo import NAMESPACE
from ascend.errors import AscendError, InvalidValue
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, NODES, PODS
from npuctl.output import Output, show
from npuctl.render import node_map
from npuctl.view import NodeView, node_views

app = typer.Typer(
    help="Look at the Ascend NPUs of a cluster.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


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
    show({"nodes": views}, output, lambda: node_map(views))


@app.command()
def plan(
    *,
    files: Annotated[
        list[str], typer.Option("-f", "--filename", help="YAML or JSON of Kubernetes objects; - is standard input.")
    ],
    config: Annotated[Path | None, typer.Option(help="The allocator's settings file.", show_default=False)] = None,
    values: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the allocator.")
    ] = None,
    now: Annotated[str | None, typer.Option(metavar="RFC3339", help="The present.", show_default="the clock")] = None,
    candidates: Annotated[bool, typer.Option("--candidates", help="Tell of every node that fits.")] = False,
    output: Annotated[Output, typer.Option("-o", "--output", help="How to print.")] = Output.TABLE,
) -> None:
    """Tell what the allocator would do with the pods of these files, without a cluster.

    Exit status 0: everything has a place; 3: something waits; 2: the input can't be used.
    """
    from npuctl.plan import make_plan

    try:
        status = make_plan(files, config=config, values=values or (), now=now, candidates=candidates, output=output)
    except InvalidValue as error:
        sys.stderr.write(f"npuctl: {error}\n")
        raise typer.Exit(EXIT_USAGE) from error
    raise typer.Exit(status)


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
