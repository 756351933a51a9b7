"""The report of MindCluster's device plugin, encoded by itself: this project's encoder is what it is compared with.

docs/spec/node-report.md#configmap.
"""

import hashlib
import json
from collections.abc import Collection, Mapping

RESOURCE = "huawei.com/Ascend910"
LABELS = {"mx-consumer-cim": "true"}
SEPARATED = "80E18402"


def config_map_data(free: Collection[str], unhealthy: Collection[str], now_s: int) -> dict[str, str]:
    """Return the data of the ConfigMap.

    Args:
        free: names of the chips that are healthy and, as far as the plugin knows, not in use.
        unhealthy: names of the chips that are not healthy.
        now_s: Unix seconds.
    """
    faults = [_fault(name, now_s) for name in sorted(unhealthy)]
    devices = {
        RESOURCE: ",".join(sorted(free)),
        f"{RESOURCE}-Fault": json.dumps(faults, separators=(",", ":")),
        f"{RESOURCE}-NetworkUnhealthy": "",
        f"{RESOURCE}-Recovering": "",
        f"{RESOURCE}-Unhealthy": ",".join(sorted(unhealthy)),
    }
    inner = {"DeviceList": devices, "UpdateTime": now_s}
    code = hashlib.sha256(json.dumps(inner, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()
    outer = {"DeviceInfo": inner, "SuperPodID": -2, "ServerIndex": -2, "CheckCode": code}
    return {
        "DeviceInfoCfg": json.dumps(outer, separators=(",", ":"), ensure_ascii=False),
        "ManuallySeparateNPU": "",
        "UpgradeFaultReason": "{}",
        "Description": "The field[xxx.com/xxx] is sunset.",
    }


def device_list(data: Mapping[str, str]) -> tuple[dict[str, str], int]:
    """Return the DeviceList and the UpdateTime of a ConfigMap, as Volcano's plugin reads them: no CheckCode."""
    inner = json.loads(data["DeviceInfoCfg"])["DeviceInfo"]
    return inner["DeviceList"], inner["UpdateTime"]


def _fault(name: str, now_s: int) -> dict[str, object]:
    level = "SeparateNPU"
    return {
        "fault_type": "CardUnhealthy",
        "npu_name": name,
        "large_model_fault_level": level,
        "fault_level": level,
        "fault_handling": level,
        "fault_code": SEPARATED,
        "fault_time_and_level_map": {SEPARATED: {"fault_time": now_s * 1000, "fault_level": level}},
    }
