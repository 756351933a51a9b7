"""Which chips the node really offers: those the kubelet was told are healthy, and has shown on its Node since.

A reader that finds more chips free in the report than the Node has allocatable takes the node for "not stable"
(spec/node-agent.md §0.4), and the kubelet brings its Node up to date about once a second. So a chip that comes back
counts a moment later than the kubelet is told of it; one that goes counts at once.
"""

import math

from ascend.chips import ChipSet, chip_ids, chip_set


class AdvertisedChips:
    """Follows what the kubelet is told.

    Args:
        lag_s: how long the kubelet may take to show a chip that came back.

    Attributes:
        due_s: when the next chip counts, on the caller's clock; infinite where none is on its way.
    """

    def __init__(self, lag_s: float) -> None:
        self._lag_s = lag_s
        self._begun = False
        self._since_s: dict[int, float] = {}
        self.due_s = math.inf

    def at(self, now_s: float, told: ChipSet) -> ChipSet:
        """The chips offered now.

        Args:
            now_s: the present.
            told: the chips the kubelet was last told are healthy.
        """
        # At the start nobody has relied on the node yet; its first report need not wait.
        since_s = now_s if self._begun else -math.inf
        self._begun = self._begun or told != 0
        self._since_s = {chip: self._since_s.get(chip, since_s) for chip in chip_ids(told)}
        pending = [since + self._lag_s for since in self._since_s.values() if since + self._lag_s > now_s]
        self.due_s = min(pending, default=math.inf)
        return told & chip_set(chip for chip, since in self._since_s.items() if since + self._lag_s <= now_s)
