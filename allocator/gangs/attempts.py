"""What a gang that has stepped back has to wait for, and what is learned of it in its turn."""

from collections.abc import Collection

from allocator.gangs.progress import Progress
from allocator.gangs.turns import Turns
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from ascend.errors import Refusal
from ascend.grammar import count
from ascend.kube.objects import Pod
from ascend.reasons import Reason


class Attempts:
    """Follows the attempts of gangs to start.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations.
        progress: says whether a gang has started.

    Attributes:
        turns: the gangs that have stepped back.
    """

    def __init__(self, cluster: Cluster, ledger: Ledger, progress: Progress) -> None:
        self.turns = Turns(ledger.monotonic)
        self._cluster = cluster
        self._ledger = ledger
        self._progress = progress

    def obstacle(self, pod: Pod, job: Job) -> Refusal | None:
        """Why a gang has to wait for another one; None if it may be planned."""
        ahead = self.turns.ahead_of(job)
        if ahead is None or self._progress.find_started(job) is not None:
            return None
        return _stepped_back(job, f"pod {pod.key} waits for job {ahead}, which tries before it")

    def note_offer(self, pod: Pod, job: Job, candidates: Collection[str] | None) -> None:
        """Record on which nodes its scheduler offers a pod of a gang that has stepped back, and where it does not."""
        setback = self.turns.get(job)
        if setback is None or self.turns.ahead_of(job) is not None:
            return
        if candidates is not None and set(candidates) == {pod.status.nominated_node_name}:
            return  # its scheduler filters the nominated node first, which says nothing about the others
        if self._progress.find_started(job) is not None:
            self.turns.leave(job.key)
            return
        offered = self._cluster.index.entries if candidates is None else candidates
        held = self._ledger.get(pod.uid)
        if held is not None and held.node not in offered:
            setback.refuse(pod.uid, held.node, self._held_on(held.node, job))
        if pod.uid not in setback.offers:
            self.turns.extend()  # many pods take long
        setback.offer(pod.uid, offered)

    def step_back(self, job: Job, refused: Collection[str]) -> None:
        """Release all seats of a gang, and let it try again in its turn.

        Args:
            job: the gang.
            refused: the uids of the pods that its scheduler has refused.
        """
        setback = self.turns.get(job)
        if setback is not None:
            for uid in refused:
                for node in setback.offers.get(uid, ()):
                    setback.refuse(uid, node, self._held_on(node, job))
        self._ledger.drop_plan(job.key.plan)
        self.turns.step_back(job)

    def _held_on(self, node: str, job: Job) -> list[str]:
        held = self._ledger.held(job.key.plan)
        return [uid for uid in self._ledger.on(node) if uid in held]


def lacks_offers(job: Job, lacking: int) -> Refusal:
    """The refusal of a gang that is planned again when so many more of its pods have been filtered."""
    pods = count(lacking, "more of its pods has", "more of its pods have")
    return _stepped_back(job, f"{pods} to be filtered before they are planned again")


def _stepped_back(job: Job, rest: str) -> Refusal:
    cause = f"job {job.key} has released its chips, because its scheduler did not bind all of its pods"
    return Refusal(Reason.GANG_STEPPED_BACK, f"{cause}; {rest}")
