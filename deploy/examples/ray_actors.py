# ruff: noqa: INP001 - a file to be copied
"""Places one Ray actor for each NPU, so that neighbours share a server, a leaf switch, a SuperPod.

Each node of the Ray cluster is started with what its container knows, such as ``{"NPU": 8, "leaf-2": 1}``::

    ray start --address=$HEAD:6379 --resources="$(python ray_actors.py)"

and the program takes ``place(Worker)`` for its ranks 0, 1, ….
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

PLACES = {
    "superpod": "ASCEND_AFFINITY_SUPER_POD",
    "leaf": "ASCEND_AFFINITY_LEAF_SWITCH",
    "rack": "ASCEND_AFFINITY_RACK",
}
"""Custom resources, and the variables that name them; from the widest place to the narrowest for ``in_order``."""


def resources(environment: Mapping[str, str]) -> dict[str, int]:
    """Return the resources of a Ray node: its NPUs, and where they are; none of a node without chips, as a head."""
    if not (chips := environment.get("ASCEND_AFFINITY_CHIPS")):
        return {}
    places = {kind: environment.get(variable) for kind, variable in PLACES.items()}
    return {"NPU": len(chips.split(","))} | {f"{kind}-{name}": 1 for kind, name in places.items() if name}


def in_order(nodes: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the nodes with NPUs, as ``ray.nodes()`` has them, so that those of one place are beside each other."""

    def where(node: Mapping[str, Any]) -> tuple[str, ...]:
        named = [next((name for name in node["Resources"] if name.startswith(f"{kind}-")), "") for kind in PLACES]
        return (*named, node["NodeID"])

    return sorted((node for node in nodes if node["Alive"] and node["Resources"].get("NPU")), key=where)


def place(actor: Any, *arguments: Any) -> list[Any]:
    """Return an actor of this class for each NPU, in the order of ranks; Ray gives each ASCEND_RT_VISIBLE_DEVICES."""
    import ray  # type: ignore[import-not-found,unused-ignore]  # it is no dependency of this project
    from ray.util.scheduling_strategies import (  # type: ignore[import-not-found,unused-ignore]  # likewise
        NodeAffinitySchedulingStrategy,
    )

    return [
        ray.remote(actor)
        .options(resources={"NPU": 1}, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
        .remote(*arguments)
        for node in in_order(ray.nodes())
        for _ in range(int(node["Resources"]["NPU"]))
    ]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(resources(os.environ)) + "\n")
