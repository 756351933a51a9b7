"""Who has rights in one namespace only is told why a pod of it waits, on a real API server, and nothing of others."""

import json
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import pytest
import yaml
from typer.testing import CliRunner

from npuctl.cli import app
from tests.cluster import binaries
from tests.cluster.api import HTTPError, Server
from tests.cluster.cluster import Cluster
from tests.cluster.controller_manager import start_controller_manager
from tests.cluster.manifests import pod
from tests.cluster.processes import wait_until
from tests.deploy.chart_programs import LEASE, Running

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.usefixtures("built_helm"), pytest.mark.timeout(600)]

RBAC: Final = "rbac.authorization.k8s.io"
GROUP: Final = "ascend-affinity.io/v1alpha1"
NOWHERE: Final = {"nowhere": "here"}
TENANT: Final = {"kind": "ServiceAccount", "name": "tenant"}
TEAM: Final = {"kind": "Group", "apiGroup": RBAC, "name": "team-a"}
Json = dict[str, Any]


def bind(cluster: Cluster, namespace: str, kind: str, role: str, *subjects: Json) -> None:
    body = {"apiVersion": f"{RBAC}/v1", "kind": "RoleBinding", "metadata": {"name": role, "namespace": namespace}}
    reference = {"apiGroup": RBAC, "kind": kind, "name": role}
    cluster.api.create({**body, "roleRef": reference, "subjects": list(subjects)})


def question(namespace: str, name: str, uid: str) -> Json:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": GROUP, "kind": "PodExplanation", "metadata": metadata, "spec": {"uid": uid}}


def ask(server: Server, asked: Json, *, dry_run: bool = True) -> Json:
    path = f"/apis/{GROUP}/namespaces/{asked['metadata']['namespace']}/podexplanations"
    answered: Json = json.loads(server.request("POST", path + ("?dryRun=All" if dry_run else ""), asked))
    return answered


def refusal(call: Callable[[], object]) -> HTTPError:
    with pytest.raises(HTTPError) as refused:
        call()
    return refused.value


def test_a_tenant_is_told_why_a_pod_waits_and_nothing_of_others(
    cluster: Cluster, running: Running, kube_namespace: str
) -> None:
    where = kube_namespace
    account = {**TENANT, "namespace": where}
    meta = {"name": "tenant", "namespace": where}
    cluster.api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta})
    rules = [{"apiGroups": [""], "resources": ["pods", "events"], "verbs": ["get", "list"]}]
    role = {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": {"name": "reader", "namespace": where}}
    cluster.api.create({**role, "rules": rules})
    bind(cluster, where, "Role", "reader", account, TEAM)
    bind(cluster, where, "ClusterRole", f"{LEASE}-explanations", account, TEAM)
    # In another namespace they may ask, but not get pods.
    bind(cluster, "default", "ClusterRole", f"{LEASE}-explanations", account)
    try:
        own = cluster.api.create(pod("train", 8, namespace=where, nodeSelector=NOWHERE))["metadata"]["uid"]
        foreign = cluster.api.create(pod("secret", 8, nodeSelector=NOWHERE))["metadata"]["uid"]
        token = cluster.service_account_token("tenant", namespace=where)
        tenant = cluster.server(token)
        kubeconfig = cluster.write_kubeconfig("tenant", token)
        as_group = ("--kubeconfig", str(cluster.kubeconfig_path), "--as", "ann", "--as-group", "team-a")
        for access in (("--kubeconfig", str(kubeconfig)), as_group):
            done = CliRunner().invoke(app, ["explain", "train", "-n", where, *access, "-o", "json"])
            answer = json.loads(done.stdout)
            assert (done.exit_code, answer["state"], answer["reason"]) == (3, "waits", "NodeSelectorMismatch")
            assert answer["told"]["obstacles"][0]["nodes"] == len(cluster.nodes)
        # What a client without npuctl gets is the object with its answer.
        answered = ask(tenant, question(where, "train", own))
        assert answered["status"]["message"] == answer["message"]
        command = ["create", "--dry-run=server", "--output=yaml", "--filename=-", "--kubeconfig", str(kubeconfig)]
        told = subprocess.run(
            [str(binaries.path("kubectl")), *command],
            input=json.dumps(question(where, "train", own)),
            env={"HOME": str(cluster.folder)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert yaml.safe_load(told.stdout)["status"] == answered["status"], told.stderr
        assert "a PodExplanation is not stored" in str(
            refusal(lambda: ask(tenant, question(where, "train", own), dry_run=False))
        )
        same = "is not there or requests no chips, or you may not get it"
        for namespace, name, uid in (
            ("default", "secret", foreign),
            ("default", "absent", foreign),
            (where, "secret", foreign),
            (where, "train", "guessed"),
        ):
            refused = refusal(lambda to=(namespace, name, uid): ask(tenant, question(*to)))  # type: ignore[misc]
            assert (refused.status, same in str(refused)) == (404, True), refused
        assert refusal(lambda: ask(tenant, question("kube-system", "train", own))).status == 403
        assert not cluster.api.get(f"/apis/{GROUP}/podexplanations")["items"]
        for each in running.allocators:
            each.process.stop()
        assert "failed calling webhook" in str(refusal(lambda: ask(tenant, question(where, "train", own))))
        done = CliRunner().invoke(app, ["explain", "train", "-n", where, *as_group])
        assert "its last Event counts" in done.stderr
        assert done.exit_code == 3
    finally:
        cluster.api.delete(f"/apis/{RBAC}/v1/namespaces/default/rolebindings/{LEASE}-explanations")
        cluster.api.delete("/api/v1/namespaces/default/pods/secret")


@pytest.mark.usefixtures("running")
def test_whoever_has_the_role_view_in_a_namespace_may_ask_there(cluster: Cluster, kube_namespace: str) -> None:
    where = kube_namespace
    cluster.api.create(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "viewer", "namespace": where}}
    )
    bind(cluster, where, "ClusterRole", "view", {"kind": "ServiceAccount", "name": "viewer", "namespace": where})
    uid = cluster.api.create(pod("seen", 8, namespace=where, nodeSelector=NOWHERE))["metadata"]["uid"]
    viewer = cluster.server(cluster.service_account_token("viewer", namespace=where))
    assert refusal(lambda: ask(viewer, question(where, "seen", uid))).status == 403
    # It adds the rules of the chart's role to those of the role view.
    manager = start_controller_manager(cluster, ("clusterrole-aggregation",))
    try:
        cluster.api.wait_for(
            f"/apis/{RBAC}/v1/clusterroles/view",
            lambda role: any("podexplanations" in rule.get("resources", ()) for rule in role["rules"] or ()),
            timeout_s=60.0,
            what="the role view has the rules of the chart's",
        )
        answers: list[Json] = []

        def is_answered() -> bool:
            with suppress(HTTPError):  # until the authorizer has seen the role
                answers.append(ask(viewer, question(where, "seen", uid)))
            return bool(answers)

        wait_until(is_answered, timeout_s=60.0, what="who may view the namespace is answered")
        assert answers[0]["status"]["reason"] == "NodeSelectorMismatch"
        assert refusal(lambda: ask(viewer, question("default", "seen", uid))).status == 403
    finally:
        manager.stop()
