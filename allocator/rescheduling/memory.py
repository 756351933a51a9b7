"""What is remembered of jobs with faults, also by the next leader."""

from collections import Counter
from collections.abc import Callable, Collection
from typing import Annotated, Final

import msgspec

from allocator.rescheduling.decision import Depth, PodChoice, failing_nodes, leaves_gracefully
from allocator.rescheduling.faults import FaultKind
from allocator.rules.rescheduling_labels import FaultLabels, Reach
from allocator.state.holding import Holding
from allocator.state.previous_nodes import RankSpot
from ascend.chips import MAX_CHIP_ID, chip_set
from ascend.cores import CUT_PATTERN, parse_cut
from ascend.errors import UNREADABLE
from ascend.vnpus import VNPU_PATTERN, parse_vnpu

_KEPT_OWNERS: Final = 100


class Deleted(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pod that was deleted, and is not gone yet.

    Attributes:
        pod: ``namespace/name``.
        node: its node.
        at_s: when it was deleted, Unix seconds.
        chips: the chips it held.
        at_once: whether it was deleted without its grace period.
        ends_s: until then its kubelet may give its containers to end, Unix seconds; 0 if it was not terminating.
        vnpus: the names of its vNPUs.
        cuts: the names of its vNPUs that were cut for it.
        cores: the AI cores that it requested; 0 for chips.
    """

    pod: str
    node: str
    at_s: float
    chips: list[Annotated[int, msgspec.Meta(ge=0, le=MAX_CHIP_ID)]] = []
    at_once: bool = False
    ends_s: float = 0.0
    vnpus: list[Annotated[str, msgspec.Meta(pattern=VNPU_PATTERN)]] = []

    cuts: list[Annotated[str, msgspec.Meta(pattern=CUT_PATTERN)]] = []
    cores: Annotated[int, msgspec.Meta(ge=0)] = 0

    @property
    def holding(self) -> Holding:
        """What it holds."""
        vnpus = tuple(map(parse_vnpu, self.vnpus))
        counted = Counter(vnpu.suffix for vnpu in vnpus)
        return Holding(
            self.pod,
            chip_set(self.chips),
            0 if self.cores else len(self.chips),
            vnpus=vnpus,
            counted_vnpus=dict(counted),
            cuts=tuple(map(parse_cut, self.cuts)),
            counted_cores=self.cores,
        )


class Recovery(msgspec.Struct, omit_defaults=True):
    """A job from the first deletion until all of its pods are placed again; afterwards its counts.

    Attributes:
        owners: the uids of the controllers of its pods: a job of the name with none of them starts anew.
        changed_s: when it was changed last, Unix seconds.
        is_open: whether pods of it are still to be placed.
        waits_since_s: since when a successor waits for chips, Unix seconds; None while none does.
        stage: how far the deletion has reached.
        damaged: the blocks in which pods were faulty.
        deleted: the pods that are not gone yet, by uid.
        chosen: the uids of the pods that were to be deleted last.
        goes_together: whether those that are left go as well when some of them have gone, whatever their own faults.
        retry_at_s: not before this time pods are deleted that could not be, Unix seconds.
        times_s: when pods were deleted, Unix seconds, as many times as may be within an hour.
        retries: how often pods were deleted because one had failed.
        spots: where the pods of its ranks were, if it has blocks.
        faulty_nodes: the nodes of its faulty pods.
        some_stayed: whether some of its pods were not deleted.
        restarts: whether the processes of these start again once all pods are placed.
        is_leaving: whether its processes were told to save their state and end.
        is_switch: whether its pods were deleted only because their backups take over: nothing waits for successors.
    """

    owners: list[str]
    changed_s: float = 0.0
    is_open: bool = True
    waits_since_s: float | None = None
    stage: Depth = Depth.PODS
    damaged: list[int] = []
    deleted: dict[str, Deleted] = {}
    chosen: list[str] = []
    goes_together: bool = False
    retry_at_s: float = 0.0
    times_s: list[float] = []
    retries: int = 0
    spots: dict[int, RankSpot] = {}
    faulty_nodes: list[str] = []
    some_stayed: bool = False
    restarts: bool = False
    is_leaving: bool = False
    is_switch: bool = False

    def is_again(self, choice: PodChoice) -> bool:
        """Whether these pods were to be deleted before, and could not be: that counts only once."""
        return {member.pod.uid for member in choice.pods} <= set(self.chosen)

    def on_choice(self, choice: PodChoice, switches: FaultLabels, now_s: float, per_hour: int) -> None:
        """Note a decision that is carried out next.

        Args:
            choice: the pods that go.
            switches: what the job says.
            now_s: the present, Unix seconds.
            per_hour: how often pods of a job may be deleted in an hour.
        """
        self.is_switch = choice.is_switch and (self.is_switch or not self.is_open)
        self.is_open, self.changed_s = True, now_s
        if choice.stage > self.stage:
            self.stage, self.waits_since_s = choice.stage, None
        if not self.is_again(choice):
            self.times_s = [*self.times_s, now_s][-per_hour:]
            self.retries += choice.reason is FaultKind.POD
            self.chosen = [member.pod.uid for member in choice.pods]
            takes_others = any(member.fault is None for member in choice.pods)
            self.goes_together = takes_others or (switches.reach is Reach.JOB and not choice.is_switch)
        self.damaged = sorted({*self.damaged, *choice.damaged})
        self.faulty_nodes = sorted({*self.faulty_nodes, *failing_nodes(choice)})
        self.restarts = switches.restarts
        self.is_leaving |= leaves_gracefully(choice, switches)

    def on_whole(self, now_s: float) -> None:
        """Note that all pods of the job are placed again, at a time in Unix seconds."""
        self.is_open, self.waits_since_s, self.stage, self.damaged = False, None, Depth.PODS, []
        self.spots, self.changed_s = {}, now_s
        self.is_leaving, self.is_switch, self.faulty_nodes = False, False, []

    def has_left(self) -> None:
        """Note that no pod of the job is left: new pods are not deleted because others of them wait."""
        self.stage, self.waits_since_s = Depth.JOB, None


class Unread(msgspec.Struct, frozen=True):
    """An entry that can't be read.

    Attributes:
        raw: the JSON, which is stored again as it is.
        why: why, a sentence.
    """

    raw: bytes
    why: str

    @property
    def node(self) -> str:
        """The node in the entry; empty if it can't be read either."""
        try:
            return msgspec.json.decode(self.raw, type=_OnNode).node
        except UNREADABLE:
            return ""


class _OnNode(msgspec.Struct):
    node: str = ""


class Memory(msgspec.Struct):
    """What is remembered of all jobs with faults.

    Attributes:
        jobs: the jobs, by the names of their plans.
        force_deleted: pods that were deleted without their kubelet, by uid: they hold their chips, since their
            containers may still run.
        recent: when pods were deleted within the last minute, Unix seconds, and how many.
        unread_jobs: jobs of which what is remembered can't be read: they are not rescheduled.
        unread_pods: the same of pods that were deleted without their kubelet.
        broken: why it can't be read as a whole, a sentence: then nothing is stored over it; empty if it can.
        doubtful: what is held on nodes because of ``unread_pods`` and ``broken``, by a name; not stored.
    """

    jobs: dict[str, Recovery] = {}
    force_deleted: dict[str, Deleted] = {}
    recent: list[tuple[float, int]] = []
    unread_jobs: dict[str, Unread] = {}
    unread_pods: dict[str, Unread] = {}
    broken: str = ""
    doubtful: dict[str, Deleted] = {}

    def recovery_of(self, plan: str, owners: Collection[str], now_s: float) -> tuple[Recovery, bool]:
        """The recovery of a job, and whether that of another job of its name has ended.

        Args:
            plan: the name of the job's plan.
            owners: the uids of the controllers of its pods.
            now_s: the present, Unix seconds.
        """
        known = self.jobs.get(plan)
        if known is None:
            return Recovery(sorted(owners), is_open=False), False
        if set(owners).isdisjoint(known.owners):
            self.jobs[plan] = Recovery(sorted(owners), now_s, is_open=False, deleted=known.deleted)
            return self.jobs[plan], True
        known.owners = sorted({*owners, *known.owners})[:_KEPT_OWNERS]
        return known, False

    def begin_anew(self) -> None:
        """Count from now for how long successors wait: what was in between is not known."""
        for recovery in self.jobs.values():
            recovery.waits_since_s = None

    @property
    def is_followed(self) -> bool:
        """Whether a job is not whole yet, or chips of deleted pods are held."""
        return bool(self.force_deleted or self.doubtful) or any(recovery.is_open for recovery in self.jobs.values())

    @property
    def unread(self) -> int:
        """How many parts can't be read."""
        return len(self.unread_jobs) + len(self.unread_pods) + bool(self.broken)

    def forget_unread(self, is_there: Callable[[str], bool]) -> None:
        """Forget the unreadable entries of jobs that are gone, by their plans' names, and of pods that have ended."""
        self.unread_jobs = {plan: entry for plan, entry in self.unread_jobs.items() if is_there(plan)}
        if not self.doubtful:
            self.unread_pods = {}
