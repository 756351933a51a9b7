"""The command ``npuctl explain``: finds the pod, and lays out for eyes why it waits."""

from collections.abc import Callable, Iterator

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ascend.chips import NAME_PREFIX
from ascend.errors import InvalidValue
from ascend.kube.objects import Pod
from npuctl.explaining import Explanation, explain
from npuctl.output import Output, show
from npuctl.source import Source

EXIT_WAITS = 3
"""The pod waits, and fits nowhere."""

_NOTHING_TO_DO = {
    "none": "asks for no chips: the allocator has nothing to do with it",
    "terminating": "is being deleted: no scheduler gives it a node any more",
}
_REMEDIES = 5
_CANDIDATES = 3


async def make_explanation(name: str, namespace: str | None, source: Source, output: Output) -> int:
    """Explain a pod and print it.

    Args:
        name: the pod's, or ``namespace/name``.
        namespace: the pod's; that of the source where neither says.
        source: where the objects come from.
        output: how to print.

    Returns:
        The exit status: 0, or 3 where the pod fits nowhere.

    Raises:
        InvalidValue: there is no such pod, or the input can't be used.
    """
    snapshot = await source.read()
    pod = _find(snapshot.pods, name, namespace, source.namespace)
    answer = explain(pod, snapshot, source.settings, source.now_ns)
    show(answer, output, lambda: render(answer))
    return EXIT_WAITS if answer.state == "waits" else 0


def _find(pods: tuple[Pod, ...], name: str, namespace: str | None, usual: Callable[[], str]) -> Pod:
    left, slash, right = name.partition("/")
    if slash and namespace is not None and namespace != left:
        raise InvalidValue(f"pod {name} is not in the namespace {namespace}")
    key = f"{left}/{right}" if slash else f"{namespace or usual()}/{name}"
    found = next((pod for pod in pods if pod.key == key), None)
    if found is None:
        elsewhere = ", ".join(pod.key for pod in pods if pod.name == (right or left))
        raise InvalidValue(f"there is no pod {key}" + (f"; there is {elsewhere}" if elsewhere else ""))
    return found


def render(answer: Explanation) -> RenderableType:
    """An explanation for people."""
    head = Text(f"pod {answer.namespace}/{answer.name} ", style="bold").append_text(_verdict(answer))
    parts: list[RenderableType] = [head]
    if answer.groups and answer.state == "waits":
        parts += [Text("\nwhy not:", style="bold"), _groups(answer)]
    if answer.state == "waits":
        parts += [Text("\nwhat would help:", style="bold"), _remedies(answer)]
        if answer.gang and answer.remedies:
            parts.append(Text(f"  job {answer.job} is placed as a whole: each of these makes room for one pod of it"))
    if answer.state == "fits":
        parts += [Text("\nbest nodes:", style="bold"), _candidates(answer)]
        if answer.scheduler:
            parts.append(Text(f"\nits scheduler says: {answer.scheduler}"))
        else:
            parts.append(Text("\nif it stays so, ask its scheduler: kubectl describe pod shows what it says"))
    return Stack(*parts)


def _verdict(answer: Explanation) -> Text:
    asked = f"asks for {answer.request} chip{'s' if answer.request != 1 else ''}"
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
            count = len(answer.candidates)
            return Text(f"{asked} and fits on {count} node{'s' if count != 1 else ''} now; it is not bound yet")
    waits = f"{asked} and waits: " if answer.request else "waits: "
    return Text.assemble(waits, (answer.reason, "yellow"), f": {answer.message}")


def _groups(answer: Explanation) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right")
    for each in answer.groups:
        count = len(each.nodes)
        reason = Text.assemble((each.reason, "yellow"), f": {each.message}")
        table.add_row(f"  {count}", "nodes" if count != 1 else "node", reason)
        table.add_row("", "", Text(each.names(), style="dim"))
    return table


def _remedies(answer: Explanation) -> RenderableType:
    if not answer.remedies:
        return Stack(*(Text(f"  {sentence}") for sentence in _else(answer)))
    lines = [Text(f"  on node {each.node}, once {each}", style="green") for each in answer.remedies[:_REMEDIES]]
    more = len(answer.remedies) - _REMEDIES
    return Stack(*lines, *([Text(f"  and {more} other ways (-o json has all)", style="dim")] if more > 0 else ()))


def _else(answer: Explanation) -> Iterator[str]:
    if answer.examined:
        yield f"nothing that was tried, on {answer.examined} node{'s' if answer.examined != 1 else ''}: {_TRIED}"
    yield from answer.advice
    if not answer.examined and not answer.advice:
        yield "nothing on any node; the pod must ask for something else, or nodes with NPUs must join"


_TRIED = "the end of up to three pods, the recovery of chips, a node that is Ready, uncordoned and reported of"


def _candidates(answer: Explanation) -> Table:
    table = Table.grid(padding=(0, 2))
    for each in answer.candidates[:_CANDIDATES]:
        chips = ",".join(name.removeprefix(NAME_PREFIX) for name in each.chips)
        table.add_row(f"  {each.rank}.", each.node, f"chips {chips}")
    return table
