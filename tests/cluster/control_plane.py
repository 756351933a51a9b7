"""The control plane: etcd, kube-apiserver and kube-scheduler, with tokens and kubeconfig files."""

import json
import re
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.cluster import binaries
from tests.cluster.api import Server, free_ports
from tests.cluster.errors import ClusterError
from tests.cluster.namespace import Namespace
from tests.cluster.pod_network import PodNetwork

_READY_S: Final = 60.0
_CURVE: Final = ("-name", "prime256v1")
FEATURE_GATES: Final = ("ResourceHealthStatus",)
"""Enabled here and in the kubelet; enabled by default from 1.36 on.

See docs/spec/kubelet.md#device-health-in-pod-status.
"""
# There is no node controller to remove the not-ready taint, and pods without a controller need no ServiceAccount.
_DISABLED_ADMISSION: Final = ("ServiceAccount", "TaintNodesByCondition")


class ControlPlane:
    """The three programs, on 127.0.0.1 at ports of their own.

    Args:
        namespace: the namespaces in which they run.
        authorization_mode: `AlwaysAllow`, or `RBAC` to test rules; the administrator has all rights with both.
        pod_backoff_s: initial and maximum backoff of unschedulable pods, in seconds.
        audited: users whose requests the API server writes to `audit_log`.
        network: a network for pods, which then have ServiceAccounts too; None for pods with `hostNetwork` only.
        feature_gates: more of these that are enabled in the API server.
        scheduler_gates: those that are enabled in kube-scheduler.
        apis: versions of APIs that are served although they are off by default, as `scheduling.k8s.io/v1beta1`.
    """

    def __init__(
        self,
        namespace: Namespace,
        *,
        authorization_mode: str,
        pod_backoff_s: tuple[int, int],
        audited: Sequence[str] = (),
        network: PodNetwork | None = None,
        feature_gates: Sequence[str] = (),
        scheduler_gates: Sequence[str] = (),
        apis: Sequence[str] = (),
    ) -> None:
        self.namespace = namespace
        self.network = network
        self._audited = list(audited)
        self._feature_gates = (*FEATURE_GATES, *feature_gates)
        self._scheduler_gates = scheduler_gates
        self.plugin_config: list[dict[str, Any]] = []
        """Arguments of the scheduler's plugins; they take effect when it is started."""
        self._apis = apis
        self.admin_token = secrets.token_hex(16)
        self._authorization_mode = authorization_mode
        self._pod_backoff_s = pod_backoff_s
        self._folder = namespace.folder / "control-plane"
        self._etcd_port, self._peer_port, self._port, self._scheduler_port = free_ports(4)
        self.etcd = namespace.process("etcd", self._etcd_command())
        self.apiserver = namespace.process("kube-apiserver", self._apiserver_command())
        self.scheduler = namespace.process("kube-scheduler", self._scheduler_command())

    @property
    def url(self) -> str:
        """Base address of the API server."""
        return f"https://127.0.0.1:{self._port}"

    @property
    def ca(self) -> Path:
        """The file of the API server's certificate authority, which the API server creates."""
        return self._folder / "certificates" / "apiserver.crt"

    @property
    def audit_log(self) -> Path:
        """The API server's audit log, one JSON object per line; it does not exist if no user is audited."""
        return self._folder / "audit.log"

    @property
    def kubeconfig_path(self) -> Path:
        """The kubeconfig file of the administrator."""
        return self.namespace.folder / "kubeconfig"

    @property
    def kubelet_client(self) -> Path:
        """The client certificate with which the API server authenticates to kubelets."""
        return self._folder / "kubelet-client.crt"

    @property
    def api(self) -> Server:
        """The API server, as the administrator."""
        return Server(self.url, self.admin_token, self.ca)

    def kubeconfig(self, token: str) -> dict[str, Any]:
        """Return the kubeconfig of the user of a token."""
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority": str(self.ca)}}],
            "users": [{"name": "test", "user": {"token": token}}],
        }

    def start_api(self) -> None:
        """Start etcd and the API server; return when the API server is ready."""
        (self._folder / "certificates").mkdir(parents=True)
        (self._folder / "tokens.csv").write_text(f'{self.admin_token},admin,1,"system:masters"\n')
        _openssl("ecparam", "-genkey", "-noout", *_CURVE, "-out", str(self._folder / "service-account.key"))
        self._make_kubelet_client()
        self.kubeconfig_path.write_text(json.dumps(self.kubeconfig(self.admin_token)))
        rules = [{"level": "Metadata", "users": self._audited}, {"level": "None"}]
        policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules}
        self._audit_policy.write_text(json.dumps(policy))
        self.etcd.start()
        self.apiserver.start()  # it retries until etcd is ready
        self.wait_for_api()

    def wait_for_api(self) -> None:
        """Wait until the API server is ready, for example after a restart of it or of etcd."""
        self.apiserver.wait_until(lambda: self.ca.exists() and self.api.answers("/readyz"), timeout_s=_READY_S)

    def start_scheduler(self, extenders: Sequence[Mapping[str, Any]] | None) -> None:
        """Start or restart the scheduler with extenders; return when its caches are synced.

        Args:
            extenders: as `manifests.extender` returns them; None for none.
        """
        initial_s, maximum_s = self._pod_backoff_s
        configuration = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(self.kubeconfig_path), "qps": 5000, "burst": 5000},
            "percentageOfNodesToScore": 100,
            "podInitialBackoffSeconds": initial_s,
            "podMaxBackoffSeconds": maximum_s,
            "extenders": [dict(extender) for extender in extenders or ()],
            "profiles": [{"schedulerName": "default-scheduler", "pluginConfig": self.plugin_config}],
        }
        self._scheduler_configuration.write_text(json.dumps(configuration))
        self.scheduler.restart()
        self.scheduler.wait_until(lambda: self._scheduler_api.answers("/readyz"), timeout_s=_READY_S)

    def pods_in_active_queue(self) -> int:
        """Return how many pods the scheduler is about to try, without the one it tries now."""
        found = re.search(r'^scheduler_pending_pods\{queue="active"\} (\d+)$', self.scheduler_metrics(), re.MULTILINE)
        return int(found[1]) if found is not None else 0

    def scheduler_metrics(self) -> str:
        """Return the page of the scheduler's metrics."""
        return self._scheduler_api.request("GET", "/metrics").decode()

    @property
    def _scheduler_api(self) -> Server:
        return Server(f"https://127.0.0.1:{self._scheduler_port}")

    def _make_kubelet_client(self) -> None:
        """Create the client certificate of the API server for the kubelets; it is self-signed."""
        key, subject = self._folder / "kubelet-client.key", "/O=system:masters/CN=kube-apiserver"
        new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key))
        _openssl("req", "-x509", *new_key, "-days", "2", "-subj", subject, "-out", str(self.kubelet_client))

    @property
    def _scheduler_configuration(self) -> Path:
        return self._folder / "scheduler.json"

    @property
    def _audit_policy(self) -> Path:
        return self._folder / "audit-policy.json"

    def _etcd_command(self) -> list[str]:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        return [
            str(binaries.path("etcd")),
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]

    def _apiserver_command(self) -> list[str]:
        key = self._folder / "service-account.key"
        disabled = [each for each in _DISABLED_ADMISSION if self.network is None or each != "ServiceAccount"]
        return [
            str(binaries.path("kube-apiserver")),
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            f"--cert-dir={self._folder / 'certificates'}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._port}",
            f"--service-cluster-ip-range={self.network.services if self.network else '10.0.0.0/24'}",
            # Without kube-proxy it has to know the endpoints of webhooks itself.
            f"--enable-aggregator-routing={'true' if self.network else 'false'}",
            f"--service-account-issuer={self.url}",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            f"--token-auth-file={self._folder / 'tokens.csv'}",
            f"--authorization-mode={self._authorization_mode}",
            "--allow-privileged=true",
            f"--disable-admission-plugins={','.join(disabled)}",
            "--endpoint-reconciler-type=none",
            # The kubelets listen on 127.0.0.1, which a Node must not have as address; their names resolve to it.
            "--kubelet-preferred-address-types=Hostname",
            f"--kubelet-client-certificate={self.kubelet_client}",
            f"--kubelet-client-key={self._folder / 'kubelet-client.key'}",
            "--max-requests-inflight=3000",
            "--max-mutating-requests-inflight=1000",
            *(
                (f"--audit-policy-file={self._audit_policy}", f"--audit-log-path={self.audit_log}")
                if self._audited
                else ()
            ),
            f"--feature-gates={_enabled(self._feature_gates)}",
            f"--runtime-config={_enabled(self._apis)}",
        ]

    def _scheduler_command(self) -> list[str]:
        return [
            str(binaries.path("kube-scheduler")),
            f"--config={self._scheduler_configuration}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._scheduler_port}",
            "--authorization-always-allow-paths=/healthz,/livez,/readyz,/metrics",
            "--authentication-tolerate-lookup-failure=true",
            f"--feature-gates={_enabled(self._scheduler_gates)}",
        ]


def _enabled(names: Sequence[str]) -> str:
    return ",".join(f"{name}=true" for name in names)


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"openssl {arguments[0]} failed: {done.stderr.strip()}")
