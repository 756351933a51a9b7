"""What a placement consists of: how many nodes of which SuperPod, block by block."""

from typing import Final

import msgspec

DEFAULT_SIZE: Final = 48
DEFAULT_RESERVE: Final = 2


class Limits(msgspec.Struct, frozen=True):
    """What an administrator says about the SuperPods of a cluster (docs/spec/superpod.md#superpod-settings).

    Attributes:
        size: the most nodes of a SuperPod.
        reserve: how many nodes of each SuperPod are kept free, where possible, to replace faulty ones.
    """

    size: int = DEFAULT_SIZE
    reserve: int = DEFAULT_RESERVE

    @classmethod
    def of(cls, size: int, reserve: int | None) -> "Limits":
        """The limits that settings mean.

        Args:
            size: the setting ``super_pod_size``; the default if it is not above 0.
            reserve: the setting ``reserve_nodes``; None or a negative number for the default. 0 means no reserve, which
                the reference can't express.
        """
        most = size if size > 0 else DEFAULT_SIZE
        kept = reserve if reserve is not None and reserve >= 0 else DEFAULT_RESERVE
        if kept >= most:
            kept = DEFAULT_RESERVE if most > DEFAULT_RESERVE else 0
        return cls(most, kept)


class Share(msgspec.Struct, frozen=True, gc=False):
    """The nodes of a block.

    Attributes:
        super_pod: the id of their SuperPod.
        nodes: how many they are.
    """

    super_pod: int
    nodes: int
