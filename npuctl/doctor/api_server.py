"""The checks that need the API server: rights, the kubelet's list of pods, and whether node and report agree."""

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from allocator.state.holding import read_holding
from ascend.base_device_infos import BASE_DEVICE_INFOS, read_base_device_infos
from ascend.chips import RESOURCE
from ascend.cores import read_kind
from ascend.deviceinfo import NAMESPACE, DeviceReport, config_map_name, decode_report
from ascend.errors import ApiError, AscendError, InvalidReport, InvalidValue, NotFound, Unreachable
from ascend.grammar import count
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, NODES, Node, Pod
from device_plugin.kubelet.identity import Unverified
from device_plugin.kubelet.pods_api import KubeletPods, pods_url
from device_plugin.publish.rights import KUBELET_PODS, is_granted, rights
from device_plugin.settings import Settings
from npuctl.doctor.faults import UnhealthyDevices
from npuctl.doctor.finding import Check, Finding, ok, problem, warning
from npuctl.doctor.told import OLD_S

AHEAD_S: Final = 60
"""The clocks of a cluster differ by less."""


class ApiServerChecks:
    """The checks that need the API server. If it can't be reached, the others are skipped."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: KubeClient | None = None
        self._node: Node | None = None
        self._pods: list[Pod] | None = None  # unknown

    def checks(self) -> list[Check]:
        """Return the checks; each one can explain the findings of the next."""
        return [
            Check("API server", "it does not answer, has no such Node, or the Node is not Ready", self._check_api),
            Check(
                "rights",
                "the plugin's service account lacks a right; what the right is for",
                partial(self._if_connected, self._check_rights),
                deadline_s=30.0,
            ),
            Check(
                "kubelet's pods",
                "the kubelet's `/pods` can't be read: pods of the same size are told apart only by their order",
                partial(self._if_connected, self._check_pods),
            ),
            Check(
                "report",
                "the node's report is missing, edited, not renewed or dated ahead, or the kubelet offers another"
                " number of chips than are healthy",
                partial(self._if_connected, self._check_report),
            ),
        ]

    @property
    def pods(self) -> Sequence[Pod] | None:
        """The kubelet's live pods; None if they are unknown."""
        return self._pods

    async def close(self) -> None:
        """Close connections."""
        if self._client is not None:
            await self._client.close()

    async def _check_api(self) -> Sequence[Finding]:
        name = self._settings.node_name
        try:
            client = await KubeClient.connect(self._settings.kubeconfig)
        except InvalidValue as error:
            advice = "give a kubeconfig by --kubeconfig or $KUBECONFIG, or run this in the plugin's pod"
            return [problem(error.message, advice)]
        self._client = client
        try:
            self._node = await client.get(NODES, name, timeout_s=8.0)
        except NotFound:
            advice = "give the node's name by --node-name (see `kubectl get nodes`)"
            return [problem(f"{client.url} answers, but has no Node {name!r}", advice)]
        except ApiError as error:
            sentence = f"{client.url} answers, but refuses to show Node {name!r}: {error.message}"
            return [problem(sentence, "see the rights below")]
        except Unreachable as error:
            self._client = None
            await client.close()
            advice = "check the network, the address and the certificates; running pods are not affected"
            return [problem(error.message, advice)]
        if not self._node.is_ready:
            return [warning(f"{client.url} answers; Node {name} is not Ready", "check its kubelet")]
        return [ok(f"{client.url} answers; Node {name} is Ready")]

    async def _if_connected(self, look: Callable[[KubeClient], Awaitable[Sequence[Finding]]]) -> Sequence[Finding]:
        if self._client is None:
            return [warning("skipped: the API server can't be reached")]
        return await look(self._client)

    async def _check_rights(self, client: KubeClient) -> Sequence[Finding]:
        may = partial(is_granted, client)
        wanted = rights(job_files=self._settings.job_files)
        try:
            findings = [_denied(str(right), right.why) for right in wanted if not await may(right)]
            if not any([await may(right) for right in KUBELET_PODS]):
                findings.append(_denied(" or ".join(map(str, KUBELET_PODS)), KUBELET_PODS[0].why))
        except (ApiError, Unreachable) as error:
            return [problem(f"can't be checked: {error}")]
        return findings or [ok(f"all {len(wanted) + 1} are granted")]

    async def _check_pods(self, client: KubeClient) -> Sequence[Finding]:
        settings = self._settings
        address = settings.host_ip or (self._node.internal_ip if self._node is not None else "")
        url = settings.kubelet_pods_url or pods_url(address)
        try:
            async with KubeletPods(lambda: url, client.identity_headers, settings.kubelet_identity) as kubelet:
                pods = await kubelet.list()
        except Unverified as error:
            advice = (
                "set kubelet_cert_dir to the kubelet's --cert-dir, or kubelet_ca_file to the CA of its certificate (in "
                "the chart devicePlugin.kubelet)"
            )
            sentence = f"{error}; pods of the same size can only be told apart by the order of their Bindings"
            return [warning(sentence, advice)]
        except (Unreachable, OSError) as error:
            advice = "grant get on nodes/pods (nodes/proxy before Kubernetes 1.33), and let the node reach its own port"
            sentence = f"{error}; pods of the same size can only be told apart by the order of their Bindings"
            return [warning(sentence, advice)]
        self._pods = [pod for pod in pods if pod.is_live]
        if settings.kubelet_insecure_skip_tls_verify:
            sentence = f"{url} lists {count(len(pods), 'pod')}; nothing proves that it is the kubelet"
            return [warning(sentence, "unset kubelet_insecure_skip_tls_verify: who listens there gets the token")]
        return [ok(f"{url} lists {count(len(pods), 'pod')}")]

    async def _check_report(self, client: KubeClient) -> Sequence[Finding]:
        name = f"{NAMESPACE}/{config_map_name(self._settings.node_name)}"
        try:
            found = await client.get(CONFIG_MAPS, config_map_name(self._settings.node_name), NAMESPACE)
            report = decode_report(found.data)
        except NotFound:
            advice = "the plugin writes it as soon as it runs; see device plugin above"
            return [problem(f"there is no ConfigMap {name}", advice)]
        except InvalidReport as error:
            advice = "it was edited; delete it, the plugin writes it again"
            return [problem(f"ConfigMap {name}: {error.message}", advice)]
        except AscendError as error:
            return [problem(f"ConfigMap {name} can't be read: {error.message}")]
        fresh = _freshness(name, report, time.time())
        return [fresh, _agreement(report, self._node, self._pods)] if self._node is not None else [fresh]


def _freshness(name: str, report: DeviceReport, now_s: float) -> Finding:
    if not report.update_time_s:
        advice = "start it again; no pod with chips is scheduled here until then"
        return problem(f"ConfigMap {name} says that the plugin has ended", advice)
    age_s = int(now_s - report.update_time_s)
    if age_s > OLD_S:
        advice = "see device plugin above, and its log"
        return problem(f"ConfigMap {name} is {age_s} s old, but is written every 300 s", advice)
    if age_s < -AHEAD_S:
        advice = "set the clocks: the report of a plugin that has died is used for that much longer"
        return warning(f"ConfigMap {name} is dated {-age_s} s ahead of this clock", advice)
    return ok(f"ConfigMap {name} is {max(age_s, 0)} s old and its CheckCode is correct")


def _agreement(report: DeviceReport, node: Node, pods: Sequence[Pod] | None) -> Finding:
    has_cores = node.allocatable_cores is not None and not node.allocatable_chips
    kind = read_kind(node.metadata.labels) if has_cores else None
    offered = node.allocatable_chips if kind is None else node.allocatable_cores
    if offered is None:
        advice = "the plugin is not registered: see kubelet.sock and device plugin above"
        return problem(f"the kubelet offers no {RESOURCE}", advice)
    try:
        chips = read_base_device_infos(node.metadata.annotations.get(BASE_DEVICE_INFOS, "")).chips
    except InvalidValue as error:
        return problem(f"Node {node.name}: {error.message}", "the plugin writes it again when it starts")
    total, healthy = chips.bit_count(), (chips & ~report.unhealthy).bit_count()
    each = 1 if kind is None else kind.cores
    more = (total - healthy) * each  # pods may have all of the unhealthy ones
    if pods is not None:
        kept = UnhealthyDevices.of(filter(None, map(read_holding, pods)), chips & report.unhealthy, kind)
        more = kept.chips if kind is None else kept.cores
    if not healthy * each <= offered <= healthy * each + more:
        what = count(offered, "chip" if kind is None else "AI core")
        sentence = f"the kubelet offers {what}, the report has {healthy} healthy of {count(total, 'chip')}"
        return warning(sentence, "check again in a few seconds; if it stays, restart the plugin")
    return ok(f"kubelet and report agree: {healthy} of {count(total, 'chip')} healthy")


def _denied(right: str, why: str) -> Finding:
    return problem(f"not granted: {right} ({why})", "`helm upgrade` grants what this version needs")
