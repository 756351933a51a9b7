"""The commands ``npuctl``, ``kubectl npu`` and ``kubectl_complete-npu``: names, options and exit statuses."""

import asyncio
import contextlib
import gc
import logging
import os
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import typer
from typer.core import TyperGroup

from ascend.daemon.exits import EXIT_FAILURE, EXIT_USAGE, PAGE, programs_extra
from ascend.daemon.settings import DISTRIBUTION
from ascend.errors import AscendError, InvalidValue
from npuctl.options import Verb, connecting, names_of, reading
from npuctl.output import Output, use_locale, written_out
from npuctl.topo.choice import By, Sort, TopologyOptions, View

if TYPE_CHECKING:
    from npuctl.reading.source import Source

_HELP: Final = "Show the Ascend NPUs of a cluster, and what the allocator decides."


_ORDER: Final = (
    *("topo", "explain", "queue", "usage", "capacity", "plan", "whatif", "defragment", "simulate"),
    *("web", "history", "chip", "kueue", "doctor", "selftest", "completion"),
)
"""The verbs in the help: what most people ask first comes first."""


class _Commands(TyperGroup):
    """Exits with the status that a command returns; reports invalid input in one line."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The verbs in the order of the help."""
        return sorted(super().list_commands(ctx), key=_ORDER.index)

    def get_params(self, ctx: Any) -> list[Any]:
        """The options without typer's options for completion, which is a verb here."""
        return [
            param for param in super().get_params(ctx) if param.name not in {"install_completion", "show_completion"}
        ]

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
    context_settings={"help_option_names": ["-h", "--help"]},
)

_GARBAGE: Final = 100_000, 50, 50
"""The thresholds of Python's collector. With its own it looks through the objects of a cluster again and again while
they are read, and finds no garbage."""

_COMPLETE: Final = "_NPUCTL_COMPLETE"


_OutputOption: TypeAlias = Annotated[Output, typer.Option("-o", "--output", help="The output format.")]
_Namespace: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "-n", "--namespace", metavar="NAME", help="Only this namespace.", autocompletion=names_of("namespaces")
    ),
]
_AllNamespaces: TypeAlias = Annotated[
    bool, typer.Option("-A", "--all-namespaces", help="All namespaces, as without -n.")
]


_History: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="NPUCTL_HISTORY",
        show_envvar=False,
        help="The file of the history.",
        show_default="$NPUCTL_HISTORY",
    ),
]


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


@app.command(cls=Verb)
@reading
def plan(
    *,
    source: "Source",
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Plan the objects of the files into the cluster as it is.")
    ] = False,
    candidates: Annotated[
        bool, typer.Option("--candidates", help="Also list every node that each pod fits on.")
    ] = False,
    pods: Annotated[bool, typer.Option("--pods", help="A line for each pod, however many there are.")] = False,
    output: _OutputOption = Output.TABLE,
) -> int:
    """Show where the pods of files would be placed.

    What the allocator would do with them, without a cluster or in addition to what is in one. Exit status 0: every pod
    has a place; 3: a pod has none; 2: the input is invalid, or something that requests chips was not planned.
    """
    from npuctl.plan.command import run_plan

    return asyncio.run(run_plan(source, cluster=cluster, candidates=candidates, pods=pods, output=output))


@app.command(cls=Verb)
@reading
def explain(
    *,
    source: "Source",
    pod: Annotated[
        str,
        typer.Argument(
            metavar="POD",
            help="The pod: NAME, NAMESPACE/NAME or pod/NAME; or job/NAME.",
            autocompletion=names_of("pods"),
        ),
    ],
    namespace: Annotated[
        str | None,
        typer.Option(
            "-n",
            "--namespace",
            metavar="NAME",
            help="The pod's namespace.",
            show_default="the context's",
            autocompletion=names_of("namespaces"),
        ),
    ] = None,
    output: _OutputOption = Output.TABLE,
) -> int:
    """Show why a pod waits, and what would help.

    By node, with the code that decides; of a job, each of its pods. Who may read one namespace only is answered by the
    allocator, without names of other namespaces. Exit status 0: it has a place, or fits on a node; 3: it fits on no
    node; 2: there is no such pod.
    """
    from npuctl.explain.command import run_explain

    return asyncio.run(run_explain(pod, namespace, source, output))


@app.command(cls=Verb)
@reading
def topo(
    *,
    source: "Source",
    nodes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NODE",
            help="Only these nodes; all if none is named.",
            show_default=False,
            autocompletion=names_of("nodes"),
        ),
    ] = None,
    selector: Annotated[
        str, typer.Option("-l", "--selector", metavar="LABELS", help="Only nodes with these labels.")
    ] = "",
    job: Annotated[
        str,
        typer.Option(
            metavar="JOB",
            help="Only nodes with chips of this job: NAME or NAMESPACE/NAME.",
            autocompletion=names_of("jobs"),
        ),
    ] = "",
    namespace: Annotated[
        str | None,
        typer.Option(
            "-n",
            "--namespace",
            metavar="NAME",
            help="Only nodes with chips of pods in it.",
            autocompletion=names_of("namespaces"),
        ),
    ] = None,
    all_namespaces: _AllNamespaces = False,
    product: Annotated[str, typer.Option(metavar="NAME", help="Only nodes of this product, as in 910B-8.")] = "",
    fault: Annotated[str, typer.Option(metavar="CODE", help="Only nodes with this fault on a chip.")] = "",
    free: Annotated[int, typer.Option(metavar="N", min=0, help="Only nodes with so many free chips, or more.")] = 0,
    unhealthy: Annotated[
        bool, typer.Option("--unhealthy", help="Only nodes with unhealthy chips, or that can't be used.")
    ] = False,
    sort: Annotated[Sort, typer.Option(help="The order of the nodes.")] = "name",
    view: Annotated[View, typer.Option(help="The layout; auto fits the screen.")] = "auto",
    by: Annotated[By, typer.Option(help="List nodes, the leaf switches above them, or Volcano's HyperNodes.")] = "node",
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Show them again every few seconds.")] = False,
    output: _OutputOption = Output.TABLE,
) -> int:
    """Show nodes, their chips, and who holds them."""
    from npuctl.topo.command import run_topo, watch_topo

    choice = TopologyOptions(
        nodes or (),
        selector,
        unhealthy,
        sort,
        view,
        by,
        job,
        None if all_namespaces else namespace,
        product,
        fault,
        free,
    )
    if not watch:
        return asyncio.run(run_topo(choice, source, output))
    if output is not Output.TABLE:
        raise InvalidValue("--watch prints tables only")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(watch_topo(choice, source))
    return 0


@app.command(cls=Verb)
@reading
def capacity(
    *,
    source: "Source",
    product: Annotated[str, typer.Option(metavar="NAME", help="Only servers of this product, as in 910B-8.")] = "",
    chips: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only pods with so many chips.")] = None,
    output: _OutputOption = Output.TABLE,
) -> int:
    """Show how many pods, gangs and blocks fit now."""
    from npuctl.capacity.command import run_capacity

    return asyncio.run(run_capacity(source, product, chips, output))


@app.command(cls=Verb)
@reading
def kueue(
    *,
    source: "Source",
    servers: Annotated[
        bool, typer.Option("--servers", help="Let Kueue choose the server of each pod, too, not the allocator.")
    ] = False,
    api: Annotated[
        Literal["v1beta2", "v1beta1"], typer.Option(help="The version of Kueue's API; before Kueue 0.15 v1beta1.")
    ] = "v1beta2",
) -> int:
    """Print Kueue's objects for the cluster.

    A ResourceFlavor of each product, a Topology of its SuperPods, racks and leaf switches, the AdmissionCheck that the
    allocator answers, and the labels of nodes that these need and nobody else writes. For kubectl apply --server-side.
    """
    from npuctl.kueue.command import run_kueue

    return asyncio.run(run_kueue(source, api, servers=servers))


@app.command(cls=Verb)
@reading
def usage(
    *,
    source: "Source",
    by: Annotated[
        Literal["namespace", "job", "product"], typer.Option(help="By what chips are counted.")
    ] = "namespace",
    namespace: _Namespace = None,
    all_namespaces: _AllNamespaces = False,
    output: _OutputOption = Output.TABLE,
) -> int:
    """Show who holds and who waits for how many chips."""
    from npuctl.usage.command import run_usage

    return asyncio.run(run_usage(source, by, None if all_namespaces else namespace, output))


@app.command(cls=Verb)
@reading
def queue(
    *,
    source: "Source",
    namespace: _Namespace = None,
    all_namespaces: _AllNamespaces = False,
    output: _OutputOption = Output.TABLE,
) -> int:
    """Show the queue of waiting jobs and pods, with reasons."""
    from npuctl.queue.command import run_queue

    return asyncio.run(run_queue(source, None if all_namespaces else namespace, output))


@app.command(cls=Verb, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@reading
def doctor(
    arguments: typer.Context,
    *,
    options: dict[str, Any],
    cluster: Annotated[bool, typer.Option("--cluster", help="Check the cluster instead of this node.")] = False,
    chips: Annotated[
        bool, typer.Option("--chips", help="Only show what the driver of this node reports of its chips.")
    ] = False,
    allocator: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="With --cluster: also check the allocator at this address.")
    ] = None,
    allocator_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --allocator: the authority of its certificate, PEM.", show_default="the system's"
        ),
    ] = None,
    output: _OutputOption = Output.TABLE,
) -> int:
    """Show what is wrong with this node or the cluster.

    And what to do. Run it on the node, or in the device plugin's pod there; flags, $ASCEND_DP_... variables and
    --config are those of ascend-device-plugin. With --cluster, --config and --set are the allocator's. Exit status 1:
    there are problems.
    """
    if cluster or options["files"]:
        if arguments.args:
            raise InvalidValue(f"not an option of doctor --cluster: {' '.join(arguments.args)}")
        if chips:
            raise InvalidValue("--chips is about this node, not the cluster")
        if allocator_ca is not None and allocator is None:
            raise InvalidValue("--allocator-ca needs --allocator")
        from npuctl.doctor.command import diagnose_cluster
        from npuctl.reading.source import Source

        return asyncio.run(diagnose_cluster(Source.of(**options), allocator, allocator_ca, output))
    flags = _plugin_flags(arguments, options, "--cluster", {"--allocator": allocator, "--allocator-ca": allocator_ca})
    with programs_extra("npuctl doctor without --cluster"):
        from npuctl.doctor.chip_table import show_chips
        from npuctl.doctor.node import diagnose_node
    return asyncio.run((show_chips if chips else diagnose_node)(flags, output))


_FLAGS: Final = {
    "kubeconfig_cluster": "--cluster",
    "kubeconfig_user": "--user",
    "user": "--as",
    "group": "--as-group",
    "values": "--set",
}
"""The options whose names are not those of their parameters."""


def _plugin_flags(
    arguments: typer.Context, options: dict[str, Any], needed: str, others: Mapping[str, object]
) -> list[str]:
    """Return the flags of ascend-device-plugin, for a verb that runs on a node unless the option ``needed`` is given.

    ``others`` are the options of the verb that need it, too.
    """
    kubeconfig, config = options.pop("kubeconfig"), options.pop("config", None)
    named = {_FLAGS.get(name, f"--{name.replace('_', '-')}"): value for name, value in options.items()}
    if given := [name for name, value in {**others, **named}.items() if value]:
        raise InvalidValue(f"not without {needed}: {', '.join(given)}")
    if arguments.args and (arguments.args[0].partition("=")[0] == "--node" or not arguments.args[0].startswith("-")):
        raise InvalidValue(
            f"{arguments.args[0]}: {arguments.command_path} without {needed} is about the node on which it runs, for"
            " example by kubectl exec in the device plugin's pod there"
        )
    access = ["--kubeconfig", kubeconfig] if kubeconfig is not None else []
    file = ["--config", str(config)] if config is not None else []
    return [*arguments.args, *access, *file]


@app.command(cls=Verb, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@connecting
def selftest(
    arguments: typer.Context,
    *,
    options: dict[str, Any],
    node: Annotated[
        str | None,
        typer.Option(metavar="NODE", help="Examine this node of the cluster.", autocompletion=names_of("nodes")),
    ] = None,
    pods: Annotated[
        bool, typer.Option("--pods", help="With --node: also start pods with 1, 2, 4 and 8 chips there.")
    ] = False,
    run: Annotated[
        str,
        typer.Option(
            metavar="COMMAND",
            help="With --node: what runs a command on the node, as in 'ssh node-a'.",
            show_default="kubectl exec",
        ),
    ] = "",
    image: Annotated[
        str, typer.Option(metavar="IMAGE", help="With --pods: their image.", show_default="the device plugin's")
    ] = "",
    scheduler: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="With --pods: their scheduler.", show_default="the chart's, or the cluster's"
        ),
    ] = "",
    devices_of: Annotated[str, typer.Option(hidden=True)] = "",
    output: _OutputOption = Output.TABLE,
) -> int:
    """Report how a node's driver answers, to publish it.

    On the node, or with --node in the device plugin's pod there: every call that only reads, without names, addresses
    and serial numbers. With --pods also whether the kubelet, the pods' annotations, the node's report and the
    containers agree on the chips of pods, which are deleted afterwards. Flags on a node are those of
    ascend-device-plugin. Exit status 1: the driver can't be read, or they don't agree.
    """
    if node is None:
        flags = _plugin_flags(
            arguments, options, "--node", {"--pods": pods, "--run": run, "--image": image, "--scheduler": scheduler}
        )
        with programs_extra("npuctl selftest without --node"):
            from npuctl.selftest.node import examine_node
        return asyncio.run(examine_node(flags, output, devices_of))
    if arguments.args:
        raise InvalidValue(f"not for selftest --node: {' '.join(arguments.args)}")
    from npuctl.reading.source import Source
    from npuctl.selftest.command import selftest as run_selftest

    return asyncio.run(
        run_selftest(
            Source.of(**options),
            node,
            pods=pods,
            run=run,
            image=image,
            scheduler=scheduler,
            output=output,
        )
    )


@app.command(cls=Verb)
@reading
def defragment(
    *,
    source: "Source",
    rings: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="So many more rings (or meshes, or cards).", show_default="1")
    ] = None,
    servers: Annotated[int | None, typer.Option(min=1, metavar="N", help="So many more servers.")] = None,
    product: Annotated[str, typer.Option(metavar="NAME", help="Only servers of this product, as in 910A.")] = "",
    output: _OutputOption = Output.TABLE,
) -> int:
    """Show which pods to delete to free rings or servers.

    Only pods that their controllers create anew, and whose jobs have no other pods: the allocator places them
    elsewhere. Nothing is deleted.
    """
    from npuctl.defragment.command import run_defragment

    if rings is not None and servers is not None:
        raise InvalidValue("--rings and --servers exclude each other")
    return asyncio.run(
        run_defragment(
            source,
            "rings" if servers is None else "servers",
            servers or rings or 1,
            product,
            output,
        )
    )


@app.command(cls=Verb)
@reading
def whatif(
    *,
    source: "Source",
    drain: Annotated[
        list[str] | None,
        typer.Option(metavar="NODE", help="This node is drained.", autocompletion=names_of("nodes")),
    ] = None,
    lose: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODE[:CHIPS]",
            help="This node is lost, or chips of it, as in node-a:0-3.",
            autocompletion=names_of("nodes"),
        ),
    ] = None,
    add: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODE[=N]",
            help="N nodes like this one are added, as in node-a=10.",
            autocompletion=names_of("nodes"),
        ),
    ] = None,
    end: Annotated[
        list[str] | None,
        typer.Option(metavar="JOB", help="This job ends: NAME or NAMESPACE/NAME.", autocompletion=names_of("jobs")),
    ] = None,
    priority: Annotated[
        list[str] | None, typer.Option(metavar="JOB=N", help="This job has another priority, as in train=1000.")
    ] = None,
    output: Annotated[
        Literal["table", "json", "yaml", "svg"],
        typer.Option("-o", "--output", help="The output format; svg: a picture of the chips."),
    ] = "table",
) -> int:
    """Show what would run and wait after changes.

    Nodes that are drained, lost or added, jobs that end or get another priority: options can be combined and repeated,
    and nothing is changed.
    """
    from npuctl.whatif.changes import WhatIfChanges
    from npuctl.whatif.command import run_whatif

    changes = WhatIfChanges(drain or (), lose or (), add or (), end or (), priority or ())
    return asyncio.run(run_whatif(source, changes, output))


@app.command(cls=Verb)
@reading
def web(
    *,
    source: "Source",
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="The port; 0: any free one.")] = 8090,
    unsafe_address: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Listen on this address: whoever reaches it sees all that you may read.",
            show_default="127.0.0.1",
        ),
    ] = "",
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Also answer browsers that ask for this host, as behind a proxy with a login."
        ),
    ] = None,
    history: _History = None,
    history_days: Annotated[int, typer.Option(metavar="N", min=1, max=3650, help="Days that are kept there.")] = 30,
    history_mib: Annotated[int, typer.Option(metavar="N", min=1, max=65536, help="MiB of it at most.")] = 256,
) -> int:
    """Serve a page of the chips, the queue, and why jobs wait.

    On 127.0.0.1, with your rights in the cluster, and without any that write. Ctrl-C ends it.
    """
    with programs_extra("npuctl web", "web", PAGE):
        from npuctl.web.command import ADDRESS, ServedAt, run_web
    from npuctl.history.store import Bounds, HistoryStore

    at = ServedAt(unsafe_address or ADDRESS, port, tuple(allowed_host or ()))
    store = HistoryStore(history, Bounds(history_days, history_mib << 20)) if history is not None else None
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run_web(source, at, store))
    return 0


@app.command(cls=Verb, name="history")
def show_history(
    *,
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job or pod: NAME, NAMESPACE/NAME or job/NAME.")],
    namespace: Annotated[str | None, typer.Option("-n", "--namespace", metavar="NAME", help="Its namespace.")] = None,
    since: Annotated[str, typer.Option(metavar="TIME", help="How far back, as in 90m, 24h or 7d.")] = "24h",
    history: _History = None,
    output: _OutputOption = Output.TABLE,
) -> int:
    """Show why a job waited, behind whom, and where it ran.

    From the file in which npuctl web --history records it, also while it does.
    """
    from npuctl.history.command import run_history

    if history is None:
        raise InvalidValue("which history? --history FILE, as given to npuctl web")
    return run_history(history, job, namespace, since, output)


@app.command(cls=Verb)
@reading
def simulate(
    *,
    source: "Source",
    servers: Annotated[
        str,
        typer.Option(metavar="NxPRODUCT", help="Idle servers instead of a cluster, as in 48x910A-8,10xA3-16."),
    ] = "",
    jobs: Annotated[
        Path | None, typer.Option(metavar="CSV", help="The jobs: submitted, duration, chips, …", show_default=False)
    ] = None,
    rate: Annotated[
        list[str] | None,
        typer.Option(metavar="SIZE=N[:H]", help="N jobs an hour, which last H hours, as in 1=40 or 4x8=0.5:6."),
    ] = None,
    hours: Annotated[float, typer.Option(metavar="HOURS", help="How long jobs arrive by --rate.")] = 24.0,
    load: Annotated[
        str, typer.Option(metavar="SHARE", help="Arrivals are stretched until jobs would use so much of the chips.")
    ] = "",
    compare: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Also with this: policy, servers, load, faults, or a setting of the allocator.",
            show_default="policy=spread",
        ),
    ] = None,
    faults: Annotated[float, typer.Option(metavar="N", help="Faults a day of 1,000 chips.")] = 0.0,
    repair: Annotated[float, typer.Option(metavar="HOURS", help="How long a repair takes, in the mean.")] = 24.0,
    checkpoint: Annotated[float, typer.Option(metavar="HOURS", help="How often jobs save their work.")] = 1.0,
    running: Annotated[
        float | None,
        typer.Option(
            metavar="HOURS", help="How long the cluster's pods still run, in the mean.", show_default="for ever"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="The seed of all random choices.")] = 0,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a page with drawings.", show_default=False)
    ] = None,
    output: _OutputOption = Output.TABLE,
) -> int:
    """Show how long jobs would wait, on a virtual clock.

    The allocator's own decisions, beside other settings and policies, on jobs of a file or at random; nothing is
    changed.
    """
    from npuctl.simulate.command import SimulateOptions, run_simulate

    options = SimulateOptions(
        servers=servers,
        jobs=jobs,
        rates=rate or (),
        hours=hours,
        load=load,
        compare=compare or (),
        faults=faults,
        repair=repair,
        checkpoint=checkpoint,
        running=running,
        seed=seed,
        html=html,
    )
    return asyncio.run(run_simulate(source, options, output))


chip = typer.Typer(
    help="Take chips out of use, and put them back.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(chip, name="chip")

_CordonedNode: TypeAlias = Annotated[
    str, typer.Argument(metavar="NODE", help="The node.", autocompletion=names_of("nodes"))
]
_Chips: TypeAlias = Annotated[list[str], typer.Argument(metavar="CHIP", help="The chips, as in 2, 0-3 or Ascend910-2.")]


@chip.command(cls=Verb)
@connecting
def cordon(
    *,
    source: "Source",
    node: _CordonedNode,
    chips: _Chips,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why, for whoever finds the chips out of use.")],
) -> int:
    """Take chips of a node out of use.

    Pods that run with them go on; no pod gets them until they are uncordoned. Who, when and why is shown by topo,
    doctor and explain, and an Event of the Node says it.
    """
    from npuctl.chip.command import run_cordon

    return asyncio.run(run_cordon(source, node, chips, reason, cordons=True))


@chip.command(cls=Verb)
@connecting
def uncordon(
    *,
    source: "Source",
    node: _CordonedNode,
    chips: _Chips,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why, for the Event of the Node.")] = "",
) -> int:
    """Put chips of a node back into use.

    Also those that a rule of frequent faults has taken out of use. A chip that has a fault stays unhealthy.
    """
    from npuctl.chip.command import run_cordon

    return asyncio.run(run_cordon(source, node, chips, reason, cordons=False))


@app.command(cls=Verb)
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print the script that completes npuctl in a shell.

    docs/npuctl.md says where to put it.
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # where typer itself takes it from

    typer.echo(get_completion_script(prog_name="npuctl", complete_var=_COMPLETE, shell=shell))


def main() -> None:
    """Run ``npuctl``; exit with status 1 and one line on standard error if the cluster can't be read."""
    logging.getLogger().addHandler(logging.NullHandler())  # the logs of libraries are not for users
    gc.set_threshold(*_GARBAGE)
    if os.environ.get(_COMPLETE, "").startswith("complete_"):
        from npuctl.completion import end_in_time

        end_in_time("")
    use_locale()
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
