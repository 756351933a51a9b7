"""Other projects' job controllers: builds them from their Go modules, and runs them as plain processes.

Each has a module of its own in `go/`, with its dependencies at the versions it was released with. Its custom resource
definitions and webhook configurations lie in the module too, and are kept beside the program.
"""

import base64
import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import yaml

from tests.allocator.authority import Authority
from tests.cluster import binaries
from tests.cluster.api import HTTPError, Server, free_ports
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.processes import Process, wait_until

_READY_S: Final = 60.0
_NOT_SERVING: Final = "0"
_WEBHOOKS: Final = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


@dataclass(frozen=True, slots=True)
class Controller:
    """A controller.

    Attributes:
        name: its name, also of its folder in `go/`.
        module: its Go module.
        package: its program.
        manifests: folders and files of the module with its definitions and webhook configurations.
        configuration: its configuration file, completed with addresses; None if it has flags only.
        flags: its flags; `{health}`, `{webhook}` are ports.
        pods: pods with this label are sent to its webhooks, as in its kustomization; empty: all are.
        secret: the Secret (namespace, name) from which it takes its certificate, and the certificate's DNS name; empty
            if it reads files only.
        webhook_names: the names that it expects of its webhook configurations, by kind.
        converted: the plural names of the kinds whose versions its webhook converts, as in its kustomization.
        kinds: the kinds of jobs that are tried with it.
        is_long: it takes minutes to build, so its tests belong to `make test-long`.
    """

    name: str
    module: str
    package: str
    manifests: tuple[str, ...]
    configuration: Mapping[str, Any] | None = None
    flags: tuple[str, ...] = ()
    pods: str = ""
    secret: tuple[str, ...] = ()
    webhook_names: Mapping[str, str] = field(default_factory=dict)
    converted: tuple[str, ...] = ()
    kinds: str = ""
    is_long: bool = False

    @property
    def version(self) -> str:
        """Its version, as `go.mod` requires it."""
        required = re.search(rf"\s{re.escape(self.module)} (v\S+)", (self._module / "go.mod").read_text())
        if required is None:
            raise ClusterError(f"{self._module / 'go.mod'} does not require {self.module}")
        return required[1]

    @property
    def program(self) -> Path:
        """The path of the program, which may not be built yet."""
        return self._folder / self.name

    @property
    def is_built(self) -> bool:
        """Whether program and definitions are there."""
        return self.program.is_file() and self._saved.is_file() and self._saved.stat().st_size > 0

    @property
    def objects(self) -> list[dict[str, Any]]:
        """Its definitions and webhook configurations, as its module has them."""
        found = [each for each in yaml.safe_load_all(self._saved.read_text()) if each]
        return [each for each in found if each["kind"] != "Kustomization"]

    @property
    def _saved(self) -> Path:
        return self._folder / "manifests.yaml"

    @property
    def _module(self) -> Path:
        return binaries.MODULES / self.name

    @property
    def _folder(self) -> Path:
        digest = hashlib.sha256((self._module / "go.sum").read_bytes()).hexdigest()[:16]
        return binaries.folder().parent / f"{self.name}-{digest}"

    def build(self, say: Callable[[str], None] = print) -> None:
        """Build it if it is absent; concurrent callers build it once.

        Raises:
            ClusterError: the build failed; the text ends with the compiler's output.
        """
        if self.is_built:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.is_built:
                return
            started = time.monotonic()
            say(f"  {self.name} {self.version} ...")
            self._save_manifests()
            unfinished = self.program.with_suffix(".unfinished")
            _go(self._module, "build", "-trimpath", "-ldflags", "-s -w", "-o", str(unfinished), self.package)
            unfinished.rename(self.program)
            say(f"  {self.name} {self.version} built in {time.monotonic() - started:.0f} s")

    def _save_manifests(self) -> None:
        # `go list -m` names no folder while the module is not in the cache, as on a new machine.
        source = Path(json.loads(_go(self._module, "mod", "download", "-json", self.module))["Dir"])
        files = [file for each in self.manifests for file in sorted([source / each, *(source / each).glob("*.yaml")])]
        text = "\n---\n".join(file.read_text() for file in files if file.is_file())
        if not text:
            raise ClusterError(f"{self.module} in {source} has none of the manifests {', '.join(self.manifests)}")
        self._saved.write_text(text)


def _configured(group: str, **more: Any) -> dict[str, Any]:
    """Return a configuration file: leader election, which all of them have, is off."""
    return {"apiVersion": group, "kind": "Configuration", "leaderElection": {"leaderElect": False}, **more}


_KUEUE: Final = Controller(
    "kueue",
    "sigs.k8s.io/kueue",
    "sigs.k8s.io/kueue/cmd/kueue",
    ("config/components/crd/bases", "config/components/webhook/manifests.yaml"),
    # Without its own certificate management it reads a certificate for its metrics from a fixed path.
    _configured(
        "config.kueue.x-k8s.io/v1beta1",
        integrations={"frameworks": ["batch/job", "pod"]},
        clientConnection={"qps": 1000, "burst": 1000},
        # As in its own manifests; otherwise it is 1.
        controller={"groupKindConcurrency": {"Job.batch": 5, "Pod": 5, "Workload.kueue.x-k8s.io": 5}},
    ),
    # Its API server for pending workloads would need another certificate.
    flags=("--feature-gates=VisibilityOnDemand=false",),
    secret=("kueue-system", "kueue-webhook-server-cert", "kueue-webhook-service.kueue-system.svc"),
    webhook_names={
        "MutatingWebhookConfiguration": "kueue-mutating-webhook-configuration",
        "ValidatingWebhookConfiguration": "kueue-validating-webhook-configuration",
    },
    kinds="plain pods, Job",
    is_long=True,
)

CONTROLLERS: Final = {
    each.name: each
    for each in (
        Controller(
            "jobset",
            "sigs.k8s.io/jobset",
            "sigs.k8s.io/jobset",
            ("config/components/crd/bases", "config/components/webhook/manifests.yaml"),
            _configured("config.jobset.x-k8s.io/v1alpha1", internalCertManagement={"enable": False}),
            pods="jobset.sigs.k8s.io/jobset-name",
            kinds="JobSet",
        ),
        Controller(
            "lws",
            "sigs.k8s.io/lws",
            "sigs.k8s.io/lws/cmd",
            ("config/crd/bases", "config/webhook/manifests.yaml"),
            _configured("config.lws.x-k8s.io/v1alpha1", internalCertManagement={"enable": False}),
            pods="leaderworkerset.sigs.k8s.io/name",
            kinds="LeaderWorkerSet",
        ),
        _KUEUE,
        replace(
            _KUEUE,
            name="kueue-0.17.0",
            converted=("clusterqueues", "cohorts", "localqueues", "multikueueclusters", "workloads"),
        ),
        Controller(
            "training-operator",
            "github.com/kubeflow/training-operator",
            "github.com/kubeflow/training-operator/cmd/training-operator.v1",
            ("manifests/base/crds", "manifests/base/webhook/manifests.yaml"),
            flags=(
                *("--health-probe-bind-address=127.0.0.1:{health}", "--metrics-bind-address=0"),
                *("--webhook-server-port={webhook}", "--gang-scheduler-name=default-scheduler"),
            ),
            secret=("kubeflow", "training-operator-webhook-cert", "training-operator.kubeflow.svc"),
            webhook_names={"ValidatingWebhookConfiguration": "validator.training-operator.kubeflow.org"},
            kinds="PyTorchJob, TFJob, MPIJob",
            is_long=True,
        ),
        Controller(
            "ray-operator",
            "github.com/ray-project/kuberay/ray-operator",
            "github.com/ray-project/kuberay/ray-operator",
            ("config/crd/bases",),
            flags=(
                *("--health-probe-bind-address=127.0.0.1:{health}", "--metrics-addr=0"),
                "--enable-leader-election=false",
            ),
            kinds="RayCluster, RayJob, RayService",
            is_long=True,
        ),
    )
}


def absent(names: Iterable[str] = CONTROLLERS) -> list[str]:
    """Return which of some controllers are not built yet."""
    return [name for name in names if not CONTROLLERS[name].is_built]


def build(say: Callable[[str], None] = print, *, long: bool = False) -> None:
    """Build the absent controllers, with `long` those of `make test-long` too.

    Raises:
        ClusterError: `go` is missing, or a build failed; the text ends with the compiler's output.
    """
    programs = [CONTROLLERS[name] for name in absent() if long or not CONTROLLERS[name].is_long]
    if not programs:
        return
    if shutil.which("go") is None:
        raise ClusterError("the Go compiler is not on PATH, so the job controllers cannot be built")
    say(f"building {len(programs)} job controllers; without a build cache each takes a minute or two")
    for program in programs:
        program.build(say)


def start(cluster: Cluster, name: str, folder: Path, flags: Iterable[str] = ()) -> Process:
    """Install a controller's definitions and webhooks and start it; return when it is ready.

    Args:
        cluster: the cluster.
        name: the controller's name.
        folder: for its files.
        flags: further flags; of two with one name the last one counts.

    Raises:
        ClusterError: it is not built, or did not become ready; the text shows the end of its log.
    """
    controller = CONTROLLERS[name]
    health, webhook = free_ports(2)
    # cert-controller, which some of them use, replaces certificates that expire within 90 days, and a CA that is not
    # valid for its own name, whatever its version; it reads only such keys.
    authority = Authority(folder, f"{controller.module.rpartition('/')[2]}-ca", days=365, rsa=True)
    dns_name = controller.secret[2] if controller.secret else "localhost"
    pair = authority.sign(dns_name, f"DNS:{dns_name}", "IP:127.0.0.1")
    certificates = folder / f"{name}-certificates"
    certificates.mkdir()
    files = {"tls.crt": pair.cert, "tls.key": pair.key, "ca.crt": authority.cert, "ca.key": authority.key}
    for target, file in files.items():
        (certificates / target).write_bytes(file.read_bytes())
    if controller.secret:
        namespace, secret, _ = controller.secret
        apply(cluster.api, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        data = {each.name: base64.b64encode(each.read_bytes()).decode() for each in certificates.iterdir()}
        metadata = {"name": secret, "namespace": namespace}
        apply(cluster.api, {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})
    for each in controller.objects:
        _install(cluster.api, controller, each, f"https://127.0.0.1:{webhook}", authority.cert)
    own_flags = (flag.format(health=health, webhook=webhook) for flag in controller.flags)
    command = [str(controller.program), *own_flags, *flags]
    if controller.configuration is not None:
        configuration = folder / f"{name}.json"
        own = {
            "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
            "metrics": {"bindAddress": _NOT_SERVING},
            "webhook": {"host": "127.0.0.1", "port": webhook, "certDir": str(certificates)},
        }
        configuration.write_text(json.dumps({**controller.configuration, **own}))
        command.append(f"--config={configuration}")
    elif controller.secret:
        # It reads its certificate from this path only.
        fixed = Path("/tmp/k8s-webhook-server/serving-certs")
        fixed.mkdir(parents=True, exist_ok=True)
        script = 'mount --make-rprivate / && mount --bind "$1" "$2" && shift 2 && exec "$@"'
        command = ["unshare", "--mount", "sh", "-ec", script, "sh", str(certificates), str(fixed), *command]
    process = cluster.process(name, command, KUBECONFIG=str(cluster.kubeconfig_path))
    process.start()
    server = Server(f"http://127.0.0.1:{health}")
    has_webhooks = any(each["kind"] in _WEBHOOKS for each in controller.objects)
    process.wait_until(
        lambda: server.answers("/readyz") and (not has_webhooks or _listens(webhook)), timeout_s=_READY_S
    )
    return process


def apply(api: Server, item: Mapping[str, Any]) -> None:
    """Create an object; no error if it exists. Return when the kind that a definition defines is served."""
    try:
        api.create(item)
    except HTTPError as error:
        if error.status != HTTPStatus.CONFLICT:
            raise
    if item["kind"] == "CustomResourceDefinition":
        what = f"{item['metadata']['name']} is served"
        wait_until(lambda: _is_served(api, item["spec"]), timeout_s=_READY_S, what=what)


def _is_served(api: Server, spec: Mapping[str, Any]) -> bool:
    """Whether the kind of a definition can be discovered and listed, in each of its versions."""
    plural, group = spec["names"]["plural"], f"/apis/{spec['group']}"
    versions = [f"{group}/{each['name']}" for each in spec["versions"] if each["served"]]
    return all(
        api.answers(version)
        and any(each["name"] == plural for each in api.get(version)["resources"])
        and api.answers(f"{version}/{plural}")
        for version in versions
    )


def _install(api: Server, controller: Controller, item: dict[str, Any], url: str, ca: Path) -> None:
    bundle = base64.b64encode(ca.read_bytes()).decode()
    if item["kind"] not in _WEBHOOKS:
        if item.get("spec", {}).get("names", {}).get("plural") in controller.converted:
            asked = {"url": f"{url}/convert", "caBundle": bundle}
            webhook = {"clientConfig": asked, "conversionReviewVersions": ["v1"]}
            item["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
        apply(api, item)
        return
    name = controller.webhook_names.get(item["kind"], f"{controller.name}-{item['kind'].lower()}")
    for webhook in item["webhooks"]:
        path = webhook["clientConfig"]["service"]["path"]
        webhook["clientConfig"] = {"url": url + path, "caBundle": bundle}
        if controller.pods and path.endswith("-v1-pod"):
            webhook["objectSelector"] = {"matchExpressions": [{"key": controller.pods, "operator": "Exists"}]}
    apply(api, {**item, "metadata": {"name": name}})


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _go(module: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["go", *arguments],
        cwd=module,
        env={**os.environ, "CGO_ENABLED": "0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ClusterError(f"go {arguments[0]} in {module} failed:\n{done.stderr.strip()[-2000:]}")
    return done.stdout
