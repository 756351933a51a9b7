"""``npuctl doctor --cluster`` has the line of each row of docs/failures.md that no test breaks on a real cluster.

What such a break leaves in the cluster is given, as the other tests of its row show it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from allocator.settings import Settings
from npuctl.doctor.cluster import check_cluster
from npuctl.doctor.command import diagnosis_of
from npuctl.doctor.details import Details
from npuctl.doctor.told import ADVICE, Told
from npuctl.reading.manifests import read_manifests
from tests.failure_rows import line_of
from tests.npuctl.manifests import Json, as_list, node, report
from tests.npuctl.test_doctor_breaks import NOW_S
from tests.npuctl.test_doctor_cluster import claimed

ROOT: Final = Path(__file__).parents[2]


class Left(NamedTuple):
    """What a break leaves: objects, and what else is known, as Events."""

    objects: tuple[Json, ...]
    details: Details = Details()


def event(reason: str, kind: str = "Node") -> Left:
    """An Event on the node, or on a pod that runs there."""
    pod = claimed("a", [0], [0])
    pod["metadata"]["uid"] = "uid-a"
    key, uid = ("n1", "uid-n1") if kind == "Node" else ("default/a", "uid-a")
    return Left((node("n1"), report("n1"), pod), Details(told=(Told(reason, "why", kind, key, uid),)))


LEFT: Final[Mapping[str, Left]] = {
    "it counts the id of a free chip": event("NPUAllocationMismatch", "Pod"),
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
