"""What is told of faults: one entry per chip and domain, the network's first (spec/node-agent.md §5.2)."""

from ascend.products import ASCEND_910A
from device_plugin.driver import ChipReading, Reading
from device_plugin.rules.report import make_report
from device_plugin.rules.snapshot import take


def test_network_and_chip_faults_are_entries_of_their_own() -> None:
    chips = (
        ChipReading(0, network_healthy=False, fault_codes=("81078603",)),
        ChipReading(4, healthy=False, network_healthy=False, fault_codes=("80E18402", "81078603")),
        ChipReading(5, fault_codes=("80E18401",)),
        ChipReading(6),
    )
    told = make_report(take(Reading(ASCEND_910A, chips), None, 77), 0, 1).faults
    assert [(each.npu_name, each.fault_type, each.fault_level, each.fault_code) for each in told] == [
        ("Ascend910-0", "CardNetworkUnhealthy", "PreSeparateNPU", "81078603"),
        ("Ascend910-4", "CardNetworkUnhealthy", "PreSeparateNPU", "81078603"),
        ("Ascend910-4", "CardUnhealthy", "SeparateNPU", "80E18402"),
        ("Ascend910-5", "CardUnhealthy", "NotHandleFault", "80E18401"),
    ]
    assert told[0].fault_time_and_level_map["81078603"].fault_time == 77
