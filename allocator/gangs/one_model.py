"""Places a gang on chips of one model, unless its job says that they may be of several.

Chips of one product may differ in memory and speed: 910B4 have 32 GB, 910B3 have 64 GB. A job that computes as one has
the memory of its smallest chip and the pace of its slowest. A node without the label that names the model may have any,
so its pods may be beside those of one known model: on a cluster of which only a part is labelled no gang waits for
labels. A scheduler that chooses the nodes itself is not asked to heed models.
"""

from collections import Counter
from collections.abc import Collection

from msgspec.structs import replace

from allocator.gangs.policy import GangRequest, Member
from allocator.rules.vacancy import Vacancy
from allocator.state.cluster import Cluster
from allocator.state.index import NodeIndex
from allocator.state.ranking import Bucket
from allocator.state.reservation import Seat
from ascend.annotations import MIXED_MODELS
from ascend.errors import Refusal
from ascend.reasons import Reason
from ascend.rules.identity import chip_model
from ascend.turn import Steps


def place(gang: GangRequest, index: NodeIndex) -> Steps[list[Seat] | Refusal]:
    """Find a seat for each member by the policy of the gang, on one model; or the reason of the misfit.

    The model with the fewest chips comes first, so that the others have room for larger gangs.
    """
    models = yield from known_models(gang, index)
    if len(models.keys() | gang.models) > 1:
        for model in sorted(gang.models or models, key=lambda name: (models[name], name)):
            found = yield from gang.policy.place(_on(gang, model), index)
            if not isinstance(found, Refusal):
                return found
        found = yield from gang.policy.place(gang, index)
        # A gang that is on several already, as one that was placed otherwise, gains nothing by a refusal.
        return found if isinstance(found, Refusal) or len(gang.models) > 1 else _refuse(gang, found, index)
    return (yield from gang.policy.place(gang, index))


def known_models(gang: GangRequest, index: NodeIndex) -> Steps[Counter[str]]:
    """The models of chips for a gang, each with its healthy chips; none if models may be mixed."""
    request, found = next((member.request for member in gang.members if stays_on_one(member)), None), Counter[str]()
    if request is not None:
        yield from index.count(gang.candidates)
        for bucket, nodes in index.buckets_of(gang.candidates):
            vacancy = bucket.vacancy
            if vacancy.model and (request.products is None or vacancy.product.name in request.products):
                found[vacancy.model] += vacancy.healthy * nodes
    return found


def models_of(nodes: Collection[str], cluster: Cluster) -> frozenset[str]:
    """The known models of the chips of some nodes."""
    records = (cluster.nodes.get(name) for name in nodes)
    found = (chip_model(record.node.metadata.labels) for record in records if record is not None and record.node)
    return frozenset(filter(None, found))


def stays_on_one(member: Member) -> bool:
    """Whether a pod has to be on chips of the model on which its gang is."""
    return member.request.model is not None


def _on(gang: GangRequest, model: str) -> GangRequest:
    """The same gang on one model."""
    members = (
        replace(member, request=replace(member.request, model=model)) if stays_on_one(member) else member
        for member in gang.members
    )
    return replace(gang, members=tuple(members))


def _refuse(gang: GangRequest, seats: list[Seat], index: NodeIndex) -> Refusal:
    entries = (index.entries[seat.node] for seat in seats)
    offers: list[Vacancy] = [entry.vacancy for entry in entries if isinstance(entry, Bucket)]
    names = " and ".join(sorted(gang.models.union(offer.model for offer in offers if offer.model)))
    return Refusal(
        Reason.GANG_DOES_NOT_FIT,
        f"job {gang.job}: its pods fit only on several models of chips ({names}), and a gang stays on one; "
        f'annotation {MIXED_MODELS}: "true" on its pods says that it may have several',
    )
