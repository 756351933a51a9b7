"""The commands ``npuctl``, ``kubectl npu`` and ``kubectl_complete-npu``: names, options and exit statuses."""

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import typer
from typer.core import TyperGroup

from ascend.daemon.run import EXIT_FAILURE, EXIT_USAGE
from ascend.daemon.settings import DISTRIBUTION
from ascend.errors import AscendError, InvalidValue
from npuctl.output import Output, written_out
from npuctl.topo.choice import By, Choice, Sort, View

_HELP: Final = "Show the Ascend NPUs of a cluster, and what the allocator decides."


class _Commands(TyperGroup):
    """Exits with the status that a command returns; reports invalid input in one line."""

    def invoke(self, ctx: Any) -> None:
        """Run the command."""
        try:
            status = super().invoke(ctx)
        except InvalidValue as error:
            sys.stderr.write(f"npuctl: {error}\n")
            status = EXIT_USAGE
        raise typer.Exit(status or 0)


app = typer.Typer(
    cls=_Commands,
    help=_HELP,
    epilog="Exit status 0: success; 1: the cluster can't be read, or there are problems; 2: wrong usage or invalid "
    "input; 3: a pod has no place.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

_COMPLETE: Final = "_NPUCTL_COMPLETE"


_OutputOption: TypeAlias = Annotated[Output, typer.Option("-o", "--output", help="The output format.")]
_Kubeconfig: TypeAlias = Annotated[str | None, typer.Option(help="The kubeconfig file.", show_default="$KUBECONFIG")]
_Context: TypeAlias = Annotated[str | None, typer.Option(help="The kubeconfig's context.", show_default="current")]
_Files: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("-f", "--filename", help="Read objects from this YAML or JSON file (-: stdin), not from a cluster."),
]
_Config: TypeAlias = Annotated[Path | None, typer.Option(help="The allocator's settings file.", show_default=False)]
_Values: TypeAlias = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the allocator.")
]
_Now: TypeAlias = Annotated[
    str | None, typer.Option(metavar="RFC3339", help="The time of the objects.", show_default="the clock")
]


def _pods(context: typer.Context, incomplete: str) -> list[str]:
    """The pods offered for completion, given the options typed so far."""
    from npuctl.completion import pod_names
    from npuctl.reading.source import Source

    typed = context.params
    try:
        source = Source.of(files=typed["files"], kubeconfig=typed["kubeconfig"], context=typed["context"])
    except InvalidValue:
        return []
    return pod_names(incomplete, typed["namespace"], source)


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - the signature of an option's callback
    if wanted:
        typer.echo(f"npuctl {version(DISTRIBUTION)}")
        raise typer.Exit


@app.callback(help=_HELP)
def _npuctl(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def plan(
    *,
    files: Annotated[
        list[str] | None, typer.Option("-f", "--filename", help="YAML or JSON of Kubernetes objects; -: stdin.")
    ] = None,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Plan the objects of the files into the cluster as it is.")
    ] = False,
    kubeconfig: _Kubeconfig = None,
    context: _Context = None,
    config: _Config = None,
    values: _Values = None,
    now: _Now = None,
    candidates: Annotated[
        bool, typer.Option("--candidates", help="Also list every node that each pod fits on.")
    ] = False,
    output: _OutputOption = Output.TABLE,
) -> int:
    """Show what the allocator would do with the pods in these files, without a cluster or in addition to one.

    Exit status 0: every pod has a place; 3: a pod has none; 2: the input is invalid, or something that requests chips
    was not planned.
    """
    from npuctl.plan.command import run_plan
    from npuctl.reading.source import Source

    source = Source.of(files=files, kubeconfig=kubeconfig, context=context, config=config, values=values, now=now)
    return asyncio.run(run_plan(source, cluster=cluster, candidates=candidates, output=output))


@app.command()
def explain(
    *,
    pod: Annotated[
        str,
        typer.Argument(
            metavar="POD", help="The pod: NAME, NAMESPACE/NAME or pod/NAME; or job/NAME.", autocompletion=_pods
        ),
    ],
    namespace: Annotated[
        str | None, typer.Option("-n", "--namespace", help="The pod's namespace.", show_default="the context's")
    ] = None,
    files: _Files = None,
    kubeconfig: _Kubeconfig = None,
    context: _Context = None,
    config: _Config = None,
    values: _Values = None,
    now: _Now = None,
    output: _OutputOption = Output.TABLE,
) -> int:
    """Show why a pod (or each pod of a job) waits, by node, and what would help.

    Exit status 0: it has a place, or fits on a node; 3: it fits on no node; 2: there is no such pod.
    """
    from npuctl.explain.command import run_explain
    from npuctl.reading.source import Source

    source = Source.of(files=files, kubeconfig=kubeconfig, context=context, config=config, values=values, now=now)
    return asyncio.run(run_explain(pod, namespace, source, output))


@app.command()
def topo(
    *,
    nodes: Annotated[list[str] | None, typer.Argument(help="Show only these nodes.", show_default=False)] = None,
    selector: Annotated[str, typer.Option("-l", "--selector", help="Show only nodes with these labels.")] = "",
    unhealthy: Annotated[
        bool, typer.Option("--unhealthy", help="Show only nodes with unhealthy chips, or that can't be used.")
    ] = False,
    sort: Annotated[Sort, typer.Option(help="The order of the nodes.")] = "name",
    view: Annotated[View, typer.Option(help="The layout of the table; auto fits the screen.")] = "auto",
    by: Annotated[By, typer.Option(help="List nodes, or the leaf switches above them.")] = "node",
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Show them again every few seconds.")] = False,
    files: _Files = None,
    kubeconfig: _Kubeconfig = None,
    context: _Context = None,
    config: _Config = None,
    values: _Values = None,
    now: _Now = None,
    output: _OutputOption = Output.TABLE,
) -> int:
    """Show nodes, rings and chips: which pods hold them, and which are unhealthy."""
    from npuctl.reading.source import Source
    from npuctl.topo.command import run_topo, watch_topo

    source = Source.of(files=files, kubeconfig=kubeconfig, context=context, config=config, values=values, now=now)
    choice = Choice(nodes or (), selector, unhealthy, sort, view, by)
    if not watch:
        return asyncio.run(run_topo(choice, source, output))
    if output is not Output.TABLE:
        raise InvalidValue("--watch prints tables only")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(watch_topo(choice, source))
    return 0


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def doctor(
    arguments: typer.Context,
    *,
    cluster: Annotated[bool, typer.Option("--cluster", help="Check the cluster instead of this node.")] = False,
    allocator: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="With --cluster: also check the allocator at this address.")
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
) -> int:
    """Show what is wrong with this node, or with the cluster, and what to do.

    Run it on the node, or in the device plugin's pod there; flags, $ASCEND_DP_... variables and --config are those of
    ascend-device-plugin. With --cluster, --config and --set are the allocator's. Exit status 1: there are problems.
    """
    from npuctl.doctor.command import diagnose_cluster, diagnose_node
    from npuctl.reading.source import Source

    if cluster or files:
        if arguments.args:
            raise InvalidValue(f"not an option of doctor --cluster: {' '.join(arguments.args)}")
        if allocator_ca is not None and allocator is None:
            raise InvalidValue("--allocator-ca needs --allocator")
        source = Source.of(files=files, kubeconfig=kubeconfig, context=context, config=config, values=values, now=now)
        return asyncio.run(diagnose_cluster(source, allocator, allocator_ca, output))
    if values or any(each is not None for each in (context, now, allocator, allocator_ca)):
        raise InvalidValue("--context, --now, --set, --allocator and --allocator-ca need --cluster")
    access = ["--kubeconfig", kubeconfig] if kubeconfig is not None else []
    file = ["--config", str(config)] if config is not None else []
    return asyncio.run(diagnose_node([*arguments.args, *access, *file], output))


@app.command()
def completion(shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell.")]) -> None:
    """Print the script that completes these commands in a shell; docs/npuctl.md says where to put it."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # where typer itself takes it from

    typer.echo(get_completion_script(prog_name="npuctl", complete_var=_COMPLETE, shell=shell))


def main() -> None:
    """Run ``npuctl``; exit with status 1 and one line on standard error if the cluster can't be read."""
    logging.getLogger().addHandler(logging.NullHandler())  # the logs of libraries are not for users
    if os.environ.get(_COMPLETE, "").startswith("complete_"):
        from npuctl.completion import end_in_time

        end_in_time("")
    _run(app)


def _run(command: Callable[[], None]) -> None:
    try:
        with written_out():
            command()
    except AscendError as error:
        sys.stderr.write(f"npuctl: {error}\n")
        sys.exit(EXIT_FAILURE)


def main_for_kubectl_completion() -> None:
    """Run ``kubectl_complete-npu``."""
    from typer.main import get_command

    from npuctl.completion import NO_CANDIDATES, complete_for_kubectl, end_in_time

    logging.getLogger().addHandler(logging.NullHandler())
    limit = end_in_time(NO_CANDIDATES)
    lines = complete_for_kubectl(get_command(app), sys.argv[1:])
    limit.cancel()
    _run(lambda: sys.stdout.writelines(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
