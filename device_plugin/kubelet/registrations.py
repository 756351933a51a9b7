"""How often plugins have registered a resource, by the kubelet's own metrics (docs/spec/kubelet.md#registration)."""

import re
from dataclasses import dataclass

from ascend.errors import Unreachable

_STARTED = re.compile(r"^process_start_time_seconds (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Registrations:
    """The registrations of a resource that a kubelet process has received, accepted or not.

    Attributes:
        total: their number.
        started_s: when the process was started; two readings may differ by a second.
    """

    total: int
    started_s: float


def parse_registrations(page: str, resource: str) -> Registrations:
    """Read those of a resource from a page of metrics.

    Raises:
        Unreachable: it is not the page of a kubelet.
    """
    counter = rf'^kubelet_device_plugin_registration_total\{{resource_name="{re.escape(resource)}"\}} (\S+)'
    total, started = re.search(counter, page, re.MULTILINE), _STARTED.search(page)
    try:
        if started is not None:
            return Registrations(0 if total is None else int(float(total[1])), float(started[1]))
    except (ValueError, OverflowError) as error:
        raise Unreachable(f"the kubelet's metrics: {error}") from error
    raise Unreachable("the kubelet's metrics have no process_start_time_seconds")
