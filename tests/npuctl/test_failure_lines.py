"""``npuctl doctor --cluster`` has the line of each row of docs/failures.md that no test breaks on a real cluster.

What such a break leaves in the cluster is given, as the other tests of its row show it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from allocator.settings import Settings
from ascend.conditions import Lack
from ascend.deviceinfo import DeviceReport, encode_report
from ascend.faults import FaultTime, chip_fault
from ascend.switches import SwitchReport
from npuctl.doctor.cluster import check_cluster
from npuctl.doctor.command import diagnosis_of
from npuctl.doctor.details import Details
from npuctl.doctor.told import ADVICE, Told
from npuctl.reading.manifests import read_manifests
from tests.failure_rows import line_of
from tests.npuctl.manifests import Json, as_list, core_node, core_pod, node, report
from tests.npuctl.test_doctor_breaks import NOW_S, faulty_report, rejected, unready, waiting
from tests.npuctl.test_doctor_cluster import claimed

ROOT: Final = Path(__file__).parents[2]


class Left(NamedTuple):
    """What a break leaves: objects, and what else is known, as Events."""

    objects: tuple[Json, ...]
    details: Details = Details()


def objects(*given: Json) -> Left:
    """Objects beside a node without a fault."""
    return Left((node("n1"), report("n1"), *given))


def event(reason: str, kind: str = "Node") -> Left:
    """An Event on the node, or on a pod that runs there."""
    pod = claimed("a", [0], [0])
    pod["metadata"]["uid"] = "uid-a"
    key, uid = ("n1", "uid-n1") if kind == "Node" else ("default/a", "uid-a")
    return Left((node("n1"), report("n1"), pod), Details(told=(Told(reason, "why", kind, key, uid),)))


def of_port() -> Left:
    """A network port without a link, and a job that needs it."""
    level = "PreSeparateNPU"
    fault = chip_fault(chip_id=0, level=level, codes={"81078603": FaultTime(0, level)}, network=True)
    broken = {**report("n1"), "data": encode_report(DeviceReport(0xFF, 0, 1, NOW_S, faults=(fault,)))}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "job", "controller": True}
    pods = [claimed(f"a-{number}", [0], [0], ownerReferences=[owner]) for number in (1, 2)]
    pods[1]["spec"]["nodeName"] = "n2"
    return Left((node("n1"), broken, node("n2"), report("n2"), *pods))


def of_switches() -> Left:
    """The switches of a server, which separate it."""
    separate = SwitchReport((), "SeparateNPU", "UnHealthy", {})
    return Left(
        (node("n1"), {**report("n1"), "data": encode_report(DeviceReport(0xFF, 0, 0, NOW_S, switches=separate))})
    )


def refused(message: str, reason: str = "Unschedulable") -> Left:
    """What kube-scheduler writes on a pod."""
    return objects(waiting("a", {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}))


def lacking(lack: Lack) -> Left:
    """A device plugin that is not ready."""
    return Left((unready("n1", lack.reason, f"{lack}: why"), report("n1")))


FILTER: Final = "Post https://allocator/scheduler/filter:"
LEFT: Final[Mapping[str, Left]] = {
    "a chip in use fails, and its job": Left(
        (node("n1"), faulty_report("n1"), claimed("a", [0], [0], labels={"fault-scheduling": "force"}))
    ),
    "many nodes report faults": event("NPUReschedulingHeld"),
    "the allocator's view is old": event("NPUReschedulingHeld"),
    "the network of a zone is cut off": event("NPUReschedulingHeld"),
    "with `dynamic_vnpus`, the driver refuses": objects(rejected("a", "NPUSegmentFailed")),
    "with `dynamic_vnpus`, a chip fails": Left(
        (
            core_node("n1"),
            faulty_report("n1"),
            core_pod("a", 5, "0-vir05_1c_16g", real="Ascend910-5c.1cpu.16g-100-0_0", node="n1"),
        )
    ),
    "a vNPU can't be given back": event("NPUSegmentInUse"),
    "with `dynamic_vnpus`, a pod claims": event("NPUAllocationMismatch", "Pod"),
    "a vNPU of a running pod is gone": event("NPURunsWithoutChips", "Pod"),
    "the Node can't be written while": event("NPUResetCancelled"),
    "the driver does not return from a reset": event("NPUResetFailed"),
    "a chip does not start after a reset": event("NPUResetFailed"),
    "its `/pods` has no pod that a call fits": objects(rejected("a", "NoSuchPod")),
    "it counts the id of a free chip": event("NPUAllocationMismatch", "Pod"),
    "a pod runs without the chips": event("NPURunsWithoutChips", "Pod"),
    "the plugin has no file descriptors": lacking(Lack.KUBELET),
    "a container uses chips": event("NPUForeignProcess"),
    "a pod is recreated under its name, and": objects(rejected("a", "NoSuchPod")),
    "its leader is suspended": refused(f"{FILTER} context deadline exceeded", "SchedulerError"),
    "the plugin ends, or gives way": refused(
        "1 node had untolerated taint {ascend-affinity.io/npu-fault: SeparateNPU}"
    ),
}
"""What the break of a row leaves, by the first words of the row."""


@pytest.mark.parametrize("what", LEFT)
async def test_what_a_break_leaves_has_the_line_of_its_row(what: str, tmp_path: Path) -> None:
    line, left = line_of(what), LEFT[what]
    path = tmp_path / "objects.json"
    path.write_text(json.dumps(as_list(*left.objects)))
    read = read_manifests([str(path)]).objects
    diagnosis = diagnosis_of("cluster", await check_cluster(read, left.details, Settings(), NOW_S * 10**9))
    said = [
        each
        for each in diagnosis.findings
        if each.check == line.check and (line.says in each.sentence or line.says == each.reason)
    ]
    assert [(each.severity, bool(each.advice)) for each in said] == [(line.severity, True)], diagnosis.findings
    assert line.severity == "warning" or diagnosis.exit_status == 1
    assert line.severity == "problem" or not diagnosis.problems, diagnosis.findings
    beside = [each for each in diagnosis.findings if (each.check, each.severity) == (line.check, "ok")]
    # The programs that run are listed whatever is wrong.
    assert line.check == "programs" or not beside


@pytest.mark.parametrize("reason", ADVICE)
def test_every_event_that_doctor_tells_is_posted_by_a_program(reason: str) -> None:
    sources = (
        path.read_text() for program in ("allocator", "device_plugin") for path in (ROOT / program).rglob("*.py")
    )
    assert any(f'"{reason}"' in source for source in sources)
