"""What a usable node has left."""

from collections.abc import Collection

import msgspec
from msgspec.structs import replace

from allocator.rules.cores import CoresLeft
from allocator.rules.request import ChipRequest
from allocator.rules.vnpus import VnpusLeft
from ascend.chips import ChipSet
from ascend.cores import Cut
from ascend.products import Product
from ascend.takes import Take
from ascend.vnpus import Vnpu


class Vacancy(msgspec.Struct, frozen=True, gc=False):
    """What a usable node has left; nodes with equal vacancies are interchangeable.

    Attributes:
        product: the product of the server.
        healthy: the number of its healthy chips, held or not (``A`` of the rules).
        free: the chips that are healthy and neither held nor reserved.
        room: the number of chips the kubelet would still admit: allocatable minus the requests of pods bound to it, and
            minus the kept chips, so it can be negative.
        faulty: the number of its unhealthy chips (``U`` of the rules).
        cut_off: the free or kept chips with an unhealthy network, which distributed jobs can't use.
        sub_healthy: the node or one of its chips is degraded.
        kept: the chips that would be free, but are kept for others: for pods that have preempted, or a waiting job.
        keeper: what they are kept for, in sentences.
        vnpus: what is left of its vNPUs; None if it has none.
        cores: what is left of its AI cores, if its chips are cut while pods run; it takes no requests for chips then.
        doubtful: the free chips that are in use by the node's report, if they are cut while pods run; they come last.
        unkept: what would be left if nothing were kept for others; None if nothing is.
        model: the model of its chips; empty if it is unknown.
    """

    product: Product
    healthy: int
    free: ChipSet
    room: int
    faulty: int = 0
    cut_off: ChipSet = 0
    sub_healthy: bool = False
    kept: ChipSet = 0
    keeper: str = ""
    vnpus: VnpusLeft | None = None
    cores: CoresLeft | None = None
    doubtful: ChipSet = 0
    unkept: "Vacancy | None" = None
    model: str = ""

    def usable(self, request: ChipRequest) -> ChipSet:
        """The free chips that a request can use."""
        return self.free & ~self.cut_off if self.needs_network(request) else self.free

    @property
    def settled(self) -> "Vacancy":
        """Without the doubtful chips."""
        free = self.free & ~self.doubtful
        return replace(self, free=free, cut_off=self.cut_off & (free | self.kept), doubtful=0)

    def keeping(self, chips: ChipSet, keeper: str, parts: Collection[Vnpu | Cut]) -> "Vacancy":
        """This vacancy minus the chips and vNPUs kept for other pods, in use or not.

        Args:
            chips: the chips that are kept as a whole; some of them may be cut now.
            keeper: what all of it is kept for, in sentences.
            parts: the vNPUs that are kept.
        """
        kept = self.free & chips
        free, number, vnpus, cores = self.free & ~kept, kept.bit_count(), self.vnpus, self.cores
        if vnpus is not None:
            vnpus = vnpus.keeping([part for part in parts if isinstance(part, Vnpu)])
        if cores is not None:
            cores, free = cores.keeping([part for part in parts if isinstance(part, Cut)], chips, free)
        if (free, vnpus, cores) == (self.free, self.vnpus, self.cores):
            return self
        return replace(
            self,
            free=free,
            room=self.room - number,
            cut_off=self.cut_off & (free | kept),
            kept=kept,
            keeper=keeper,
            vnpus=vnpus,
            cores=cores,
            doubtful=self.doubtful & free,
            unkept=self,
        )

    def without(self, take: Take) -> "Vacancy":
        """What is left after a pod has taken this."""
        unkept = self.unkept.without(take) if self.unkept is not None else None
        if take.vnpu is not None:
            left = self.vnpus.without((take.vnpu,)) if self.vnpus is not None else None
            return replace(self, vnpus=left, unkept=unkept)
        taken, cores = take.occupied, self.cores
        if cores is not None:
            cores = cores.without_cores(take.cores) if take.cut is None else cores.without(take.cut, self.free)
        return replace(
            self,
            free=self.free & ~taken,
            cut_off=self.cut_off & ~taken,
            room=max(self.room - len(take.chips), 0),
            cores=cores,
            doubtful=self.doubtful & ~taken,
            unkept=unkept,
        )

    def has(self, take: Take, request: ChipRequest) -> bool:
        """Whether what a pod would take is free, and usable for a request."""
        if take.vnpu is not None:
            return self.vnpus is not None and take.vnpu in self.vnpus.free
        if take.cut is not None:
            return self.cores is not None and self.cores.has(take.cut, self.free)
        if take.cores and (self.cores is None or self.cores.kind.whole_chips(take.cores) != len(take.chips)):
            return False
        return not take.chip_set & ~self.usable(request)

    def needs_network(self, request: ChipRequest) -> bool:
        """Whether a request can't use chips of this product that have an unhealthy network."""
        return request.needs_network and self.product.has_network
