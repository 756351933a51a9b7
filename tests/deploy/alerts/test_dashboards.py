"""Every query of the dashboards returns data from a Prometheus that scrapes both programs."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from ascend.chips import RESOURCE
from deploy.monitoring.dashboards import BOARDS, render
from sandbox.apiserver import ApiServer
from tests.allocator.harness import node_manifest, running
from tests.cluster.api import free_ports
from tests.dcmi.fake import FakeDcmi, ascend_910a
from tests.deploy import helm
from tests.device_plugin.whole import whole_node

pytestmark = [pytest.mark.real]  # Prometheus comes with what the real cluster needs

WITHIN_S = 60.0


def queries() -> Iterator[tuple[str, str]]:
    """Title and query, as Grafana sends it, of each line of each panel."""
    for board in BOARDS:
        for panel in json.loads(render(board))["panels"]:
            for target in panel.get("targets", []):
                query = target["expr"].replace("$__rate_interval", "10s")
                yield panel["title"], query.replace("$namespace", ".*").replace("$node", ".*")


@asynccontextmanager
async def prometheus(folder: Path, targets: dict[str, str]) -> AsyncIterator[str]:
    """A Prometheus that reads the programs at these addresses; yields its own."""
    (port,) = free_ports(1)
    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms"},
        "scrape_configs": [
            {
                "job_name": name,
                "honor_labels": True,
                "static_configs": [{"targets": [address], "labels": {"node": f"node-of-{name}"}}],
            }
            for name, address in targets.items()
        ],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    with (folder / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            "prometheus",
            f"--config.file={folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=log,
            stderr=log,
        )
    try:
        address = f"http://127.0.0.1:{port}"
        async with asyncio.timeout(WITHIN_S):
            while not await is_ready(address):  # noqa: ASYNC110 - the state of another program has no events
                await asyncio.sleep(0.05)
        yield address
    finally:
        process.terminate()
        await process.wait()


async def is_ready(prometheus: str) -> bool:
    """Whether Prometheus answers queries; before it has read its database it answers 503."""
    try:
        async with aiohttp.ClientSession() as http, http.get(f"{prometheus}/-/ready") as answer:
            return answer.ok
    except aiohttp.ClientConnectionError:
        return False


async def ask(http: aiohttp.ClientSession, address: str, query: str) -> list[Any]:
    """The series that a query returns."""
    async with http.get(f"{address}/api/v1/query", params={"query": query}) as answer:
        document = await answer.json()
    assert document["status"] == "success", f"{query}: {document}"
    return list(document["data"]["result"])


async def test_every_query_of_the_dashboards_returns_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    fake = FakeDcmi(tmp_path, ascend_910a())
    for name, value in fake.environment().items():
        monkeypatch.setenv(name, value)
    settings = {"driver": "dcmi", "dcmi_library": fake.library, "http_address": f"127.0.0.1:{port}"}
    with tempfile.TemporaryDirectory(prefix="aa-") as folder:  # those of pytest are too long for sockets
        async with (
            ApiServer() as server,
            running(server, tmp_path) as allocator,
            whole_node(Path(folder)) as whole,
            whole.plugin(**settings),
            prometheus(tmp_path, {"a": allocator.app.extender_address, "p": f"127.0.0.1:{port}"}) as address,
            aiohttp.ClientSession() as http,
        ):
            await allocator.node("n1")
            await allocator.node("n2")
            await allocator.server.create(broken_node())
            for node in ("n1", "n2"):  # so that chips are kept for the pods that wait
                await allocator.schedule(await allocator.pod(f"small-{node}", 1), [node])
            waits = await allocator.pod("waits", 8)
            left = dict.fromkeys(queries())
            assert len(left) > 30
            loop, number = asyncio.get_running_loop(), 0
            until_s = loop.time() + WITHIN_S
            while left:
                assert loop.time() < until_s, f"no data: {list(left)}"
                number += 1  # rates need calls that go on
                pod = await allocator.pod(f"p{number}", 1)
                await allocator.schedule(pod, ["n1", "n2"])
                await allocator.delete(f"p{number}")
                assert (await allocator.filter(waits, ["n1", "n2"]))["NodeNames"] == []
                await allocator.app.gauges.measure()
                await whole.bind(f"b{number}", number % 8, predicate_time=number)
                await whole.claimed(f"b{number}")
                await whole.client.request("DELETE", f"/api/v1/namespaces/default/pods/b{number}")
                for title, query in list(left):
                    if await ask(http, address, query):
                        del left[title, query]
                await asyncio.sleep(0.5)


def broken_node() -> dict[str, Any]:
    """A node that can't be used."""
    manifest = node_manifest("n3")
    manifest["status"]["allocatable"] = {RESOURCE: "0"}
    return manifest


@pytest.mark.usefixtures("built_helm")
def test_the_chart_has_each_dashboard_for_grafanas_sidecar() -> None:
    made = helm.render("--set", "dashboards.enabled=true,dashboards.annotations.grafana_folder=NPUs")
    found = {
        name: json.loads(text)["title"]
        for item in made
        if item["metadata"].get("labels", {}).get("grafana_dashboard") == "1"
        for name, text in item["data"].items()
    }
    assert found == {f"{board.uid}.json": board.title for board in BOARDS}
    assert not [item for item in helm.render() if "grafana_dashboard" in item["metadata"].get("labels", {})]
