"""The chart's webhooks and admission policies on a real API server."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ascend.annotations import ALLOCATED, FENCE, PREDICATE_TIME, REAL
from ascend.chips import chip_ids, parse_names
from ascend.products import ASCEND_910A
from tests.cluster.api import HTTPError, Server
from tests.cluster.cluster import Cluster
from tests.cluster.manifests import pod
from tests.cluster.processes import wait_until
from tests.deploy.chart_programs import (
    HOLDER,
    READY_S,
    Installed,
    Running,
    chart_in,
    extender_of,
    programs_of_chart,
)

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

FORGED = {ALLOCATED: "Ascend910-0", PREDICATE_TIME: "1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the certificates of the chart."""
    return tmp_path_factory.mktemp("chart")


@pytest.fixture(scope="module")
def installed(built_helm: None, cluster: Cluster) -> Iterator[Installed]:
    """The chart, for all tests of the module: each has a namespace of its own, whose pods end with it."""
    assert built_helm is None
    with chart_in(cluster) as installed:
        yield installed


@pytest.fixture(scope="module")
def running(cluster: Cluster, installed: Installed, folder: Path) -> Iterator[Running]:
    """The programs of the chart beside an unmodified scheduler."""
    with programs_of_chart(cluster, installed, folder, extender=False) as running:
        yield running


@pytest.fixture
def connected(cluster: Cluster, installed: Installed, running: Running, folder: Path) -> Iterator[Running]:
    """The programs, which the scheduler calls; the test may end the allocators."""
    first, second = running.allocators
    cluster.restart_scheduler(extenders=[extender_of(first.address, installed, folder)])
    yield running
    cluster.restart_scheduler(extenders=[])
    if not first.process.alive:
        first.process.start()
        first.wait_until_ready()
        second.process.start()
        second.process.wait_until(partial(second.answers, "/standbyz"), timeout_s=READY_S)


def pod_path(namespace: str, name: str = "", subresource: str = "") -> str:
    return "/".join(filter(None, (f"/api/v1/namespaces/{namespace}/pods", name, subresource)))


def binding(name: str, node: str, annotations: dict[str, str], uid: str = "") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "annotations": annotations} | ({"uid": uid} if uid else {}),
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(HTTPError) as refused:
        call()
    assert refused.value.status in {403, 422}, refused.value
    return str(refused.value)


def settled(call: Callable[[], object], text: str) -> None:
    """Wait until the API server enforces a policy that was just created, which its watch shows it later."""

    def refuses() -> bool:
        try:
            call()
        except HTTPError as error:
            return text in str(error)
        return False

    wait_until(refuses, timeout_s=READY_S, what=f"the API server says {text!r}")


def label(cluster: Cluster, namespace: str) -> None:
    changed = {"metadata": {"labels": {"ascend-affinity.io/bindings": "webhook"}}}
    cluster.api.patch(f"/api/v1/namespaces/{namespace}", changed)


def dry_run(server: Server, item: dict[str, Any]) -> Callable[[], object]:
    return lambda: server.request("POST", pod_path(item["metadata"]["namespace"]) + "?dryRun=All", item)


def test_an_unmodified_scheduler_gets_chips_in_rings_by_the_webhook(
    cluster: Cluster, running: Running, kube_namespace: str
) -> None:
    assert running.allocator.alive
    label(cluster, kube_namespace)
    taken: set[tuple[str, int]] = set()
    for name, size in {"a": 8, "b": 4, "c": 4}.items():
        cluster.api.create(pod(name, size, namespace=kube_namespace))
        cluster.wait_for_pod(name, namespace=kube_namespace)
        claimed = cluster.api.wait_for(
            pod_path(kube_namespace, name),
            lambda pod: REAL in pod["metadata"]["annotations"],
            timeout_s=READY_S,
            what="the pod is claimed",
        )
        annotations = claimed["metadata"]["annotations"]
        chips = parse_names(annotations[REAL])
        assert set(chips) == set(parse_names(annotations[ALLOCATED]))
        assert FENCE in annotations
        rings = [set(chip_ids(ring)) for ring in ASCEND_910A.rings]
        assert len(chips) == 8 or any(set(chips) <= ring for ring in rings)
        here = {(claimed["spec"]["nodeName"], chip) for chip in chips}
        assert not here & taken
        taken |= here
    assert len(taken) == 16
    # kube-scheduler counts, so it does not bind a pod if no chip is left; a client that does not count gets the reason.
    uid = cluster.api.create(pod("d", 1, namespace=kube_namespace))["metadata"]["uid"]
    path = pod_path(kube_namespace, "d", "binding")
    refused = refusal(lambda: cluster.api.request("POST", path, binding("d", "n1", {}, uid)))
    # At the older path the API server removes the uid.
    older = f"/api/v1/namespaces/{kube_namespace}/bindings"
    for where, named in ((path, ""), (older, ""), (older, uid)):
        posted = binding("d", "n1", {}, named)
        unnamed = refusal(lambda to=where, body=posted: cluster.api.request("POST", to, body))  # type: ignore[misc]
        assert "must name its uid (metadata.uid), as posted to pods/d/binding" in unnamed
    assert "denied the request: NotEnoughChips: 1 chip requested, 0 free of 8 healthy" in refused


def test_only_configured_writers_may_write_chip_annotations(
    cluster: Cluster, running: Running, kube_namespace: str
) -> None:
    forged = pod("forged", 1, namespace=kube_namespace, annotations=FORGED)
    said = "only ascend-affinity writes the annotation"
    settled(dry_run(cluster.api, forged), said)
    text = refusal(lambda: cluster.api.create(forged))
    keys = "huawei.com/Ascend910, predicate-time"
    assert f"{said} {keys}, by which chips are counted; admin is not a writer (allocator.policies.writers)" in text
    plain = pod("plain", 1, namespace=kube_namespace, schedulerName="none", annotations={"note": "a"})
    cluster.api.create(plain)
    path = pod_path(kube_namespace, "plain")
    cluster.api.patch(path, {"metadata": {"annotations": {"note": "b"}}})
    for where in (path, f"{path}/status"):
        assert said in refusal(lambda where=where: cluster.api.patch(where, {"metadata": {"annotations": FORGED}}))  # type: ignore[misc]
    vnpu: dict[str, Any] = {"metadata": {"annotations": {"huawei.com/Ascend910-2c": "Ascend910-2c-100-1"}}}
    assert f"{said} huawei.com/Ascend910-2c, by which" in refusal(lambda: cluster.api.patch(path, vnpu))
    for posted_to in (pod_path(kube_namespace, "plain", "binding"), f"/api/v1/namespaces/{kube_namespace}/bindings"):
        call = lambda to=posted_to: cluster.api.request("POST", to, binding("plain", "n1", FORGED))  # noqa: E731
        assert said in refusal(call)
    by = cluster.api.get(HOLDER)["spec"]["holderIdentity"]
    part = {**vnpu["metadata"]["annotations"], FENCE: by}
    allocator = cluster.server(running.allocator_token)
    allocator.request("POST", pod_path(kube_namespace, "plain", "binding"), binding("plain", "n1", part))
    claim = {"metadata": {"annotations": {REAL: "Ascend910-0", PREDICATE_TIME: "1"}}}
    cluster.server(running.plugin_tokens["n1"]).patch(path, claim)
    assert "of node n2 may change only" in refusal(
        lambda: cluster.server(running.plugin_tokens["n2"]).patch(path, claim)
    )
    vnpu["metadata"]["annotations"] = dict.fromkeys(vnpu["metadata"]["annotations"])
    assert f"{said} huawei.com/Ascend910-2c, by which" in refusal(lambda: cluster.api.patch(path, vnpu))
    assert said in refusal(lambda: cluster.api.patch(path, {"metadata": {"annotations": {REAL: None}}}))
    cluster.api.patch(path, {"metadata": {"annotations": {"note": None}}})
    # In a namespace with the webhook's label such annotations are replaced, because schedulers copy those of the pod.
    label(cluster, kube_namespace)
    replaced = cluster.api.create(pod("replaced", 2, namespace=kube_namespace, schedulerName="none"))

    def is_bound() -> bool:
        try:
            posted = binding("replaced", "n1", {**FORGED, REAL: "Ascend910-7"}, replaced["metadata"]["uid"])
            cluster.api.request("POST", pod_path(kube_namespace, "replaced", "binding"), posted)
        except HTTPError as error:
            if said in str(error):  # the API server has not seen the label yet
                return False
            raise
        return True

    wait_until(is_bound, timeout_s=READY_S, what="the webhook is asked")
    # Those of other programs are not replaced.
    other = cluster.api.create(pod("other", 1, namespace=kube_namespace, schedulerName="none"))
    posted = binding("other", "n2", {"huawei.com/npu": "Ascend910-0"}, other["metadata"]["uid"])
    path = pod_path(kube_namespace, "other", "binding")
    told = refusal(lambda: cluster.api.request("POST", path, posted))
    assert f"{said} huawei.com/npu, by which" in told
    annotations = cluster.api.get(pod_path(kube_namespace, "replaced"))["metadata"]["annotations"]
    assert len(parse_names(annotations[ALLOCATED])) == 2
    assert REAL not in annotations or set(parse_names(annotations[REAL])) == set(parse_names(annotations[ALLOCATED]))


def test_only_pods_that_no_node_could_take_are_denied_at_creation(
    cluster: Cluster, connected: Running, kube_namespace: str
) -> None:
    senseless = pod("odd", 17, namespace=kube_namespace)
    settled(dry_run(cluster.api, senseless), "denied the request: InvalidRequest: pod ")
    parts = pod("parts", 2, namespace=kube_namespace, resource="huawei.com/Ascend910-2c")
    assert "a pod may have one vNPU, in one container" in refusal(dry_run(cluster.api, parts))
    cores = pod("cores", 5, namespace=kube_namespace, resource="huawei.com/npu-core")
    (container,) = cores["spec"]["containers"]
    cores["spec"]["initContainers"] = [{**container, "name": "before", "restartPolicy": "Always"}]
    assert "AI cores may be requested in one container" in refusal(dry_run(cluster.api, cores))
    del cores["spec"]["initContainers"]
    dry_run(cluster.api, cores)()
    # One with devices that the allocator does not place is created, and told so by an Event.
    cluster.api.create(pod("other", 1, namespace=kube_namespace, resource="huawei.com/Ascend310P"))
    told = cluster.api.wait_for(
        f"/apis/events.k8s.io/v1/namespaces/{kube_namespace}/events",
        lambda listed: any(each["reason"] == "WithoutEffect" for each in listed["items"]),
        timeout_s=READY_S,
        what="an Event on the pod",
    )
    (event,) = [each for each in told["items"] if each["reason"] == "WithoutEffect"]
    assert event["regarding"]["name"] == "other"
    assert event["note"].startswith("resource huawei.com/Ascend310P: the allocator does not place it")
    for each in connected.allocators:
        each.process.kill()
    # Without an allocator, pods without chips are not sent to the webhook, and pods with chips are created
    # nevertheless.
    before_s = time.monotonic()
    cluster.api.create(pod("plain", namespace=kube_namespace))
    cluster.wait_for_pod("plain", namespace=kube_namespace)
    assert time.monotonic() - before_s < READY_S
    cluster.api.create(pod("waits", 1, namespace=kube_namespace))
