"""The table of placement policies: which one places the pods of a job."""

from collections.abc import Callable
from typing import Final

import msgspec

from allocator.gangs.packing import PACKING
from allocator.gangs.policy import Policy
from ascend.kube.objects import Pod


class Asked(msgspec.Struct, frozen=True):
    """What a job asks for, as far as its policy depends on it.

    Attributes:
        job: the job, for sentences, as in ``job default/train``.
        pod: one of its pods, as if all settings of the job were written on it.
        chips: how many chips the pod requests.
        pods: how many pods of the job request chips.
    """

    job: str
    pod: Pod
    chips: int
    pods: int


POLICIES: Final[list[Callable[[Asked], Policy | None]]] = []
"""Each reads what a job asks of one policy; None if it asks nothing of that. The first one that is asked for applies.

Raises a Refusal if what the job asks is invalid.
"""


def policy_of(asked: Asked) -> Policy:
    """The policy of a job.

    Raises:
        Refusal: what the job asks of its policy is invalid.
    """
    for read in POLICIES:
        if (policy := read(asked)) is not None:
            return policy
    return PACKING
