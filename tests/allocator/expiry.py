"""What expires in the ledger at one time, released as the allocator does it."""

from allocator.state.ledger import Ledger
from allocator.state.reservation import Reservation
from ascend.turn import at_once


def expire(ledger: Ledger) -> list[Reservation]:
    """Release all that has expired; returns what was released."""
    return [*at_once(ledger.expire_plans()), *ledger.expire_reserved()]
