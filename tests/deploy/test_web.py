"""The Deployment of npuctl web: what it may read, who reaches it, and that it serves the page with these rights."""

import asyncio
import json
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
import yaml
from typer.testing import CliRunner

from allocator.state.kinds import watched_kinds
from npuctl.cli import app
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures import require_cluster
from tests.deploy import accounts, helm
from tests.deploy.accounts import NAMESPACE, OWN, TENANT, Ask, change, core, new

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("built_helm"), pytest.mark.timeout(600)]

WEB = ("--set", "web.enabled=true,web.allowedHosts[0]=npu.example.org,web.allowedHosts[1]=npu.example.com")
HEALTH = ("--set", "allocator.nodeHealthNamespace=mindx-dl")


def of_page(*options: str) -> list[dict[str, Any]]:
    """The objects of the page."""
    items = helm.render(*WEB, *options)
    return [item for item in items if item["metadata"]["labels"]["app.kubernetes.io/component"] == "web"]


def pod_spec(*options: str) -> dict[str, Any]:
    spec: dict[str, Any] = helm.find(of_page(*options), "Deployment", "web")["spec"]["template"]["spec"]
    return spec


def test_it_is_off_unless_it_is_wanted() -> None:
    assert not [item for item in helm.render() if "web" in item["metadata"]["name"].split("-")]


def test_it_may_list_and_watch_what_the_page_watches_and_nothing_else() -> None:
    granted = {
        (role["metadata"].get("namespace", ""), ".".join(filter(None, (resource, rule["apiGroups"][0])))): rule["verbs"]
        for role in of_page(*HEALTH)
        if role["kind"] in {"ClusterRole", "Role"}
        for rule in role["rules"]
        for resource in rule["resources"]
    }
    assert {tuple(verbs) for verbs in granted.values()} == {("list", "watch")}
    watched = {
        (
            kind.namespace("mindx-dl"),
            ".".join(filter(None, (kind.resource.plural, kind.resource.api_version.rpartition("/")[0]))),
        )
        for kind in watched_kinds("mindx-dl")
    }
    assert granted.keys() == watched


def test_only_named_peers_reach_its_service_and_nobody_from_outside() -> None:
    items = of_page()
    assert helm.find(items, "Service", "web")["spec"]["type"] == "ClusterIP"
    assert not helm.find(items, "NetworkPolicy", "web")["spec"]["ingress"]
    peers = [{"podSelector": {"matchLabels": {"app": "ingress"}}}]
    policy = helm.find(of_page("--set-json", f"web.networkPolicy.from={json.dumps(peers)}"), "NetworkPolicy", "web")
    assert policy["spec"]["ingress"] == [{"ports": [{"port": "http", "protocol": "TCP"}], "from": peers}]


def test_its_container_is_restricted_and_writes_its_history_alone() -> None:
    spec = pod_spec()
    (container,) = spec["containers"]
    context = container["securityContext"]
    assert (spec["securityContext"]["runAsNonRoot"], context["readOnlyRootFilesystem"]) == (True, True)
    assert (context["capabilities"], context["allowPrivilegeEscalation"]) == ({"drop": ["ALL"]}, False)
    assert container["volumeMounts"] == [{"name": "history", "mountPath": "/var/lib/npuctl"}]
    assert spec["volumes"] == [{"name": "history", "emptyDir": {"sizeLimit": "768Mi"}}]
    claimed = pod_spec("--set", "web.history.claimName=kept")
    assert claimed["volumes"] == [{"name": "history", "persistentVolumeClaim": {"claimName": "kept"}}]


def test_npuctl_accepts_its_arguments(tmp_path: Path) -> None:
    described = ("--set-json", f"allocator.jobKinds={json.dumps([accounts.DESCRIBED])}")
    (container,) = pod_spec(*HEALTH, *described, "--set", "web.history.days=7")["containers"]
    arguments = [argument.replace("$(POD_IP)", "127.0.0.1") for argument in container["args"]]
    assert [argument for argument in arguments if "allowed-host" in argument] == [
        "--allowed-host=npu.example.org",
        "--allowed-host=npu.example.com",
    ]
    missing = tmp_path / "none.json"  # what is read after all options have been
    done = CliRunner().invoke(app, [*container["command"][1:], *arguments, "-f", str(missing)])
    assert (done.exit_code, "none.json" in str(done.output)) == (2, True)


@pytest.fixture(scope="module")
def cluster(built_helm: None) -> Iterator[Cluster]:  # noqa: ARG001 - it has to be built before
    require_cluster()
    with accounts.installed(*WEB) as lab:
        yield lab.cluster


async def test_with_its_account_the_page_is_served_by_a_real_api_server(cluster: Cluster, tmp_path: Path) -> None:
    token = cluster.service_account_token("ascend-affinity-web", namespace=NAMESPACE)
    server = cluster.server(token)
    for ask in (
        new(core("pods", namespace=TENANT), "Pod", {"name": "new"}),
        change(core("nodes", OWN), metadata={"labels": {"a": "b"}}),
        Ask("DELETE", core("pods", f"on-{OWN}", TENANT)),
        Ask("GET", core("secrets", namespace="kube-system")),
        Ask("GET", core("configmaps", namespace=TENANT)),
    ):
        assert "403" in ask.of(server), ask
    kubeconfig = yaml.safe_load(cluster.kubeconfig_path.read_text())
    (user,) = kubeconfig["users"]
    user["user"] = {"token": token}
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(kubeconfig))
    (container,) = pod_spec(*accounts.EVERY_OPTION)["containers"]
    arguments = [argument.replace("$(POD_IP)", "127.0.0.1") for argument in container["args"]]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "npuctl.cli", "web", *arguments, "--port=0", "--kubeconfig", str(path)),
        *("--history", str(tmp_path / "history.db")),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(120):
            url = (await process.stdout.readline()).decode().split()[-1]
            while await asyncio.to_thread(status, f"{url}/readyz") != 200:  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.1)
        assert await asyncio.to_thread(status, f"{url}/livez") == 200
        assert await asyncio.to_thread(status, url, "npu.example.com") == 200
        assert await asyncio.to_thread(status, url, "evil.example.com") == 403
    finally:
        process.terminate()
        await process.wait()


def status(url: str, host: str = "127.0.0.1") -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers={"Host": host}), timeout=10) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code
