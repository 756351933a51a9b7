"""Pods come, go and cross each other on one node: annotation, claim, kubelet and containers always agree."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from ascend.annotations import ALLOCATED, REAL
from ascend.chips import ChipSet, chip_ids
from ascend.kube.objects import PODS, Pod
from ascend.slices import effective_request
from device_plugin.kubelet import pods_api
from device_plugin.pods import admission_matcher
from tests.device_plugin.api import until
from tests.device_plugin.whole import Whole, asking, check_hand_over, whole_node, written

PODS_IN_ALL = 100
SIMPLE = ("a1", "a1", "a2", "a2", "a2", "a4")
CROWDED = (
    "a1",
    "a2",
    "a2",
    "a4",
    "a1 a1",
    "a2 a2",
    "a2 a1 a1",
    "i2",
    "i2 a1",
    "i1 a2",
    "i4 a2",
    "i3 a2 a2",
    "i2 i4 a2",
    "s1 a1",
    "s1 a2",
    "i2 s1 a1",
    "s1 i2 a1",
    "i2 s1 i2 a1",
    "i1 s2 a2",
    "s1 i3 s1 a2",
)


@pytest.fixture(autouse=True)
def patient_kubelet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin that the machine lets wait answers all the same; without an answer the kubelet counts other ids."""
    monkeypatch.setattr(admission_matcher, "PREFER_CAP_S", 20.0)


def seeds(gate: range, long: range) -> list[object]:
    """Return seeds for `make test`, and more for `make test-long`."""
    return [*(pytest.param(seed) for seed in gate), *(pytest.param(seed, marks=pytest.mark.long) for seed in long)]


class Crowd:
    """An allocator that binds pods to random chips at once, with unordered predicate-times, and deletes some."""

    def __init__(self, whole: Whole, seed: int, shapes: Sequence[str], limit: int) -> None:
        self.whole = whole
        self.shapes = shapes
        self.limit = limit
        self.rng = random.Random(seed)
        self.free: ChipSet = 0xFF
        self.granted: dict[str, tuple[int, ...]] = {}
        self.number = 0
        self.calls = 0

    def _take(self, size: int) -> tuple[int, ...]:
        chips = tuple(self.rng.sample(chip_ids(self.free), size))
        for chip_id in chips:
            self.free &= ~(1 << chip_id)
        return chips

    async def bind_some(self) -> None:
        """Fill the node with pods, all at once."""
        binding = []
        while self.number < self.limit and self.free:
            asks = asking(self.rng.choice(self.shapes))
            if effective_request(asks) > self.free.bit_count():
                asks = asking("a1")
            name = f"p{self.number}"
            self.number += 1
            self.granted[name] = self._take(effective_request(asks))
            self.calls += len(asks)
            predicate_time = self.rng.randrange(1, 1_000_000)
            binding.append(self.whole.bind(name, *self.granted[name], predicate_time=predicate_time, asks=asks))
        self.rng.shuffle(binding)
        await asyncio.gather(*binding)

    async def delete(self, name: str) -> None:
        await self.whole.client.delete(PODS, name, "default")
        await until(lambda: self.whole.find(name) is None)
        for chip_id in self.granted.pop(name):
            self.free |= 1 << chip_id

    async def settled(self) -> list[Pod]:
        """Wait until every pod runs with its claim."""
        return list(await asyncio.gather(*(self.whole.claimed(name) for name in self.granted)))

    async def survivors(self) -> list[Pod]:
        """Wait until every pod runs with its claim or has failed; return those that run."""
        await until(self.is_settled)
        pods = {name: pod for name in self.granted if (pod := self.whole.find(name)) is not None}
        for name, pod in pods.items():
            if not pod.is_live:
                await self.delete(name)
        return [pod for pod in pods.values() if pod.is_live]

    def is_settled(self) -> bool:
        """Whether every pod runs with its claim or has failed, for the kubelet and the API server."""
        # A kubelet that restarts ends pods whose init containers had devices
        # (docs/spec/kubelet.md#known-kubelet-defects).
        kubelet = self.whole.node.kubelet
        pods = [self.whole.find(name) for name in self.granted]
        return kubelet.is_synced and all(
            pod is not None
            and pod.key in kubelet.pod_keys()
            and pod.status.phase == kubelet.status(pod.key).get("phase")
            and (not pod.is_live or (pod.status.phase == "Running" and REAL in pod.metadata.annotations))
            for pod in pods
        )


def check_all(whole: Whole, pods: list[Pod]) -> None:
    taken: ChipSet = 0
    for pod in pods:
        chips = check_hand_over(whole, pod)
        assert not taken & chips, f"{pod.name} shares chips"
        taken |= chips


def nothing_is_held_twice(whole: Whole) -> None:
    """Check all the time that no chip is in the environments of two pods' running containers."""
    seen: dict[int, str] = {}
    for pod in whole.pods:
        for ask in pod.container_requests:
            if not whole.node.kubelet.has_container(pod.key, ask.container):
                continue
            if whole.node.kubelet.container(pod.key, ask.container).pod_uid == pod.uid:
                for chip_id in whole.visible(pod.name, ask.container):
                    assert seen.setdefault(chip_id, pod.name) == pod.name
                    assert written(pod, ALLOCATED) >> chip_id & 1


@pytest.mark.parametrize("shapes", [SIMPLE, CROWDED], ids=["one container", "several containers"])
@pytest.mark.parametrize("seed", seeds(range(1, 2), range(2, 6)))
async def test_pods_that_cross_each_other_are_never_swapped(folder: Path, seed: int, shapes: Sequence[str]) -> None:
    async with whole_node(folder, seed=seed) as whole, whole.plugin() as plugin:
        crowd = Crowd(whole, seed, shapes, PODS_IN_ALL)

        async def keep_looking() -> None:
            version = -1
            while True:
                version = await plugin.allocations.changes.newer_than(version)
                nothing_is_held_twice(whole)

        looking = asyncio.create_task(keep_looking())
        while crowd.number < PODS_IN_ALL:
            await crowd.bind_some()
            check_all(whole, await crowd.settled())
            victims = crowd.rng.sample(list(crowd.granted), crowd.rng.randint(1, len(crowd.granted)))
            await asyncio.gather(*(crowd.delete(name) for name in victims))
        check_all(whole, await crowd.settled())
        assert not looking.done()
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        metrics = plugin.metrics.registry
        assert metrics.get_sample_value("ascend_dp_allocation_mismatches_total") == 0
        assert metrics.get_sample_value("ascend_dp_allocations_total", {"result": "granted"}) == crowd.calls
        assert {each.pod: each.chips for each in plugin.allocations} == {
            f"default/{name}": chips for name, chips in crowd.granted.items()
        }


@pytest.mark.parametrize("seed", seeds(range(1), range(1, 4)))
async def test_restarts_of_kubelet_or_plugin_swap_nothing(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with whole_node(folder, seed=seed) as whole, AsyncExitStack() as stack:
        crowd = Crowd(whole, seed, CROWDED, PODS_IN_ALL // 2)
        plugin = await stack.enter_async_context(whole.plugin())
        while crowd.number < crowd.limit:
            await until(whole.offers_chips)
            version = plugin.allocations.changes.version + rng.randint(1, 3)
            binding = asyncio.create_task(crowd.bind_some())
            await until(
                lambda version=version, plugin=plugin, binding=binding: (  # type: ignore[misc]  # bound in a loop
                    plugin.allocations.changes.version >= version or (binding.done() and crowd.is_settled())
                )
            )
            for _ in range(rng.randrange(10)):
                await asyncio.sleep(0)
            if rng.random() < 0.5:
                await stack.aclose()
                plugin = await stack.enter_async_context(whole.plugin())
            else:
                await whole.node.kubelet.restart()
            await binding
            check_all(whole, await crowd.survivors())
            assert all(each.matches_kubelet for each in plugin.allocations)
            victims = rng.sample(list(crowd.granted), rng.randint(0, len(crowd.granted)))
            await asyncio.gather(*(crowd.delete(name) for name in victims))


@pytest.mark.parametrize("silent", [False, True], ids=["it forbids", "it does not answer"])
async def test_without_the_kubelets_list_the_order_of_decisions_is_followed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, silent: bool
) -> None:
    monkeypatch.setattr(pods_api, "DEADLINE_S", 0.1)
    async with whole_node(folder) as whole, whole.plugin() as plugin:
        kubelet = whole.node.kubelet
        kubelet.hold_admission()
        for number in range(4):
            await whole.bind(f"p{number}", 2 * number, 2 * number + 1, predicate_time=number)
        await until(lambda: len(list(plugin.pods)) == 4)
        kubelet.pods_answer.forbidden = not silent
        if silent:
            kubelet.pods_answer.hold()
        try:
            kubelet.release_admission()
            check_all(whole, list(await asyncio.gather(*(whole.claimed(f"p{number}") for number in range(4)))))
        finally:
            kubelet.pods_answer.release()
        assert plugin.metrics.registry.get_sample_value("ascend_dp_allocation_mismatches_total") == 0


@pytest.mark.parametrize("seed", seeds(range(1), range(1, 5)))
async def test_pods_deleted_during_admission_leave_others_their_chips(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with whole_node(folder, seed=seed) as whole, whole.plugin() as plugin:
        for attempt in range(8):
            names = [f"p{attempt}-{number}" for number in range(4)]
            bindings = [
                whole.bind(name, 2 * number, 2 * number + 1, predicate_time=rng.randrange(1000), grace_s=30)
                for number, name in enumerate(names)
            ]
            await asyncio.gather(*bindings)
            victim = names.pop(rng.randrange(4))
            await until(lambda: len(list(plugin.allocations)) >= rng.randrange(4))
            await whole.client.delete(PODS, victim, "default")
            check_all(whole, list(await asyncio.gather(*map(whole.claimed, names))))
            await asyncio.gather(*(whole.client.delete(PODS, name, "default") for name in names))
            await until(lambda: not list(whole.pods))


@pytest.mark.parametrize("seed", seeds(range(1), range(1, 5)))
async def test_pods_deleted_without_grace_leave_others_their_chips(folder: Path, seed: int) -> None:
    # Deleted without grace, a pod vanishes from the watch while the kubelet still admits it.
    rng = random.Random(seed)
    async with whole_node(folder, seed=seed) as whole, whole.plugin() as plugin:
        for attempt in range(8):
            names = [f"p{attempt}-{number}" for number in range(4)]
            await asyncio.gather(*(whole.bind(name, 2 * n, 2 * n + 1) for n, name in enumerate(names)))
            victim = names.pop(rng.randrange(4))
            await until(lambda: len(list(plugin.allocations)) >= rng.randrange(4))
            await whole.client.delete(PODS, victim, "default")
            check_all(whole, list(await asyncio.gather(*map(whole.claimed, names))))
            await asyncio.gather(*(whole.client.delete(PODS, name, "default") for name in names))
            await until(lambda: not list(whole.pods))
