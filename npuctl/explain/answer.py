"""The answer of ``npuctl explain`` about a pod."""

import msgspec

from allocator.decision.explained import Explained
from npuctl.explain.remedies import Remedy
from npuctl.plan.placement import Candidate
from npuctl.refusals import Group, NodeRefusal


class Explanation(msgspec.Struct, frozen=True, tag_field="schema", tag="npuctl/explain/v1"):
    """The state of a pod, why, and what would help.

    Attributes:
        namespace: the pod's.
        name: the pod's.
        job: ``namespace/name`` of its job.
        request: the number of chips it requests.
        vnpu: the size of the vNPU that it requests instead, as in the name of the resource.
        cores: the number of AI cores that it requests instead.
        requests: all of this for people: ``2 chips``, ``1 vNPU Ascend910-2c``, ``5 AI cores``.
        state: ``none`` (it requests neither chips nor a vNPU), ``finished``, ``placed``, ``terminating`` (it is being
            deleted, so no scheduler binds it), ``fits`` (it is not bound, but fits on a node behind those before it in
            the queue), ``preempts`` (it fits once pods of lower priority have ended) or ``waits``.
        node: its node, if it is placed or preempts.
        chips: its chips.
        vnpus: its vNPU.
        reason: why it waits.
        message: the same as a sentence.
        gang: it is placed together with other pods of its job, or not at all.
        scheduler: the message of its scheduler.
        holdups: which pods keep its gang from starting, and why, as far as their schedulers say; a sentence for each.
        gates: its scheduling gates; schedulers ignore it while it has any.
        groups: the nodes that refuse it by reason, the most frequent reason first.
        nodes: every node that refuses it.
        candidates: every node it fits on, best first.
        remedies: the changes that would make it fit, the smallest first.
        examined: the number of nodes on which remedies were searched.
        advice: what to do if there is no remedy, and for what chips are kept that it could use: sentences for people.
        without_effect: what it requests without effect, a sentence for each.
        warnings: by what its containers get chips of others, and that nobody asks for the pod, a sentence for each.
        block: the id of its block, if it fits and its job has blocks.
        blocks: the SuperPods of the blocks of its job, or what room there is for them; a sentence for each.
        switches: which pods of its job are below which leaf switch, a sentence for each; none without switch affinity.
        broken: its chips that must not be used any more.
        ahead: the jobs before it in the queue, in their order; also other pods of its job, unless they are a gang.
        fits_alone: the number of nodes on which it would fit if none of these was before it.
        preempts: the pods (``namespace/name``) of lower priority that end for it.
        said_at: when the allocator posted the Event with this reason, RFC 3339, if nodes can't be listed; else empty:
            the pod was judged now.
        told: what the allocator says, if nodes can't be listed.
    """

    namespace: str
    name: str
    job: str
    request: int
    state: str
    vnpu: str = ""
    cores: int = 0
    requests: str = ""
    node: str = ""
    chips: tuple[str, ...] = ()
    vnpus: tuple[str, ...] = ()
    reason: str = ""
    message: str = ""
    gang: bool = False
    scheduler: str = ""
    holdups: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    groups: tuple[Group, ...] = ()
    nodes: dict[str, NodeRefusal] = {}
    candidates: tuple[Candidate, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    examined: int = 0
    advice: tuple[str, ...] = ()
    without_effect: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    block: int | None = None
    blocks: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    broken: tuple["BrokenChip", ...] = ()
    ahead: tuple["Ahead", ...] = ()
    fits_alone: int = 0
    preempts: tuple[str, ...] = ()
    said_at: str = ""
    told: Explained | None = None


class BrokenChip(msgspec.Struct, frozen=True):
    """A chip of a pod that must not be used any more.

    Attributes:
        chip: its name.
        codes: its fault codes.
        level: the level of these codes; empty without codes.
        what: the codes with their meaning, for people.
        advice: what to do.
    """

    chip: str
    codes: tuple[str, ...]
    level: str
    what: str
    advice: str


class Ahead(msgspec.Struct, frozen=True):
    """A job that comes before a pod in the queue.

    Attributes:
        job: ``namespace/name``.
        priority: its highest.
        pods: how many of its pods come before.
        placed: how many of them get chips, vNPUs or AI cores.
        chips: the whole chips that these get.
    """

    job: str
    priority: int
    pods: int
    placed: int
    chips: int
