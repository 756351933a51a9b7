"""Carries out ``npuctl selftest`` for a node of the cluster, and lays out its report."""

import asyncio
import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ascend.daemon.exits import EXIT_FAILURE
from ascend.errors import AscendError, InvalidValue
from ascend.grammar import count
from ascend.kube.client import KubeClient
from npuctl.output import Output, show
from npuctl.reading.source import Source
from npuctl.selftest.pods import HOSTNAME, PodTrial

COMPONENT: Final = "app.kubernetes.io/component"
PLUGIN: Final = "device-plugin"
_ON_NODE: Final = ("npuctl", "selftest", "-o", "json")


class NodeCommandFailed(AscendError):
    """The command on the node failed."""


async def selftest(
    source: Source, node: str, *, pods: bool, run: str, image: str, scheduler: str, output: Output
) -> int:
    """Examine a node of the cluster, with pods if wished, and print the report.

    Args:
        source: the cluster.
        node: the node's name.
        pods: whether pods are started.
        run: the command that runs another one on the node; empty for kubectl exec in the device plugin's pod there.
        image: the image of the pods; empty for that of the device plugin's pod.
        scheduler: their scheduler; empty for that of the chart, or where it is not installed the cluster's own.
        output: the format.

    Returns:
        The exit status: 0; 1 if the driver can't be read, or books differ.

    Raises:
        InvalidValue: something is missing.
        NodeCommandFailed: the command on the node failed.
        ApiError: the API server refused.
        Unreachable: the API server did not answer.
    """
    async with await source.connect() as client:
        found = json.loads(await client.request("GET", f"/api/v1/nodes/{node}"))
        command = shlex.split(run)
        if not command or (pods and not image):
            plugin = await _plugin_pod(client, node)
            command = command or _exec(source, plugin)
            image = image or str(plugin["spec"]["containers"][0]["image"])
        answer = await _run([*command, *_ON_NODE])
        info = found["status"].get("nodeInfo") or {}
        answer["node"]["versions"] |= {
            name: info[key] for key, name in _VERSIONS.items() if isinstance(info.get(key), str)
        }
        if pods:
            host = (found["metadata"].get("labels") or {}).get(HOSTNAME, node)

            async def held(pod: str) -> Sequence[int]:
                ids: Sequence[int] = await _run([*command, *_ON_NODE, "--devices-of", pod])
                return ids

            answer["pods"] = msgspec.to_builtins(await PodTrial(client, node, host, image, scheduler, held).run())
    show(answer, output, lambda: render(answer))
    differ = any(not books["agree"] for books in answer["pods"])
    return EXIT_FAILURE if answer["node"]["problem"] or differ else 0


_VERSIONS: Final = {
    "kubeletVersion": "kubelet",
    "containerRuntimeVersion": "container runtime",
    "osImage": "operating system",
}


async def _plugin_pod(client: KubeClient, node: str) -> dict[str, Any]:
    query = {"fieldSelector": f"spec.nodeName={node},status.phase=Running"}
    found = json.loads(await client.request("GET", "/api/v1/pods", query=query))["items"]
    for pod in found:
        if str((pod["metadata"].get("labels") or {}).get(COMPONENT, "")).startswith(PLUGIN):
            return dict(pod)
    raise InvalidValue(
        f"no pod of the device plugin runs on node {node}: install it, or give --run (as in --run 'ssh {node}') and, "
        "with --pods, --image"
    )


def _exec(source: Source, pod: Mapping[str, Any]) -> list[str]:
    given = source.overrides
    flags = {
        "kubeconfig": source.kubeconfig,
        "context": source.context,
        "cluster": given.kubeconfig_cluster,
        "user": given.kubeconfig_user,
        "server": given.server,
        "token": given.token,
        "as": given.user,
        "as-group": given.group,
        "namespace": pod["metadata"]["namespace"],
        "container": pod["spec"]["containers"][0]["name"],
    }
    said = [f"--{name}={value}" for name, value in flags.items() if value]
    return ["kubectl", "exec", *said, str(pod["metadata"]["name"]), "--"]


async def _run(command: Sequence[str]) -> Any:
    """Run a command, and return the JSON that it prints; exit status 1 is an answer, too."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except OSError as error:
        raise NodeCommandFailed(f"{command[0]}: {error.strerror}") from error
    printed, said = await process.communicate()
    try:
        return json.loads(printed)
    except ValueError:
        why = said.decode(errors="replace").strip() or f"exit status {process.returncode}"
        raise NodeCommandFailed(f"{command[0]} … {shlex.join(_ON_NODE)}: {why}") from None


def render(answer: Mapping[str, Any]) -> RenderableType:
    """Lay out a decoded report for people: the contents, and the next step."""
    node = answer["node"]
    lines = [Text(f"{name} {value}") for name, value in node["versions"].items()]
    server = node["server"]
    if server is None:
        lines.append(Text(node["problem"], style="bold red"))
    else:
        what = f"{count(len(server['chips']), 'chip')} of type {server['product']}, driver {server['driver_version']}"
        lines.append(Text(what, style="bold"))
    lines.append(Text(count(len(node["calls"]), "call") + " of the driver's library"))
    timings = Table("function", "calls", "median ms", "longest ms", box=None, header_style="dim")
    for function, took in node["timings"].items():
        timings.add_row(function, str(took["calls"]), f"{took['median_ms']:.3f}", f"{took['longest_ms']:.3f}")
    surprising = [Text(f"! {sentence}", style="yellow") for sentence in node["surprises"]]
    pods = [Text(_books(books), style="" if books["agree"] else "yellow") for books in answer["pods"]]
    if node["calls"] and not surprising:
        surprising = [Text("no answer was surprising")]
    advice = _WITHOUT_CHIPS if server is None else _WHAT_TO_DO
    return Group(*lines, *([timings] if node["calls"] else []), *surprising, *pods, Text(advice, style="italic"))


_WHAT_TO_DO: Final = (
    "→ -o json prints the report, which has no names, addresses or serial numbers; docs/support.md says where to put it"
)
_WITHOUT_CHIPS: Final = (
    "→ run it on a machine with chips, or give --node; npuctl doctor says there what the driver lacks"
)


def _books(pod: Mapping[str, Any]) -> str:
    said = count(pod["chips"], "chip")
    if pod["agree"]:
        return f"pod with {said}: kubelet, annotations, report and container agree, started in {pod['started_s']:.1f} s"
    books = ", ".join(f"{name} {' '.join(map(str, ids)) or '-'}" for name, ids in pod["books"].items())
    return f"pod with {said}: {pod['problem'] or 'they differ about its chips'}{f': {books}' if books else ''}"
