"""The unhealthy devices of running pods: healthy for the kubelet until the pods have ended.

The kubelet counts it as taken, so it offers that much more than is healthy. MindCluster's plugin does not keep it, so
any number in between is right.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from allocator.state.holding import Holding
from ascend.chips import ChipSet
from ascend.templates import Divisible


class UnhealthyDevices(NamedTuple):
    """What pods have of unhealthy chips.

    Attributes:
        chips: the number of whole chips.
        cores: the number of AI cores, where these are offered.
        vnpus: by size, the number of vNPUs that were cut beforehand.
    """

    chips: int
    cores: int
    vnpus: Mapping[str, int]

    @classmethod
    def of(cls, holdings: Iterable[Holding], unhealthy: ChipSet, kind: Divisible | None) -> "UnhealthyDevices":
        """The unhealthy devices of these holdings, in words; ``kind`` is the kind of chip if chips are cut for pods."""
        chips, cut, vnpus = 0, 0, Counter[str]()
        for holding in holdings:
            chips += (holding.chips & unhealthy).bit_count()
            cut += sum(part.size.cores for part in holding.cuts if unhealthy >> part.chip & 1)
            vnpus.update(part.suffix for part in holding.vnpus if unhealthy >> part.chip & 1)
        return cls(chips, cut + chips * kind.cores if kind is not None else 0, vnpus)
