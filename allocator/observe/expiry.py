"""Says that a certificate should have been renewed by now: an Event on the Lease of the leader, and a line in the log.

Without a valid certificate no scheduler is answered, and nothing but the clock announces that.
"""

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

import structlog

from allocator.observe.refusal_events import Publish
from ascend.daemon.validity import Validity
from ascend.kube.events import Regarding

log = structlog.get_logger()

REASON: Final = "CertificateExpires"
"""The reason of the Events."""
REMIND_S: Final = 240.0
"""While it lasts, so that an Event that is older than that (by default an API server keeps it for an hour) is over."""


class Expiry:
    """Certificates that should have been renewed.

    Args:
        validities: the certificates, by what they are.
        publish: posts an Event soon.
        leads: whether this allocator leads.
        regarding: the object that Events are on; None if there is none.
        now_s: the wall clock, Unix seconds.
        monotonic: the clock for reminders.
    """

    def __init__(
        self,
        validities: Callable[[], Mapping[str, Validity]],
        publish: Publish,
        leads: Callable[[], bool],
        regarding: Callable[[], Regarding | None],
        *,
        now_s: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._validities = validities
        self._publish = publish
        self._leads = leads
        self._regarding = regarding
        self._now_s = now_s
        self._monotonic = monotonic
        self._posted_s = -math.inf

    def post(self) -> None:
        """Post what is due; to be called each second or so."""
        if not self._leads() or self._monotonic() < self._posted_s + REMIND_S:
            return
        self._posted_s = self._monotonic()
        for what, validity in sorted(self._validities().items()):
            if self._now_s() < validity.renewal_s:
                continue
            note = _sentence(what, validity, self._now_s())
            log.warning("a certificate has to be renewed", certificate=what, error=note)
            regarding = self._regarding()
            if regarding is not None:
                self._publish(regarding, REASON, note, action="Serving")


def _sentence(what: str, validity: Validity, now_s: float) -> str:
    ends = f"{datetime.fromtimestamp(validity.ends_s, UTC):%Y-%m-%d %H:%M} UTC"
    whose = {
        "server": "the certificate of the allocator",
        "client_ca": "the CA of the allocator's clients",
    }.get(what, f"the certificate that the client {what} presents")
    verb = "expired" if now_s >= validity.ends_s else "expires"
    return f"{whose} {verb} at {ends}: renew it, since no scheduler is answered without it"
