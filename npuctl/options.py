"""The options that all verbs have, and the help of a verb in kubectl's order: purpose, examples, options."""

import functools
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from ascend.errors import InvalidValue
from npuctl.output import use_ascii

EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "topo": ("npuctl topo", "npuctl topo --free 4 --sort fragmented", "npuctl topo node-a node-b -o json"),
    "explain": ("npuctl explain train-0 -n research", "npuctl explain job/train", "npuctl explain train-0 -f all.json"),
    "queue": ("npuctl queue", "npuctl queue -n research"),
    "usage": ("npuctl usage", "npuctl usage --by job -n research"),
    "capacity": ("npuctl capacity", "npuctl capacity --product 910B-8 --chips 4"),
    "plan": ("npuctl plan -f job.yaml --cluster", "npuctl plan -f cluster.json -f job.yaml"),
    "whatif": ("npuctl whatif --drain node-a", "npuctl whatif --add node-a=10 --end research/train"),
    "web": ("npuctl web", "npuctl web --history history.db", "npuctl web --port 9000 -f cluster.json"),
    "history": ("npuctl history job/train -n research --history history.db", "npuctl history train --since 7d -o json"),
    "defragment": ("npuctl defragment --rings 4", "npuctl defragment --servers 2 --product 910B-8"),
    "simulate": (
        "npuctl simulate --servers 300x910B-8 --rate 1=400 --rate 8=40:4 --rate 4x8=4:8",
        "npuctl simulate --jobs jobs.csv --load 0.95 --compare policy=tables --compare earmark_share=0",
    ),
    "cordon": ("npuctl chip cordon node-a 3 --reason 'its fan is loud'",),
    "uncordon": ("npuctl chip uncordon node-a 3",),
    "kueue": ("npuctl kueue > kueue.yaml   # for kubectl apply --server-side -f kueue.yaml", "npuctl kueue --servers"),
    "doctor": (
        "npuctl doctor --cluster",
        "kubectl exec -n kube-system POD -- npuctl doctor   # POD: the device plugin's",
        "kubectl exec -n kube-system POD -- npuctl doctor --chips -o json",
    ),
    "selftest": ("npuctl selftest --node node-a -o json", "npuctl selftest --node node-a --pods"),
    "completion": ("source <(npuctl completion bash)",),
}
"""By the name of the verb."""

SHARED: Final = (
    *("files", "now", "config", "values"),
    *("kubeconfig", "context", "kubeconfig_cluster", "kubeconfig_user", "server", "token"),
    *("user", "group", "request_timeout", "ascii_only", "help"),
)
"""The options that several verbs have, in the order of their help."""
_KIND: Final = re.compile(r" <(?:str|list\[str\])>")
_DEFAULT: Final = re.compile(r"\[default: \((.*)\)\]")


class Verb(TyperCommand):
    """A verb with such a help."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The usage without the braces of arguments."""
        return [re.sub("[{}]", "", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, the arguments, and the options in two groups."""
        params = {param.name: param for param in self.get_params(ctx)}
        shared = {name: params.pop(name) for name in SHARED if name in params}
        arguments = [param for param in params.values() if param.param_type_name == "argument"]
        own = [param for param in params.values() if param.param_type_name != "argument"]
        with formatter.section("Examples"):
            formatter.write("".join(f"  {example}\n" for example in EXAMPLES[ctx.command.name]))
        for title, some in (("Arguments", arguments), ("Options", own), ("Common options", shared.values())):
            records = filter(None, (parameter.get_help_record(ctx) for parameter in some))
            if written := [(_KIND.sub("", name), _DEFAULT.sub(r"[default: \1]", text)) for name, text in records]:
                with formatter.section(title):
                    formatter.write_dl(written)


def names_of(what: str) -> Callable[[typer.Context, str], list[str]]:
    """What completes an option or argument: the names of this kind, given the options typed so far."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        from npuctl.completion import names
        from npuctl.reading.source import Source

        typed = context.params
        given = {option: typed.get(option) for option in ("files", "kubeconfig", "context", "server")}
        try:
            return names(what, incomplete, typed.get("namespace"), Source.of(**given))
        except InvalidValue:
            return []

    return complete


def _source_options(
    *,
    files: Annotated[
        list[str] | None,
        typer.Option("-f", "--filename", metavar="FILE", help="Read objects from this YAML or JSON file; -: stdin."),
    ] = None,
    kubeconfig: Annotated[
        str | None, typer.Option(metavar="FILE", help="The kubeconfig file.", show_default="$KUBECONFIG")
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The kubeconfig's context.",
            show_default="current",
            autocompletion=names_of("contexts"),
        ),
    ] = None,
    kubeconfig_cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="NAME",
            help="The kubeconfig's cluster.",
            show_default="the context's",
            autocompletion=names_of("clusters"),
        ),
    ] = None,
    kubeconfig_user: Annotated[
        str | None,
        typer.Option(
            "--user",
            metavar="NAME",
            help="The kubeconfig's user.",
            show_default="the context's",
            autocompletion=names_of("users"),
        ),
    ] = None,
    server: Annotated[str | None, typer.Option("-s", "--server", metavar="URL", help="The API server.")] = None,
    token: Annotated[str | None, typer.Option(metavar="TOKEN", help="The bearer token for it.")] = None,
    user: Annotated[str | None, typer.Option("--as", metavar="USER", help="The user to act as.")] = None,
    group: Annotated[str | None, typer.Option("--as-group", metavar="GROUP", help="The group to act as.")] = None,
    request_timeout: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long a request may take, as in 30s; 0: no limit.", show_default="15s"),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The allocator's settings file.", show_default=False)
    ] = None,
    values: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the allocator.")
    ] = None,
    now: Annotated[
        str | None, typer.Option(metavar="RFC3339", help="The time of the objects.", show_default="the clock")
    ] = None,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="Print tables in ASCII.")] = False,
) -> None:
    """The options that say where the objects of a verb come from; those of kubectl have kubectl's names."""


_OF_OBJECTS: Final = frozenset({"files", "now", "config", "values"})
"""The options of verbs that read objects, from files too, and decide on them."""


def reading(verb: Callable[..., int], without: Collection[str] = ()) -> Callable[..., int]:
    """Give a verb the options of ``_source_options``: its argument is their ``source``, or what ``Source.of`` takes.

    A verb with a ``--cluster`` of its own has not that of kubectl.
    """
    own = inspect.signature(verb)
    parameters = inspect.signature(_source_options).parameters
    added = {name: parameter for name, parameter in parameters.items() if name not in without}
    if "cluster" in own.parameters:
        del added["kubeconfig_cluster"]

    @functools.wraps(verb)
    def run(*arguments: Any, **given: Any) -> int:
        options = {name: given.pop(name) for name in added}
        if options.pop("ascii_only"):
            use_ascii()
        if "source" not in own.parameters:
            return verb(*arguments, options=options, **given)
        from npuctl.reading.source import Source

        return verb(*arguments, source=Source.of(**options), **given)

    kept = [parameter for parameter in own.parameters.values() if parameter.name not in {"options", "source"}]
    run.__signature__ = own.replace(parameters=[*kept, *added.values()])  # type: ignore[attr-defined]  # typer reads it
    hints = {**verb.__annotations__, **{name: parameter.annotation for name, parameter in added.items()}, "return": int}
    run.__annotations__ = {name: hint for name, hint in hints.items() if name not in {"options", "source"}}
    return run


connecting = functools.partial(reading, without=_OF_OBJECTS)
"""The same for a verb that reads a cluster, and decides on nothing."""
