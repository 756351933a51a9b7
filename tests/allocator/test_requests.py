"""What the allocator asks of the API server: as little as it can."""

from pathlib import Path

from sandbox.apiserver import ApiServer
from tests.allocator.harness import running


async def test_a_decision_costs_the_api_server_one_request_the_binding(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        for name in ("n1", "n2"):
            await allocator.node(name)
        pods = [await allocator.pod(f"train-{number}", 2) for number in range(4)]
        server.requests.clear()
        for pod in pods:
            assert await allocator.schedule(pod, ["n1", "n2"])
        assert server.requests == {("", "post pods/binding"): 4}
