"""The requests that rescheduling sends: each names the uid of its pod, and says whether it deletes or evicts."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from allocator.rescheduling.actions import CONDITION_REASON, Actions
from ascend.errors import ApiError, Conflict, NotFound
from ascend.kube.client import KubeClient
from ascend.kube.objects import Pod
from tests.allocator.builders import pod

POD = pod("train-0", 8, node="n1", phase="Running")
PATH = "/api/v1/namespaces/default/pods/train-0"
EVICTION = f"{PATH}/eviction"


class Recorder(KubeClient):
    """Answers without a server.

    Attributes:
        sent: method, path and body of each request that changes something.
        pod: the pod that it has; None if it is gone.
        changes: so often the pod changes between the time it is read and a request that requires its version.
        answer: what it answers to changes; None if they succeed.
    """

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, Any]] = []
        self.pod: Pod | None = POD
        self.changes = 0
        self.answer: ApiError | None = None
        self._version = 5

    async def request(self, method: str, path: str, *, body: Any = None, **_more: Any) -> bytes:
        if self.pod is None:
            raise NotFound("gone", status=404)
        if method == "GET":
            return self._read()
        if self.changes:
            self.changes, self._version = self.changes - 1, self._version + 1
        required = body["metadata"] if method == "PATCH" else body.get("deleteOptions", body)["preconditions"]
        if required != {"uid": self.pod.uid, "resourceVersion": str(self._version)}:
            raise Conflict("the object has been modified", status=409)
        self.sent.append((method, path, body))
        if self.answer is not None:
            raise self.answer
        self._version += method == "PATCH"
        return self._read()

    def _read(self) -> bytes:
        assert self.pod is not None
        return msgspec.json.encode(
            replace(self.pod, metadata=replace(self.pod.metadata, resource_version=str(self._version)))
        )


def actions(*, evicts: bool) -> tuple[Recorder, Actions]:
    client = Recorder()
    return client, Actions(client, "kube-system", "faults", evicts=evicts)


def required(version: int) -> dict[str, str]:
    return {"uid": POD.uid, "resourceVersion": str(version)}


@pytest.mark.parametrize(("grace_s", "options"), [(None, {}), (1, {"gracePeriodSeconds": 1})])
async def test_an_eviction_is_posted_and_nothing_is_deleted(grace_s: int | None, options: dict[str, int]) -> None:
    client, sends = actions(evicts=True)
    await sends.delete(POD, "why", grace_s)
    body = {
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "train-0", "namespace": "default"},
        "deleteOptions": {"preconditions": required(5), **options},
    }  # fmt: skip
    assert client.sent == [("POST", EVICTION, body)]


@pytest.mark.parametrize(("grace_s", "options"), [(None, {}), (1, {"gracePeriodSeconds": 1})])
async def test_a_pod_is_deleted_once_its_condition_says_why(grace_s: int | None, options: dict[str, int]) -> None:
    client, sends = actions(evicts=False)
    await sends.delete(POD, "why", grace_s)
    (verb, path, marked), deletion = client.sent
    assert (verb, path, marked["metadata"]) == ("PATCH", f"{PATH}/status", required(5))
    (condition,) = marked["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("DisruptionTarget", "True")
    assert (condition["reason"], condition["message"]) == (CONDITION_REASON, "why")
    assert deletion == ("DELETE", PATH, {"preconditions": required(6), **options})


@pytest.mark.parametrize("evicts", [True, False])
async def test_a_deletion_by_force_heeds_no_budget(*, evicts: bool) -> None:
    client, sends = actions(evicts=evicts)
    await sends.delete_by_force(POD)
    (verb, path, marked), deletion = client.sent
    assert (verb, path, marked["status"]["phase"]) == ("PATCH", f"{PATH}/status", "Failed")
    assert deletion == ("DELETE", PATH, {"preconditions": required(6), "gracePeriodSeconds": 0})
    client.sent.clear()
    client.pod = replace(POD, status=replace(POD.status, phase="Failed"))
    await sends.delete_by_force(POD)
    assert [verb for verb, _, _ in client.sent] == ["DELETE"]


@pytest.mark.parametrize("evicts", [True, False])
async def test_a_pod_that_is_gone_needs_nothing_and_a_refusal_is_told(*, evicts: bool) -> None:
    client, sends = actions(evicts=evicts)
    succeeded = replace(POD, status=replace(POD.status, phase="Succeeded"))
    for client.pod in (None, replace(POD, metadata=replace(POD.metadata, uid="another")), succeeded):
        await sends.delete(POD, "why", None)
        await sends.delete_by_force(POD)
    assert client.sent == []
    client.pod, client.answer = POD, ApiError("it would violate the pod's disruption budget", status=429)
    with pytest.raises(ApiError, match="disruption budget"):
        await sends.delete(POD, "why", None)


@pytest.mark.parametrize(("grace_s", "verbs"), [(None, []), (1, ["PATCH", "DELETE"])])
async def test_only_a_shorter_grace_period_is_sent_for_a_pod_that_is_ending(
    grace_s: int | None, verbs: list[str]
) -> None:
    client, sends = actions(evicts=False)
    client.pod = replace(POD, metadata=replace(POD.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))
    await sends.delete(POD, "why", grace_s)
    assert [verb for verb, _, _ in client.sent] == verbs


@pytest.mark.parametrize("evicts", [True, False])
async def test_a_pod_that_changes_meanwhile_is_read_again_and_deleted_as_it_is_then(*, evicts: bool) -> None:
    client, sends = actions(evicts=evicts)
    client.changes = 2
    await sends.delete(POD, "why", None)
    assert client.sent[-1][0] == ("POST" if evicts else "DELETE")
    client.sent.clear()
    client.changes = 3
    with pytest.raises(Conflict):
        await sends.delete(POD, "why", None)
    assert client.sent == []
