"""The chips of a pod whose volumes are provisioned stay reserved as long as its scheduler waits for them."""

import asyncio
from typing import cast

import pytest
from msgspec.structs import replace

from allocator.binding.barrier import STALLED_S
from allocator.binding.binding import PodRef
from allocator.binding.volumes import SELECTED_NODE, Claim, ClaimStatus, VolumeWaits
from allocator.state.reservation import Stage
from ascend.errors import ApiError, NotFound, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.containers import ClaimSource, EphemeralSource, Volume
from ascend.kube.objects import Metadata, Pod, Resource
from ascend.reasons import Reason
from tests.allocator.binding.rig import BinderWorld
from tests.allocator.builders import pod
from tests.allocator.expiry import expire
from tests.allocator.gangs.builders import gang

LIMIT_S = 660.0


def with_volumes(each: Pod, *volumes: Volume) -> Pod:
    return replace(each, spec=replace(each.spec, volumes=list(volumes)))


DATA = Volume("data", persistent_volume_claim=ClaimSource("data"))
SCRATCH = Volume("scratch", ephemeral=EphemeralSource())


class Claims:
    """The API server's claims; an error is raised instead of an answer."""

    def __init__(self) -> None:
        self.claims: dict[str, Claim | ApiError | Unreachable] = {}
        self.reads = 0

    async def get(self, resource: Resource[Claim], name: str, namespace: str, *, timeout_s: float) -> Claim:
        assert (resource.plural, namespace, timeout_s > 0) == ("persistentvolumeclaims", "default", True)
        self.reads += 1
        found = self.claims.get(name, NotFound("none", status=404))
        if not isinstance(found, Claim):
            raise found
        return found

    def put(self, name: str, phase: str, node: str | None = None) -> None:
        """Store a claim in this phase, whose volume is provisioned on this node."""
        annotations = {SELECTED_NODE: node} if node else {}
        self.claims[name] = Claim(metadata=Metadata(name=name, annotations=annotations), status=ClaimStatus(phase))


class Waiting:
    """An allocator's reservations while volumes are provisioned, on a clock that the test sets."""

    def __init__(self, *pods: Pod, limit_s: float = LIMIT_S) -> None:
        self.rig = BinderWorld(*pods)
        self.world = self.rig.world
        self.server = Claims()
        self.volumes = VolumeWaits(
            cast("KubeClient", self.server),
            self.world.cluster,
            self.world.ledger,
            self.rig.barrier,
            limit_s=limit_s,
            monotonic=lambda: self.world.now_s,
        )

    async def pass_time(self, seconds: int) -> None:
        """Let this time pass, with what the allocator does once a second."""
        for _ in range(seconds):
            self.world.now_s += 1.0
            await self.volumes.check()
            expire(self.world.ledger)
            await self.rig.barrier.check()
            for _ in range(5):
                await asyncio.sleep(0)  # what follows from it in other tasks


@pytest.mark.parametrize(("volume", "name"), [(DATA, "data"), (SCRATCH, "a-scratch")], ids=["claim", "ephemeral"])
async def test_chips_stay_reserved_while_a_volume_is_provisioned(volume: Volume, name: str) -> None:
    waiting = Waiting(with_volumes(pod("a", 8), volume), pod("b", 8))
    waiting.server.put(name, "Pending", "n1")
    waiting.world.engine.place(waiting.world.cluster.pods["uid-a"], ["n1"])
    await waiting.pass_time(600)
    assert waiting.world.refusal(waiting.world.cluster.pods["uid-b"], ["n1"]).reason is Reason.NOT_ENOUGH_CHIPS
    waiting.server.put(name, "Bound", "n1")
    assert (await waiting.rig.binder.bind(PodRef("default", "a", "uid-a"), "n1")).node == "n1"


async def test_chips_are_released_once_the_volume_is_bound_and_nobody_calls() -> None:
    waiting = Waiting(with_volumes(pod("a", 8), DATA))
    waiting.server.put("data", "Pending", "n1")
    waiting.world.engine.place(waiting.world.cluster.pods["uid-a"], ["n1"])
    await waiting.pass_time(100)
    waiting.server.put("data", "Bound", "n1")
    await waiting.pass_time(36)
    assert len(waiting.world.ledger) == 0


async def test_chips_are_kept_no_longer_than_a_scheduler_waits() -> None:
    waiting = Waiting(with_volumes(pod("a", 8), DATA))
    waiting.server.put("data", "Pending", "n1")
    waiting.world.engine.place(waiting.world.cluster.pods["uid-a"], ["n1"])
    await waiting.pass_time(int(LIMIT_S) - 1)
    assert len(waiting.world.ledger) == 1
    await waiting.pass_time(36)
    assert len(waiting.world.ledger) == 0


@pytest.mark.parametrize(
    ("phase", "node", "kept"),
    [("Pending", "n1", True), ("Pending", None, True), ("Pending", "n2", False), ("Bound", "n1", False)],
)
async def test_only_a_claim_that_is_awaited_on_the_node_keeps_chips(
    phase: str, node: str | None, *, kept: bool
) -> None:
    waiting = Waiting(with_volumes(pod("a", 8), SCRATCH, DATA))
    waiting.server.put("a-scratch", "Bound")
    waiting.server.put("data", phase, node)
    waiting.world.engine.place(waiting.world.cluster.pods["uid-a"], ["n1"])
    await waiting.pass_time(60)
    assert len(waiting.world.ledger) == kept


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (Unreachable("no answer"), True),
        (ApiError("forbidden", status=403), False),
        (NotFound("none", status=404), False),
    ],
    ids=["unreachable", "forbidden", "missing"],
)
async def test_claims_that_cannot_be_read(error: ApiError | Unreachable, *, kept: bool) -> None:
    waiting = Waiting(with_volumes(pod("a", 8), DATA))
    waiting.server.claims["data"] = error
    waiting.world.engine.place(waiting.world.cluster.pods["uid-a"], ["n1"])
    await waiting.pass_time(60)
    assert len(waiting.world.ledger) == kept


async def test_no_claims_are_read_of_pods_without_any_or_if_it_is_turned_off() -> None:
    other = Volume("secret")
    for waiting in (Waiting(with_volumes(pod("a", 8), other)), Waiting(with_volumes(pod("a", 8), DATA), limit_s=0.0)):
        waiting.world.engine.place(waiting.world.cluster.pods["uid-a"], ["n1"])
        await waiting.pass_time(60)
        assert (waiting.server.reads, len(waiting.world.ledger)) == (0, 0)


async def test_a_gang_waits_for_the_volume_of_one_of_its_pods() -> None:
    first, second = gang("train", 2)
    waiting = Waiting(first, with_volumes(second, DATA))
    world, binder = waiting.world, waiting.rig.binder
    node = world.engine.place(second).node
    other = world.engine.place(first).node
    waiting.server.put("data", "Pending", node)
    binding = asyncio.create_task(binder.bind(PodRef.of(first), other))
    refused = 0
    for _ in range(30):
        await waiting.pass_time(int(STALLED_S))
        if binding.done():
            # One Binding is not held for ever: its scheduler tries again, and the pod has kept its seat.
            assert "was held for 50 s" in str(binding.exception())
            refused += 1
            assert world.engine.place(first, [other]).node == other
            binding = asyncio.create_task(binder.bind(PodRef.of(first), other))
        held = world.ledger.get(second.uid)
        assert held is not None
        assert (held.stage, held.node) == (Stage.PLANNED, node)
    assert 5 < refused < 15
    waiting.server.put("data", "Bound", node)
    await asyncio.gather(binding, binder.bind(PodRef.of(second), node))
    assert len(waiting.rig.server.bindings) == 2
