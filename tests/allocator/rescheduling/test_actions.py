"""The requests that rescheduling sends: each names the uid of its pod, and says whether it deletes or evicts."""

from typing import Any

import pytest
from msgspec.structs import replace

from allocator.rescheduling.actions import CONDITION_REASON, Actions
from ascend.errors import ApiError, Conflict, NotFound
from ascend.kube.client import KubeClient
from tests.allocator.builders import pod

POD = pod("train-0", 8, node="n1", phase="Running")
PATH = "/api/v1/namespaces/default/pods/train-0"
EVICTION = f"{PATH}/eviction"


class Recorder(KubeClient):
    """Sends nothing.

    Attributes:
        sent: method, path and body of each request.
        answer: what the API server answers; None if the request succeeds.
    """

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, Any]] = []
        self.answer: ApiError | None = None

    async def request(self, method: str, path: str, *, body: Any = None, **_more: Any) -> bytes:
        self.sent.append((method, path, body))
        if self.answer is not None:
            raise self.answer
        return b"{}"


def actions(*, evicts: bool) -> tuple[Recorder, Actions]:
    client = Recorder()
    return client, Actions(client, "kube-system", "faults", evicts=evicts)


@pytest.mark.parametrize(("grace_s", "options"), [(None, {}), (1, {"gracePeriodSeconds": 1})])
async def test_an_eviction_is_posted_and_nothing_is_deleted(grace_s: int | None, options: dict[str, int]) -> None:
    client, sends = actions(evicts=True)
    await sends.delete(POD, "why", grace_s)
    body = {
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "train-0", "namespace": "default"},
        "deleteOptions": {"preconditions": {"uid": POD.uid}, **options},
    }  # fmt: skip
    assert client.sent == [("POST", EVICTION, body)]


@pytest.mark.parametrize(("grace_s", "options"), [(None, {}), (1, {"gracePeriodSeconds": 1})])
async def test_a_pod_is_deleted_once_its_condition_says_why(grace_s: int | None, options: dict[str, int]) -> None:
    client, sends = actions(evicts=False)
    await sends.delete(POD, "why", grace_s)
    (verb, path, marked), deletion = client.sent
    assert (verb, path, marked["metadata"]) == ("PATCH", f"{PATH}/status", {"uid": POD.uid})
    (condition,) = marked["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("DisruptionTarget", "True")
    assert (condition["reason"], condition["message"]) == (CONDITION_REASON, "why")
    assert deletion == ("DELETE", PATH, {"preconditions": {"uid": POD.uid}, **options})


@pytest.mark.parametrize("evicts", [True, False])
async def test_a_deletion_by_force_heeds_no_budget(*, evicts: bool) -> None:
    client, sends = actions(evicts=evicts)
    await sends.delete_by_force(POD)
    (verb, path, marked), deletion = client.sent
    assert (verb, path, marked["status"]["phase"]) == ("PATCH", f"{PATH}/status", "Failed")
    assert deletion == ("DELETE", PATH, {"preconditions": {"uid": POD.uid}, "gracePeriodSeconds": 0})
    client.sent.clear()
    await sends.delete_by_force(replace(POD, status=replace(POD.status, phase="Failed")))
    assert [verb for verb, _, _ in client.sent] == ["DELETE"]


@pytest.mark.parametrize("evicts", [True, False])
async def test_a_pod_that_is_gone_needs_nothing_and_a_refusal_is_told(*, evicts: bool) -> None:
    client, sends = actions(evicts=evicts)
    for client.answer in (NotFound("gone", status=404), Conflict("another uid", status=409)):
        await sends.delete(POD, "why", None)
        await sends.delete_by_force(POD)
    client.answer = ApiError("it would violate the pod's disruption budget", status=429)
    with pytest.raises(ApiError, match="disruption budget"):
        await sends.delete(POD, "why", None)
