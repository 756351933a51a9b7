"""With the chart's policies: leaders that end in peace or are paused, and Bindings that are held up or late."""

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ascend.annotations import ALLOCATED, FENCE, PREDICATE_TIME
from ascend.chips import parse_names
from tests.allocator.authority import Authority
from tests.cluster.api import HTTPError
from tests.cluster.cluster import Cluster
from tests.cluster.manifests import pod
from tests.cluster.processes import wait_until
from tests.deploy.chart_programs import HOLDER, READY_S, SLICE, Running, point_webhooks_to
from tests.deploy.test_admission import binding, label, pod_path, refusal

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("built_helm"), pytest.mark.timeout(600)]

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


class Slow:
    """A validating webhook, which runs after the policies; it holds up Bindings until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def handler(slow: "Slow") -> type[BaseHTTPRequestHandler]:  # noqa: N805 - self is the handler
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                slow.reached.set()
                slow.opened.wait(20)
                review["response"] = {"uid": review.pop("request")["uid"], "allowed": True}
                body = json.dumps(review).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_arguments: Any) -> None:
                """Log nothing."""

        return Handler


@contextmanager
def slow_webhook(cluster: Cluster, folder: Path, namespace: str) -> Iterator[Slow]:
    slow = Slow()
    authority = Authority(folder)
    pair = authority.sign("slow", "IP:127.0.0.1")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pair.cert, pair.key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), slow.handler())
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    webhook = {
        "name": "slow.ascend-affinity.io",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {
            "url": f"https://127.0.0.1:{server.server_address[1]}/",
            "caBundle": base64.b64encode(authority.cert.read_bytes()).decode(),
        },
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/binding"]}],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "timeoutSeconds": 30,
    }
    cluster.api.request("POST", CONFIGURATIONS, {"metadata": {"name": "slow"}, "webhooks": [webhook]})
    try:
        yield slow
    finally:
        slow.opened.set()
        cluster.api.delete(f"{CONFIGURATIONS}/slow")
        server.shutdown()
        server.server_close()


@pytest.mark.long
def test_a_binding_that_has_passed_the_fence_keeps_its_chips_over_a_hand_over(
    cluster: Cluster, running_without_extender: Running, kube_namespace: str, tmp_path: Path
) -> None:
    first, second = running_without_extender.allocators
    old = cluster.api.get(HOLDER)["spec"]["holderIdentity"]
    label(cluster, kube_namespace)
    for name in ("held", "thief"):
        cluster.api.create(pod(name, 8, namespace=kube_namespace, schedulerName="none"))

    def bind(name: str) -> None:
        uid = cluster.api.get(pod_path(kube_namespace, name))["metadata"]["uid"]
        cluster.api.request("POST", pod_path(kube_namespace, name, "binding"), binding(name, "n1", {}, uid))

    with slow_webhook(cluster, tmp_path, kube_namespace) as slow, ThreadPoolExecutor(1) as threads:
        late = threads.submit(bind, "held")
        assert slow.reached.wait(15)
        first.process.stop()  # in order: the lease is released
        second.wait_until_ready()
        assert cluster.api.get(HOLDER)["spec"]["holderIdentity"] != old
        point_webhooks_to(cluster, second)

        def is_refused_by_the_new_leader() -> bool:
            try:
                bind("thief")
            except HTTPError as error:
                return "NotEnoughChips: 8 chips requested, 0 free of 8 healthy" in str(error)
            pytest.fail("the chips were given twice")

        wait_until(is_refused_by_the_new_leader, timeout_s=5, what="the API server calls the new leader")
        slow.opened.set()
        late.result()
        held = cluster.api.get(pod_path(kube_namespace, "held"))
        assert held["spec"]["nodeName"] == "n1"
        assert held["metadata"]["annotations"][FENCE] == old
        assert len(parse_names(held["metadata"]["annotations"][ALLOCATED])) == 8
    assert "NotEnoughChips" in refusal(lambda: bind("thief"))


@pytest.mark.long
def test_a_paused_leader_is_replaced_and_its_late_binding_is_denied(
    cluster: Cluster, running: Running, kube_namespace: str
) -> None:
    first, second = running.allocators
    old = cluster.api.get(HOLDER)["spec"]["holderIdentity"]
    assert cluster.api.get(SLICE)["endpoints"][0]["addresses"] == ["10.1.0.1"]
    assert not second.answers("/readyz")
    cluster.api.create(pod("late", 8, namespace=kube_namespace, schedulerName="none"))
    cluster.api.create(pod("taken", 8, namespace=kube_namespace, schedulerName="none"))
    allocator = cluster.server(running.allocator_token)
    all_chips = ",".join(f"Ascend910-{chip}" for chip in range(8))

    def written(by: str) -> dict[str, str]:
        return {ALLOCATED: all_chips, PREDICATE_TIME: str(time.time_ns()), FENCE: by}

    with first.process.paused():
        paused_s = time.monotonic()
        second.wait_until_ready()
        took_s = time.monotonic() - paused_s
        assert took_s < 25
        new = cluster.api.get(HOLDER)["spec"]["holderIdentity"]
        assert new != old
        cluster.api.wait_for(
            SLICE,
            lambda found: found["endpoints"][0]["addresses"] == ["10.1.0.2"],
            timeout_s=READY_S,
            what="the service leads to the new leader",
        )
        point_webhooks_to(cluster, second)
        # The new leader assigns the chips to another pod; then the old leader's Binding arrives.
        path = pod_path(kube_namespace, "taken", "binding")
        allocator.request("POST", path, binding("taken", "n1", written(new)))
        late = pod_path(kube_namespace, "late", "binding")
        text = refusal(lambda: allocator.request("POST", late, binding("late", "n1", written(old))))
        assert f"was made by the allocator {old}, which does not lead" in text
        unnamed = {key: value for key, value in written(new).items() if key != FENCE}
        assert "(unnamed)" in refusal(lambda: allocator.request("POST", late, binding("late", "n1", unnamed)))
        assert "nodeName" not in cluster.api.get(pod_path(kube_namespace, "late"))["spec"]
    # After it continues, it finds that it has lost the lease, and exits.
    assert first.process.wait(timeout_s=READY_S) == 1
    assert "could not be renewed" in first.process.log_tail() or "was taken by" in first.process.log_tail()
    assert "forbidden" not in second.process.log.read_text().lower()
    first.process.start()
    first.process.wait_until(lambda: first.answers("/standbyz"), timeout_s=READY_S)
    second.process.stop()  # in order: the lease is released
    given_up_s = time.monotonic()
    first.wait_until_ready(timeout_s=5)
    assert time.monotonic() - given_up_s < 5
