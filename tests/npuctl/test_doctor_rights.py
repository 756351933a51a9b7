"""``npuctl doctor --cluster`` says which rights the accounts of the programs lack."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from allocator.settings import Settings
from ascend.kube.client import KubeClient
from npuctl.doctor.cluster import check_cluster
from npuctl.doctor.details import read_details
from npuctl.doctor.finding import Finding
from npuctl.reading.objects import ClusterObjects
from sandbox.apiserver import ApiServer
from tests.npuctl.test_doctor_programs import our


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """A server with the pods of both programs."""
    async with ApiServer() as running:
        for component in ("allocator", "device-plugin", "device-plugin-pool-a"):
            made = our(component, "n1")
            made["spec"]["serviceAccountName"] = f"ascend-{component}"
            await running.create(made)
        yield running


async def diagnose(server: ApiServer, folder: Path) -> list[Finding]:
    """What is said of rights, and of what can't be read."""
    path = folder / "kubeconfig"
    path.write_text(json.dumps(server.kubeconfig()))
    async with await KubeClient.connect(str(path)) as client:
        details = await read_details(client)
    found = await check_cluster(ClusterObjects(), details, Settings(), 0)
    return [each for each in found if each.check == "rights" or "can't be read" in each.sentence]


async def test_accounts_with_their_rights_are_told_in_one_line(server: ApiServer, tmp_path: Path) -> None:
    assert [each.severity for each in await diagnose(server, tmp_path)] == ["ok"]


async def test_each_right_that_an_account_lacks_is_a_problem(server: ApiServer, tmp_path: Path) -> None:
    server.denied |= {("create", "pods/binding"), ("patch", "nodes"), ("get", "nodes/pods")}
    found = await diagnose(server, tmp_path)
    assert {each.severity for each in found} == {"problem"}
    account = "system:serviceaccount:kube-system:ascend-"
    assert [each.sentence.partition(", for: ")[0] for each in found] == [
        f"the allocator ({account}allocator) lacks the right to create pods/binding",
        f"the device-plugin ({account}device-plugin) lacks the right to patch nodes",
        f"the device-plugin ({account}device-plugin-pool-a) lacks the right to patch nodes",
    ]
    assert found[0].sentence.endswith(", for: node and chips of a pod, in one step")


async def test_of_two_rights_one_is_enough(server: ApiServer, tmp_path: Path) -> None:
    server.denied |= {("get", "nodes/pods"), ("get", "nodes/proxy")}
    found = await diagnose(server, tmp_path)
    assert ["get nodes/pods or get nodes/proxy" in each.sentence for each in found] == [True, True]


async def test_who_may_not_ask_for_rights_is_told_so(server: ApiServer, tmp_path: Path) -> None:
    server.fail_next("POST", "v1/subjectaccessreviews", 403, times=100)
    (found,) = await diagnose(server, tmp_path)
    assert found.severity == "warning"
    assert found.sentence.startswith("rights can't be read: ")
