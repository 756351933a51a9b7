"""How long the calls of Volcano's extender plugin take for which it waits: for each pod, or for each pod and node.

Volcano sends nodes with all pods on them in each of these calls; the bodies are a recorded one of Volcano 1.12
(``tests/allocator/serving/volcano/predicate.largest.json``) with the names of the nodes.
"""

import json
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any, Final

import aiohttp

from ascend.annotations import MIN_AVAILABLE, RANK
from sandbox.apiserver import ApiServer
from tests.allocator.builders import GROUP
from tests.allocator.harness import Allocator, running
from tests.bench.free_sets import node_name, on_server
from tests.bench.outcome import Outcome, Run, ms, p50, p99, table

_RECORDED: Final = Path(__file__).parents[1] / "allocator" / "serving" / "volcano" / "predicate.largest.json"
_NODES: Final = (1_000, 100)
_SESSIONS: Final = (4, 2)
"""In each, a gang's pod is judged on every node; the first one warms up."""
_ALL: Final = 12
"""Calls about all nodes."""
_OTHERS: Final = (0, 8)
"""How many pods Volcano has on the node, all of which are in the body of the call."""
_SIZE: Final = 2
_KINDS: Final = {"plain": {}, "switch affinity": {"tor-affinity": "large-model-schema"}}
"""The labels of the pods of each gang."""


async def measure(run: Run) -> Outcome:
    nodes = _NODES[run.quick]
    outcome = Outcome()
    about_all = table("gang", "bytes of the call", "p50 ms", "max ms")
    shown = table("gang", "pods on the node", "bytes of the call", "fits", "p50 ms", "p99 ms", "max ms")
    with tempfile.TemporaryDirectory(prefix="aa-") as folder:
        async with ApiServer() as server:
            await on_server(server, nodes, run.seed)
            ours = running(server, Path(folder), volcano=True)
            async with ours as allocator, aiohttp.ClientSession() as http:
                url = f"http://{allocator.app.extender_address}/volcano"
                for (kind, labels), others in product(_KINDS.items(), _OTHERS):
                    pod = await _gang(allocator, f"{kind.replace(' ', '-')}-{others}", labels)
                    bodies = [_body(pod, node_name(number), others) for number in range(nodes)]
                    what = f"{kind}: {nodes:,} nodes, {others} pods on each"
                    taken, fitting = await _sessions(run, http, f"{url}/predicate", bodies, what)
                    figures = [ms(each) for each in (p50(taken), p99(taken), max(taken))]
                    shown.add_row(kind, str(others), f"{len(bodies[0]):,}", f"{fitting / len(taken):.0%}", *figures)
                    outcome.raw[f"{kind}, {others} pods on the node, predicate, s"] = taken
                    if not others:
                        calls = [json.loads(body) for body in bodies]
                        asked = {"task": calls[0]["task"], "nodes": [call["node"] for call in calls]}
                        body = json.dumps(asked).encode()
                        taken = [await _scores(http, f"{url}/prioritize", body, nodes) for _ in range(_ALL)]
                        about_all.add_row(kind, f"{len(body):,}", ms(p50(taken)), ms(max(taken)))
                        outcome.raw[f"{kind}, prioritize, s"] = taken
    outcome.show(
        f"volcano: one predicate call over HTTP, a gang's pod of 8 chips on each of {nodes:,} nodes",
        shown,
        "fits: on this share of the nodes. Allocator and client share one thread, so the numbers include both.",
    )
    outcome.show(f"volcano: one prioritize call over HTTP about {nodes:,} nodes without pods", about_all)
    return outcome


async def _scores(http: aiohttp.ClientSession, url: str, body: bytes, nodes: int) -> float:
    """How long a call about all nodes took."""
    started_s = time.perf_counter()
    async with http.post(url, data=body) as response:
        answer = await response.read()
    took_s = time.perf_counter() - started_s
    assert len(json.loads(answer)["nodeScore"]) == nodes, answer[:200]
    return took_s


async def _gang(allocator: Allocator, name: str, labels: dict[str, str]) -> dict[str, Any]:
    """Create a gang, and return its first pod."""
    annotations = {GROUP: name, MIN_AVAILABLE: str(_SIZE)}
    pods = [
        await allocator.pod(f"{name}-{rank}", 8, labels=labels, annotations=annotations | {RANK: str(rank)})
        for rank in range(_SIZE)
    ]
    return pods[0]


async def _sessions(
    run: Run, http: aiohttp.ClientSession, url: str, bodies: list[bytes], what: str
) -> tuple[list[float], int]:
    """How long each call took, and how many of the nodes fit."""
    taken: list[float] = []
    fitting = 0
    for session in run.steps(what, _SESSIONS[run.quick]):
        for body in bodies:
            started_s = time.perf_counter()
            async with http.post(url, data=body) as response:
                answer = await response.read()
            took_s = time.perf_counter() - started_s
            if session:
                taken.append(took_s)
                fitting += not json.loads(answer)["status"]
    assert 0 < fitting < len(taken), f"the pod should fit on some nodes only; the last answer: {answer.decode()}"
    return taken, fitting


def _body(asking: dict[str, Any], node: str, others: int) -> bytes:
    call = json.loads(_RECORDED.read_text())
    there = call["node"]["Tasks"]
    assert len(there) >= others, "the recorded call has too few pods"
    call["task"] |= {"UID": asking["metadata"]["uid"], "Name": asking["metadata"]["name"], "Pod": asking}
    call["node"] |= {"Name": node, "Tasks": dict(list(there.items())[:others])}
    return json.dumps(call).encode()
