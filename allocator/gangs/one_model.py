"""Places a gang on chips of one model, unless its job says that they may be of several.

Chips of one product may differ in memory and speed: 910B4 have 32 GB, 910B3 have 64 GB. A job that computes as one has
the memory of its smallest chip and the pace of its slowest. A node without the label that names the model may have any,
so its pods may be beside those of one known model: on a cluster of which only a part is labelled no gang waits for
labels. A scheduler that chooses the nodes itself is not asked to heed models.
"""

from collections import Counter
from collections.abc import Mapping
from itertools import islice, product
from typing import Final, TypeAlias

from msgspec.structs import replace

from allocator.gangs.policy import GangRequest, Member
from allocator.rules.vacancy import Vacancy
from allocator.state.index import NodeIndex
from allocator.state.job import Job
from allocator.state.node_labels import NodeLabels
from allocator.state.ranking import Bucket
from allocator.state.reservation import Seat
from ascend.annotations import MIXED_MODELS
from ascend.errors import Refusal
from ascend.grammar import every
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from ascend.turn import Steps

_MOST_CHOICES: Final = 32
"""The most choices of a model for each product that are tried: a gang of many products has thousands of them."""

Products: TypeAlias = frozenset[str] | None
"""Names of the products for some pods; None for any."""


def place(gang: GangRequest, index: NodeIndex) -> Steps[list[Seat] | Refusal]:
    """Find a seat for each member by the policy of the gang, on one model; or the reason of the misfit.

    The model with the fewest chips comes first, so that the others have room for larger gangs.
    """
    models = yield from known_models(gang, index)
    if not any(len(chips.keys() | there_of(gang, products)) > 1 for products, chips in models.items()):
        return (yield from gang.policy.place(gang, index))
    ordered = (
        sorted(there_of(gang, products) or chips or [""], key=lambda model: (chips[model], model))
        for products, chips in models.items()
    )
    for chosen in islice(product(*ordered), _MOST_CHOICES):
        found = yield from gang.policy.place(_on(gang, dict(zip(models, chosen, strict=True))), index)
        if not isinstance(found, Refusal):
            return found
    found = yield from gang.policy.place(gang, index)
    # A gang that is on several already, as one that was placed otherwise, gains nothing by a refusal.
    is_on_several = any(len(there_of(gang, products)) > 1 for products in models)
    return found if isinstance(found, Refusal) or is_on_several else _refuse(gang, found, index)


def known_models(gang: GangRequest, index: NodeIndex) -> Steps[dict[Products, Counter[str]]]:
    """Count the healthy chips of each model, by the products of the members that stay on one."""
    found = {member.request.products: Counter[str]() for member in gang.members if stays_on_one(member)}
    if found:
        is_common = all(member.candidates is None for member in gang.members)
        candidates = gang.candidates if is_common else None
        yield from index.count(candidates)
        for bucket, nodes in index.buckets_of(candidates):
            vacancy = bucket.vacancy
            for products, chips in found.items():
                if vacancy.model and (products is None or vacancy.product.name in products):
                    chips[vacancy.model] += vacancy.healthy * nodes
    return found


def there_of(gang: GangRequest, products: Products) -> frozenset[str]:
    """The models on which pods of a gang with these products are."""
    return frozenset(model for name, model in gang.models if products is None or name in products)


def stays_on_one(member: Member) -> bool:
    """Whether a pod has to be on chips of the model on which its gang is."""
    return member.request.model is not None


def has_to_stay(pod: Pod, job: Job, products: Products, labels: NodeLabels) -> bool:
    """Whether a pod of a gang has a choice of models, and no permission to have any."""
    return not job.mixes_models(pod) and len(labels.models(pod.spec, products)) > 1


def _on(gang: GangRequest, models: Mapping[Products, str]) -> GangRequest:
    """The same gang on one model of each product."""
    members = (
        replace(member, request=replace(member.request, model=models[member.request.products]))
        if stays_on_one(member)
        else member
        for member in gang.members
    )
    return replace(gang, members=tuple(members))


def _refuse(gang: GangRequest, seats: list[Seat], index: NodeIndex) -> Refusal:
    staying = {member.uid for member in gang.members if stays_on_one(member)}
    entries = (index.entries[seat.node] for seat in seats if seat.uid in staying)
    offers: list[Vacancy] = [entry.vacancy for entry in entries if isinstance(entry, Bucket)]
    names = {model for _, model in gang.models}.union(offer.model for offer in offers if offer.model)
    return Refusal(
        Reason.GANG_DOES_NOT_FIT,
        f"job {gang.job}: its pods fit only on several models of chips ({every(sorted(names))}), and a gang stays on "
        f'one; annotation {MIXED_MODELS}: "true" on its pods says that it may have several',
    )
