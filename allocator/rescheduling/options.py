"""The settings of rescheduling."""

from typing import NamedTuple


class Options(NamedTuple):
    """The settings of rescheduling.

    Attributes:
        dry_run: whether it is only said which pods would be deleted.
        not_ready_s: how long a node may be not Ready.
        grace_s: after so many seconds a deleted pod that is still there is deleted by force.
        per_minute: how many pods may be deleted in a minute.
        per_hour: how often pods of one job may be deleted in an hour.
        faulty_share: the largest share of nodes that may have faults at one time.
    """

    dry_run: bool
    not_ready_s: float
    grace_s: float
    per_minute: int
    per_hour: int
    faulty_share: float
