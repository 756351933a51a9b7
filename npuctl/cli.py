"""The commands ``npuctl`` and ``kubectl npu``: their names, options and exit codes."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from ascend.daemon.run import EXIT_FAILURE, EXIT_USAGE
from ascend.errors import AscendError, InvalidValue
from npuctl.output import Output, show

app = typer.Typer(
    help="Look at the Ascend NPUs of a cluster, and ask the allocator's rules.",
    epilog="Exit status 0: all is well; 1: the cluster can't be read, or there are problems; 2: called wrongly, or "
    "the input can't be used; 3: something waits.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

_COMPLETE: Final = "_NPUCTL_COMPLETE"


class Shell(StrEnum):
    """A shell that completes."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


_OutputOption: TypeAlias = Annotated[Output, typer.Option("-o", "--output", help="How to print.")]
_Kubeconfig: TypeAlias = Annotated[str | None, typer.Option(help="Which kubeconfig file.", show_default="$KUBECONFIG")]
_Context: TypeAlias = Annotated[str | None, typer.Option(help="Which of its contexts.", show_default="current")]
_Files: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("-f", "--filename", help="Objects from this YAML or JSON file (- is standard input), not a cluster."),
]
_Config: TypeAlias = Annotated[Path | None, typer.Option(help="The allocator's settings file.", show_default=False)]
_Values: TypeAlias = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the allocator.")
]
_Now: TypeAlias = Annotated[str | None, typer.Option(metavar="RFC3339", help="The present.", show_default="the clock")]


def _pods(context: typer.Context, begun: str) -> list[str]:
    """The pods that are offered for the options typed so far."""
    from npuctl.completing import pod_names
    from npuctl.source import Source

    typed = context.params
    try:
        source = Source.of(files=typed["files"] or (), kubeconfig=typed["kubeconfig"], context=typed["context"])
    except InvalidValue:
        return []
    return pod_names(begun, typed["namespace"], source)


@app.callback()
def _npuctl() -> None:
    """Look at the Ascend NPUs of a cluster, and ask the allocator's rules."""


@app.command()
def plan(
    *,
    files: Annotated[
        list[str], typer.Option("-f", "--filename", help="YAML or JSON of Kubernetes objects; - is standard input.")
    ],
    config: _Config = None,
    values: _Values = None,
    now: _Now = None,
    candidates: Annotated[bool, typer.Option("--candidates", help="Tell of every node that fits.")] = False,
    output: _OutputOption = Output.TABLE,
) -> None:
    """Tell what the allocator would do with the pods of these files, without a cluster.

    Exit status 0: everything has a place; 3: something waits; 2: the input can't be used.
    """
    from npuctl.plan import make_plan
    from npuctl.source import Source

    _exit(
        lambda: make_plan(
            Source.of(files=files, config=config, values=values or (), now=now), candidates=candidates, output=output
        )
    )


@app.command()
def explain(
    *,
    pod: Annotated[str, typer.Argument(help="The pod: its name, or namespace/name.", autocompletion=_pods)],
    namespace: Annotated[
        str | None, typer.Option("-n", "--namespace", help="The pod's.", show_default="the context's")
    ] = None,
    files: _Files = None,
    kubeconfig: _Kubeconfig = None,
    context: _Context = None,
    config: _Config = None,
    values: _Values = None,
    now: _Now = None,
    output: _OutputOption = Output.TABLE,
) -> None:
    """Tell why a pod waits, node by node, and what would help.

    Exit status 0: it has a place, or one is free; 3: it fits nowhere; 2: there is no such pod.
    """
    from npuctl.explain import make_explanation
    from npuctl.source import Source

    def run() -> int:
        source = Source.of(
            files=files or (), kubeconfig=kubeconfig, context=context, config=config, values=values or (), now=now
        )
        return asyncio.run(make_explanation(pod, namespace, source, output))

    _exit(run)


@app.command()
def topo(
    *,
    nodes: Annotated[list[str] | None, typer.Argument(help="Only these nodes.", show_default=False)] = None,
    files: _Files = None,
    kubeconfig: _Kubeconfig = None,
    context: _Context = None,
    config: _Config = None,
    values: _Values = None,
    now: _Now = None,
    output: _OutputOption = Output.TABLE,
) -> None:
    """Show nodes, rings and chips: who holds what, and what is unhealthy."""
    from npuctl.render import node_map
    from npuctl.source import Source
    from npuctl.view import node_views

    def run() -> int:
        source = Source.of(
            files=files or (), kubeconfig=kubeconfig, context=context, config=config, values=values or (), now=now
        )
        views = node_views(asyncio.run(source.read()), source.settings, source.now_ns)
        if missing := set(nodes or ()) - {view.node for view in views}:
            raise InvalidValue(f"not an NPU node: {', '.join(sorted(missing))}")
        shown = [view for view in views if not nodes or view.node in nodes]
        show({"nodes": shown}, output, lambda: node_map(shown))
        return 0

    _exit(run)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def doctor(
    arguments: typer.Context,
    *,
    cluster: Annotated[bool, typer.Option("--cluster", help="Look at the whole cluster, from afar.")] = False,
    allocator: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="With --cluster: ask this allocator how it is, too.")
    ] = None,
    allocator_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --allocator: the authority of its certificate, PEM.", show_default="the system's"
        ),
    ] = None,
    files: _Files = None,
    kubeconfig: _Kubeconfig = None,
    context: _Context = None,
    config: Annotated[
        Path | None,
        typer.Option(help="The device plugin's settings file; with --cluster the allocator's.", show_default=False),
    ] = None,
    values: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="With --cluster: a setting of the allocator.")
    ] = None,
    now: _Now = None,
    output: _OutputOption = Output.TABLE,
) -> None:
    """Tell what is wrong with this node, or with the cluster, in words.

    For the node run it there, or in the plugin's pod; flags, $ASCEND_DP_... variables and --config are those of
    ascend-device-plugin. With --cluster, --config and --set are the allocator's. Exit status 1 where there are
    problems.
    """
    # Not above: looking at a cluster from afar needs nothing of the node's side.
    from npuctl.doctor.command import diagnose, diagnose_cluster
    from npuctl.source import Source

    def run() -> int:
        if cluster or files:
            if arguments.args:
                raise InvalidValue(f"of the cluster nothing is known of {' '.join(arguments.args)}")
            if allocator_ca is not None and allocator is None:
                raise InvalidValue("--allocator-ca is for --allocator")
            source = Source.of(
                files=files or (), kubeconfig=kubeconfig, context=context, config=config, values=values or (), now=now
            )
            return asyncio.run(diagnose_cluster(source, allocator, allocator_ca, output))
        if values or any(each is not None for each in (context, now, allocator, allocator_ca)):
            raise InvalidValue("--context, --now, --set, --allocator and --allocator-ca are for --cluster")
        access = ["--kubeconfig", kubeconfig] if kubeconfig is not None else []
        file = ["--config", str(config)] if config is not None else []
        return asyncio.run(diagnose([*arguments.args, *access, *file], output))

    _exit(run)


@app.command()
def completion(shell: Annotated[Shell, typer.Argument(help="For which shell.")]) -> None:
    """Print the script that makes a shell complete these commands; see docs/npuctl.md on where to put it."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # where typer itself takes it from

    typer.echo(get_completion_script(prog_name="npuctl", complete_var=_COMPLETE, shell=shell))


def _exit(command: Callable[[], int]) -> None:
    """End with a command's exit status; what can't be used is told in a line."""
    try:
        status = command()
    except InvalidValue as error:
        sys.stderr.write(f"npuctl: {error}\n")
        status = EXIT_USAGE
    raise typer.Exit(status)


def main() -> None:
    """Run the command line; exit status 1 with one line on standard error when the cluster can't be read."""
    logging.getLogger().addHandler(logging.NullHandler())  # what libraries log is not an answer to anybody
    if os.environ.get(_COMPLETE, "").startswith("complete_"):
        from npuctl.completing import end_in_time

        end_in_time("")
    try:
        app()
    except AscendError as error:
        sys.stderr.write(f"npuctl: {error}\n")
        sys.exit(EXIT_FAILURE)


if __name__ == "__main__":
    main()
