"""The chart: which values it refuses, what it renders, and that a real API server accepts every object."""

import base64
import json
import os
import re
import subprocess
import textwrap
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from allocator.settings import Settings as AllocatorSettings
from allocator.state.kinds import watched_kinds
from ascend.daemon.setting import settings_of
from ascend.daemon.settings import SettingsSource
from device_plugin.health.levels import FaultLevel
from device_plugin.publish.node_conditions import TAINT, TaintRule
from device_plugin.publish.rights import KUBELET_PODS, rights
from device_plugin.settings import Settings as DevicePluginSettings
from npuctl.doctor.program_objects import ALLOCATOR, PLUGIN, WRITERS_CONDITION
from tests.cluster.api import Server, collection
from tests.cluster.cluster import Cluster
from tests.deploy import helm
from tests.deploy.chart_programs import LEASE

# The first test that needs helm builds it.
pytestmark = [pytest.mark.real, pytest.mark.usefixtures("built_helm"), pytest.mark.timeout(600)]

SIMULATED = ("--set", "devicePlugin.driver.type=simulated")

WRITERS = ["system:serviceaccount:volcano-system:volcano-scheduler", "o'brien@example.org", """\\ "a" <b>, 'c': #d"""]

VARIANTS = {
    "as it comes": (),
    "cut": ("--set", "devicePlugin.dynamicVnpus=true"),
    "simulated": SIMULATED,
    "simulated, cut": (
        *SIMULATED,
        *("--set", "devicePlugin.dynamicVnpus=true,devicePlugin.driver.simulated.server.product=910B"),
    ),
    "everything set": (
        *SIMULATED,
        *("--set", "fullnameOverride=npu,image.tag=,image.digest=sha256:" + 64 * "0"),
        *("--set-json", 'imagePullSecrets=[{"name":"my-registry"}]'),
        *("--set", "devicePlugin.driver.simulated.hostPath=/var/lib/ascend-affinity"),
        *("--set", "devicePlugin.kubelet.rootDir=/data/kubelet,devicePlugin.kubelet.authorization=proxy"),
        *("--set", "devicePlugin.kubelet.caFile=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"),
        *("--set", "devicePlugin.injection=cdi,devicePlugin.cdiDir=/etc/cdi"),
        *("--set", "devicePlugin.jobFiles.enabled=true,devicePlugin.jobFiles.resetConfigDir=/srv/reset"),
        *("--set-json", 'devicePlugin.telemetry={"enabled":true,"intervalSeconds":0.5}'),
        *("--set-json", 'devicePlugin.hotReset={"mode":"on","idleSeconds":90,"perHour":1}'),
        *("--set", "devicePlugin.health.readmission=manual,devicePlugin.health.recoveryHoldSeconds=30"),
        *("--set", "devicePlugin.maxUnavailable=25%,devicePlugin.podAnnotations.note=yes"),
        *("--set", "devicePlugin.seLinuxOptions.type=container_device_plugin_t"),
        *("--set-json", 'devicePlugin.extraArgs=["--log-level=DEBUG"]'),
        *("--set-json", 'devicePlugin.extraEnv=[{"name":"PYTHONASYNCIODEBUG","value":"1"}]'),
        *("--set", "devicePlugin.serviceAccount.name=plugin,allocator.serviceAccount.name=allocator"),
        *("--set", "allocator.service.clusterIP=10.0.0.77,allocator.service.port=80,allocator.podAnnotations.note=yes"),
        *("--set", "allocator.replicas=3,allocator.leaseDurationSeconds=30,allocator.service.grpcPort=50052"),
        *("--set", "allocator.tls.source=secret,allocator.tls.secretName=my-certificate,allocator.tls.caBundle=Zm9v"),
        *("--set", "allocator.tls.clientNames={spiffe://cluster.local/ns/a/sa/b,scheduler}"),
        *("--set-json", 'allocator.tls.webhookClientNames=["kube-apiserver","it\'s: #1"]'),
        *("--set", "allocator.webhooks.pods.invalid=warn,allocator.webhooks.annotations.note=yes"),
        *("--set-json", f"allocator.policies.writers={json.dumps(WRITERS)}"),
        *("--set-json", 'allocator.networkPolicy.from=[{"ipBlock":{"cidr":"10.0.0.0/28"}}]'),
        *("--set-json", 'allocator.extraArgs=["--log-level=DEBUG"]'),
        *("--set-json", 'allocator.extraEnv=[{"name":"PYTHONASYNCIODEBUG","value":"1"}]'),
        *(
            "--set-json",
            'allocator.affinity={"nodeAffinity":{}}',
            "--set-json",
            'devicePlugin.affinity={"podAffinity":{}}',
        ),
        *("--set", "allocator.nodeSelector.zone=a,allocator.nodeHealthNamespace=default"),
        *("--set", "allocator.volcano.enabled=true,allocator.volcano.insecurePort=8888"),
        *("--set-json", 'metricsFrom=[{"podSelector":{"matchLabels":{"app":"scraper"}}}]'),
        *("--set-json", 'allocator.networkPolicy.webhooksFrom=[{"ipBlock":{"cidr":"10.0.0.0/28"}}]'),
        *("--set", "scheduler.enabled=true,scheduler.name=npu,scheduler.certificateSecretName=client"),
        *("--set", "scheduler.image.tag=v1.33.1,scheduler.replicas=3,scheduler.serviceAccount.name=scheduler"),
        *("--set-json", 'scheduler.extraArgs=["--v=2"]', "--set-json", 'scheduler.affinity={"nodeAffinity":{}}'),
        *("--set", "scheduler.podAnnotations.note=yes,scheduler.nodeSelector.zone=a"),
    ),
    "with its page": (
        *("--set", "web.enabled=true,web.allowedHosts[0]=npu.example.org,web.history.claimName=history"),
        *("--set", "web.podLabels.own=yes,web.nodeSelector.zone=a"),
        *("--set-json", 'web.networkPolicy.from=[{"podSelector":{"matchLabels":{"app":"ingress"}}}]'),
    ),
    "with its kube-scheduler": ("--set", "scheduler.enabled=true"),
    "open": ("--set", "allocator.tls.insecureAnyoneMayBindPods=true,allocator.networkPolicy.from=everyone"),
}


@pytest.fixture(params=list(VARIANTS.values()), ids=list(VARIANTS))
def options(request: pytest.FixtureRequest) -> tuple[str, ...]:
    chosen: tuple[str, ...] = request.param
    return chosen


def test_helm_lint_passes(options: tuple[str, ...]) -> None:
    assert "0 chart(s) failed" in helm.run("lint", "--strict", str(helm.CHART), *helm.IMAGE, *options)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("devicePlugin.driver.type=magic", "/devicePlugin/driver/type"),
        ("devicePlugin.driver.dcmi.hostPath=relative", "/devicePlugin/driver/dcmi/hostPath"),
        ("devicePlugin.driver.scanPeriodSeconds=0", "/devicePlugin/driver/scanPeriodSeconds"),
        ("devicePlugin.health.readmission=perhaps", "/devicePlugin/health/readmission"),
        ("devicePlugin.health.staleSeconds=601", "/devicePlugin/health/staleSeconds"),
        ("devicePlugin.injection=magic", "/devicePlugin/injection"),
        ("devicePlugin.kubelet.authorization=all", "/devicePlugin/kubelet/authorization"),
        ("devicePlugin.kubelet.devicePluginDir=relative", "/devicePlugin/kubelet/devicePluginDir"),
        ("devicePlugin.driver.simulated.server.product=nonsense", "/devicePlugin/driver/simulated/server/product"),
        ("devicePlugin.maxUnavailable=0%", 'devicePlugin: maxUnavailable is the text "0%"; it must be a number'),
        ("devicePlugin.maxUnavailable=110%", 'devicePlugin: maxUnavailable is the text "110%"'),
        ('devicePlugin.maxUnavailable="20"', 'devicePlugin: maxUnavailable is the text "20"'),
        ("devicePlugin.pools.a3.maxSurge=five", 'devicePlugin.pools.a3: maxSurge is the text "five"'),
        (
            'devicePlugin.driver.simulated.server.chips=[{"id":0,"telemetry":{"temprature":80}}]',
            "'temprature' not allowed",
        ),
        ("devicePlugin.maxUnavailable=1.5", "/devicePlugin/maxUnavailable"),
        ("devicePlugin.maxSurge=-1", "/devicePlugin/maxSurge"),
        ("devicePlugin.maxSurge=0", "devicePlugin: maxSurge and maxUnavailable are both 0"),
        ("devicePlugin.pools.a3.maxSurge=0", "devicePlugin.pools.a3: maxSurge and maxUnavailable are both 0"),
        ("devicePlugin.nodeSelector=null", "'nodeSelector'"),
        ("devicePlugin.nodeSelector.accelerator=null", "/devicePlugin/nodeSelector"),
        ("devicePlugin.httpPort=70000", "/devicePlugin/httpPort"),
        ("allocator.replicas=0", "/allocator/replicas"),
        ("allocator.tls.source=magic", "/allocator/tls/source"),
        ("allocator.tls.source=secret", "/allocator/tls/secretName"),
        ("allocator.tls.clientNames[0]=scheduler", "/allocator/tls/clientNames"),
        ("allocator.tls.webhookClientNames[0]=api", "/allocator/tls/webhookClientNames"),
        ("allocator.tls.insecureAnyoneMayBindPods=yes", "/allocator/tls/insecureAnyoneMayBindPods"),
        (
            "allocator.tls.insecureAnyoneMayBindPods=true",
            "allocator.networkPolicy.from: everyone-with-a-certificate, but allocator.tls.insecureAnyoneMayBindPods",
        ),
        ("allocator.networkPolicy.from=everyone", "everyone is only for allocator.tls.insecureAnyoneMayBindPods=true"),
        ("allocator.networkPolicy.from=anyone", "/allocator/networkPolicy/from"),
        ("allocator.networkPolicy.from=[{}]", "/allocator/networkPolicy/from"),
        ("metricsFrom=everyone", "/metricsFrom"),
        ('allocator.tls={"source":"secret","secretName":"mine"}', "allocator.tls.clientNames: with"),
        (
            'allocator.tls={"source":"secret","secretName":"a","insecureAnyoneMayBindPods":true,"webhookClientNames":["a"]}',
            "allocator.tls.webhookClientNames: needs allocator.tls.clientNames",
        ),
        (
            "allocator.volcano.port=8888",
            "allocator.volcano.port: Volcano's extender plugin is answered at the port of all",
        ),
        ("allocator.webhooks.pods.invalid=shout", "/allocator/webhooks/pods/invalid"),
        ("allocator.policies.enabled=perhaps", "/allocator/policies/enabled"),
        ('allocator.volcano={"enabled":true,"from":[]}', "/allocator/volcano/from"),
        (
            'allocator={"volcano":{"enabled":true},"webhooks":{"bindings":{"enabled":false}}}',
            "allocator.volcano.enabled: without allocator.webhooks.bindings.enabled",
        ),
        (
            'allocator={"volcano":{"enabled":true,"insecurePort":8888},"networkPolicy":{"enabled":false}}',
            "allocator.volcano.insecurePort: without allocator.networkPolicy.enabled",
        ),
        ("allocator.nodeHealthNamespace=Mindx_dl", "/allocator/nodeHealthNamespace"),
        ("allocator.reservationTtlSeconds=0", "/allocator/reservationTtlSeconds"),
        ("image.digest=latest", "/image/digest"),
        ("image.repository=mine", "image.repository: mine names no registry, so nodes would ask docker.io for it"),
        ("allocator.podLabels.app\\.kubernetes\\.io/name=a", "/allocator/podLabels"),
        ("commonLabels.helm\\.sh/chart=a", "/commonLabels"),
        ("scheduler.priorityClassName=", "/scheduler/priorityClassName"),
        ("nameOverride=1st", "/nameOverride"),
        ("nameOverride=Npu", "/nameOverride"),
        ("fullnameOverride=a.b", "/fullnameOverride"),
        ("fullnameOverride=1st", "/fullnameOverride"),
        ("fullnameOverride=a-", "/fullnameOverride"),
        (f"fullnameOverride={41 * 'a'}", "/fullnameOverride"),
        ("imagePullPolicy=Always", "'imagePullPolicy'"),
        ("scheduler.name=a_b", "/scheduler/name"),
        ("scheduler.replicas=0", "/scheduler/replicas"),
        ("web.enabled=true", "web.allowedHosts: name the hosts by which browsers ask for the page"),
        ("web.allowedHosts[0]=https://npu", "/web/allowedHosts"),
        ("web.history.mib=0", "/web/history/mib"),
        ("web.networkPolicy.from=everyone", "/web/networkPolicy/from"),
        ('scheduler={"enabled":true,"name":"default-scheduler"}', "scheduler.name: default-scheduler is the name of"),
    ],
)
def test_a_wrong_value_is_refused_and_named(value: str, named: str) -> None:
    with pytest.raises(helm.HelmError) as refused:
        helm.render("--set-json" if value.endswith(("null", '"', "1.5", "]", "}")) else "--set", value)
    assert named in str(refused.value)


def test_a_kubernetes_version_that_is_too_old_is_refused() -> None:
    with pytest.raises(helm.HelmError, match=r"incompatible with Kubernetes v1\.27"):
        helm.render("--kube-version", "1.27.16")


def test_a_writer_may_have_any_name() -> None:
    items = helm.render(*VARIANTS["everything set"])
    (policy,) = (
        each
        for each in items
        if (each["kind"], each["metadata"]["name"]) == ("ValidatingAdmissionPolicy", "npu-allocator-annotations")
    )
    (condition,) = policy["spec"]["matchConditions"]
    assert condition["name"] == WRITERS_CONDITION  # by which `npuctl doctor` finds it
    head, _, names = condition["expression"].partition("[")
    assert head == "!(request.userInfo.username in "
    ours = [f"system:serviceaccount:{helm.NAMESPACE}:{name}" for name in ("allocator", "plugin")]
    # JSON and CEL have the same quotes and escapes for these.
    assert json.loads(f"[{names.removesuffix(')')}") == [*ours, *WRITERS]


@pytest.mark.parametrize(
    ("kind", "component", "labels"), [("DaemonSet", "device-plugin", PLUGIN), ("Deployment", "allocator", ALLOCATOR)]
)
def test_pods_have_the_labels_by_which_they_are_recognized(kind: str, component: str, labels: dict[str, str]) -> None:
    item = helm.find(helm.render(), kind, component)
    assert labels.items() <= item["spec"]["template"]["metadata"]["labels"].items()


EVERYONE = None


def _peers(items: list[dict[str, Any]], component: str = "allocator") -> dict[str, list[dict[str, Any]] | None]:
    """Who reaches each port by the NetworkPolicy."""
    rules = helm.find(items, "NetworkPolicy", component)["spec"]["ingress"] or ()
    return {port["port"]: rule.get("from", EVERYONE) for rule in rules for port in rule["ports"]}


def test_each_port_of_the_allocator_admits_only_who_has_to_reach_it() -> None:
    items = helm.render()
    prometheus = [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
        }
    ]
    assert _peers(items) == {"http": EVERYONE, "webhooks": EVERYONE, "probes": prometheus}
    assert _peers(items, "device-plugin") == {"http": prometheus}
    arguments = _container(helm.find(items, "Deployment", "allocator"))["args"]
    # So everyone is everyone with a certificate.
    assert "--client-ca-file=/etc/ascend-affinity/clients/ca.crt" in arguments
    assert not [each for each in arguments if "insecure" in each]


def test_a_list_without_peers_admits_nobody() -> None:
    empty = ("allocator.networkPolicy.from=[]", "metricsFrom=[]")
    items = helm.render(*(word for each in empty for word in ("--set-json", each)))
    for component in ("allocator", "device-plugin"):
        assert _peers(items, component) == {}
        assert helm.find(items, "NetworkPolicy", component)["spec"]["policyTypes"] == ["Ingress"]


def test_who_may_call_may_call_the_webhooks_too_unless_others_are_named() -> None:
    mine, others = ([{"ipBlock": {"cidr": f"10.0.{number}.0/28"}}] for number in (0, 1))
    given = ("--set-json", f"allocator.networkPolicy.from={json.dumps(mine)}")
    assert {**_peers(helm.render(*given)), "probes": None} == {"http": mine, "webhooks": mine, "probes": None}
    more = ("--set-json", f"allocator.networkPolicy.webhooksFrom={json.dumps(others)}")
    assert _peers(helm.render(*given, *more))["webhooks"] == others
    assert _peers(helm.render(*given, "--set", "allocator.networkPolicy.webhooksFrom=everyone"))["webhooks"] is EVERYONE
    nobody = "allocator.networkPolicy.{}=[]"
    assert _peers(helm.render("--set-json", nobody.format("from"))).keys() == {"probes"}
    assert _peers(helm.render("--set-json", nobody.format("webhooksFrom"))).keys() == {"http", "probes"}


def test_the_policy_of_the_plugins_selects_the_pods_of_every_pool() -> None:
    items = helm.render("--set-json", f"devicePlugin.pools={json.dumps(POOLS)}")
    selector = helm.find(items, "NetworkPolicy", "device-plugin")["spec"]["podSelector"]
    for workload in (item for item in items if item["kind"] in {"DaemonSet", "Deployment"}):
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert _selects(selector, labels) == (workload["kind"] == "DaemonSet")


def _text(secret: dict[str, Any], key: str) -> bytes:
    return base64.b64decode(secret["data"][key])


def test_the_generated_certificates_are_for_two_years_and_do_not_verify_each_other(tmp_path: Path) -> None:
    secrets = {item["metadata"]["name"]: item for item in helm.render() if item["kind"] == "Secret"}
    served, scheduler = secrets[f"{LEASE}-tls"], secrets[f"{LEASE}-scheduler"]
    for name, mine, other in (("served", served, scheduler), ("scheduler", scheduler, served)):
        for key, secret in (("tls.crt", mine), ("own.crt", mine), ("other.crt", other)):
            content = _text(secret, key if key == "tls.crt" else "ca.crt")
            (tmp_path / f"{name}-{key}").write_bytes(content)

        def openssl(*words: str, name: str = name) -> "subprocess.CompletedProcess[str]":
            paths = [str(tmp_path / f"{name}-{word}") if word.endswith(".crt") else word for word in words]
            return subprocess.run(["openssl", *paths], capture_output=True, text=True, check=False)

        assert openssl("verify", "-CAfile", "own.crt", "tls.crt").returncode == 0
        assert openssl("verify", "-CAfile", "other.crt", "tls.crt").returncode != 0
        for days, status in ((729, 0), (731, 1)):
            assert openssl("x509", "-noout", "-checkend", str(days * 86_400), "-in", "tls.crt").returncode == status
        assert "ASN1 OID: prime256v1" in openssl("x509", "-noout", "-text", "-in", "tls.crt").stdout
        usages = openssl("x509", "-noout", "-ext", "extendedKeyUsage,subjectAltName", "-in", "tls.crt").stdout
        assert "TLS Web Client Authentication" in usages
        assert f"DNS:{LEASE}{'-scheduler.kube-system' if name == 'scheduler' else '.kube-system.svc'}" in usages
    arguments = _container(helm.find(helm.render(), "Deployment", "allocator"))["args"]
    assert f'--client-names=["{LEASE}-scheduler.{helm.NAMESPACE}"]' in arguments


def test_the_allocator_is_not_given_the_key_of_its_client() -> None:
    for source in ("generated", "cert-manager"):
        workload = helm.find(helm.render("--set", f"allocator.tls.source={source}"), "Deployment", "allocator")
        volumes = {each["name"]: each["secret"] for each in workload["spec"]["template"]["spec"]["volumes"]}
        assert volumes["clients"]["secretName"] == f"{LEASE}-scheduler"
        assert volumes["clients"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]


def test_volcano_is_answered_with_kube_scheduler_unless_an_insecure_port_is_named() -> None:
    items = helm.render("--set", "allocator.volcano.enabled=true")
    assert "--volcano=true" in _container(helm.find(items, "Deployment", "allocator"))["args"]
    assert "volcano" not in {port["name"] for port in helm.find(items, "Service", "allocator")["spec"]["ports"]}
    assert "volcano" not in _peers(items)
    items = helm.render("--set", "allocator.volcano.enabled=true,allocator.volcano.insecurePort=8888")
    (peer,) = _peers(items)["volcano"] or [{}]
    assert peer["podSelector"]["matchLabels"] == {"app": "volcano-scheduler"}
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "volcano-system"}
    service = helm.find(items, "Service", "allocator")
    ports = {port["name"]: port["targetPort"] for port in service["spec"]["ports"]}
    container = _container(helm.find(items, "Deployment", "allocator"))
    assert ports == {"http": 8443, "webhooks": 9443, "volcano": 8888}
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == {**ports, "probes": 8081}


def test_the_documented_proxy_leads_from_volcano_to_the_port_of_calls() -> None:
    page = (helm.REPOSITORY / "docs" / "volcano.md").read_text()
    (block,) = re.findall(r"```yaml\n( *# sidecar\.yaml\n.*?)```", page, re.DOTALL)
    pod = yaml.safe_load(textwrap.dedent(block))["spec"]["template"]["spec"]
    (proxy,) = pod["containers"]
    (address,) = re.findall(r"^ +bind (\S+)", page, re.MULTILINE)
    (prefix,) = re.findall(r"^ +extender\.urlPrefix: (\S+)", page, re.MULTILINE)
    assert prefix == f"http://{address}/volcano"
    ((target, options),) = re.findall(r"^ +server allocator (\S+) (.*)", page, re.MULTILINE)
    rendered = helm.render("--namespace", "ascend-affinity", "--set", "allocator.tls.source=cert-manager")
    service = helm.find(rendered, "Service", "allocator")
    host = f"{service['metadata']['name']}.ascend-affinity.svc"
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    assert target == f"{host}:{ports['http']}"
    assert f"verify required verifyhost {host} " in options
    assert any(host in each["spec"].get("dnsNames", ()) for each in rendered if each["kind"] == "Certificate")
    folders = {mount["name"]: mount["mountPath"] for mount in proxy["volumeMounts"]}
    certificates, configuration = pod["volumes"]
    (manifest,) = re.findall(r"kubectl apply --server-side -f - <<END\n(.*?)END", page, re.DOTALL)
    secret = yaml.safe_load(textwrap.dedent(re.sub(r"\$\(part [^)]*\)", "Zm9v", manifest)))
    assert (secret["kind"], secret["metadata"]["name"]) == ("Secret", certificates["secret"]["secretName"])
    assert secret["data"].keys() == {"ca.crt", "tls.crt", "tls.key"}
    assert f"ca-file {folders[certificates['name']]}/ca.crt crt {folders[certificates['name']]}/tls.crt" in options
    assert f"create configmap {configuration['configMap']['name']} --from-file=haproxy.cfg" in page
    assert proxy["args"] == ["-f", f"{folders[configuration['name']]}/haproxy.cfg"]


@pytest.mark.parametrize(("address", "told"), [("10.0.0.77", "10.0.0.77:443"), ("fd00::4d", "[fd00::4d]:443")])
def test_the_commands_in_the_notes_name_the_service(tmp_path: Path, address: str, told: str) -> None:
    lines = helm.notes(tmp_path).splitlines()
    (first,) = (number for number, line in enumerate(lines) if line.strip().startswith("address="))
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f'#!/bin/sh\ncase "$*" in *clusterIP*) echo {address} ;; *) echo Zm9v ;; esac\n')
    kubectl.chmod(0o755)
    (tmp_path / "kube-scheduler.yaml").symlink_to(helm.CHART / "kube-scheduler.yaml")
    subprocess.run(
        ["sh", "-euc", "\n".join(lines[first : lines.index("", first)])],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        check=True,
    )
    (extender,) = yaml.safe_load((tmp_path / "config.yaml").read_text())["extenders"]
    assert extender["urlPrefix"] == f"https://{told}/scheduler"


def test_the_notes_warn_of_what_is_open(tmp_path: Path) -> None:
    said = "every client that reaches port 443 can have a pending pod bound to any node"
    assert said in helm.notes(tmp_path, *VARIANTS["open"])
    assert "WARNING" not in helm.notes(tmp_path)
    volcano = "allocator.volcano.enabled=true"
    assert "WARNING" not in helm.notes(tmp_path, "--set", volcano)
    warned = helm.notes(tmp_path, "--set", f"{volcano},allocator.volcano.insecurePort=8888")
    assert "WARNING: port 8888 of the allocator has neither TLS nor certificates" in warned


def test_the_notes_name_no_secret_that_the_operator_has_to_make(tmp_path: Path) -> None:
    mine = "allocator.tls.source=secret,allocator.tls.secretName=a,allocator.tls.clientNames={scheduler}"
    said = helm.notes(tmp_path, "--set", mine)
    assert f"{LEASE}-scheduler" not in said
    assert "certificate of its own, which your CA has to sign, with a name in allocator.tls.clientNames" in said
    assert f"get secret {LEASE}-scheduler " in helm.notes(tmp_path)


def test_the_notes_label_no_node_during_a_migration(tmp_path: Path) -> None:
    assert "kubectl label node <node> accelerator=huawei-Ascend910\n" in helm.notes(tmp_path)
    said = helm.notes(tmp_path, "--set", "devicePlugin.nodeSelector.npu-plugin=ascend-affinity")
    assert "kubectl label node" not in said
    assert "docs/mindcluster-migration.md, node by node: a node gets the label npu-plugin=ascend-affinity once" in said


@pytest.mark.parametrize(
    ("values", "whole", "cut"),
    [
        ("logLevel=INFO", True, None),
        ("dynamicVnpus=true", False, "4. Nodes offer AI cores"),
        ("pools.cut.dynamicVnpus=true", True, "5. Nodes of the pool cut offer AI cores"),
        (
            "dynamicVnpus=true,devicePlugin.pools.a.logLevel=INFO,devicePlugin.pools.b.dynamicVnpus=false",
            True,
            "5. Nodes of no pool or of the pool a offer AI cores",
        ),
    ],
)
def test_the_notes_try_what_the_nodes_offer(tmp_path: Path, values: str, cut: str | None, *, whole: bool) -> None:
    said = helm.notes(tmp_path, "--set", f"devicePlugin.{values}")
    pods = [json.loads(line.partition("'")[2].rpartition("'")[0]) for line in said.splitlines() if " echo '" in line]
    limits = [each["spec"]["containers"][0]["resources"]["limits"] for each in pods]
    assert limits == [{"huawei.com/Ascend910": 2}] * whole + [{"huawei.com/npu-core": 5}] * (cut is not None)
    assert cut is None or cut in said


def test_the_notes_connect_a_scheduler_before_nodes_offer_chips(tmp_path: Path) -> None:
    for options in ((), SCHEDULES):
        said = helm.notes(tmp_path, *options)
        steps = [said.index(word) for word in ("deployment/", "\n2. ", "kubectl label node", "daemonset/", "two-chips")]
        assert steps == sorted(steps)
        assert ("schedulerName: ascend-scheduler" in said) == bool(options)
        assert ("kube-scheduler.yaml" in said) != bool(options)  # the files of the control plane
        assert ('"schedulerName":"ascend-scheduler"' in said) == bool(options)


def test_the_notes_say_who_chooses_the_chips_without_an_allocator(tmp_path: Path) -> None:
    without = "allocator.enabled=false"
    said = helm.notes(tmp_path, "--set", without)
    assert "another scheduler has to choose the chips" in said
    assert "devicePlugin.chooseChips=true" in said
    assert "policies.writers" not in said
    said = helm.notes(tmp_path, "--set", f"{without},devicePlugin.chooseChips=true")
    assert "the device plugin chooses the chips" in said
    assert "another scheduler" not in said
    assert "-volcanoType=true" in helm.notes(
        tmp_path, "--set", "devicePlugin.enabled=false,allocator.policies.writers={system:serviceaccount:a:b}"
    )


def test_a_real_api_server_accepts_every_object(cluster: Cluster, options: tuple[str, ...]) -> None:
    items = helm.render(*options)
    kinds = Counter(item["kind"] for item in items)
    schedules = "scheduler.enabled=true" in " ".join(options)
    assert kinds["ConfigMap"] == 1 + (options in (SIMULATED, VARIANTS["simulated, cut"])) + schedules
    assert kinds["ValidatingAdmissionPolicy"] == 8
    assert kinds["ValidatingAdmissionPolicyBinding"] == 8
    for item in items:
        # Strict: an unknown or repeated field is an error.
        cluster.api.request("POST", f"{collection(item)}?dryRun=All&fieldValidation=Strict", item)


def _plugin_settings(
    items: list[dict[str, Any]], folder: Path, component: str = "device-plugin"
) -> DevicePluginSettings:
    """Return the settings as the plugin reads them in its pod."""
    workload = helm.find(items, "DaemonSet", component)
    plugin = _container(workload)
    volumes = {each["name"]: each for each in workload["spec"]["template"]["spec"]["volumes"]}
    name = volumes["settings"]["configMap"]["name"]
    (text,) = (item["data"]["settings.yaml"] for item in items if item["metadata"]["name"] == name)
    json.loads(text)  # the plugin reads JSON without YAML's parser
    file = folder / "settings.yaml"
    file.write_text(text)
    arguments = [f"--config={file}", *plugin.get("args", [])]
    return SettingsSource(DevicePluginSettings, "ascend-device-plugin", arguments).read()


def test_the_programs_accept_the_settings_of_the_chart(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASCEND_DP_NODE_NAME", "n1")
    items = helm.render(*options)
    plugin = _container(helm.find(items, "DaemonSet", "device-plugin"))
    environment = {variable["name"]: variable.get("value", "") for variable in plugin["env"]}
    read = _plugin_settings(items, tmp_path)
    mounted = {mount["mountPath"] for mount in plugin["volumeMounts"]}
    wanted = {
        str(read.device_plugin_dir),
        str(read.pod_resources_socket.parent),
        str(read.plugins_registry_dir),
        str(read.topology_dir),
        str(Path(environment["ASCEND_DP_CONFIG"]).parent),
    }
    if read.kubelet_ca_file is None and not read.kubelet_insecure_skip_tls_verify:
        wanted.add(str(read.kubelet_cert_dir))
    if read.driver == "simulated":
        wanted.add(str(read.simulated_state.parent))
        assert (read.simulated_cuts is not None) == read.dynamic_vnpus
        if read.simulated_cuts is not None:
            wanted.add(str(read.simulated_cuts.parent))
    else:
        folder = environment["LD_LIBRARY_PATH"].split(":")[0].removesuffix("/lib64")
        assert str(read.link_tool) == f"{folder}/tools/hccn_tool"
        wanted.add(folder)
        wanted.add(str(read.device_root))
        if read.dynamic_vnpus:
            wanted |= {"/etc/vnpu.cfg", "/run/vnpu_cfg_lock"}
    if read.injection == "cdi" or read.driver == "dcmi":
        wanted.add(str(read.cdi_dir))
    if read.job_files:
        wanted |= {str(read.reset_config_dir), str(read.data_trace_dir)}
    assert mounted == wanted
    # Without a host: the kubelet probes the address of the pod, which may be an IPv6 address.
    assert read.http_address == f":{plugin['ports'][0]['containerPort']}"
    allocator = _container(helm.find(items, "Deployment", "allocator"))
    monkeypatch.setenv("ASCEND_ALLOCATOR_POD_IP", "10.1.2.3")
    settings = SettingsSource(AllocatorSettings, "ascend-allocator", allocator["args"]).read()
    assert settings.leader_election
    assert settings.extender_address.endswith(f":{allocator['ports'][0]['containerPort']}")
    assert settings.tls_files is not None
    folders = {str(path.parent) for path in settings.tls_files.paths}
    assert folders == {mount["mountPath"] for mount in allocator["volumeMounts"]}
    with_clients = options == VARIANTS["everything set"]
    named = ["spiffe://cluster.local/ns/a/sa/b", "scheduler"]
    assert settings.client_names == (named if with_clients else [f"{LEASE}-scheduler.{helm.NAMESPACE}"])
    assert settings.insecure_anyone_may_bind_pods == (options == VARIANTS["open"])
    assert settings.webhook_client_names == (["kube-apiserver", "it's: #1"] if with_clients else [])
    assert settings.volcano == with_clients
    assert settings.insecure_volcano_address == (":8888" if with_clients else "")
    names = ["http", "webhooks", "probes", *(["grpc", "volcano"] if with_clients else [])]
    assert [port["name"] for port in allocator["ports"]] == names
    ports = {port["name"]: f":{port['containerPort']}" for port in allocator["ports"]}
    assert (settings.webhook_address, settings.probe_address) == (ports["webhooks"], ports["probes"])
    assert settings.node_health_namespace == ("default" if options == VARIANTS["everything set"] else "")


@pytest.mark.parametrize("bindings", [True, False])
@pytest.mark.parametrize("pods", [True, False])
@pytest.mark.parametrize("gates", [True, False])
@pytest.mark.parametrize("schedulers", [True, False])
def test_the_allocator_serves_exactly_the_registered_webhooks(
    monkeypatch: pytest.MonkeyPatch, *, bindings: bool, pods: bool, gates: bool, schedulers: bool
) -> None:
    values = {"bindings": bindings, "pods": pods, "explanations": bindings != pods}
    chosen = ",".join(f"allocator.webhooks.{name}.enabled={str(on).lower()}" for name, on in values.items())
    chosen += f",allocator.nominate={'gated' if gates else 'pending'},scheduler.enabled={str(schedulers).lower()}"
    items = helm.render("--set", chosen)
    values |= {"gates": gates, "schedulers": schedulers}
    monkeypatch.setenv("ASCEND_ALLOCATOR_POD_IP", "10.1.2.3")
    arguments = _container(helm.find(items, "Deployment", "allocator"))["args"]
    registered = [hook["clientConfig"]["service"]["path"] for item in items for hook in item.get("webhooks", [])]
    served = SettingsSource(AllocatorSettings, "ascend-allocator", arguments).read().webhooks
    assert {f"/webhook/{name}" for name in served} == {path.removesuffix("/ascend-scheduler") for path in registered}
    assert len(served) == len(registered)
    assert set(served) == {name for name, on in values.items() if on}


def test_each_value_changes_the_setting_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_DP_NODE_NAME", "n1")
    plain = _plugin_settings(helm.render(), tmp_path)
    assert (plain.driver, plain.injection, plain.readmission) == ("dcmi", "auto", "automatic")
    assert (plain.faults_in_use, plain.taint_rule) == ("unhealthy", None)
    # The chart has the program's defaults, so that they are documented once.
    defaults = DevicePluginSettings(node_name="n1")
    assert plain == defaults
    assert _plugin_settings(helm.render(*SIMULATED), tmp_path).injection == "runtime"
    changed = _plugin_settings(helm.render(*VARIANTS["everything set"]), tmp_path)
    assert (changed.recovery_hold_s, changed.readmission, changed.injection) == (30, "manual", "cdi")
    assert (changed.log_level, changed.telemetry, changed.telemetry_interval_s) == ("DEBUG", True, 0.5)
    assert (changed.hot_reset, changed.hot_reset_idle_s, changed.hot_resets_per_hour) == ("on", 90, 1)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ("allocator.enabled=true", "unhealthy"),
        ("allocator.enabled=false", "healthy"),
        ("allocator.enabled=false,devicePlugin.chooseChips=true", "unhealthy"),
        ("allocator.enabled=false,devicePlugin.health.faultsInUse=unhealthy", "unhealthy"),
        ("devicePlugin.health.faultsInUse=healthy", "healthy"),
    ],
)
def test_the_kubelet_is_told_of_faults_in_use_unless_mindclusters_scheduler_places_pods(
    values: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASCEND_DP_NODE_NAME", "n1")
    items = helm.render("--set", values)
    assert _plugin_settings(items, tmp_path).faults_in_use == told


def test_a_taint_is_set_for_all_nodes_or_for_a_pool_and_the_plugin_tolerates_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASCEND_DP_NODE_NAME", "n1")
    items = helm.render("--set", "devicePlugin.pools.a3.health.taint.from=RestartNPU")
    assert _plugin_settings(items, tmp_path).taint_rule is None
    rule = _plugin_settings(items, tmp_path, "device-plugin-a3").taint_rule
    assert rule == TaintRule(FaultLevel.RESTART, "NoSchedule")
    spec = helm.find(items, "DaemonSet", "device-plugin-a3")["spec"]["template"]["spec"]
    assert {"key": TAINT, "operator": "Exists"} in spec["tolerations"]


@pytest.mark.parametrize("mode", ["off", "dry-run", "on"])
def test_resets_are_set_for_all_nodes_or_for_a_pool(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_DP_NODE_NAME", "n1")
    everywhere = helm.render("--set", f"devicePlugin.hotReset.mode={mode}")
    assert _plugin_settings(everywhere, tmp_path).hot_reset == mode
    items = helm.render("--set", f"devicePlugin.pools.a3.hotReset.mode={mode}")
    assert _plugin_settings(items, tmp_path, "device-plugin-a3").hot_reset == mode
    assert _plugin_settings(items, tmp_path).hot_reset == "off"


def test_chips_are_cut_on_all_nodes_or_on_those_of_a_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_DP_NODE_NAME", "n1")
    assert _plugin_settings(helm.render("--set", "devicePlugin.dynamicVnpus=true"), tmp_path).dynamic_vnpus
    items = helm.render("--set", "devicePlugin.pools.cut.dynamicVnpus=true")
    assert _plugin_settings(items, tmp_path, "device-plugin-cut").dynamic_vnpus
    assert not _plugin_settings(items, tmp_path).dynamic_vnpus
    # In the settings' file and not in a flag, so that a program that is run in the pod has it too.
    assert "args" not in _container(helm.find(items, "DaemonSet", "device-plugin-cut"))


def test_the_pool_of_the_page_on_parts_of_chips_is_rendered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_DP_NODE_NAME", "n1")
    page = (helm.REPOSITORY / "docs" / "vnpus.md").read_text()
    (block,) = re.findall(r"```yaml\n(# cut\.yaml\n.*?)```", page, re.DOTALL)
    values = tmp_path / "cut.yaml"
    values.write_text(block)
    items = helm.render("--values", str(values))
    workload = helm.find(items, "DaemonSet", "device-plugin-cut")
    assert f"daemonset/{workload['metadata']['name']}\n" in page
    selector = workload["spec"]["template"]["spec"]["nodeSelector"]
    assert f"kubectl label node NODE ascend-affinity.io/pool={selector['ascend-affinity.io/pool']}\n" in page
    assert _plugin_settings(items, tmp_path, "device-plugin-cut").dynamic_vnpus


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ("dynamicVnpus=true,devicePlugin.chooseChips=true", "devicePlugin: dynamicVnpus and chooseChips are both true"),
        (
            "chooseChips=true,devicePlugin.pools.cut.dynamicVnpus=true",
            "devicePlugin.pools.cut: dynamicVnpus and chooseChips are both true",
        ),
        (
            "pools.cut.dynamicVnpus=true,devicePlugin.driver.type=simulated",
            "devicePlugin.pools.cut: dynamicVnpus is true, but driver.simulated.server.product is 910A",
        ),
    ],
)
def test_chips_that_can_not_be_cut_are_refused_before_a_plugin_refuses_them(values: str, sentence: str) -> None:
    with pytest.raises(helm.HelmError, match=re.escape(sentence)):
        helm.render("--set", f"devicePlugin.{values}")
    helm.render(
        "--set",
        "devicePlugin.chooseChips=true",
        "--set-json",
        'devicePlugin.pools={"a":{"chooseChips":false,"dynamicVnpus":true}}',
    )


def test_the_library_can_note_the_vnpus_that_it_cuts() -> None:
    workload = helm.find(helm.render("--set", "devicePlugin.dynamicVnpus=true"), "DaemonSet", "device-plugin")
    volumes = {each["name"]: each.get("hostPath") for each in workload["spec"]["template"]["spec"]["volumes"]}
    writable = [each for each in _container(workload)["volumeMounts"] if not each.get("readOnly")]
    mounted = {each["mountPath"]: volumes[each["name"]] for each in writable}
    for path, kind in (("/etc/vnpu.cfg", "FileOrCreate"), ("/run/vnpu_cfg_lock", "DirectoryOrCreate")):
        assert mounted[path] == {"path": path, "type": kind}


def test_simulated_chips_are_cut_in_a_folder_of_the_node_that_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASCEND_DP_NODE_NAME", "n1")
    items = helm.render(*VARIANTS["simulated, cut"])
    workload = helm.find(items, "DaemonSet", "device-plugin")
    read = _plugin_settings(items, tmp_path)
    assert read.simulated_cuts is not None
    folder = str(read.simulated_cuts.parent)
    (mount,) = (each for each in _container(workload)["volumeMounts"] if each["mountPath"] == folder)
    assert not mount.get("readOnly")
    (volume,) = (each for each in workload["spec"]["template"]["spec"]["volumes"] if each["name"] == mount["name"])
    assert volume["hostPath"]["type"] == "DirectoryOrCreate"


def test_a_mode_of_resets_without_quotes_is_refused_with_the_reason(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("devicePlugin: {hotReset: {mode: on}}\n")
    with pytest.raises(helm.HelmError, match=r"(?s)hotReset.*mode.*'off', 'dry-run', 'on'"):
        helm.render("--values", str(values))


@pytest.mark.parametrize(
    ("value", "rolls"),
    [
        ("devicePlugin.health.recoveryHoldSeconds=30", False),
        ("devicePlugin.health.staleSeconds=30", False),
        ("devicePlugin.driver.scanPeriodSeconds=5", False),
        ("devicePlugin.injection=devices", False),
        ("devicePlugin.telemetry.intervalSeconds=30", False),
        ("devicePlugin.logLevel=DEBUG", False),
        ("devicePlugin.health.readmission=manual", True),
        ("devicePlugin.jobFiles.enabled=true", True),
        ("devicePlugin.hangDetection.minutes=9", True),
        ("devicePlugin.telemetry.enabled=true", True),
        ("devicePlugin.hotReset.mode=dry-run", True),
        ("devicePlugin.hotReset.idleSeconds=90", True),
        ("devicePlugin.hotReset.perHour=1", True),
        ("devicePlugin.chooseChips=true", True),
        ("devicePlugin.dynamicVnpus=true", True),
        ("devicePlugin.driver.dcmi.library=/opt/libdcmi.so", True),
        ("devicePlugin.driver.dcmi.diePolicy=independent", True),
        ("devicePlugin.kubelet.caFile=/ca.crt", True),
        ("devicePlugin.kubelet.certDir=/etc/kubelet/pki", True),
        ("devicePlugin.kubelet.insecureSkipTLSVerify=true", True),
    ],
)
def test_only_changes_that_need_a_restart_restart_the_pods(*, value: str, rolls: bool) -> None:
    before, after = (
        helm.find(helm.render(*options), "DaemonSet", "device-plugin") for options in ((), ("--set", value))
    )
    assert (before["spec"]["template"] != after["spec"]["template"]) == rolls
    field = {
        "driver.scanPeriodSeconds": "scan_period_s",
        "driver.dcmi.library": "dcmi_library",
        "jobFiles.enabled": "job_files",
        "hangDetection.minutes": "hang_minutes",
        "kubelet.certDir": "kubelet_cert_dir",
        "kubelet.insecureSkipTLSVerify": "kubelet_insecure_skip_tls_verify",
        "hotReset.mode": "hot_reset",
        "hotReset.idleSeconds": "hot_reset_idle_s",
        "hotReset.perHour": "hot_resets_per_hour",
        "telemetry.enabled": "telemetry",
        "telemetry.intervalSeconds": "telemetry_interval_s",
    }
    path = value.partition("=")[0].removeprefix("devicePlugin.")
    name = path.rpartition(".")[2]
    snake = field.get(path, "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name))
    snake = snake.replace("_seconds", "_s").replace("ca_file", "kubelet_ca_file")
    assert settings_of(DevicePluginSettings)[snake].is_reloaded != rolls


def test_either_half_of_the_chart_can_be_left_out() -> None:
    both = {_name(item) for item in helm.render()}
    writer = "system:serviceaccount:kube-system:ascend-device-plugin-sa"
    without_plugin = helm.render("--set", f"devicePlugin.enabled=false,allocator.policies.writers={{{writer}}}")
    without_allocator = helm.render("--set", "allocator.enabled=false")
    assert {_component(item) for item in without_plugin} == {"allocator", "tenants"}
    assert {_component(item) for item in without_allocator} == {"device-plugin"}
    assert {_name(item) for item in (*without_plugin, *without_allocator)} == both
    assert f'"{writer}"' in json.dumps(without_plugin).replace("\\", "")
    # Our plugin, which is not there, may not write protected annotations either.
    assert "ascend-affinity-device-plugin" not in json.dumps(without_plugin)


def test_without_our_plugin_the_writer_of_its_annotations_has_to_be_named() -> None:
    with pytest.raises(helm.HelmError, match="name the user of the device plugin that runs instead"):
        helm.render("--set", "devicePlugin.enabled=false")
    helm.render("--set", "devicePlugin.enabled=false,allocator.policies.enabled=false")


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ("devicePlugin.driver.scanPeriodSeconds=6", "devicePlugin"),
        ("devicePlugin.health.staleSeconds=1", "devicePlugin"),
        ("devicePlugin.pools.a3.health.staleSeconds=1", "devicePlugin.pools.a3"),
        (
            "devicePlugin.driver.scanPeriodSeconds=2,devicePlugin.pools.a3.health.staleSeconds=3",
            "devicePlugin.pools.a3",
        ),
    ],
)
def test_readings_too_rare_for_the_stale_time_are_refused_before_a_plugin_refuses_them(values: str, where: str) -> None:
    sentence = rf"{re.escape(where)}: driver\.scanPeriodSeconds \(\d\) is more than half of health\.staleSeconds"
    with pytest.raises(helm.HelmError, match=sentence):
        helm.render("--set", values)
    helm.render("--set", "devicePlugin.driver.scanPeriodSeconds=5")
    helm.render(
        "--set-json", 'devicePlugin.pools={"a3":{"driver":{"scanPeriodSeconds":2.5},"health":{"staleSeconds":5}}}'
    )


def test_the_values_of_the_migration_leave_nodes_and_annotations_to_the_others(tmp_path: Path) -> None:
    page = (helm.REPOSITORY / "docs" / "mindcluster-migration.md").read_text()
    (block,) = re.findall(r"```yaml\n( *# migration\.yaml\n.*?)```", page, re.DOTALL)
    values = tmp_path / "migration.yaml"
    values.write_text(textwrap.dedent(block.rstrip() + "\n"))
    items = helm.render("--values", str(values))
    selector = helm.find(items, "DaemonSet", "device-plugin")["spec"]["template"]["spec"]["nodeSelector"]
    assert selector == {"accelerator": "huawei-Ascend910", "npu-plugin": "ascend-affinity"}
    # Volcano places pods on all nodes meanwhile, and it and MindCluster's plugin write the annotations.
    assert "Deployment" not in {item["kind"] for item in items}
    policies = {item["metadata"]["name"] for item in items if item["kind"] == "ValidatingAdmissionPolicy"}
    assert policies == {"ascend-affinity-device-plugin-own-node"}


def test_every_value_that_keeps_what_mindclusters_plugin_does_is_accepted(tmp_path: Path) -> None:
    page = (helm.REPOSITORY / "docs" / "mindcluster-migration.md").read_text()
    _, _, section = page.partition("## What MindCluster's plugin does, and how to keep it\n")
    section, _, _ = section.partition("\n## ")
    cells = [row.split(" | ")[1] for row in section.splitlines() if row.startswith("| ")]
    values = [value for cell in cells for value in re.findall(r"`([\w.]+): \"?([\w-]+)\"?`", cell)]
    assert {"jobFiles.enabled", "hangDetection.enabled", "hotReset.mode", "telemetry.enabled"} <= dict(values).keys()
    for key, value in values:
        helm.render("--set", f"devicePlugin.{key}={value}")
    (block,) = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    file = tmp_path / "kept.yaml"
    file.write_text(block)
    rendered = helm.find(helm.render("--values", str(file)), "ConfigMap", "device-plugin")["data"]["settings.yaml"]
    settings = yaml.safe_load(rendered)
    assert settings["job_files"] is settings["hang_detection"] is True


def test_a_chart_without_both_halves_is_refused() -> None:
    with pytest.raises(helm.HelmError, match=r"devicePlugin\.enabled and allocator\.enabled are both false"):
        helm.render("--set", "devicePlugin.enabled=false,allocator.enabled=false")


POOLS = {
    "a3": {"injection": "cdi", "driver": {"scanPeriodSeconds": 5}, "maxSurge": 2},
    "lab": {
        "driver": {"type": "simulated"},
        "health": {"readmission": "manual"},
        "nodeSelector": {"lab": "yes"},
        "maxUnavailable": "5%",
    },
}


def test_each_pool_overrides_only_what_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_DP_NODE_NAME", "n1")
    items = helm.render("--set-json", f"devicePlugin.pools={json.dumps(POOLS)}")
    names = ("device-plugin", "device-plugin-a3", "device-plugin-lab")
    assert [_component(item) for item in items if item["kind"] == "DaemonSet"] == list(names)
    common, a3, lab = (_plugin_settings(items, tmp_path, name) for name in names)
    plain = _plugin_settings(helm.render(), tmp_path)
    assert common == plain
    assert {name for name, value in asdict(a3).items() if value != getattr(plain, name)} == {
        "injection",
        "scan_period_s",
    }
    assert (lab.driver, lab.readmission, lab.scan_period_s) == ("simulated", "manual", plain.scan_period_s)
    limits = [helm.find(items, "DaemonSet", name)["spec"]["updateStrategy"] for name in names]
    assert [each["rollingUpdate"]["maxSurge"] for each in limits] == ["10%", 2, 0]
    assert [each["rollingUpdate"]["maxUnavailable"] for each in limits] == [0, 0, "5%"]
    # What one of them needs, the shared role grants.
    assert ("ClusterRole", "nodes") in _rights(items, "device-plugin")
    assert _rights(items, "device-plugin")["ClusterRole", "nodes"] == {"get", "patch", "list", "watch"}
    templates = [helm.find(items, "DaemonSet", name)["spec"]["template"]["spec"] for name in names]
    assert {each["serviceAccountName"] for each in templates} == {"ascend-affinity-device-plugin"}


def test_every_node_belongs_to_one_pool_or_to_none() -> None:
    mine: dict[str, Any] = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": []}, {}]}
    }
    chosen = ("--set-json", f"devicePlugin.pools={json.dumps(POOLS)}")
    items = helm.render(*chosen, "--set-json", f"devicePlugin.affinity={json.dumps({'nodeAffinity': mine})}")
    common, a3, lab = (item["spec"] for item in items if item["kind"] == "DaemonSet")
    outside = {"key": "ascend-affinity.io/pool", "operator": "NotIn", "values": ["a3", "lab"]}
    required = common["template"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required["nodeSelectorTerms"] == [
        {"matchFields": [], "matchExpressions": [outside]},
        {"matchExpressions": [outside]},
    ]
    for pool, spec in (("a3", a3), ("lab", lab)):
        assert spec["template"]["spec"]["nodeSelector"]["ascend-affinity.io/pool"] == pool
        assert spec["template"]["spec"]["nodeSelector"]["accelerator"] == "huawei-Ascend910"
        assert spec["template"]["spec"]["affinity"] == {"nodeAffinity": mine}
    assert lab["template"]["spec"]["nodeSelector"]["lab"] == "yes"
    # No DaemonSet selects the pods of another one.
    selectors = [spec["selector"]["matchLabels"]["app.kubernetes.io/component"] for spec in (common, a3, lab)]
    assert selectors == ["device-plugin", "device-plugin-a3", "device-plugin-lab"]


@pytest.mark.parametrize(
    ("pools", "named"),
    [
        ({"A3": {}}, "'A3' does not match"),
        ({16 * "a": {}}, "maxLength"),
        ({"a3": {"enabled": False}}, "/devicePlugin/pools/a3"),
        ({"a3": {"driver": {"type": "magic"}}}, "/devicePlugin/pools/a3/driver/type"),
        ({"a3": 3}, "/devicePlugin/pools/a3"),
        ({"a3": {"maxSurge": "5%", "maxUnavailable": 2}}, "pools.a3: maxSurge (5%) has no effect"),
    ],
)
def test_a_wrong_pool_is_refused(pools: dict[str, Any], named: str) -> None:
    with pytest.raises(helm.HelmError, match=re.escape(named)):
        helm.render("--set-json", f"devicePlugin.pools={json.dumps(pools)}")


def test_a_pools_surge_beside_an_inherited_limit_is_refused_with_the_reason() -> None:
    sentence = r"pools\.a3: maxSurge \(5%\) has no effect, because maxUnavailable is 1 for all pools"
    common = ("--set", "devicePlugin.maxUnavailable=1")
    with pytest.raises(helm.HelmError, match=sentence):
        helm.render(*common, "--set", "devicePlugin.pools.a3.maxSurge=5%")
    items = helm.render(*common, "--set", "devicePlugin.pools.a3.maxSurge=5%,devicePlugin.pools.a3.maxUnavailable=0")
    limits = [helm.find(items, "DaemonSet", f"device-plugin{pool}")["spec"]["updateStrategy"] for pool in ("", "-a3")]
    assert [each["rollingUpdate"]["maxSurge"] for each in limits] == [0, "5%"]
    assert [each["rollingUpdate"]["maxUnavailable"] for each in limits] == [1, 0]


def test_with_cert_manager_each_rendering_is_the_same_and_has_no_key() -> None:
    chosen = ("template", helm.RELEASE, str(helm.CHART), *helm.IMAGE, "--set", "allocator.tls.source=cert-manager")
    first, second = (helm.run(*chosen) for _ in range(2))
    assert first == second
    items = [item for item in yaml.safe_load_all(first) if item]
    assert not [item for item in items if item["kind"] == "Secret"]
    certificates = {item["metadata"]["name"]: item["spec"] for item in items if item["kind"] == "Certificate"}
    authority, served = certificates[f"{LEASE}-ca"], certificates[f"{LEASE}-tls"]
    assert authority["isCA"]
    assert authority["privateKey"]["rotationPolicy"] == "Never"
    issuers = {item["metadata"]["name"]: item["spec"] for item in items if item["kind"] == "Issuer"}
    assert issuers[served["issuerRef"]["name"]] == {"ca": {"secretName": authority["secretName"]}}
    assert issuers[authority["issuerRef"]["name"]] == {"selfSigned": {}}
    volumes = helm.find(items, "Deployment", "allocator")["spec"]["template"]["spec"]["volumes"]
    scheduler = certificates[f"{LEASE}-scheduler"]
    assert [each["secret"]["secretName"] for each in volumes] == [served["secretName"], scheduler["secretName"]]
    assert scheduler["issuerRef"] == served["issuerRef"]
    assert ("client auth" in scheduler["usages"], "server auth" in scheduler["usages"]) == (True, False)
    assert ("client auth" in served["usages"], "server auth" in served["usages"]) == (False, True)
    (names,) = (
        json.loads(each.partition("=")[2])
        for each in _container(helm.find(items, "Deployment", "allocator"))["args"]
        if each.startswith("--client-names=")
    )
    assert scheduler["dnsNames"] == names
    for item in items:
        for webhook in item.get("webhooks", ()):
            assert "caBundle" not in webhook["clientConfig"]
            names = item["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
            assert names == f"default/{LEASE}-tls"
            assert f"{webhook['clientConfig']['service']['name']}.default.svc" in served["dnsNames"]


def test_no_rendering_without_a_cluster_has_a_new_authority() -> None:
    with pytest.raises(helm.HelmError, match="every rendering would have another CA"):
        helm.run("template", helm.RELEASE, str(helm.CHART), *helm.IMAGE)
    for source in ("cert-manager", "secret,allocator.tls.secretName=ours,allocator.tls.clientNames={a}"):
        rendered = [
            helm.run("template", helm.RELEASE, str(helm.CHART), *helm.IMAGE, "--set", f"allocator.tls.source={source}")
            for _ in range(2)
        ]
        assert rendered[0] == rendered[1]


def test_an_issuer_of_the_cluster_replaces_the_charts_own() -> None:
    issuer = "allocator.tls.source=cert-manager,allocator.tls.issuer.kind=ClusterIssuer,allocator.tls.issuer.name=ours"
    with pytest.raises(helm.HelmError, match="have a ClusterIssuer sign the name of kube-scheduler"):
        helm.render("--set", issuer)
    issuer += ",allocator.tls.issuer.insecureShared=true"
    items = helm.render("--set", issuer)
    assert not [item for item in items if item["kind"] == "Issuer"]
    issuers = [item["spec"]["issuerRef"] for item in items if item["kind"] == "Certificate"]
    assert issuers == 2 * [{"group": "cert-manager.io", "kind": "ClusterIssuer", "name": "ours"}]


EXPORTERS_METRICS = ("npu_chip_info_power", "npu_chip_link_up_num", "container_npu_used_memory", "machine_npu_nums")


def test_pod_monitors_select_every_pod_and_verify_the_allocators_certificate() -> None:
    chosen = ("--set", "podMonitors.enabled=true,podMonitors.labels.release=prometheus")
    items = helm.render(*chosen, "--set-json", f"devicePlugin.pools={json.dumps(POOLS)}")
    monitors = [item for item in items if item["kind"] == "PodMonitor"]
    selected = set()
    for workload in (item for item in items if item["kind"] in {"DaemonSet", "Deployment"}):
        template = workload["spec"]["template"]
        labels = template["metadata"]["labels"]
        (monitor,) = (each for each in monitors if _selects(each["spec"]["selector"], labels))
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] in {port["name"] for port in _container(workload)["ports"]}
        assert endpoint["scheme"].upper() == _container(workload)["livenessProbe"]["httpGet"].get("scheme", "HTTP")
        assert ("tlsConfig" in endpoint) == (endpoint["scheme"] == "https")
        assert endpoint["honorLabels"] is True
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        relabelled = endpoint.get("metricRelabelings", [])
        assert [each["targetLabel"] for each in relabelled] == ["job"] * (workload["kind"] == "DaemonSet")
        for each in relabelled:
            assert each["sourceLabels"] == ["__name__", "node"]
            for name in EXPORTERS_METRICS:
                found = re.fullmatch(each["regex"], f"{name};n1")
                assert found is not None, name
                assert found[1] == "n1"
            assert not re.fullmatch(each["regex"], "ascend_dp_devices;n1")
        selected.add(labels["app.kubernetes.io/component"])
    assert selected == {"allocator", "device-plugin", "device-plugin-a3", "device-plugin-lab"}
    assert not [item for item in helm.render() if item["kind"] == "PodMonitor"]


def _selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    (expression,) = selector["matchExpressions"]
    assert expression["operator"] == "In"
    return selector["matchLabels"].items() <= labels.items() and labels.get(expression["key"]) in expression["values"]


def test_with_node_feature_discovery_its_label_selects_the_nodes() -> None:
    items = helm.render("--set", "devicePlugin.nodeFeatureRule.enabled=true,devicePlugin.nodeSelector.zone=a")
    (rule,) = (each for item in items if item["kind"] == "NodeFeatureRule" for each in item["spec"]["rules"])
    (feature,) = rule["matchFeatures"]
    assert feature["matchExpressions"]["vendor"] == {"op": "In", "value": ["19e5"]}
    assert feature["matchExpressions"]["device"] == {"op": "In", "value": ["d801", "d802", "d803"]}
    selector = helm.find(items, "DaemonSet", "device-plugin")["spec"]["template"]["spec"]["nodeSelector"]
    assert selector == {**rule["labels"], "zone": "a"}
    assert not [item for item in helm.render() if item["kind"] == "NodeFeatureRule"]


def _name(item: dict[str, Any]) -> tuple[str, str]:
    return item["kind"], item["metadata"]["name"]


def _component(item: dict[str, Any]) -> str:
    return str(item["metadata"]["labels"]["app.kubernetes.io/component"])


@pytest.mark.parametrize("enabled", [False, True])
def test_only_hang_detection_needs_the_processes_of_the_node(*, enabled: bool) -> None:
    items = helm.render("--set", f"devicePlugin.hangDetection.enabled={json.dumps(enabled)}")
    spec = helm.find(items, "DaemonSet", "device-plugin")["spec"]["template"]["spec"]
    assert spec.get("hostPID", False) == enabled


@pytest.mark.parametrize("job_files", [False, True])
def test_the_plugins_rights_are_those_it_checks_at_its_start(*, job_files: bool) -> None:
    items = helm.render("--set", f"devicePlugin.jobFiles.enabled={json.dumps(job_files)}")
    wanted: dict[tuple[str, str], set[str]] = {}
    for right in (*rights(job_files=job_files), KUBELET_PODS[0]):
        name = "/".join(filter(None, (right.resource, right.subresource)))
        name += f".{right.group}" if right.group else ""
        wanted.setdefault(("Role" if right.namespace else "ClusterRole", name), set()).add(right.verb)
    assert _rights(items, "device-plugin") == wanted


def test_the_chart_grants_exactly_the_listed_rights() -> None:
    items = helm.render()
    assert _rights(items, "device-plugin") == {
        ("ClusterRole", "pods"): {"get", "list", "watch", "patch"},
        ("ClusterRole", "nodes"): {"get", "list", "watch", "patch"},
        ("ClusterRole", "nodes/status"): {"patch"},
        ("ClusterRole", "nodes/pods"): {"get"},
        ("ClusterRole", "nodes/metrics"): {"get"},
        ("ClusterRole", "events.events.k8s.io"): {"create", "patch"},
        ("Role", "configmaps"): {"get", "list", "watch", "create", "patch"},
    }
    assert _rights(items, "allocator") == {
        ("ClusterRole", "nodes"): {"list", "watch"},
        ("ClusterRole", "pods"): {"get", "list", "watch", "patch"},
        ("ClusterRole", "pods/binding"): {"create"},
        ("ClusterRole", "pods/status"): {"patch"},
        ("ClusterRole", "persistentvolumeclaims"): {"get"},
        ("ClusterRole", "hypernodes.topology.volcano.sh"): {"list", "watch"},
        ("ClusterRole", "podgroups.scheduling.k8s.io"): {"list", "watch"},
        ("ClusterRole", "podgroups.scheduling.volcano.sh"): {"list", "watch"},
        ("ClusterRole", "podgroups.scheduling.x-k8s.io"): {"list", "watch"},
        ("ClusterRole", "statefulsets.apps"): {"list", "watch"},
        ("ClusterRole", "jobs.batch"): {"list", "watch"},
        ("ClusterRole", "leaderworkersets.leaderworkerset.x-k8s.io"): {"list", "watch"},
        ("ClusterRole", "ascendjobs.mindxdl.gitee.com"): {"list", "watch"},
        ("ClusterRole", "pytorchjobs.kubeflow.org"): {"list", "watch"},
        ("ClusterRole", "tfjobs.kubeflow.org"): {"list", "watch"},
        ("ClusterRole", "mpijobs.kubeflow.org"): {"list", "watch"},
        ("ClusterRole", "paddlejobs.kubeflow.org"): {"list", "watch"},
        ("ClusterRole", "modelservings.workload.serving.volcano.sh"): {"list", "watch"},
        ("ClusterRole", "stormservices.orchestration.aibrix.ai"): {"list", "watch"},
        ("ClusterRole", "jobsets.jobset.x-k8s.io"): {"list", "watch"},
        ("ClusterRole", "rayclusters.ray.io"): {"list", "watch"},
        ("ClusterRole", "jobs.batch.volcano.sh"): {"list", "watch"},
        ("ClusterRole", "events.events.k8s.io"): {"create", "patch"},
        ("ClusterRole", "subjectaccessreviews.authorization.k8s.io"): {"create"},
        ("Role", "leases.coordination.k8s.io"): {"create"},
        ("Role", f"leases.coordination.k8s.io {LEASE}"): {"get", "patch"},
        ("Role", "leaders.ascend-affinity.io"): {"create"},
        ("Role", f"leaders.ascend-affinity.io {LEASE}"): {"get", "patch"},
        ("Role", f"services {LEASE}"): {"get"},
        ("Role", f"services/status {LEASE}"): {"patch"},
        ("Role", "endpointslices.discovery.k8s.io"): {"create"},
        ("Role", f"endpointslices.discovery.k8s.io {LEASE}-leader"): {"patch", "delete"},
        ("Role", "configmaps"): {"list", "watch"},
    }
    assert _rights(items, "tenants") == {("ClusterRole", "podexplanations.ascend-affinity.io"): {"create"}}


def test_without_explanations_nobody_gets_a_right_for_them() -> None:
    items = helm.render("--set", "allocator.webhooks.explanations.enabled=false")
    assert not _rights(items, "tenants")
    assert ("ClusterRole", "subjectaccessreviews.authorization.k8s.io") not in _rights(items, "allocator")
    assert not [item for item in items if item["metadata"]["name"].endswith("-explanations")]


def test_the_webhook_for_explanations_is_called_for_nothing_that_others_depend_on() -> None:
    hooks = [hook for item in helm.render() for hook in item.get("webhooks", ())]
    (webhook,) = [hook for hook in hooks if hook["name"] == "explanations.ascend-affinity.io"]
    (rule,) = webhook["rules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE"], ["podexplanations"])
    assert webhook["sideEffects"] == "None"


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ("allocator.enabled=false", "scheduler.enabled: without allocator.enabled nobody answers"),
        (
            "allocator.tls.source=secret,allocator.tls.secretName=a,allocator.tls.clientNames={b}",
            "scheduler.certificateSecretName: with allocator.tls.source=secret name the Secret",
        ),
    ],
)
def test_a_kube_scheduler_that_could_not_call_is_refused(values: str, told: str) -> None:
    with pytest.raises(helm.HelmError, match=re.escape(told)):
        helm.render(*SCHEDULES, "--set", values)


SCHEDULER = "ascend-affinity-scheduler"
SCHEDULES = ("--set", "scheduler.enabled=true")


def test_the_kube_scheduler_has_the_rights_of_kubernetes_own_roles_and_its_lease() -> None:
    items = helm.render(*SCHEDULES)
    assert _rights(items, "scheduler") == {
        ("Role", "leases.coordination.k8s.io"): {"create"},
        ("Role", f"leases.coordination.k8s.io {SCHEDULER}"): {"get", "update"},
    }
    bindings = [item for item in items if "roleRef" in item and _component(item) == "scheduler"]
    account = {"kind": "ServiceAccount", "name": SCHEDULER, "namespace": helm.NAMESPACE}
    assert [item["subjects"] for item in bindings] == 4 * [[account]]
    granted = {(item["kind"], item["metadata"].get("namespace"), item["roleRef"]["name"]) for item in bindings}
    assert granted == {
        ("ClusterRoleBinding", None, "system:kube-scheduler"),
        ("ClusterRoleBinding", None, "system:volume-scheduler"),
        ("RoleBinding", "kube-system", "extension-apiserver-authentication-reader"),
        ("RoleBinding", helm.NAMESPACE, SCHEDULER),
    }
    assert helm.find(items, "Deployment", "scheduler")["spec"]["template"]["spec"]["serviceAccountName"] == SCHEDULER


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--kube-version", "v1.33.5-eks-1234"), "registry.k8s.io/kube-scheduler:v1.33.5"),
        (("--kube-version", "v1.32.0+k3s1"), "registry.k8s.io/kube-scheduler:v1.32.0"),
        (("--set", "scheduler.image.tag=v1.31.2"), "registry.k8s.io/kube-scheduler:v1.31.2"),
        (
            ("--set", f"scheduler.image.repository=a/b,scheduler.image.digest=sha256:{64 * '0'}"),
            f"a/b@sha256:{64 * '0'}",
        ),
    ],
)
def test_the_kube_scheduler_is_of_the_clusters_version(options: tuple[str, ...], told: str) -> None:
    workload = helm.find(helm.render(*SCHEDULES, *options), "Deployment", "scheduler")
    assert _container(workload)["image"] == told


@pytest.mark.parametrize(
    ("values", "host"),
    [
        ("scheduler.enabled=true", f"{LEASE}.kube-system.svc:443"),
        ("allocator.service.clusterIP=10.0.0.77,allocator.service.port=80", "10.0.0.77:80"),
        ("allocator.service.clusterIP=fd00::4d", "[fd00::4d]:443"),
    ],
)
def test_the_kube_scheduler_has_the_documented_configuration_under_a_name_of_its_own(values: str, host: str) -> None:
    items = helm.render(*SCHEDULES, "--set", values)
    own = yaml.safe_load(helm.find(items, "ConfigMap", "scheduler")["data"]["config.yaml"])
    documented = yaml.safe_load((helm.CHART / "kube-scheduler.yaml").read_text())
    (extender,), (theirs,) = own.pop("extenders"), documented.pop("extenders")
    folder = "/etc/kubernetes/ascend-affinity"
    assert extender.pop("urlPrefix") == f"https://{host}/scheduler"
    files = {"caFile": f"{folder}/ca.crt", "certFile": f"{folder}/client.crt", "keyFile": f"{folder}/client.key"}
    assert extender.pop("tlsConfig") == {"serverName": f"{LEASE}.kube-system.svc", **files}
    assert extender == {key: value for key, value in theirs.items() if key not in {"urlPrefix", "tlsConfig"}}
    assert own.pop("profiles") == [{"schedulerName": "ascend-scheduler"}]
    lease = {"resourceLock": "leases", "resourceName": SCHEDULER, "resourceNamespace": helm.NAMESPACE}
    assert own.pop("leaderElection") == {"leaderElect": True, **lease}
    del documented["leaderElection"], documented["clientConnection"]["kubeconfig"]
    assert own == documented


def test_over_a_port_that_is_open_to_everyone_schedulers_wait_and_bindings_are_held_less_long() -> None:
    items = helm.render(*SCHEDULES, *VARIANTS["open"])
    configuration = yaml.safe_load(helm.find(items, "ConfigMap", "scheduler")["data"]["config.yaml"])
    (extender,) = configuration["extenders"]
    assert extender["httpTimeout"] == "60s"
    assert "--gang-hold-s=50" in _container(helm.find(items, "Deployment", "allocator"))["args"]


@pytest.mark.parametrize(
    ("tls", "authority", "client"),
    [
        ("source=generated", f"{LEASE}-tls", f"{LEASE}-scheduler"),
        ("source=cert-manager", f"{LEASE}-tls", f"{LEASE}-scheduler"),
        ("source=secret,allocator.tls.secretName=a,allocator.tls.clientNames={b}", "a", "mine"),
    ],
)
def test_the_kube_scheduler_gets_no_key_but_that_of_its_own_certificate(tls: str, authority: str, client: str) -> None:
    items = helm.render(*SCHEDULES, "--set", f"allocator.tls.{tls},scheduler.certificateSecretName=mine")
    (volume,) = helm.find(items, "Deployment", "scheduler")["spec"]["template"]["spec"]["volumes"]
    secrets = [each["secret"] for each in volume["projected"]["sources"] if "secret" in each]
    files = {(each["name"], item["key"]): item["path"] for each in secrets for item in each["items"]}
    own = {(client, "tls.crt"): "client.crt", (client, "tls.key"): "client.key"}
    assert files == {(authority, "ca.crt"): "ca.crt", **own}


def test_pods_of_the_charts_kube_scheduler_are_served_beside_those_of_the_others() -> None:
    items = helm.render(*SCHEDULES, "--set", "allocator.nominate=gated")
    names = '["default-scheduler","ascend-scheduler"]'
    assert f"--scheduler-names={names}" in _container(helm.find(items, "Deployment", "allocator"))["args"]
    hooks = [hook for item in items for hook in item.get("webhooks", ()) if hook["name"].startswith("gates")]
    assert f"object.spec.schedulerName in {names}" in [each["expression"] for each in hooks[0]["matchConditions"]]
    assert "ascend-scheduler" not in json.dumps(helm.render())


def test_a_list_of_peers_admits_the_charts_kube_scheduler_too() -> None:
    peers = [{"ipBlock": {"cidr": "10.0.0.0/28"}}]
    items = helm.render(*SCHEDULES, "--set-json", f"allocator.networkPolicy.from={json.dumps(peers)}")
    rules = helm.find(items, "NetworkPolicy", "allocator")["spec"]["ingress"]
    given, added = (rule["from"] for rule in rules if {"port": "http", "protocol": "TCP"} in rule["ports"])
    assert given == peers
    (peer,) = added
    labels = helm.find(items, "Deployment", "scheduler")["spec"]["template"]["metadata"]["labels"]
    assert peer["podSelector"]["matchLabels"].items() <= labels.items()
    assert _peers(items, "scheduler") == {"https": _peers(items, "device-plugin")["http"]}


def test_a_list_of_peers_admits_the_proxy_of_volcano_too() -> None:
    peers = [{"ipBlock": {"cidr": "10.0.0.0/28"}}]
    given = ("--set-json", f"allocator.networkPolicy.from={json.dumps(peers)}")
    insecure = helm.render(*given, "--set", "allocator.volcano.enabled=true,allocator.volcano.insecurePort=8888")
    rules = helm.find(helm.render(*given, "--set", "allocator.volcano.enabled=true"), "NetworkPolicy", "allocator")
    at_http = [
        rule["from"] for rule in rules["spec"]["ingress"] if {"port": "http", "protocol": "TCP"} in rule["ports"]
    ]
    assert at_http == [peers, _peers(insecure)["volcano"]]
    assert _peers(insecure)["http"] == peers


def test_nominations_need_no_right_of_their_own() -> None:
    before = _rights(helm.render(), "allocator")
    items = helm.render("--set", "allocator.nominate=pending", "--set", "allocator.schedulerNames={ours,default}")
    assert _rights(items, "allocator") == before
    container = helm.find(items, "Deployment", "allocator")["spec"]["template"]["spec"]["containers"][0]
    assert {"--nominate=pending", '--scheduler-names=["ours","default"]'} <= set(container["args"])


def test_pod_groups_may_be_written_only_if_they_are_admitted_to_the_queue() -> None:
    before = _rights(helm.render(), "allocator")
    items = helm.render("--set", "allocator.enqueuePodGroups=true")
    assert _rights(items, "allocator") == before | {
        ("ClusterRole", "podgroups.scheduling.volcano.sh"): {"list", "watch", "patch"},
        ("ClusterRole", "podgroups/status.scheduling.volcano.sh"): {"patch"},
        ("ClusterRole", "ascendjobs.mindxdl.gitee.com"): {"get", "list", "watch"},
        ("ClusterRole", "jobs.batch.volcano.sh"): {"get", "list", "watch"},
        **{
            ("ClusterRole", f"{kind}.kubeflow.org"): {"get", "list", "watch"}
            for kind in ("pytorchjobs", "tfjobs", "mpijobs", "paddlejobs")
        },
    }
    container = helm.find(items, "Deployment", "allocator")["spec"]["template"]["spec"]["containers"][0]
    assert "--enqueue-pod-groups=true" in container["args"]


def test_objects_of_kueue_are_read_and_written_only_if_admission_checks_are_answered() -> None:
    before = _rights(helm.render(), "allocator")
    items = helm.render("--set", "allocator.admissionChecks=true")
    read, written = {"list", "watch"}, {"patch"}
    assert _rights(items, "allocator") == before | {
        **{
            ("ClusterRole", f"{kind}.kueue.x-k8s.io"): read
            for kind in ("admissionchecks", "resourceflavors", "workloads")
        },
        **{("ClusterRole", f"{kind}/status.kueue.x-k8s.io"): written for kind in ("admissionchecks", "workloads")},
    }
    container = helm.find(items, "Deployment", "allocator")["spec"]["template"]["spec"]["containers"][0]
    assert "--admission-checks=true" in container["args"]


def test_the_use_of_switches_may_be_written_only_if_it_is_published() -> None:
    def roles(*options: str) -> list[dict[str, Any]]:
        return [each for each in helm.render(*options) if each["metadata"].get("namespace") == "volcano-system"]

    assert not roles()
    role, binding = roles("--set", "allocator.publishSwitches=true")
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["tor-share-cm"], "verbs": ["get", "patch"]},
    ]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    items = helm.render("--set", "allocator.publishSwitches=true")
    container = helm.find(items, "Deployment", "allocator")["spec"]["template"]["spec"]["containers"][0]
    assert "--publish-switches=true" in container["args"]


_STORED = {
    ("Role", "configmaps"): {"create"},
    ("Role", f"configmaps {helm.RELEASE}-allocator-faults"): {"get", "patch"},
}
_DELETE = {("ClusterRole", "pods"): {"delete"}}


@pytest.mark.parametrize(
    ("mode", "by", "more"),
    [
        ("off", "delete", {}),
        ("dry-run", "delete", _STORED),
        ("on", "delete", _STORED | _DELETE),
        ("on", "evict", _STORED | _DELETE | {("ClusterRole", "pods/eviction"): {"create"}}),
    ],
)
def test_pods_may_be_deleted_only_if_jobs_are_rescheduled(
    mode: str, by: str, more: dict[tuple[str, str], set[str]]
) -> None:
    before = _rights(helm.render(), "allocator")
    items = helm.render("--set-string", f"allocator.rescheduling.mode={mode},allocator.rescheduling.by={by}")
    rights = _rights(items, "allocator")
    expected = {key: before.get(key, set()) | more.get(key, set()) for key in {*before, *more}}
    assert rights == expected
    container = helm.find(items, "Deployment", "allocator")["spec"]["template"]["spec"]["containers"][0]
    assert {f"--reschedule={mode}", f"--reschedule-by={by}"} <= set(container["args"])


def test_config_maps_of_jobs_may_be_changed_only_if_their_processes_are_told() -> None:
    on = ("--set-string", "allocator.rescheduling.mode=on", "--set", "allocator.rescheduling.resetConfig=true")
    assert _rights(helm.render(*on), "allocator")["ClusterRole", "configmaps"] == {"get", "patch"}
    for others in ((), on[:2], on[2:]):
        assert ("ClusterRole", "configmaps") not in _rights(helm.render(*others), "allocator")


def test_the_records_of_other_programs_may_be_written_only_if_they_are_wanted() -> None:
    given = ("--set-string", "allocator.rescheduling.mode=on", "--set", "allocator.rescheduling.records=true")
    roles = [item for item in helm.render(*given) if item["kind"] == "Role"]
    found = {
        item["metadata"]["namespace"]: [rule.get("resourceNames") for rule in item["rules"]]
        for item in roles
        if item["metadata"]["name"].endswith("-records")
    }
    assert found == {
        "mindx-dl": [None, ["job-reschedule-reason"]],
        "volcano-system": [None, ["vcjob-fault-npu-cm"]],
    }
    assert not [item for item in helm.render(*given[:2]) if item["metadata"]["name"].endswith("-records")]


@pytest.mark.parametrize(
    ("options", "policies", "warns"),
    [
        ((), {"own-node", "account"}, False),
        (("--set", "allocator.enabled=false"), {"own-node"}, False),
        (("--set", "allocator.policies.enabled=false"), {"own-node"}, False),
        (("--set", "devicePlugin.policies.enabled=false"), {"account"}, True),
        (("--kube-version", "1.29.9"), set(), True),
    ],
)
def test_the_accounts_are_restricted_unless_that_is_refused_or_impossible(
    tmp_path: Path,
    options: tuple[str, ...],
    policies: set[str],
    warns: bool,  # noqa: FBT001 - pytest passes parameters by name
) -> None:
    names = [item["metadata"]["name"] for item in helm.render(*options) if item["kind"] == "ValidatingAdmissionPolicy"]
    assert {each for each in ("own-node", "account") if any(name.endswith(each) for name in names)} == policies
    assert ("no admission policy ties the device plugin of a node" in helm.notes(tmp_path, *options)) == warns


@pytest.mark.parametrize("health_namespace", ["", "mindx-dl"])
def test_the_allocator_may_list_and_watch_every_kind_it_watches(health_namespace: str) -> None:
    items = helm.render("--set", f"allocator.nodeHealthNamespace={health_namespace}")
    granted: dict[tuple[str, str], set[str]] = {}
    for role in items:
        if (
            role["kind"] in {"ClusterRole", "Role"}
            and role["metadata"]["labels"]["app.kubernetes.io/component"] == "allocator"
        ):
            for rule in role["rules"]:
                for resource in rule["resources"]:
                    name = ".".join(filter(None, (resource, rule["apiGroups"][0])))
                    granted.setdefault((role["metadata"].get("namespace", ""), name), set()).update(rule["verbs"])
    for kind in watched_kinds(health_namespace):
        name = ".".join(filter(None, (kind.resource.plural, kind.resource.api_version.rpartition("/")[0])))
        assert granted.get((kind.namespace(health_namespace), name), set()) >= {"list", "watch"}, kind.name


def test_node_health_may_be_read_only_in_the_configured_namespace() -> None:
    before = _rights(helm.render(), "allocator")
    items = helm.render("--set", "allocator.nodeHealthNamespace=mindx-dl")
    elsewhere = [each for each in items if each["metadata"].get("namespace") == "mindx-dl"]
    role, binding = elsewhere
    assert (role["kind"], binding["kind"]) == ("Role", "RoleBinding")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    account = helm.find(items, "Deployment", "allocator")["spec"]["template"]["spec"]["serviceAccountName"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": helm.NAMESPACE}]
    assert _rights([each for each in items if each not in elsewhere], "allocator") == before


@pytest.mark.parametrize(
    ("version", "wanted", "subresource"),
    [
        ("1.32.9", "auto", "nodes/proxy"),
        ("1.33.0", "auto", "nodes/pods"),
        ("1.35.1-eks-1", "auto", "nodes/pods"),
        ("1.34.4", "proxy", "nodes/proxy"),
        ("1.32.9", "pods", "nodes/pods"),
    ],
)
def test_only_old_kubelets_need_the_nodes_proxy_right(version: str, wanted: str, subresource: str) -> None:
    items = helm.render("--kube-version", version, "--set", f"devicePlugin.kubelet.authorization={wanted}")
    granted = {resource for _, resource in _rights(items, "device-plugin") if resource.startswith("nodes/")}
    assert granted == {subresource, "nodes/metrics", "nodes/status"}


@pytest.mark.parametrize("options", [(), SIMULATED], ids=["dcmi", "simulated"])
def test_the_containers_have_a_restrictive_security_context(options: tuple[str, ...]) -> None:
    items = helm.render(*SCHEDULES, *options)
    for kind, component in (("DaemonSet", "device-plugin"), ("Deployment", "allocator"), ("Deployment", "scheduler")):
        spec = helm.find(items, kind, component)["spec"]["template"]["spec"]
        context = _container(helm.find(items, kind, component))["securityContext"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert context["readOnlyRootFilesystem"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        if component == "device-plugin" and not options:
            # The only exception, because Huawei's library opens the device nodes of the chips.
            assert context["privileged"]
            continue
        assert not context.get("privileged")
        assert not context["allowPrivilegeEscalation"]
        assert context["capabilities"] == {"drop": ["ALL"]}


def test_only_the_kubelets_folder_own_files_and_dev_are_mounted_writable() -> None:
    workload = helm.find(helm.render(), "DaemonSet", "device-plugin")
    volumes = {each["name"]: each for each in workload["spec"]["template"]["spec"]["volumes"]}
    writable = {mount["name"] for mount in _container(workload)["volumeMounts"] if not mount.get("readOnly")}
    assert {name for name in writable if "hostPath" in volumes[name]} == {"device-plugins", "dev", "cdi", "topology"}
    # The kubelet would write the termination message into the node's /dev.
    assert not _container(workload)["terminationMessagePath"].startswith("/dev/")
    assert volumes["driver"]["hostPath"]["path"] == "/usr/local/Ascend/driver"


def test_the_kubelets_certificates_are_mounted_where_it_keeps_them_and_only_if_needed() -> None:
    def mounted(*options: str) -> list[tuple[str, str, bool]]:
        workload = helm.find(helm.render(*options), "DaemonSet", "device-plugin")
        volumes = {each["name"]: each for each in workload["spec"]["template"]["spec"]["volumes"]}
        mounts = [each for each in _container(workload)["volumeMounts"] if each["name"] == "kubelet-certificates"]
        return [
            (volumes[each["name"]]["hostPath"]["path"], each["mountPath"], each.get("readOnly", False))
            for each in mounts
        ]

    assert mounted() == [("/var/lib/kubelet/pki", "/var/lib/kubelet/pki", True)]
    assert mounted("--set", "devicePlugin.kubelet.certDir=/x") == [("/x", "/x", True)]
    for without in ("caFile=/ca.crt", "insecureSkipTLSVerify=true"):
        assert not mounted("--set", f"devicePlugin.kubelet.{without}")


def test_labels_and_priority_of_pods_can_be_chosen_and_no_selector_changes() -> None:
    pods = {"devicePlugin": "a", "allocator": "b", "scheduler": "c"}
    named = ",".join(f"{key}.podLabels.own={name},{key}.priorityClassName={name}" for key, name in pods.items())
    items = helm.render(*SCHEDULES, "--set", f"commonLabels.team=npu,{named}")
    assert {item["metadata"]["labels"]["team"] for item in items} == {"npu"}
    workloads = {(item["kind"], _component(item)): item["spec"] for item in items if "template" in item.get("spec", {})}
    default = {_name(item): item for item in helm.render(*SCHEDULES)}
    assert len(workloads) == 3
    for (kind, component), spec in workloads.items():
        labels, name = (
            spec["template"]["metadata"]["labels"],
            pods["devicePlugin" if component == "device-plugin" else component],
        )
        assert (labels["team"], labels["own"], spec["template"]["spec"]["priorityClassName"]) == ("npu", name, name)
        assert spec["selector"] == default[kind, f"ascend-affinity-{component}"]["spec"]["selector"]


def test_an_upgrade_updates_a_tenth_of_the_nodes_at_a_time() -> None:
    workload = helm.find(helm.render(), "DaemonSet", "device-plugin")
    assert workload["spec"]["updateStrategy"]["rollingUpdate"] == {"maxSurge": "10%", "maxUnavailable": 0}
    one = helm.find(helm.render("--set", "devicePlugin.maxSurge=1"), "DaemonSet", "device-plugin")
    assert one["spec"]["updateStrategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_without_room_for_two_plugins_the_old_one_ends_first() -> None:
    for given in ("devicePlugin.maxUnavailable=20%", "devicePlugin.maxUnavailable=20%,devicePlugin.maxSurge=0"):
        workload = helm.find(helm.render("--set", given), "DaemonSet", "device-plugin")
        assert workload["spec"]["updateStrategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": "20%"}


def test_each_probe_has_its_endpoint_and_a_standby_is_available() -> None:
    workload = helm.find(helm.render(), "DaemonSet", "device-plugin")
    container = _container(workload)
    pages = [container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")]
    assert pages == ["/startupz", "/livez", "/standbyz"]
    assert workload["spec"]["template"]["spec"]["priorityClassName"] == "system-node-critical"


def _dry_run(api: Server, item: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(api.request("POST", f"{collection(item)}?dryRun=All", item))
    return answer


def _container(workload: dict[str, Any]) -> dict[str, Any]:
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = container
    return found


def _rights(items: list[dict[str, Any]], component: str) -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    roles = [item for item in items if item["kind"] in {"ClusterRole", "Role"}]
    for role in roles:
        if role["metadata"]["labels"]["app.kubernetes.io/component"] != component:
            continue
        kind = role["kind"]
        assert role["metadata"].get("namespace") == (helm.NAMESPACE if kind == "Role" else None)
        for rule in role["rules"]:
            assert rule.keys() - {"resourceNames"} == {"apiGroups", "resources", "verbs"}
            (group,) = rule["apiGroups"]
            for resource in rule["resources"]:
                name = " ".join([f"{resource}.{group}" if group else resource, *rule.get("resourceNames", [])])
                found.setdefault((kind, name), set()).update(rule["verbs"])
    return found
