"""The help of a verb in kubectl's order: purpose, examples, the verb's options, the options of all verbs."""

import re
from collections.abc import Mapping
from typing import Any, Final

from typer.core import TyperCommand

EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "topo": ("npuctl topo", "npuctl topo --free 4 --sort fragmented", "npuctl topo node-a node-b -o json"),
    "explain": ("npuctl explain train-0 -n research", "npuctl explain job/train", "npuctl explain train-0 -f all.json"),
    "queue": ("npuctl queue", "npuctl queue -n research"),
    "usage": ("npuctl usage", "npuctl usage --by job -n research"),
    "capacity": ("npuctl capacity", "npuctl capacity --product 910B-8 --chips 4"),
    "plan": ("npuctl plan -f job.yaml --cluster", "npuctl plan -f cluster.json -f job.yaml"),
    "whatif": ("npuctl whatif --drain node-a", "npuctl whatif --add node-a=10 --end research/train"),
    "cordon": ("npuctl chip cordon node-a 3 --reason 'its fan is loud'",),
    "uncordon": ("npuctl chip uncordon node-a 3",),
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
