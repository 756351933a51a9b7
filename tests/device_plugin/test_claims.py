"""The claim on a pod: one patch, retried until it succeeds or the pod is gone, and only on that very pod."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ascend.annotations import CONFIGURATION, KUBELET_IDS, PREDICATE_TIME, REAL, write_claim
from ascend.kube.client import MERGE_PATCH
from ascend.kube.objects import PODS, Pod
from device_plugin.pods.claims import DELAY_S, ClaimWriter
from sandbox.apiserver import ApiServer
from sandbox.pods import ALL_OF_PODS
from tests.device_plugin.api import RecordingClient, bound_pod, until

CLAIM = write_claim(chips=(5, 4), kubelet_ids=(4, 5), configuration="{}")
CLAIMS = "/pods/train"


@pytest.fixture
async def claims(client: RecordingClient) -> AsyncIterator[ClaimWriter]:
    writer = ClaimWriter(client)
    yield writer
    await writer.close(finish_s=0.0)


@pytest.fixture
async def pod(client: RecordingClient) -> Pod:
    created = await client.create(PODS, bound_pod("train", 2, {"of": "others"}), "default")
    client.sent.clear()
    return created


def write(claims: ClaimWriter, pod: Pod) -> None:
    claims.write(uid=pod.uid, namespace="default", name="train", annotations=CLAIM)


async def annotations(client: RecordingClient) -> dict[str, str]:
    return (await client.get(ALL_OF_PODS, "train", "default")).metadata.annotations


async def test_a_claim_is_one_patch_that_names_the_pod_by_its_uid(
    client: RecordingClient, claims: ClaimWriter, pod: Pod
) -> None:
    write(claims, pod)
    assert claims.pending == 1
    await until(lambda: claims.pending == 0)
    (sent,) = client.sent
    assert (sent.method, sent.path, sent.content_type) == (
        "PATCH",
        "/api/v1/namespaces/default/pods/train",
        MERGE_PATCH,
    )
    assert sent.body == {
        "metadata": {
            "uid": pod.uid,
            "annotations": {
                PREDICATE_TIME: "18446744073709551615",
                REAL: "Ascend910-4,Ascend910-5",
                KUBELET_IDS: "Ascend910-4,Ascend910-5",
                CONFIGURATION: "{}",
            },
        }
    }
    assert await annotations(client) == {"of": "others", **CLAIM}


async def test_the_answer_to_the_kubelet_goes_before_the_claim(
    client: RecordingClient, claims: ClaimWriter, pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, begun_s, patch = asyncio.get_running_loop(), list[float](), client.patch

    async def noted(*arguments: Any, **more: Any) -> Any:
        begun_s.append(loop.time())
        return await patch(*arguments, **more)

    monkeypatch.setattr(client, "patch", noted)
    started_s = loop.time()
    write(claims, pod)
    await until(lambda: claims.pending == 0)
    assert begun_s[0] - started_s >= DELAY_S


def is_denied(claims: ClaimWriter) -> bool:
    return (claims.problem or "").startswith("the claim on pod default/train is refused: ")


async def test_a_claim_that_is_denied_is_a_problem_until_it_is_written(
    server: ApiServer, client: RecordingClient, claims: ClaimWriter, pod: Pod
) -> None:
    server.fail_next("PATCH", CLAIMS, 500)
    write(claims, pod)
    await until(lambda: len(client.sent) == 1)
    assert not is_denied(claims)
    server.fail_next("PATCH", CLAIMS, 403, times=2)
    await until(lambda: is_denied(claims))
    await until(lambda: claims.pending == 0)
    assert not is_denied(claims)


async def test_a_claim_is_retried_until_it_succeeds(
    server: ApiServer, client: RecordingClient, claims: ClaimWriter, pod: Pod
) -> None:
    server.fail_next("PATCH", CLAIMS, 500)
    server.fail_next("PATCH", CLAIMS, 429, retry_after_s=0)
    server.lose_answer("PATCH", CLAIMS)
    write(claims, pod)
    await until(lambda: claims.pending == 0)
    assert len(client.to(CLAIMS)) == 4
    assert len({str(each.body) for each in client.to(CLAIMS)}) == 1
    assert await annotations(client) == {"of": "others", **CLAIM}


async def test_retry_after_is_respected(
    server: ApiServer, client: RecordingClient, claims: ClaimWriter, pod: Pod
) -> None:
    server.fail_next("PATCH", CLAIMS, 429, retry_after_s=1)
    write(claims, pod)
    await until(lambda: claims.pending == 0)
    refused, written = client.to(CLAIMS)
    assert written.at_s - refused.at_s >= 1.0


@pytest.mark.parametrize("trouble", [None, 500, 409, 422], ids=str)
async def test_a_pod_created_again_under_the_same_name_is_never_touched(
    server: ApiServer, client: RecordingClient, claims: ClaimWriter, pod: Pod, trouble: int | None
) -> None:
    await client.delete(PODS, "train", "default")
    again = await client.create(PODS, bound_pod("train", 2), "default")
    if trouble is not None:
        server.fail_next("PATCH", CLAIMS, trouble)
        server.fail_next("GET", CLAIMS, 500)
    write(claims, pod)
    await until(lambda: claims.pending == 0)
    unchanged = await client.get(PODS, "train", "default")
    assert (unchanged.uid, unchanged.metadata.annotations) == (again.uid, {})
    assert unchanged.metadata.resource_version == again.metadata.resource_version


async def test_a_conflict_about_the_same_pod_is_retried(
    server: ApiServer, client: RecordingClient, claims: ClaimWriter, pod: Pod
) -> None:
    server.fail_next("PATCH", CLAIMS, 409)
    write(claims, pod)
    await until(lambda: claims.pending == 0)
    assert await annotations(client) == {"of": "others", **CLAIM}


async def test_the_claim_of_a_pod_that_is_gone_is_dropped(
    client: RecordingClient, claims: ClaimWriter, pod: Pod
) -> None:
    await client.delete(PODS, "train", "default")
    write(claims, pod)
    await until(lambda: claims.pending == 0)
    assert len(client.to(CLAIMS)) == 1


async def test_a_pending_claim_is_not_doubled_and_a_written_one_can_be_repeated(
    server: ApiServer, client: RecordingClient, claims: ClaimWriter, pod: Pod
) -> None:
    server.fail_next("PATCH", CLAIMS, 500)
    write(claims, pod)
    write(claims, pod)
    await until(lambda: client.to(CLAIMS))
    write(claims, pod)
    assert claims.pending == 1
    await until(lambda: claims.pending == 0)
    assert len(client.to(CLAIMS)) == 2
    write(claims, pod)
    await until(lambda: claims.pending == 0)
    assert len(client.to(CLAIMS)) == 3


async def test_claims_wait_only_for_their_own_pod(
    server: ApiServer, client: RecordingClient, claims: ClaimWriter, pod: Pod
) -> None:
    other = await client.create(PODS, bound_pod("other", 2), "default")
    server.fail_next("PATCH", CLAIMS, 500, times=1000)
    write(claims, pod)
    claims.write(uid=other.uid, namespace="default", name="other", annotations=CLAIM)
    assert claims.pending == 2
    await until(lambda: claims.pending == 1)
    assert (await client.get(ALL_OF_PODS, "other", "default")).metadata.annotations == CLAIM


async def test_the_end_waits_for_claims_that_are_being_written(
    server: ApiServer, client: RecordingClient, claims: ClaimWriter, pod: Pod
) -> None:
    server.delay(CLAIMS, 0.2)
    write(claims, pod)
    await claims.close(finish_s=5.0)
    assert claims.pending == 0
    assert await annotations(client) == {"of": "others", **CLAIM}


async def test_the_end_does_not_wait_for_the_next_of_many_attempts(
    server: ApiServer, client: RecordingClient, claims: ClaimWriter, pod: Pod
) -> None:
    server.fail_next("PATCH", CLAIMS, 429, retry_after_s=3600)
    write(claims, pod)
    await until(lambda: client.to(CLAIMS))
    await claims.close(finish_s=5.0)
    assert await annotations(client) == {"of": "others", **CLAIM}


@pytest.mark.parametrize("finish_s", [0.0, 1.0])
async def test_claims_that_can_not_be_written_delay_the_end_for_a_limited_time(
    server: ApiServer, client: RecordingClient, claims: ClaimWriter, pod: Pod, finish_s: float
) -> None:
    server.fail_next("PATCH", CLAIMS, 500, times=1000)
    write(claims, pod)
    await until(lambda: len(client.to(CLAIMS)) > 1)
    ending_s = asyncio.get_running_loop().time()
    await claims.close(finish_s=finish_s)
    assert finish_s <= asyncio.get_running_loop().time() - ending_s < finish_s + 0.5
    assert claims.pending == 0
    assert not any(task.get_name().startswith("claim ") for task in asyncio.all_tasks())
    assert await annotations(client) == {"of": "others"}


async def test_a_pending_claim_continues_with_the_newest_annotations(
    server: ApiServer, client: RecordingClient, claims: ClaimWriter, pod: Pod
) -> None:
    # Containers of a pod are admitted one after the other; a later one may show that the kubelet has other ids.
    server.fail_next("PATCH", CLAIMS, 500)
    write(claims, pod)
    await until(lambda: client.to(CLAIMS))
    newer = write_claim(chips=(5, 4), kubelet_ids=(4, 7), configuration="{}")
    claims.write(uid=pod.uid, namespace="default", name="train", annotations=newer)
    await until(lambda: claims.pending == 0)
    assert await annotations(client) == {"of": "others", **newer}


async def test_annotations_that_change_during_the_patch_are_written_after_it(
    server: ApiServer, client: RecordingClient, claims: ClaimWriter, pod: Pod
) -> None:
    server.delay(CLAIMS, 0.05)
    write(claims, pod)
    await until(lambda: client.to(CLAIMS))
    newer = write_claim(chips=(5, 4), kubelet_ids=(4, 7), configuration="{}")
    claims.write(uid=pod.uid, namespace="default", name="train", annotations=newer)
    await until(lambda: claims.pending == 0)
    assert len(client.to(CLAIMS)) == 2
    assert await annotations(client) == {"of": "others", **newer}
