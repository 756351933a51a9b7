"""The leaf switches of the cluster, and which jobs use them.

Which servers are below a switch is in MindCluster's ConfigMap ``basic-tor-node-cm``; how jobs use the switches follows
from where their pods are, and, in version 2, from what is written on these (docs/spec/switch-affinity.md#version-2).
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from allocator.rules.job import JobKey
from allocator.rules.job_products import TOR_AFFINITY
from allocator.rules.job_settings import with_settings
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from allocator.state.reservation import OnSwitch
from allocator.switches.demand import schema_of
from allocator.switches.rooms import UNUSED, Schema, Spot, SwitchState, Use
from allocator.switches.table import NAME, SwitchTable, read_switches
from ascend.annotations import read_switch_use
from ascend.deviceinfo import NAMESPACE
from ascend.kube.objects import ConfigMap, Node, Pod

_MISSING: Final = f"ConfigMap {NAMESPACE}/{NAME} does not exist"


class SwitchUse(msgspec.Struct):
    """How the jobs on a switch use it.

    Attributes:
        state: its state in version 2.
        spanning: the schemas of those that span switches.
    """

    state: SwitchState = UNUSED
    spanning: frozenset[Schema] = frozenset()

    def add(self, state: SwitchState, schema: Schema) -> None:
        """Add a spanning job: a switch that any job shares is shared, and unhealthy if it is so for any."""
        uses = {self.state.use, state.use} - {Use.FREE}
        self.state = SwitchState(min(uses, default=Use.FREE), self.state.is_healthy and state.is_healthy)
        self.spanning |= {schema}


class SwitchView(msgspec.Struct, frozen=True):
    """What a policy sees of the switches when it places one job.

    Attributes:
        table: the switches.
        others: how other jobs use those that any of them spans, by number.
        own: how the job uses its switches, as written on its pods.
    """

    table: SwitchTable
    others: Mapping[int, SwitchUse]
    own: Mapping[int, SwitchState]


class Spanning(msgspec.Struct, frozen=True):
    """How a job that spans switches uses them.

    Attributes:
        version: of its pods and of the table, when that was read.
        schema: its schema; normal if it asks for none.
        states: how it uses each of its switches, by number.
    """

    version: tuple[int, int]
    schema: Schema
    states: Mapping[int, SwitchState]


class Switches:
    """The switches, and the jobs below them.

    Args:
        jobs: all jobs, by key.
        spot: where a node is; None if it is below no known switch.
        ledger: the reservations.

    Attributes:
        changed: called after the table has changed: nodes may be elsewhere.
        unreadable: called with a sentence on what can't be read.
        table: the switches, or why they are unknown, a part of a sentence.
    """

    def __init__(self, jobs: Mapping[JobKey, Job], spot: Callable[[str], Spot | None], ledger: Ledger) -> None:
        self._jobs = jobs
        self._spot = spot
        self._ledger = ledger
        self.changed: Callable[[], None] = lambda: None
        self.unreadable: Callable[[str], None] = lambda _sentence: None
        self.table: SwitchTable | str = _MISSING
        self._tables = 0
        self._spanning: dict[JobKey, Spanning] = {}

    def applied(self, config_map: ConfigMap) -> None:
        """Take over the table; other ConfigMaps are ignored."""
        if config_map.name == NAME:
            self._set(read_switches(config_map))

    def deleted(self, config_map: ConfigMap) -> None:
        """Forget the table."""
        if config_map.name == NAME:
            self._set(_MISSING)

    def find(self, node: Node | None) -> Spot | None:
        """Where a node is by its InternalIP; None if it is below no known switch."""
        if node is None or isinstance(self.table, str):
            return None
        return self.table.servers.get(node.internal_ip)

    def seen_by(self, job: Job) -> SwitchView | str:
        """What a policy sees when it places a job, or why the switches are unknown."""
        if isinstance(self.table, str):
            return self.table
        return SwitchView(self.table, self.uses(job.key), self.states_of(job))

    def uses_after(self, ended: frozenset[str], without: JobKey) -> dict[int, SwitchUse]:
        """How jobs would use the switches if these pods had ended; ``without`` does not count."""
        found: dict[int, SwitchUse] = {}
        for key, each in self.spanning().items():
            job, left = self._jobs[key], each.states
            if not ended.isdisjoint(job.placed):
                spots = [spot for node in job.nodes_beside(ended) if (spot := self._spot(node)) is not None]
                switches = {spot.switch for spot in spots}
                left = {switch: state for switch, state in left.items() if switch in switches}
            if key != without and (left is each.states or len(left) > 1):
                for switch, state in left.items():
                    found.setdefault(switch, SwitchUse()).add(state, each.schema)
        return found

    def uses(self, without: JobKey | None = None) -> dict[int, SwitchUse]:
        """How jobs use the switches that any of them spans, by number; ``without`` does not count."""
        found: dict[int, SwitchUse] = {}
        for key, job in self.spanning().items():
            if key != without:
                for switch, state in job.states.items():
                    found.setdefault(switch, SwitchUse()).add(state, job.schema)
        return found

    def spanning(self) -> Mapping[JobKey, Spanning]:
        """The jobs that span switches."""
        read = ((key, self._read(job)) for key, job in self._jobs.items() if job.is_on_several_nodes)
        self._spanning = {key: found for key, found in read if found is not None}  # nothing of jobs that are gone
        return self._spanning

    def _set(self, table: SwitchTable | str) -> None:
        if table == self.table:
            return
        self.table = table
        self._tables += 1
        if isinstance(table, SwitchTable):
            for problem in table.problems:
                self.unreadable(problem)
        elif table != _MISSING:
            self.unreadable(table)
        self.changed()

    def _read(self, job: Job) -> Spanning | None:
        """How a job that is on several nodes uses the switches; None if it spans none."""
        version, known = (job.version, self._tables), self._spanning.get(job.key)
        if known is not None and known.version == version:
            return known
        states = self.states_of(job)
        if len(states) <= 1:
            return None
        schemas = (schema_of(with_settings(job.pods[uid], job.settings)) for uid in job.placed)
        return Spanning(version, next(schemas, None) or Schema.NORMAL, states)

    def states_of(self, job: Job) -> dict[int, SwitchState]:
        """How a job uses the switches of its pods, by number, as is or will be written on these."""
        found: dict[int, SwitchState] = {}
        for uid in job.placed:
            pod, held = job.pods[uid], self._ledger.get(uid)
            spot = self._spot(held.node if held is not None else pod.spec.node_name)
            if spot is not None:
                if held is not None and isinstance(held.part, OnSwitch):
                    state = held.part.state
                else:
                    use, is_healthy = read_switch_use(pod.metadata.annotations)
                    state = SwitchState(Use(use), is_healthy)
                before = found.get(spot.switch, UNUSED)
                found[spot.switch] = max(before, state or UNUSED, key=lambda each: (each.use, not each.is_healthy))
        return found


def asks_for_switches(pod: Pod) -> bool:
    """Whether a pod with the settings of its job asks for switch affinity."""
    return TOR_AFFINITY in pod.metadata.labels and schema_of(pod) is not None
