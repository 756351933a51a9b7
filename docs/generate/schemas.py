"""The schemas of what the verbs of npuctl print for programs, as JSON Schema."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from device_plugin.pods.topology import NodeTopology
from npuctl.capacity.command import CapacityAnswer
from npuctl.defragment.command import DefragmentAnswer
from npuctl.doctor.command import Diagnosis
from npuctl.explain.answer import Explanation
from npuctl.explain.command import JobExplanation
from npuctl.history.command import HistoryAnswer
from npuctl.plan.placement import PlacementPlan
from npuctl.queue.command import QueueAnswer
from npuctl.selftest.node import Selftest
from npuctl.simulate.answer import SimulationAnswer
from npuctl.topo.command import TopologyAnswer
from npuctl.topo.hyper_nodes import HyperNodeViews
from npuctl.topo.switches import SwitchViews
from npuctl.usage.command import UsageAnswer
from npuctl.whatif.command import WhatIf

FOLDER: Final = Path(__file__).parents[1] / "schemas"

ANSWERS: Final[Mapping[str, type[Any]]] = {
    "capacity": CapacityAnswer,
    "defragment": DefragmentAnswer,
    "doctor": Diagnosis,
    "explain": Explanation,
    "explain-job": JobExplanation,
    "history": HistoryAnswer,
    "plan": PlacementPlan,
    "queue": QueueAnswer,
    "selftest": Selftest,
    "switches": SwitchViews,
    "hypernodes": HyperNodeViews,
    "topo": TopologyAnswer,
    "topology": NodeTopology,
    "usage": UsageAnswer,
    "whatif": WhatIf,
    "simulate": SimulationAnswer,
}
"""The answers by the name of their schema, without its version."""


def _schema(answer: type[Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(msgspec.json.schema(answer)), indent=2).decode() + "\n"


def path_of(name: str) -> Path:
    """The file of a schema: its ``npuctl/plan/v1`` is ``plan-v1.json``."""
    tag = str(ANSWERS[name].__struct_config__.tag)
    return FOLDER / f"{tag.removeprefix('npuctl/').removeprefix('ascend-affinity/').replace('/', '-')}.json"


SCHEMAS: Final[Mapping[Path, Callable[[], str]]] = {
    path_of(name): partial(_schema, answer) for name, answer in ANSWERS.items()
}
