"""What breaks in a cluster turns ``npuctl doctor --cluster`` red, with a line that says what breaks."""

import time
from collections.abc import Sequence
from io import StringIO

from rich.console import Console

from allocator.settings import Settings
from ascend.chips import chip_ids
from npuctl.chip.command import change_cordons
from npuctl.doctor.cluster import check_cluster
from npuctl.doctor.command import Diagnosis, diagnosis_of, render
from npuctl.doctor.details import read_details
from npuctl.doctor.finding import Finding
from npuctl.reading.listing import list_objects
from tests.e2e.test_main_job import REAL, check_hand_over
from tests.e2e.world import World, annotated


async def diagnose(world: World, *, in_s: int = 0) -> Diagnosis:
    """The diagnosis of the cluster as it is now, or as it will be if nobody writes anything until then."""
    objects = await list_objects(world.client)
    details = await read_details(world.client, objects.nodes)
    now_ns = time.time_ns() + in_s * 10**9
    return diagnosis_of("cluster", await check_cluster(objects, details, Settings(), now_ns))


async def red(world: World, check: str, saying: str) -> Finding:
    """Wait until a check has a problem in these words; nothing is green beside it, and the exit status is 1."""

    async def look() -> tuple[Finding, Sequence[Finding]] | None:
        diagnosis = await diagnose(world)
        own = [each for each in diagnosis.findings if each.check == check]
        found = [each for each in own if each.severity == "problem" and saying in each.sentence]
        assert not found or diagnosis.exit_status == 1
        return (found[0], own) if found else None

    found, own = await world.eventually(look, f"doctor says {saying!r}")
    assert check == "programs" or all(each.severity != "ok" for each in own)
    return found


async def test_a_healthy_cluster_has_no_problems(world: World) -> None:
    await world.create("healthy", 2)
    await check_hand_over(world, "healthy", 2)
    diagnosis = await diagnose(world)
    printed = Console(width=200, file=StringIO())
    printed.print(render(diagnosis))
    assert (diagnosis.exit_status, diagnosis.problems) == (0, 0), printed.file.getvalue()  # type: ignore[attr-defined]
    # The programs are no pods here, nor is their scheduler.
    assert {each.check for each in diagnosis.findings if each.severity == "warning"} <= {"programs"}


async def test_a_cordoned_chip_is_offered_to_nobody_and_a_pod_on_it_stays(world: World) -> None:
    node = world.nodes[0]
    await world.create("cordoned", 2, nodeSelector={"kubernetes.io/hostname": node.name})
    pod = await check_hand_over(world, "cordoned", 2)
    own = annotated(pod, REAL)
    held, free = chip_ids(own)[0], chip_ids(0xFF & ~own)[0]
    chips = [str(held), str(free)]
    await change_cordons(world.client, node.name, chips, "its fan is loud", time.time_ns(), cordons=True)
    try:
        await _check_cordoned(world, node.name, pod.key, held, free)
    finally:
        await change_cordons(world.client, node.name, chips, "", time.time_ns(), cordons=False)

    async def is_back() -> bool:
        return not (await world.report(node.name)).unhealthy and await world.allocatable(node.name) == 8

    await world.eventually(is_back, "the chips are in use again")


async def _check_cordoned(world: World, node: str, pod: str, held: int, free: int) -> None:
    async def is_out() -> bool:
        report = await world.report(node)
        out = report.unhealthy == report.manually_separated == 1 << held | 1 << free
        return out and await world.allocatable(node) == 6

    await world.eventually(is_out, "the chips are out of use, and not allocatable, whether a pod runs with them or not")
    there = await world.running("cordoned")
    assert (there.spec.node_name, there.is_terminating) == (node, False)
    said = {each.pods: each.sentence for each in (await diagnose(world)).findings if each.check == "faults"}
    assert set(said) == {(), (pod,)}
    assert all(sentence.endswith(": its fan is loud") for sentence in said.values())


async def test_a_pod_that_was_bound_without_the_allocator_is_told_after_it_has_failed(world: World) -> None:
    pod = await world.create("stray", 1, schedulerName="another")
    await world.client.bind(namespace="default", name=pod.name, uid=pod.uid, node=world.nodes[0].name, annotations={})
    await world.failed("stray")
    found = await red(world, "schedulers", "failed at its node, because scheduler another did not ask the allocator")
    assert (found.reason, found.pods) == ("NotPlaced", ("default/stray",))


async def test_a_pod_that_no_scheduler_serves_is_told(world: World) -> None:
    pod = await world.create("unserved", 1, schedulerName="nobody")
    objects, details = await list_objects(world.client), await read_details(world.client)
    later_ns = time.time_ns() + 300 * 10**9
    found = [each for each in await check_cluster(objects, details, Settings(), later_ns) if pod.key in each.pods]
    assert [(each.check, each.severity) for each in found] == [("schedulers", "problem")]


async def test_a_pod_on_a_chip_that_breaks_is_told_with_the_code(world: World) -> None:
    pod = await world.create("works", 1)
    await check_hand_over(world, "works", 1)
    pod = await world.running("works")
    node = world.node(pod.spec.node_name)
    chip = int(pod.metadata.annotations["huawei.com/AscendReal"].removeprefix("Ascend910-"))
    node.edit_chip(chip, health="Unhealthy", fault_codes=["80E18402"])
    found = await red(world, "faults", f"pod default/works runs on {node.name}/Ascend910-{chip}")
    assert (found.pods, found.codes) == (("default/works",), ("80E18402",))
