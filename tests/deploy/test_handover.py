"""With the chart's policies: a leader ends in peace while a Binding that has passed them is held up."""

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ascend.annotations import ALLOCATED, FENCE
from ascend.chips import parse_names
from tests.allocator.authority import Authority
from tests.cluster.api import HTTPError
from tests.cluster.cluster import Cluster
from tests.cluster.manifests import pod
from tests.cluster.processes import wait_until
from tests.deploy.chart_programs import HOLDER, Running, point_webhooks_to
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
