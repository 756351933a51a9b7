"""The metrics of decisions and nodes."""

from pathlib import Path

from sandbox.apiserver import ApiServer
from tests.allocator.harness import running, until


async def test_decisions_are_counted_by_outcome(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        pod = await allocator.pod("a", 8)
        await allocator.schedule(pod, ["n1"])
        await allocator.bind(pod, "n1")
        await allocator.filter(await allocator.pod("b", 1), ["n1"])
        await until(lambda: len(allocator.app.ledger) == 0)
        _, page = await allocator.get("/metrics")
        for line in (
            'ascend_allocator_decisions_total{outcome="bound",reason=""} 1.0',
            'ascend_allocator_decisions_total{outcome="repeated",reason=""} 1.0',
            'ascend_allocator_decisions_total{outcome="refused",reason="NotEnoughChips"} 1.0',
            'ascend_allocator_decision_duration_seconds_count{kind="bind",server="extender"} 2.0',
            'ascend_allocator_reservations{state="reserved"} 0.0',
            "ascend_allocator_expired_reservations_total 0.0",
            "ascend_allocator_snapshot_age_seconds ",
            'ascend_allocator_build_info{version="',
            "process_resident_memory_bytes ",
        ):
            assert line in page
        assert "_created" not in page


async def test_unusable_nodes_are_counted_by_reason(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        for name in ("plain-1", "plain-2"):
            await allocator.node(name, npu=False)
        _, page = await allocator.get("/metrics")
        assert 'ascend_allocator_unusable_nodes{reason="NotAnNpuNode"} 2.0' in page
