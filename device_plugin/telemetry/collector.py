"""The metrics of the chips, named and labelled as MindCluster's npu-exporter does (docs/spec/telemetry.md#metrics)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from device_plugin.driver import ChipState
from device_plugin.driver.telemetry import Label, Quantity
from device_plugin.ledger.allocations import Allocation
from device_plugin.telemetry.meter import MeasuredChip, Meter

SEVERAL: Final = "not_displayed_for_multi_pod"


@dataclass(frozen=True, slots=True)
class Holder:
    """The container that was given a chip; its pod owns the chip.

    Attributes:
        namespace: of its pod.
        pod_name: of its pod.
        container_name: its name; for a chip of several containers all three are ``SEVERAL``.
    """

    namespace: str = ""
    pod_name: str = ""
    container_name: str = ""

    @property
    def is_one(self) -> bool:
        """Whether exactly one container has the chip."""
        return self.container_name not in {"", SEVERAL}


NOBODY: Final = Holder()
_SEVERAL: Final = Holder(SEVERAL, SEVERAL, SEVERAL)


def holders(allocations: Iterable[Allocation]) -> dict[int, Holder]:
    """Return the holder of each chip that a container was given, by physical id.

    The containers of a pod are given their chips before any of them starts. A chip that a regular init container uses
    first belongs to the container that keeps it afterwards, or to the last init container if none does.
    """
    found: dict[int, Holder] = {}
    for allocation in allocations:
        namespace, _, pod_name = allocation.pod.partition("/")
        own: dict[int, Holder] = {}
        for part in sorted(allocation.parts, key=lambda part: part.keeps):
            own.update(dict.fromkeys(part.chips, Holder(namespace, pod_name, part.container)))
        for chip, holder in own.items():
            found[chip] = _SEVERAL if chip in found else holder
    return found


LABELS: Final = ("id", "model_name", "vdie_id", "pcie_bus_info", "namespace", "pod_name", "container_name")
_NAME_LABELS: Final = ("id", "name", *LABELS[2:])

MAX_CODES: Final = 10
"""The number of fault codes of a chip that are shown, each in a metric of its own."""

_OF_CHIPS: Final[dict[Quantity, tuple[str, str]]] = {
    Quantity.UTILIZATION: ("npu_chip_info_utilization", "Utilization of the chip's AI cores in percent"),
    Quantity.OVERALL_UTILIZATION: ("npu_chip_info_overall_utilization", "Utilization of the whole chip in percent"),
    Quantity.VECTOR_UTILIZATION: ("npu_chip_info_vector_utilization", "Utilization of its vector cores in percent"),
    Quantity.HBM_USED_MEMORY: ("npu_chip_info_hbm_used_memory", "Used memory of the chip in MB"),
    Quantity.HBM_TOTAL_MEMORY: ("npu_chip_info_hbm_total_memory", "Memory of the chip in MB"),
    Quantity.HBM_UTILIZATION: ("npu_chip_info_hbm_utilization", "Utilization of the memory in percent"),
    Quantity.HBM_TEMPERATURE: ("npu_chip_info_hbm_temperature", "Temperature of the chip's memory in °C"),
    Quantity.HBM_BANDWIDTH_UTILIZATION: (
        "npu_chip_info_hbm_bandwidth_utilization",
        "Utilization of the memory's bandwidth in percent",
    ),
    Quantity.TEMPERATURE: ("npu_chip_info_temperature", "Temperature of the chip in °C"),
    Quantity.POWER: ("npu_chip_info_power", "Power of the chip in W"),
    Quantity.VOLTAGE: ("npu_chip_info_voltage", "Voltage of the chip in V"),
    Quantity.FREQUENCY: ("npu_chip_info_aicore_current_freq", "Frequency of the AI cores in MHz"),
    Quantity.HEALTH: ("npu_chip_info_health_status", "Health of the chip as the driver rates it: 1 healthy, 0 not"),
    Quantity.LINK_UPS: ("npu_chip_link_up_num", "How often the chip's network port has got a link"),
    Quantity.NETWORK: (
        "npu_chip_info_network_status",
        "Whether the chip's network port reaches the address that it is set to probe: 1 yes, 0 no",
    ),
}

_OF_CONTAINERS: Final[dict[Quantity, tuple[str, str]]] = {
    Quantity.UTILIZATION: ("container_npu_utilization", "Utilization of the AI cores of a container's chip in percent"),
    Quantity.HBM_USED_MEMORY: ("container_npu_used_memory", "Used memory of a container's chip in MB"),
    Quantity.HBM_TOTAL_MEMORY: ("container_npu_total_memory", "Memory of a container's chip in MB"),
}


@dataclass(frozen=True, slots=True)
class _Families:
    """The metrics of one scrape."""

    of_chips: dict[Quantity, GaugeMetricFamily]
    of_containers: dict[Quantity, GaugeMetricFamily]
    names: GaugeMetricFamily
    links: GaugeMetricFamily
    codes: Sequence[GaugeMetricFamily]
    machine: Sequence[GaugeMetricFamily]

    def __iter__(self) -> Iterator[GaugeMetricFamily]:
        yield from self.of_chips.values()
        yield from self.of_containers.values()
        yield from (self.names, self.links, *self.codes, *self.machine)


class ChipMetrics(Collector):
    """Computes the metrics at a scrape from what was measured.

    Args:
        meter: has the measured values.
        states: returns the state of a chip as the health scan last read it; None if unknown.
        allocations: the chips that containers were given.
    """

    def __init__(
        self, meter: Meter, states: Callable[[int], ChipState | None], allocations: Iterable[Allocation]
    ) -> None:
        self._meter = meter
        self._states = states
        self._allocations = allocations

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics without values."""
        yield from _families()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics."""
        families = _families()
        found = holders(self._allocations)
        chips = self._meter.chips
        for chip in chips:
            chip.take_over()
            if chip.is_identified:
                self._add(families, chip, found.get(chip.facts.phy_id, NOBODY))
        if chips:
            self._add_machine(families.machine, chips)
        yield from (family for family in families if family.samples)

    def _add(self, families: _Families, chip: MeasuredChip, holder: Holder) -> None:
        labels = [
            str(chip.facts.phy_id),
            *(chip.label(label) for label in Label),
            holder.namespace,
            holder.pod_name,
            holder.container_name,
        ]
        families.names.add_metric(labels, 1)
        for quantity, family in families.of_chips.items():
            if (value := chip.value(quantity)) is not None:
                family.add_metric(labels, value)
                if holder.is_one and quantity in families.of_containers:
                    families.of_containers[quantity].add_metric(labels, value)
        state = self._states(chip.facts.phy_id)
        if state is not None and state.link_up is not None:
            families.links.add_metric(labels, int(state.link_up))
        codes = (state.codes if state is not None else ()) or ()
        for family, code in zip(families.codes, codes, strict=False):
            family.add_metric(labels, code)

    def _add_machine(self, machine: Sequence[GaugeMetricFamily], chips: Sequence[MeasuredChip]) -> None:
        health = [chip.value(Quantity.HEALTH) for chip in chips]
        cards = {chip.facts.card_id for chip in chips if chip.facts.is_listed}
        counts = (len(chips), len(cards), health.count(1.0), health.count(0.0), health.count(None))
        for family, count in zip(machine, counts, strict=True):
            family.add_metric((), count)


def _families() -> _Families:
    return _Families(
        {quantity: _family(name, text) for quantity, (name, text) in _OF_CHIPS.items()},
        {quantity: _family(name, text) for quantity, (name, text) in _OF_CONTAINERS.items()},
        GaugeMetricFamily("npu_chip_info_name", "Name of the chip; the value is always 1", labels=_NAME_LABELS),
        _family("npu_chip_info_link_status", "Whether the chip's network port has a link: 1 yes, 0 no"),
        [
            _family(f"npu_chip_info_error_code{f'_{number}' if number else ''}", "A fault code of the chip")
            for number in range(MAX_CODES)
        ],
        [
            GaugeMetricFamily("machine_npu_nums", "Chips of the server"),
            GaugeMetricFamily("machine_card_nums", "Cards of the server"),
            GaugeMetricFamily("machine_healthy_npu_nums", "Chips that the driver rates as healthy"),
            GaugeMetricFamily("machine_unhealthy_npu_nums", "Chips that the driver rates as unhealthy"),
            GaugeMetricFamily("machine_unknown_npu_nums", "Chips whose health can't be read"),
        ],
    )


def _family(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=LABELS)
