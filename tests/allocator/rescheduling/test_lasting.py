"""What lasts: faults of a node one by one, the counts of a job, and where its blocks were."""

from msgspec.structs import replace

from allocator.rescheduling.fault_watch import CONFIRM_S
from allocator.rescheduling.rescheduler import FORGET_S
from allocator.state.report import HEALTH_ANNOTATION
from ascend.kube.objects import Node
from tests.allocator.builders import node, owned_by, report
from tests.allocator.rescheduling.scene import Scene, anew, job, scene
from tests.allocator.superpods import world as blocks


def unhealthy(name: str) -> Node:
    made = node(name)
    annotations = {**made.metadata.annotations, HEALTH_ANNOTATION: "UnHealthy"}
    return replace(made, metadata=replace(made.metadata, annotations=annotations))


async def test_an_unhealthy_node_counts_once_that_has_lasted_also_beside_a_fault_of_a_chip() -> None:
    stage = scene([*job(1, name="a", chips=[0, 1]), *job(1, name="b", chips=[4, 5])])
    stage.world.add(report("n1", unhealthy=[0]))
    assert await stage.settle() == ["a-0"]
    stage.world.add(unhealthy("n1"))
    assert await stage.look() == []
    assert await stage.look(CONFIRM_S - 0.1) == []
    assert await stage.look(0.1) == ["b-0"]


async def test_the_counts_of_a_job_stay_for_as_long_as_it_exists() -> None:
    pods = job(1)
    stage = scene(pods)
    stage.world.add(report("n1", unhealthy=[0]))
    assert await stage.settle() == ["train-0"]
    stage.world.add(report("n1"), new := anew(pods[0]))
    await stage.look(1.0)
    await stage.look(2 * FORGET_S)
    assert [len(each.times_s) for each in stage.rescheduler.memory.jobs.values()] == [1]
    stage.world.cluster.pod_deleted(new)
    await stage.look(1.0)
    assert stage.rescheduler.memory.jobs == {}


async def test_the_next_leader_knows_where_the_blocks_of_a_job_were() -> None:
    stage = Scene(reschedule_faulty_share=1.0)
    stage.world.add(*(blocks.server(number, index, cordoned=not index) for number in range(2) for index in range(4)))
    said = {"fault-scheduling": "force", "fault-retry-times": "5"}
    created = [owned_by(each, "StatefulSet", "apps/v1") for each in blocks.job(4, labels=said)]
    stage.world.add(*created)
    running = [blocks.bind(stage.world, each) for each in created]
    before = [each.spec.node_name for each in running]
    stage.world.add(replace(running[1], status=replace(running[1].status, phase="Failed")))
    assert len(await stage.look()) == 4
    # Nothing but nodes and the ConfigMap is there when another process takes over.
    after = Scene(reschedule_faulty_share=1.0)
    after.stored = stage.stored
    after.world.add(*(blocks.server(number, index) for number in range(2) for index in range(4)))
    await after.rescheduler.load()
    new = [anew(each) for each in created]
    after.world.add(*new)
    nodes = [after.world.engine.place(each).node for each in new]
    assert [nodes[0], *nodes[2:]] == [before[0], *before[2:]]
    assert nodes[1] not in before
    assert nodes[1].partition("-")[0] == before[1].partition("-")[0]
