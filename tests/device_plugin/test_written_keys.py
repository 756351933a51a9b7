"""The table of keys that the plugin writes is whole: the policy of its ServiceAccount denies others."""

from collections.abc import Iterable

from ascend.annotations import write_claim
from ascend.deviceinfo import DeviceReport, encode_report
from ascend.fabric_switches import UNREADABLE_SWITCHES
from ascend.vnpus import RESOURCES
from device_plugin.device_types import CORES, WHOLE_CHIPS, DeviceType
from device_plugin.driver import ChipFacts, Inventory
from device_plugin.publish.node_object import node_annotations, node_labels
from device_plugin.publish.readmission_labels import CHIPS, PORTS
from device_plugin.reset.reset_info import write_resets
from tests import plugin_keys as written_keys
from tests.device_plugin.builders import snapshot

CHIP = ChipFacts(0, chip_name="910B3", hbm_mb=65536)
SERVERS = (
    Inventory("Ascend910A3", (CHIP,), driver_version="24.1.0", ai_cores=20, super_pod_id=7),
    Inventory("Ascend910B", (CHIP,), board_id=0x28),
)


def test_the_table_has_every_key_of_nodes() -> None:
    labels = {key for server in SERVERS for key in node_labels(server)[0]}
    assert labels | {CHIPS, PORTS} == set(written_keys.NODE_LABELS)
    annotations = {key for server in SERVERS for key in node_annotations(snapshot(of=server))}
    assert annotations | write_resets((), (), {}).keys() == set(written_keys.NODE_ANNOTATIONS)


def test_the_table_has_every_key_of_claims_and_reports() -> None:
    claim: Iterable[str] = write_claim(chips=(), kubelet_ids=(), configuration="")
    chips = {each.resource for each in (WHOLE_CHIPS, CORES)}
    assert {*claim, *chips} == set(written_keys.POD_ANNOTATIONS)
    assert DeviceType("2c").resource in RESOURCES
    report = DeviceReport(0xFF, 0, 0, update_time_s=1, switches=UNREADABLE_SWITCHES)
    assert encode_report(report).keys() == set(written_keys.REPORT_KEYS)
