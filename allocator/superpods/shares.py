"""What a placement consists of: how many nodes of which SuperPod, block by block."""

import msgspec


class Share(msgspec.Struct, frozen=True, gc=False):
    """The nodes of a block.

    Attributes:
        super_pod: the id of their SuperPod.
        nodes: how many they are.
    """

    super_pod: int
    nodes: int
