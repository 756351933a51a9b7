"""Whichever pods the kubelet's calls were taken for: its ledger tells which pod has the chips that were answered."""

import asyncio
from pathlib import Path
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from device_plugin.device_types import DeviceType
from device_plugin.kubelet.pod_resources import PodResources
from device_plugin.ledger.allocations import Allocation, ContainerPart
from device_plugin.pods import reconciler as reconcile_module
from tests.device_plugin.books import Books
from tests.device_plugin.builders import pod

CHIPS = 8

PODS = st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=3), min_size=1, max_size=6).filter(
    lambda pods: sum(map(sum, pods)) <= CHIPS
)
"""The requests of the containers of each pod."""


@given(data=st.data())
def test_whichever_pods_calls_were_taken_for_each_pod_has_what_was_answered_for_its_ids(data: st.DataObject) -> None:
    asks = {f"p{number}": dict(zip("abc", sizes, strict=False)) for number, sizes in enumerate(data.draw(PODS))}
    free, ids = list(range(CHIPS)), data.draw(st.permutations(range(CHIPS)))
    written = {name: [free.pop(0) for _ in range(sum(each.values()))] for name, each in asks.items()}
    books = Books()
    ledger: dict[str, dict[str, tuple[int, ...]]] = {}
    answered: dict[str, dict[str, tuple[int, ...]]] = {name: {} for name in asks}
    waiting = [(name, container) for name, each in asks.items() for container in each]
    left = {name: list(chips) for name, chips in written.items()}
    for name in data.draw(st.permutations(list(asks))):
        for container, count in asks[name].items():
            other, taken = data.draw(st.sampled_from([each for each in waiting if asks[each[0]][each[1]] == count]))
            waiting.remove((other, taken))
            chips = tuple(left[other].pop(0) for _ in range(count))
            given_ids, ids = tuple(sorted(ids[:count])), ids[count:]
            part = ContainerPart(taken, keeps=True, chips=chips, kubelet_ids=given_ids)
            whole = tuple(written[other])
            known = books.allocations.get(f"uid-{other}") or Allocation(
                f"uid-{other}", f"default/{other}", whole, whole
            )
            books.allocations.give(known.plus(part), given_ids)
            ledger.setdefault(f"default/{name}", {})[container] = given_ids
            answered[name][container] = chips
    for name, each in asks.items():
        books.pods.on_apply(pod(name, 0, *written[name], time=1, asks=each))

    async def read(_socket: Path, _device_type: DeviceType) -> PodResources:
        return PodResources(ledger)

    shown = data.draw(st.permutations(list(asks)))[: data.draw(st.integers(0, len(asks)))]
    with patch.object(reconcile_module, "read_ledger", read):
        for name in shown:
            books.pods.on_apply(pod(name, 0, *written[name], time=1, asks=asks[name], started=True))
            if data.draw(st.booleans()):
                asyncio.run(books.reconciler.restore())
        asyncio.run(books.reconciler.restore())
    kept = {each.pod.removeprefix("default/"): each.kept for each in books.allocations}
    assert {name: kept[name] for name in shown} == {name: answered[name] for name in shown}
    assert books.allocations.unconfirmed.isdisjoint(f"uid-{name}" for name in shown)
    # The other pods have nothing that was answered for these.
    parts = [chips for each in kept.values() for chips in each.values()]
    assert len({chip for chips in parts for chip in chips}) == sum(map(len, parts))
