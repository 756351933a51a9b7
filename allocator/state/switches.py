"""The leaf switches of the cluster, and which jobs use them.

Which servers are below a switch is in MindCluster's ConfigMap ``basic-tor-node-cm``; how jobs use the switches follows
from where their pods are, and, in version 2, from what is written on these (docs/spec/switch-affinity.md#version-2).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from allocator.rules.asked import DEFAULT_SWITCHES
from allocator.rules.job import JobKey
from allocator.rules.job_products import TOR_AFFINITY
from allocator.rules.job_settings import with_settings
from allocator.state.job import VERSIONS, Job
from allocator.state.ledger import Ledger
from allocator.state.previous_nodes import BlockRecord
from allocator.state.reservation import OnSwitch
from allocator.switches.demand import Version, schema_of
from allocator.switches.rooms import UNUSED, Schema, SwitchState, Use
from ascend.annotations import read_switch_use
from ascend.deviceinfo import NAMESPACE
from ascend.kube.objects import ConfigMap, Node, Pod
from ascend.leaf_switches import NAME, Spot, SwitchTable, read_switches

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
        """Add a spanning job: a switch that any job shares is shared, and unhealthy if it is so for any.

        One that several jobs have for themselves is shared and unhealthy as well.
        """
        uses, is_healthy = {self.state.use, state.use} - {Use.FREE}, self.state.is_healthy and state.is_healthy
        if self.state.use is state.use is Use.EXCLUSIVE:
            uses, is_healthy = {Use.SHARED}, False
        self.state = SwitchState(min(uses, default=Use.FREE), is_healthy)
        self.spanning |= {schema}


class SwitchView(msgspec.Struct, frozen=True):
    """The switches as a policy sees them when it places a job.

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
        schema: its schema; normal if it asks for none.
        states: how it uses each of its switches, by number.
    """

    schema: Schema
    states: Mapping[int, SwitchState]


class Switches:
    """The switches, and the jobs below them.

    Args:
        jobs: all jobs, by key.
        spot: where a node is; None if it is below no known switch.
        ledger: the reservations.
        past: where pods that have ended were.
        changed: called after the table has changed: nodes may be elsewhere.

    Attributes:
        unreadable: called with a sentence on what can't be read.
        limits: by which version of the rule jobs are placed.
        table: the switches, or why they are unknown, a part of a sentence.
    """

    def __init__(
        self,
        jobs: Mapping[JobKey, Job],
        spot: Callable[[str], Spot | None],
        ledger: Ledger,
        past: BlockRecord,
        *,
        changed: Callable[[], None],
    ) -> None:
        self._jobs = jobs
        self._spot = spot
        self._ledger = ledger
        self._past = past
        self._changed = changed
        self.unreadable: Callable[[str], None] = lambda _sentence: None
        self.limits = DEFAULT_SWITCHES
        self.table: SwitchTable | str = _MISSING
        self._moves = 0
        self._revision = 0
        self._seen = (-1, -1, -1)
        self._spanning: Mapping[JobKey, Spanning] = {}
        # What was read of each job, with the versions of its pods and of where nodes are at that time.
        self._read: dict[JobKey, tuple[tuple[int, int, int], Spanning | None]] = {}

    def apply(self, config_map: ConfigMap) -> None:
        """Take over the table; other ConfigMaps are ignored."""
        if config_map.name == NAME:
            self._set(read_switches(config_map))

    def delete(self, config_map: ConfigMap) -> None:
        """Forget the table."""
        if config_map.name == NAME:
            self._set(_MISSING)

    def find(self, node: Node | None) -> Spot | None:
        """Where a node is by its InternalIP; None if it is below no known switch."""
        if node is None or isinstance(self.table, str):
            return None
        return self.table.servers.get(node.internal_ip)

    def on_move(self) -> None:
        """Take over that a node is below another switch than before, or is gone."""
        self._moves += 1

    def seen_by(self, job: Job, ended: frozenset[str]) -> SwitchView | str:
        """The switches for a policy that places a job, once some pods have ended; else why they are unknown."""
        if isinstance(self.table, str):
            return self.table
        return SwitchView(self.table, self.uses_after(ended, job.key), self.states_of(job))

    def uses_after(self, ended: frozenset[str], without: JobKey | None) -> dict[int, SwitchUse]:
        """How jobs would use the switches if these pods had ended; ``without`` does not count."""
        found: dict[int, SwitchUse] = {}
        for key, spanning in self.spanning().items():
            job, left = self._jobs[key], spanning.states
            if not ended.isdisjoint(job.placed):
                spots = [spot for node in job.nodes_beside(ended) if (spot := self._spot(node)) is not None]
                switches = {spot.switch for spot in spots}
                left = {switch: state for switch, state in left.items() if switch in switches}
            if key != without and (left is spanning.states or len(left) > 1):
                for switch, state in left.items():
                    found.setdefault(switch, SwitchUse()).add(state, spanning.schema)
        return found

    def uses(self, without: JobKey | None = None) -> dict[int, SwitchUse]:
        """How jobs use the switches that any of them spans, by number; ``without`` does not count."""
        return self.uses_after(frozenset(), without)

    def spanning(self) -> Mapping[JobKey, Spanning]:
        """The jobs that span switches, also while some of their pods are being replaced."""
        seen = (VERSIONS.latest, len(self._jobs), self._moves)
        if seen == self._seen:
            return self._spanning
        read: dict[JobKey, tuple[tuple[int, int, int], Spanning | None]] = {}  # nothing of jobs that are gone
        for key, job in self._jobs.items():
            if job.is_on_several_nodes or (job.is_gang and job.placed):
                version, known = (job.version, job.placement, self._moves), self._read.get(key)
                read[key] = known if known is not None and known[0] == version else (version, self._spans(job))
        self._read, self._seen = read, seen
        spanning = {key: found for key, (_, found) in read.items() if found is not None}
        if spanning != self._spanning:
            self._spanning = spanning
            self._revision += 1
        return spanning

    @property
    def revision(self) -> int:
        """Changes whenever jobs use the switches in another way."""
        if isinstance(self.table, SwitchTable):
            self.spanning()
        return self._revision

    def _set(self, table: SwitchTable | str) -> None:
        if table == self.table:
            return
        self.table = table
        self.on_move()
        if isinstance(table, SwitchTable):
            for problem in table.problems:
                self.unreadable(problem)
        elif table != _MISSING:
            self.unreadable(table)
        self._changed()

    def _spans(self, job: Job) -> Spanning | None:
        """How a job that has placed pods uses the switches; None if it spans none."""
        states = self.states_of(job)
        for switch, state in self._homes(job):
            states[switch] = _more(states.get(switch, UNUSED), state)
        is_written = self.limits.version == Version.V2 and any(state.use for state in states.values())
        if len(states) <= 1 and not is_written:
            return None
        schema = self._schema(job)
        if schema is not None and self.limits.version == Version.V2:
            states = self._assume(states)
        return Spanning(schema or Schema.NORMAL, states)

    def _assume(self, states: Mapping[int, SwitchState]) -> dict[int, SwitchState]:
        """Count switches of a spanning job as shared of which nothing is written: version 1 has placed its pods."""
        shared = sum(state.use is not Use.EXCLUSIVE for state in states.values())
        assumed = SwitchState(Use.SHARED, shared <= self.limits.most_shared)
        return {switch: state if state.use else assumed for switch, state in states.items()}

    def _homes(self, job: Job) -> Iterator[tuple[int, SwitchState]]:
        """The switches of pods that are being replaced, and how the job used them: their successors may return."""
        spots = self._past.of(job.key)
        if not spots or job.placed_beside("") + job.ended >= job.min_available:
            return
        owners = {owner.uid for pod in job.pods.values() if (owner := pod.metadata.controller) is not None}
        there = {job.rank_of(pod) for uid, pod in job.pods.items() if uid in job.placed or not pod.is_live}
        for rank, past in spots.items():
            if rank not in there and past.owner in owners and (spot := self._spot(past.node)) is not None:
                yield spot.switch, past.state

    def states_of(self, job: Job) -> dict[int, SwitchState]:
        """How a job uses the switches of its pods, by number, as is or will be written on these.

        What is written counts only if the job asks for switch affinity: the allocator writes it on no other pods, and
        where no admission policy protects it, a pod's author could close the switches to others.
        """
        found: dict[int, SwitchState] = {}
        asks: bool | None = None
        for uid in job.placed:
            pod, held = job.pods[uid], self._ledger.get(uid)
            spot = self._spot(held.node if held is not None else pod.spec.node_name)
            if spot is None:
                continue
            state = held.part.state if held is not None and isinstance(held.part, OnSwitch) else read_state(pod)
            if state is not None and state != UNUSED:
                asks = self._schema(job) is not None if asks is None else asks
                state = state if asks else UNUSED
            found[spot.switch] = _more(found.get(spot.switch, UNUSED), state or UNUSED)
        return found

    def _schema(self, job: Job) -> Schema | None:
        """The schema of a job with placed pods; None if it does not ask for switch affinity."""
        return next((schema_of(with_settings(job.pods[uid], job.settings)) for uid in job.placed), None)


def _more(one: SwitchState, other: SwitchState) -> SwitchState:
    """The state of a switch for which pods of a job state two."""
    return max(one, other, key=lambda state: (state.use, not state.is_healthy))


def read_state(pod: Pod) -> SwitchState:
    """How the job of a pod uses its switch, as is written on the pod."""
    use, is_healthy = read_switch_use(pod.metadata.annotations)
    return SwitchState(Use(use), is_healthy)


def asks_for_switches(pod: Pod) -> bool:
    """Whether a pod with the settings of its job asks for switch affinity."""
    return TOR_AFFINITY in pod.metadata.labels and schema_of(pod) is not None
