"""One job: its pods, how many of them must be placed together, and the rank of each.

Every event takes constant time, however large the job is. A pod is *present* unless it has failed, is terminating or is
gated. A controller replaces a failed or terminating pod, and counting both would make half a job look complete; a gated
pod is considered by no scheduler until its gates are removed, and its peers would start without it.
"""

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from allocator.rules.job import (
    JobKey,
    is_later,
    job_of_owner,
    own_rank,
    stated_replicas,
    states_number,
    works_alone,
)
from allocator.rules.job_settings import SettingsPlace, deciding, places
from allocator.rules.validity import requested_vnpus
from allocator.state.owned import Owned
from allocator.state.pod_ranks import PodRanks
from allocator.state.statements import Statements, annotated_minimum
from ascend.annotations import INDEPENDENT, MIXED_MODELS
from ascend.jobs.kind import JobFacts
from ascend.jobs.table import TABLE
from ascend.kube.objects import Pod
from ascend.turn import Steps, at_once


class Versions:
    """Numbers the versions of jobs.

    Attributes:
        latest: the last one; while it stays, no job has changed, and no placed pod is elsewhere.
    """

    def __init__(self) -> None:
        self.latest = 0

    def take(self) -> int:
        """Return the next one."""
        self.latest += 1
        return self.latest


VERSIONS: Final = Versions()


class Cooperation(NamedTuple):
    """The number of pods of a job that request chips and work together.

    Attributes:
        known: the number; None if it is unknown.
        least: a lower bound. Pods that a gang still lacks may request no chips (an mpi-operator creates workers before
            their launcher), so until they exist only what no further pod could make valid is refused.
    """

    known: int | None
    least: int


_ALONE: Final = Cooperation(1, 1)


class Job(msgspec.Struct, eq=False, gc=False):
    """The state of a job; `Jobs` keeps it current.

    Attributes:
        key: what identifies it.
        source_key: the object from which its pods were created, if it is of a kind that is watched.
        size: the number of its present pods that request chips.
        present: the number of its pods that have not failed and are neither terminating nor gated; finished ones count.
        ended: the number of its present pods that request chips and have succeeded.
        version: changes with every decision-relevant change: of a pod, of the number of pods to place together, and of
            which pods are placed. No two jobs ever have the same version.
        placement: changes with every change of where its pods are placed, also from one node to another.
        first_version: tells it from a former job with the same key.
        group: what its pod group says; None without one.
        source: what the object says from which its pods were created; None if it has none, or none is known.
        settings: what is written on both of how the job is to be placed.
        requirements: the sum of the numbers of what its pods ask of nodes, by their specs and the settings on them: the
            same for jobs with equal pods.
    """

    key: JobKey
    _owners: Mapping[JobKey, Owned]  # the desired number of pods of each owner, kept by Jobs
    source_key: JobKey | None = None
    size: int = 0
    present: int = 0
    ended: int = 0
    version: int = msgspec.field(default_factory=VERSIONS.take)
    first_version: int = 0
    placement: int = 0
    group: JobFacts | None = None
    source: JobFacts | None = None
    settings: tuple[SettingsPlace, ...] = ()
    requirements: int = 0
    _statements: Statements | None = None  # of most jobs no pod states anything
    _minimum: int | None = None  # min_available, which every decision asks for several times
    _pods: dict[str, Pod] = {}
    _placed: dict[str, str] = {}  # the nodes, in the order of placement
    _on: dict[str, int] = {}
    _vnpus: dict[str, int] = {}
    _gated: dict[str, None] = {}
    _ranks: PodRanks | None = None  # of most jobs with one pod nobody asks for its rank

    def __post_init__(self) -> None:
        self.first_version = self.version

    @property
    def kind(self) -> str:
        """The kind of its group or owner."""
        return self.key.kind

    @property
    def pods(self) -> Mapping[str, Pod]:
        """Its present pods, by uid."""
        return MappingProxyType(self._pods)

    @property
    def newest(self) -> Iterator[Pod]:
        """Its present pods, the last changed first."""
        return reversed(self._pods.values())

    @property
    def is_mixed(self) -> bool:
        """Whether the waiting pods differ in their demands on nodes, so that they may fit on different nodes."""
        return len({pod.spec.requirements for pod in self._pods.values() if pod.waits_for_chips}) > 1

    @property
    def stated_minimum(self) -> int | None:
        """The minimum stated by its pods; None if none states one."""
        return self._statements.minimum if self._statements is not None else None

    @property
    def group_minimum(self) -> int | None:
        """The minimum of its pod group; None without one."""
        return self.group.minimum if self.group is not None else None

    @property
    def facts(self) -> tuple[JobFacts | None, JobFacts | None]:
        """The facts of the pod group and the object, in the order of precedence."""
        return self.group, self.source

    def set_facts(self, group: JobFacts | None, source: JobFacts | None) -> None:
        """Set the facts of the pod group and the object, after one of them was created, changed or deleted."""
        self.group, self.source, self._minimum = group, source, None
        self.settings = places(((self.key, group), (self.source_key, source)))
        if self._ranks is not None:
            self._ranks.know(source.parts if source is not None else ())
        self.version = VERSIONS.take()

    @property
    def min_available(self) -> int:
        """How many pods must be placed together; 1 if each may be placed alone.

        The first of these that is there: the minimum of its group if that is more than 1
        (docs/spec/scheduling.md#jobs-and-requests), what is stated on its group, likewise of and on its object, what is
        stated on its pods, and without a group the number that starts together by the rules of its kind.
        """
        if self._minimum is None:
            self._minimum = self._read_minimum()
        return self._minimum

    def _read_minimum(self) -> int:
        # The same for both, so that the minimum is the same whether or not the operator makes a group of the object.
        for facts in filter(None, (self.group, self.source)):
            if facts.minimum is not None and facts.minimum > 1:
                return facts.minimum
            if (stated := annotated_minimum(facts)) is not None:
                return stated
        if self.source is not None and self.source.minimum is not None:
            return 1
        if (by_pods := self.stated_minimum) is not None:
            return by_pods
        if self.group is not None:
            return 1
        said = self.source if self.source is not None else self._statements
        return max(1, (said.whole if said is not None else None) or 1)

    @property
    def needed(self) -> int:
        """How many of its pods that request chips must be placed together."""
        return self.min_available - (self.present - self.size)

    @property
    def is_gang(self) -> bool:
        """Whether several pods must be placed together."""
        return (self._minimum or self.min_available) > 1  # every decision asks several times

    def cooperation_with(self, pod: Pod) -> Cooperation:
        """The number of the job's pods with chips, the given pod included, that work together.

        Must not depend on which pods exist already: the first pod is placed before its peers exist, and its placement
        must still be right when they do.
        """
        if self.source is not None and self.source.parts and not self.works_alone(pod):
            stated = self.source.pods_with_chips if self.is_gang else self.source.most_with_chips
            number = max(self._requesting_with(pod), stated)
            return Cooperation(number, number)
        if self.is_gang:
            least = max(self._requesting_with(pod), self._owned_with(pod) or 1, stated_replicas(pod) or 1)
            # Pods that don't exist yet may all request chips; only existing pods are known to request none.
            return Cooperation(max(least, self.needed), least)
        if self.works_alone(pod):
            return _ALONE
        owned = self._owned_with(pod)
        if owned is not None and job_of_owner(pod) == self.key:
            return Cooperation(owned, owned)
        # The job may have several owners; the numbers of pods of the others are unknown.
        least = max(owned or 1, stated_replicas(pod) or 1)
        return Cooperation(least if least > 1 else None, least)

    def is_only_so_far(self, pod: Pod) -> bool:
        """Whether the job has one pod with chips, and may be scaled to several pods that cooperate."""
        kind = TABLE.by_name.get(self.key.kind)
        is_scaled = kind is not None and kind.is_scaled
        return is_scaled and not self.works_alone(pod) and self.cooperation_with(pod).known == 1

    def works_alone(self, pod: Pod) -> bool:
        """Whether a pod works independently of its peers, and starts without them."""
        return not self.is_gang and (works_alone(pod, self.key) or self.is_independent(pod))

    def is_independent(self, pod: Pod) -> bool:
        """Whether pods, group or object say that the pods don't communicate collectively."""
        return self._is_marked(pod, INDEPENDENT)

    def mixes_models(self, pod: Pod) -> bool:
        """Whether pods, group or object say that the pods may be on chips of several models."""
        return self._is_marked(pod, MIXED_MODELS)

    def _is_marked(self, pod: Pod, key: str) -> bool:
        if pod.metadata.annotations.get(key) == "true":
            return True
        return bool(self.settings) and any(place.annotations.get(key) == "true" for place in self.settings)

    def never_starts(self, pod: Pod) -> str | None:
        """Why its pods can never be placed together, given the owner of a pod; None if they can."""
        owner = job_of_owner(pod)
        owned = self._owners.get(owner) if owner is not None else None
        if owned is None or not owned.is_one_by_one or not self.is_gang or self.placed_beside(pod.uid):
            return None
        if any(job_of_owner(peer) != owner for peer in self._pods.values()):
            return None  # several owners: each creates its first pod
        return (
            f"StatefulSet {owner} creates a pod only when the one before it is ready (podManagementPolicy "
            f"OrderedReady), but {self.min_available} pods of job {self.key} must be placed together; "
            "set podManagementPolicy to Parallel, or the minimum to 1"
        )

    def is_distributed_with(self, pod: Pod) -> bool:
        """Whether the job counts as distributed (docs/spec/scheduling.md), as with an unknown number of pods.

        A group with a minimum of 1 may be that of a single pod, so there the peers that exist decide.
        """
        known = self.cooperation_with(pod).known
        if known is None:
            return self.group is None or not self.may_be_alone(pod)
        return known > 1

    def may_be_alone(self, pod: Pod) -> bool:
        """Whether the pod has no peer with chips, and its own index is not a later pod's."""
        return self._requesting_with(pod) <= 1 and not is_later(pod)

    def vnpus_with(self, pod: Pod) -> int:
        """The number of vNPUs of a pod and of the job's live pods that count beside it."""
        return requested_vnpus(pod) + sum(self.vnpus_beside(pod).values())

    def vnpus_beside(self, pod: Pod) -> dict[str, int]:
        """The numbers of vNPUs of its live pods that count beside a pod, by uid.

        Pods that are bound or have a reservation count, and of those that wait the ones before it; if all of those
        counted, each would be refused because of the others. The pods of a gang start together, so all of them count.

        A training job may request one vNPU (docs/spec/affinity-rules.md#one-vnpu-per-job): a pod that works alone is a
        training job of its own, as for the number of chips; the pods of a StatefulSet are one job, because which of
        them serve is unknown.
        """
        if self.works_alone(pod):
            return {}
        others = {uid: vnpus for uid, vnpus in self._vnpus.items() if uid != pod.uid}
        if others and not self.is_gang:
            waits, own = not self._has_place(pod), _turn(pod)
            others = {
                uid: vnpus
                for uid, vnpus in others.items()
                if self._has_place(self._pods[uid]) or (waits and _turn(self._pods[uid]) < own)
            }
        return others

    def _has_place(self, pod: Pod) -> bool:
        return pod.uid in self._placed or bool(pod.spec.node_name)

    def rank_of(self, pod: Pod) -> int:
        """The pod's rank: its own, else the lowest free rank; a present pod keeps it alone.

        Only the backup of a pod that runs has that pod's rank.
        """
        return self._known_ranks.rank_of(pod)

    def by_rank(self) -> list[tuple[int, Pod]]:
        """The present pods in the order of their ranks; a pod without a rank gets one."""
        at_once(self.assign_ranks())
        ranked = ((self.rank_of(pod), pod) for pod in self._pods.values())
        return sorted(ranked, key=lambda item: (item[0], item[1].name))

    def assign_ranks(self) -> Steps[None]:
        """Assign a rank to every present pod with chips that has none."""
        yield from self._known_ranks.assign()

    @property
    def _known_ranks(self) -> PodRanks:
        """The ranks of its pods, once there are several pods with chips, or somebody asks."""
        if self._ranks is None:
            self._ranks = PodRanks()
            self._ranks.know(self.source.parts if self.source is not None else ())
            for pod in self._pods.values():
                if pod.requests_chips:
                    self._ranks.put(pod)
        return self._ranks

    @property
    def gated(self) -> int:
        """The number of the job's pods with scheduling gates, which are not present for that reason."""
        return len(self._gated)

    def set_gated(self, uid: str, *, gated: bool) -> None:
        """Record whether a pod has scheduling gates."""
        if gated:
            self._gated[uid] = None
        else:
            self._gated.pop(uid, None)

    @property
    def placed(self) -> Mapping[str, str]:
        """The nodes of its live pods with chips that are bound or reserved, by uid, in the order of placement."""
        return self._placed

    def placed_beside(self, uid: str) -> int:
        """The number of the job's other live pods with chips that are bound or have a reservation."""
        return len(self._placed) - (uid in self._placed)

    def shares(self, node: str, uid: str) -> bool:
        """Whether a placed pod other than the one with this uid is on a node."""
        return self._on.get(node, 0) > (self._placed.get(uid) == node)

    @property
    def is_on_several_nodes(self) -> bool:
        """Whether its placed pods are on several nodes."""
        return len(self._on) > 1

    def nodes_beside(self, uids: Collection[str]) -> frozenset[str]:
        """The nodes of the job's placed pods except some."""
        return frozenset(node for uid, node in self._placed.items() if uid not in uids)

    def set_placed(self, uid: str, node: str) -> None:
        """Record on which node a live present pod that requests chips is bound or has a reservation; empty for none."""
        old = self._placed.get(uid, "")
        if old == node:
            return
        if old:
            self._leave(uid)
        if node:
            self._placed[uid] = node
            self._on[node] = self._on.get(node, 0) + 1
        self.placement = VERSIONS.take()
        if not old or not node:
            self.version = self.placement  # else the same pods need a seat as before

    def _leave(self, uid: str) -> None:
        node = self._placed.pop(uid, None)
        if node is not None:
            self._on[node] -= 1
            if not self._on[node]:
                del self._on[node]

    def note_minimum(self, pod: Pod) -> None:
        """Record what a pod states about the number of pods to place together."""
        if self._statements is not None or states_number(pod):
            self._statements = self._statements or Statements()
            self._statements.note(pod)
        self._minimum = None

    def put(self, pod: Pod) -> None:
        """Add or update a present pod."""
        old = self._remove(pod.uid)
        self.note_minimum(pod)
        self._pods[pod.uid] = pod
        # Schedulers update the status of every refused pod, and then filter its peers.
        if old is None or not _is_as_before(old, pod):
            self.version = VERSIONS.take()
        self.present += 1
        self.requirements += _requirements_of(pod)
        if pod.is_live and (vnpus := requested_vnpus(pod)):
            self._vnpus[pod.uid] = vnpus
        if not pod.requests_chips:  # it has no place in a block, and nobody reads its rank
            return
        self.size += 1
        self.ended += not pod.is_live
        if self._ranks is not None or self.size > 1:
            self._known_ranks.put(pod)

    def remove(self, uid: str) -> None:
        """Remove a pod that is no longer present."""
        if self._statements is not None:
            self._statements.forget(uid)
        self._minimum = None
        self._leave(uid)
        if self._ranks is not None:
            self._ranks.remove(uid)
        if self._remove(uid) is not None:
            self.version = VERSIONS.take()

    def _remove(self, uid: str) -> Pod | None:
        pod = self._pods.pop(uid, None)
        if pod is None:
            return None
        self.present -= 1
        self.requirements -= _requirements_of(pod)
        self.size -= pod.requests_chips
        self.ended -= pod.requests_chips and not pod.is_live
        self._vnpus.pop(uid, None)
        return pod

    def _owned_with(self, pod: Pod) -> int | None:
        owner = job_of_owner(pod)
        owned = self._owners.get(owner) if owner is not None else None
        return owned.size if owned is not None else None

    def _requesting_with(self, pod: Pod) -> int:
        return (
            self.size
            + (pod.uid not in self._pods and pod.requests_chips)
            - (self._ranks.backups if self._ranks is not None else 0)
        )


def _turn(pod: Pod) -> tuple[bool, int, bool, str, str]:
    """The order in which the waiting pods of a job get a vNPU: by rank, age and name."""
    rank, created = own_rank(pod), pod.metadata.creation_timestamp
    # A pod that is being created has no timestamp yet.
    return rank is None, rank or 0, created is None, created or "", pod.name


def _requirements_of(pod: Pod) -> int:
    return pod.spec.requirements + hash(deciding(pod.metadata.labels) | deciding(pod.metadata.annotations))


def _is_as_before(old: Pod, new: Pod) -> bool:
    """Whether a pod is unchanged apart from its status; a changed phase counts as a change."""
    metadata = msgspec.structs.replace(old.metadata, resource_version=new.metadata.resource_version)
    return metadata == new.metadata and old.spec == new.spec and old.status.phase == new.status.phase
