"""Carries out ``npuctl explain`` and lays out its answer."""

from collections.abc import Callable, Iterator
from typing import Final

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ascend.chips import NAME_PREFIX
from ascend.errors import InvalidValue
from ascend.grammar import count
from ascend.kube.objects import Pod
from npuctl.explain.explanation import Explanation, explain
from npuctl.output import Output, show
from npuctl.reading.source import Source

EXIT_WAITS: Final = 3
"""The pod waits and fits on no node."""

_NOTHING_TO_DO: Final = {
    "none": "requests no chips: the allocator does not handle it",
    "terminating": "is being deleted: no scheduler binds it any more",
}
_TRIED: Final = "the end of up to three pods, the recovery of chips, a node that is Ready, uncordoned and has a report"
_MOST_REMEDIES: Final = 5
_MOST_CANDIDATES: Final = 3


async def run_explain(name: str, namespace: str | None, source: Source, output: Output) -> int:
    """Explain a pod and print the answer.

    Args:
        name: the pod's name, or ``namespace/name``.
        namespace: the pod's namespace; the default of the source if not given.
        source: where the objects come from.
        output: how to print.

    Returns:
        The exit status: 0, or 3 if the pod waits and fits on no node.

    Raises:
        InvalidValue: there is no such pod, or the input is invalid.
    """
    objects = await source.read()
    pod = _find(objects.pods, name, namespace, source.namespace)
    answer = explain(pod, objects, source.settings, source.now_ns)
    show(answer, output, lambda: render(answer))
    return EXIT_WAITS if answer.state == "waits" else 0


def _find(pods: tuple[Pod, ...], name: str, namespace: str | None, default: Callable[[], str]) -> Pod:
    left, slash, right = name.partition("/")
    if slash and namespace is not None and namespace != left:
        raise InvalidValue(f"pod {name} is not in the namespace {namespace}")
    key = f"{left}/{right}" if slash else f"{namespace or default()}/{name}"
    found = next((pod for pod in pods if pod.key == key), None)
    if found is None:
        elsewhere = ", ".join(pod.key for pod in pods if pod.name == (right or left))
        raise InvalidValue(f"there is no pod {key}" + (f"; there is {elsewhere}" if elsewhere else ""))
    return found


def render(answer: Explanation) -> RenderableType:
    """Lay out an explanation."""
    head = Text(f"pod {answer.namespace}/{answer.name} ", style="bold").append_text(_verdict(answer))
    parts: list[RenderableType] = [head]
    if answer.groups and answer.state == "waits":
        parts += [Text("\nwhy not:", style="bold"), _groups(answer)]
    if answer.state == "waits":
        parts += [Text("\nwhat would help:", style="bold"), _remedies(answer)]
        if answer.gang and answer.remedies:
            parts.append(Text(f"  job {answer.job} is placed as a whole: each of these makes room for one of its pods"))
    if answer.state == "fits":
        parts += [Text("\nbest nodes:", style="bold"), _candidates(answer)]
        if answer.scheduler:
            parts.append(Text(f"\nits scheduler says: {answer.scheduler}"))
        else:
            parts.append(Text("\nif it stays unbound, look at its scheduler: kubectl describe pod shows its events"))
    return Stack(*parts)


def _verdict(answer: Explanation) -> Text:
    requests = f"requests {count(answer.request, 'chip')}"
    match answer.state:
        case "none" | "terminating":
            return Text(_NOTHING_TO_DO[answer.state])
        case "finished":
            return Text(f"has finished: {answer.reason or 'done'}: {answer.message}")
        case "placed" if answer.reason:
            return Text.assemble(f"is on node {answer.node}: ", (answer.reason, "red"), f": {answer.message}")
        case "placed":
            chips = ",".join(name.removeprefix(NAME_PREFIX) for name in answer.chips)
            return Text(f"is on node {answer.node} with chips {chips}")
        case "fits":
            return Text(f"{requests} and fits on {count(len(answer.candidates), 'node')} now; it is not bound yet")
    waits = f"{requests} and waits: " if answer.request else "waits: "
    return Text.assemble(waits, (answer.reason, "yellow"), f": {answer.message}")


def _groups(answer: Explanation) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right")
    for each in answer.groups:
        number, noun = count(len(each.nodes), "node").split()
        reason = Text.assemble((each.reason, "yellow"), f": {each.message}")
        table.add_row(f"  {number}", noun, reason)
        table.add_row("", "", Text(each.names(), style="dim"))
    return table


def _remedies(answer: Explanation) -> RenderableType:
    if not answer.remedies:
        return Stack(*(Text(f"  {sentence}") for sentence in _without_remedy(answer)))
    lines = [Text(f"  on node {each.node}, once {each}", style="green") for each in answer.remedies[:_MOST_REMEDIES]]
    more = len(answer.remedies) - _MOST_REMEDIES
    if more > 0:
        lines.append(Text(f"  and {count(more, 'other way')} (-o json has all)", style="dim"))
    return Stack(*lines)


def _without_remedy(answer: Explanation) -> Iterator[str]:
    if answer.examined:
        yield f"nothing that was tried on {count(answer.examined, 'node')}: {_TRIED}"
    yield from answer.advice
    if not answer.examined and not answer.advice:
        yield "nothing on any node; change the pod's request, or add nodes with NPUs"


def _candidates(answer: Explanation) -> Table:
    table = Table.grid(padding=(0, 2))
    for each in answer.candidates[:_MOST_CANDIDATES]:
        chips = ",".join(name.removeprefix(NAME_PREFIX) for name in each.chips)
        table.add_row(f"  {each.rank}.", each.node, f"chips {chips}")
    return table
