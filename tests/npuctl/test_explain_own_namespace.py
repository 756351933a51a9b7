"""``npuctl explain`` for those who may read their namespace and nothing else: what the allocator's Events say."""

import base64
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ascend.errors import InvalidValue
from ascend.kube.client import KubeClient
from ascend.kube.objects import EVENTS, PODS
from npuctl.explain.command import run_explain
from npuctl.output import Output
from npuctl.reading.source import Source
from sandbox.apiserver import ApiServer
from sandbox.apiserver.patches import json_patch
from sandbox.apiserver.resources import POD_EXPLANATIONS, SERVED
from sandbox.apiserver.selectors import Selection
from tests.allocator.harness import pod_manifest, review, running, until
from tests.ascend.kube.objects import write_kubeconfig
from tests.npuctl.manifests import Json, pod

NOTE = "pod default/train: 4 chips fit on none of 2 nodes: 2 NotEnoughChips; it waits until other pods end"


class Tenant:
    """Somebody who may not list nodes."""

    def __init__(
        self, server: ApiServer, client: KubeClient, kubeconfig: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.server = server
        self.client = client
        self.source = Source.of(kubeconfig=str(kubeconfig))
        self._capsys = capsys

    async def explain(self, argument: str, namespace: str | None = None) -> tuple[int, dict[str, Any], str]:
        """The exit status, the answer, and what standard error says."""
        self.server.fail_next("GET", "api/v1/nodes", 403)
        status = await run_explain(argument, namespace, self.source, Output.JSON)
        printed = self._capsys.readouterr()
        answer, _ = json.JSONDecoder().raw_decode(printed.out[printed.out.index("{\n") :])  # a log may be beside it
        return status, answer, printed.err

    async def told(self, of: Json, note: str, *, at: int = 0, **more: Any) -> None:
        """Post an Event on a pod."""
        event = {
            "metadata": {"generateName": "event-", "namespace": of["metadata"]["namespace"]},
            "reason": "NotEnoughChips",
            "note": note,
            "regarding": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": of["metadata"]["name"],
                "uid": of["metadata"]["uid"],
            },
            "eventTime": f"2026-01-01T00:00:{at:02}.000000Z",
            "reportingController": "ascend-allocator",
            "reportingInstance": "one",
            "action": "Wait",
            "type": "Warning",
            **more,
        }
        await self.client.create(EVENTS, event, event["metadata"]["namespace"])


@pytest.fixture
async def tenant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Tenant]:
    async with ApiServer(tokens={"secret": "tenant"}) as server:
        kubeconfig = write_kubeconfig(tmp_path, server, "secret")
        async with await KubeClient.connect(str(kubeconfig)) as client:
            await client.request("POST", "/api/v1/namespaces", body={"metadata": {"name": "team"}})
            yield Tenant(server, client, kubeconfig, capsys)


async def test_a_tenant_is_told_what_the_allocators_last_event_says(tenant: Tenant) -> None:
    made = await tenant.server.create(pod("train", "4"))
    await tenant.told(made, NOTE, at=5)
    await tenant.told(made, "older", at=1)
    await tenant.told(made, "of another program", at=9, reportingController="kubelet")
    await tenant.told(made, "no verdict", at=9, reason="WithoutEffect")
    status, answer, said = await tenant.explain("train")
    assert (status, answer["state"], answer["reason"], answer["message"]) == (3, "waits", "NotEnoughChips", NOTE)
    assert (answer["said_at"], answer["requests"]) == ("2026-01-01T00:00:05.000000Z", "4 chips")
    assert answer["advice"][-1].endswith("is told more by npuctl explain default/train")
    assert "only the namespace default is looked at" in said
    assert "the allocator does not say why pod default/train waits, so its last Event counts" in said


async def test_the_allocator_is_asked_before_its_event_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with ApiServer(resources=(*SERVED, POD_EXPLANATIONS)) as server, running(server, tmp_path) as allocator:

        async def hook(_operation: str, resource: object, _subresource: str, document: Json) -> Json:
            if resource is POD_EXPLANATIONS:
                answer = await review(allocator, "explanations", document, dryRun=True, userInfo={"username": "ann"})
                answered: Json = json_patch(document, json.loads(base64.b64decode(answer["patch"])))
                return answered
            return document

        server.admission.append(hook)
        for name, chips in (("n1", 8), ("n2", 8)):
            await allocator.node(name, chips=chips)
        assert await allocator.schedule(await allocator.pod("holder", 8), ["n1"]) == "n1"
        made = await allocator.pod("train", 16)
        async with await KubeClient.connect(str(write_kubeconfig(tmp_path, server, ""))) as client:
            tenant = Tenant(server, client, tmp_path / "kubeconfig", capsys)
            await tenant.told(made, "an old Event")
            status, answer, said = await tenant.explain("train")
            assert (status, answer["state"], answer["said_at"]) == (3, "waits", "")
            assert (answer["reason"], answer["message"]) == (answer["told"]["reason"], answer["told"]["message"])
            assert "default/holder" not in said
            await allocator.pod("small", 2)
            status, answer, _ = await tenant.explain("small")
            assert (status, answer["state"], answer["told"]["fitting"]) == (0, "fits", 1)
            await server.create(pod_manifest("urgent", 8, priority=1))
            await until(lambda: len(allocator.app.cluster.waiting) == 3)
            server.fail_next("GET", "api/v1/nodes", 403)
            await run_explain("small", None, tenant.source, Output.TABLE)
            printed = capsys.readouterr().out
            assert "requests 2 chips and fits on 1 node now; it is not bound yet" in printed
            assert re.search(r"before it in the queue: \d pods? of other jobs, for \d+ chips\n", printed)
        assert not server.store.select(Selection(POD_EXPLANATIONS))


async def test_a_repeated_event_counts_by_its_last_time(tenant: Tenant) -> None:
    made = await tenant.server.create(pod("train", "4"))
    series = {"count": 2, "lastObservedTime": "2026-01-01T00:00:30.000000Z"}
    await tenant.told(made, NOTE, at=1, series=series)
    await tenant.told(made, "between", at=9)
    _, answer, _ = await tenant.explain("default/train")
    assert (answer["message"], answer["said_at"]) == (NOTE, "2026-01-01T00:00:30.000000Z")


async def test_without_an_event_the_scheduler_of_the_pod_is_quoted(tenant: Tenant) -> None:
    await tenant.server.create(pod("train", "4"))
    message = "0/2 nodes are available: 2 Insufficient cpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    status = {"status": {"conditions": [condition]}}
    await tenant.client.patch(PODS, "train", status, namespace="default", subresource="status")
    exit_status, answer, _ = await tenant.explain("train")
    assert (exit_status, answer["reason"]) == (3, "Unschedulable")
    assert answer["message"] == f"the allocator has posted no Event on it yet; its scheduler says: {message}"
    assert answer["remedies"] == []


async def test_a_request_that_no_node_could_take_is_known_without_nodes(tenant: Tenant) -> None:
    await tenant.server.create(pod("train", "17"))
    status, answer, _ = await tenant.explain("train")
    assert (status, answer["reason"], answer["said_at"]) == (3, "InvalidRequest", "")


async def test_the_allocators_event_outdoes_what_its_default_settings_would_refuse(tenant: Tenant) -> None:
    made = await tenant.server.create(pod("train", "17"))
    await tenant.told(made, "17 is no number", at=1, reason="InvalidRequest")
    _, answer, _ = await tenant.explain("train")
    assert (answer["reason"], answer["said_at"]) == ("InvalidRequest", "")
    await tenant.told(made, NOTE, at=5)
    _, answer, _ = await tenant.explain("train")
    assert (answer["state"], answer["reason"], answer["message"]) == ("waits", "NotEnoughChips", NOTE)


async def test_a_tenants_running_pod_has_its_chips_and_their_faults(tenant: Tenant) -> None:
    made = await tenant.server.create(pod("train", "2", node="n1", chips=[0, 1]))
    await tenant.told(made, "Ascend910-0: 80E18402", reason="NPUFault", reportingController="ascend-device-plugin")
    status, answer, _ = await tenant.explain("train")
    assert (status, answer["state"], answer["chips"]) == (0, "placed", ["Ascend910-0", "Ascend910-1"])
    assert answer["warnings"] == ["NPUFault: Ascend910-0: 80E18402"]


async def test_the_pods_of_a_tenants_job_are_explained_together(tenant: Tenant) -> None:
    for number in range(2):
        made = pod(f"train-{number}", "4", namespace="team")
        made["metadata"]["ownerReferences"] = [
            {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "j", "controller": True}
        ]
        await tenant.told(await tenant.server.create(made), NOTE)
    status, answer, _ = await tenant.explain("job/train", "team")
    assert (status, answer["job"]) == (3, "team/train")
    assert [(each["name"], each["message"]) for each in answer["pods"]] == [("train-0", NOTE), ("train-1", NOTE)]


async def test_the_pods_of_others_are_not_looked_for(tenant: Tenant) -> None:
    await tenant.server.create(pod("train", "4", namespace="team"))
    with pytest.raises(InvalidValue, match=r"there is no pod default/train$"):
        await tenant.explain("train")
