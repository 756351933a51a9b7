"""What a leader that ends in peace hands over: the Bindings that others may still make with chips that it gave them."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from allocator.leadership.handover import MAX_NOTE, HandOver
from allocator.leadership.leadership import Leadership
from allocator.serving.webhook import WebhookName
from allocator.settings import Settings
from allocator.state.ledger import DOUBT_S
from allocator.state.reservation import Stage
from ascend.annotations import ALLOCATED
from ascend.kube.client import KubeClient
from ascend.takes import NOTHING
from protos.ascend.allocator.v1 import allocator_pb2 as pb
from sandbox.apiserver import ApiServer
from sandbox.apiserver.patches import json_patch
from tests.allocator.builders import World, node, pod
from tests.allocator.harness import Allocator, Json, node_manifest, ref, review, running, until, write_kubeconfig

ELECTION: dict[str, Any] = {"leader_election": True, "lease_duration_s": 3.0}


class HeldUp:
    """Bindings that the API server has sent to the webhook of a leader, and that a later webhook holds up.

    Attributes:
        admitted: set once the leader has added the chips.
        go_on: set it to let the Binding be made.
    """

    def __init__(self, leader: Allocator) -> None:
        self.admitted = asyncio.Event()
        self.go_on = asyncio.Event()
        self._leader = leader

    async def __call__(self, _operation: str, _resource: object, subresource: str, document: Json) -> Json:
        if subresource != "binding" or self.admitted.is_set():
            return document
        answer = await review(self._leader, "bindings", document)
        assert answer["allowed"], answer
        patched: Json = json_patch(document, json.loads(base64.b64decode(answer["patch"])))
        self.admitted.set()
        await self.go_on.wait()
        return patched


async def bind(client: KubeClient, pod: Json, node_name: str) -> None:
    meta = pod["metadata"]
    await client.bind(namespace="default", name=meta["name"], uid=meta["uid"], node=node_name, annotations={})


@asynccontextmanager
async def handed_over(server: ApiServer, folder: Path, first: Allocator) -> AsyncIterator[Allocator]:
    """End the first allocator in peace, as a rolling update does; yields its successor once it leads."""
    async with running(server, folder, synced=False, **ELECTION) as second:
        await until(lambda: "leads" in (second.app.missing() or ""))
        await first.app.__aexit__(None, None, None)
        async with asyncio.timeout(10):
            await second.app.wait_until_synced()
        yield second


async def chips(allocator: Allocator, name: str) -> set[str]:
    return set((await allocator.read(name))["metadata"]["annotations"][ALLOCATED].split(","))


async def test_a_binding_that_a_slow_webhook_holds_up_keeps_its_chips(tmp_path: Path) -> None:
    async with ApiServer() as server:
        await server.create(node_manifest("n1"))
        async with (
            running(server, tmp_path, **ELECTION) as first,
            await KubeClient.connect(str(write_kubeconfig(tmp_path, server))) as scheduler,
        ):
            held_up = HeldUp(first)
            server.admission.append(held_up)
            a = await first.pod("a", 4)
            late = asyncio.create_task(bind(scheduler, a, "n1"))
            await held_up.admitted.wait()
            async with handed_over(server, tmp_path, first) as second:
                assert await second.schedule(await second.pod("b", 8), ["n1"]) == ""
                assert await second.schedule(await second.pod("c", 4), ["n1"]) == "n1"
                held_up.go_on.set()
                await late
                assert not await chips(second, "a") & await chips(second, "c")
                await until(lambda: not len(second.app.ledger))


async def test_chips_that_a_caller_of_allocate_has_got_are_handed_over(tmp_path: Path) -> None:
    async with ApiServer() as server:
        await server.create(node_manifest("n1"))
        async with running(server, tmp_path, **ELECTION) as first:
            a = await first.pod("a", 4)
            # One that only kube-scheduler has asked about is bound by the allocator itself, so no longer.
            await first.filter(await first.pod("asked", 4), ["n1"])
            answer = await first.stub.Allocate(pb.AllocateRequest(pod=ref(a)))
            async with handed_over(server, tmp_path, first) as second:
                assert await second.schedule(await second.pod("b", 8), ["n1"]) == ""
                assert await second.schedule(await second.pod("c", 4), ["n1"]) == "n1"
                await second.bind_as_another("a", a["metadata"]["uid"], "n1", dict(answer.annotations))
                assert not await chips(second, "a") & await chips(second, "c")


def promising() -> tuple[World, HandOver]:
    world = World()
    world.add(node("n1"), node("n2"), *(pod(name, 2) for name in ("asked", "given", "doubtful", "posted", "bound")))
    return world, HandOver(world.cluster, world.ledger)


def test_the_note_has_what_may_still_be_bound_and_nothing_else() -> None:
    world, handover = promising()
    assert handover.write() == ""
    assert handover.read("") == []
    for name in ("asked", "given", "doubtful", "posted"):
        world.engine.place(world.cluster.pods[f"uid-{name}"])
    world.ledger.advance("uid-given", Stage.RESERVED, predicate_time=7)
    world.ledger.advance("uid-doubtful", Stage.DOUBTFUL, predicate_time=8)
    world.ledger.advance("uid-posted", Stage.ASSUMED, predicate_time=9)
    note = handover.write()
    assert note is not None
    successor, reading = promising()
    # Its list shows what became of one of them.
    successor.add(pod("posted", 2, node="n1", chips=world.ledger.get("uid-posted").take.chips))  # type: ignore[union-attr]
    taken = {each.uid: each for each in reading.read(note)}
    assert taken.keys() == {"uid-given", "uid-doubtful"}
    for uid, each in taken.items():
        old = world.ledger.get(uid)
        assert old is not None
        assert (each.node, each.take.chips, each.predicate_time) == (old.node, old.take.chips, old.predicate_time)
        assert each.stage is Stage.DOUBTFUL
    # After it has died as well, the third reads the same note; by then another pod may have the chips.
    third, reading = promising()
    third.add(pod("other", 2, node=taken["uid-given"].node, chips=taken["uid-given"].take.chips))
    assert {each.uid for each in reading.read(note)} == {"uid-doubtful", "uid-posted"}


def test_pods_that_are_gone_or_bound_are_not_reserved_for() -> None:
    world, handover = promising()
    world.engine.place(world.cluster.pods["uid-given"])
    world.ledger.advance("uid-given", Stage.DOUBTFUL, predicate_time=7)
    note = handover.write()
    assert note is not None
    successor, reading = promising()
    successor.cluster.pod_deleted(successor.cluster.pods["uid-given"])
    assert reading.read(note) == []
    with pytest.raises(ValueError, match="array"):
        reading.read("[1")


def test_a_note_that_is_too_long_is_not_written() -> None:
    world, handover = promising()
    for number in range(MAX_NOTE // 50):
        world.ledger.reserve(uid=f"u{number:040}", pod="d/p", node="n1", take=NOTHING, stage=Stage.DOUBTFUL)
    assert handover.write() is None


@pytest.mark.parametrize(
    ("webhooks", "fence", "settle_s"),
    [([], False, 4.0), (["pods"], False, 4.0), (["bindings"], False, DOUBT_S - 15.0), (["bindings"], True, 4.0)],
)
def test_where_others_bind_a_dead_leaders_successor_waits_as_long_as_they_may(
    webhooks: list[WebhookName], *, fence: bool, settle_s: float
) -> None:
    settings = Settings(leader_election=True, webhooks=webhooks, fence=fence)
    made: Any = Leadership(settings, None, None, None, boot_s=lambda: 0.0, now_ns=lambda: 0)  # type: ignore[arg-type]
    assert made._leader._settle_s == settle_s


@pytest.mark.looptime
async def test_a_note_that_cannot_be_read_is_waited_out() -> None:
    listed = []
    loop = asyncio.get_running_loop()

    class Informers:
        async def wait_until_synced(self) -> None:
            """At once."""

        async def refresh_pods(self) -> None:
            listed.append(loop.time())

    class Leader:
        election = SimpleNamespace(note="[1")

        async def won(self) -> None:
            """At once."""

    _, handover = promising()
    settings = Settings(leader_election=True)
    made: Any = Leadership(settings, None, Informers(), handover, boot_s=loop.time, now_ns=lambda: 0)  # type: ignore[arg-type]
    made._leader = Leader()
    await made.enter()
    assert listed[-1] - listed[0] == DOUBT_S
