"""The allocator's settings."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from allocator.rules.asked import (
    DEFAULT_RESERVE_NODES,
    DEFAULT_SUPER_POD_SIZE,
    DEFAULT_VNPUS_PER_JOB,
    JobDefaults,
    SuperPodLimits,
    SwitchLimits,
)
from ascend.addresses import is_loopback, split_address
from ascend.daemon.setting import setting
from ascend.daemon.settings import DaemonSettings, TlsFiles, checked_address
from ascend.errors import InvalidValue
from ascend.jobs.described import JobDescription
from ascend.jobs.table import check_descriptions
from ascend.products import PRODUCTS


def _grpc_address(text: str) -> str:
    return text if text.startswith("unix:") else checked_address(text)


def _address_or_none(text: str) -> str:
    return checked_address(text) if text else text


def _product(name: str) -> str:
    if name and name not in PRODUCTS:
        raise InvalidValue(f"{name!r} is not a product; the products are {', '.join(PRODUCTS)}")
    return name


@dataclass(frozen=True, kw_only=True)
class Settings(DaemonSettings):
    """The Ascend allocator: chooses node and chips for pods, and binds the pods with their chips written on them."""

    prefix: ClassVar[str] = "ASCEND_ALLOCATOR_"

    extender_address: str = setting(
        default="127.0.0.1:8080",
        parse=checked_address,
        description="the address of the extender. With client_ca_file it demands a client's certificate in the"
        " handshake, so that the next two have to be given",
    )
    webhook_address: str = setting(
        default="",
        parse=_address_or_none,
        description="the address of the webhooks, to which the API server presents no certificate by default; empty:"
        " extender_address",
    )
    probe_address: str = setting(
        default="",
        parse=_address_or_none,
        description="the address of the probes and /metrics, to which a kubelet presents no certificate; empty:"
        " extender_address",
    )
    grpc_address: str = setting(
        default="127.0.0.1:50051",
        parse=_grpc_address,
        description="the address of ascend.allocator.v1: host:port or unix:<path>",
    )
    tls_cert_file: Path | None = setting(
        default=None,
        description="the server certificate, PEM; this file and the next two are reloaded when they change",
    )
    tls_key_file: Path | None = setting(default=None, description="its key, PEM")
    client_ca_file: Path | None = setting(
        default=None,
        description="the CA of the clients of gRPC, the extender and Volcano, PEM; without it they need no certificate",
    )
    client_names: list[str] = setting(
        default=[], description="the clients that are allowed: subject alternative names of their certificates"
    )
    webhooks: list[Literal["bindings", "pods", "gates", "schedulers", "explanations"]] = setting(
        default=[],
        description="the admission webhooks to serve: bindings, at /webhook/bindings, assigns chips to pods that any"
        " scheduler binds; pods, at /webhook/pods, validates pods; gates, at /webhook/gates, adds the scheduling gate"
        " of nominate=gated; schedulers, at /webhook/schedulers/<name>, names that scheduler on pods with chips that"
        " name none; explanations, at /webhook/explanations, answers why a pod waits; none if empty",
    )
    volcano: bool = setting(
        default=False,
        description="answer Volcano's extender plugin, at /volcano/ of extender_address, beside the webhook for"
        " bindings. The plugin knows neither TLS nor certificates: where the address demands them, a proxy beside"
        " Volcano's scheduler presents one",
    )
    insecure_volcano_address: str = setting(
        default="",
        parse=_address_or_none,
        description="answer it at this address too, without TLS and certificates: everyone who reaches the address can"
        " have chips reserved",
    )
    webhook_client_names: list[str] = setting(
        default=[],
        description="the same as client_names for the webhooks: the API server's name, if it presents a certificate;"
        " empty: every client that can reach the webhooks is allowed",
    )
    insecure_anyone_may_bind_pods: bool = setting(
        default=False,
        description="serve other machines also without TLS or client_ca_file; with client_ca_file a client of the"
        " extender needs no certificate, but one that it presents must be allowed, until its scheduler has one",
    )
    reservation_ttl_s: float = setting(
        default=30.0,
        gt=0,
        description="seconds after which the chips reserved for a pod that is not bound are released",
    )
    volume_wait_s: float = setting(
        default=660.0,
        ge=0,
        description="chips stay reserved for so many seconds at most while a claim of the pod is not bound: as long as "
        "its scheduler waits for volumes (bindTimeoutSeconds, 600 s), and a margin; 0 to read no claims",
    )
    gang_ttl_s: float = setting(
        default=120.0,
        gt=0,
        description="seconds after which the unused seats of a gang are released, counted from its last binding",
    )
    gang_hold_s: float = setting(
        default=290.0,
        gt=0,
        description="seconds for which the Binding of a pod of a gang is held at most, until all its pods can be bound;"
        " less than the httpTimeout in kube-scheduler's configuration. After that kube-scheduler tries the pod again",
    )
    preemption_keep_s: float = setting(
        default=60.0,
        gt=0,
        description="seconds for which the chips of preempted pods are kept for the pod or gang that preempts them,"
        " counted from the end of their grace period",
    )
    earmark_share: float = setting(
        default=0.5,
        ge=0,
        le=1,
        description="the largest share of the cluster's chips that are kept free for the waiting job that comes first,"
        " a gang or a pod alone, while others of lower or equal priority wait; a job that needs more waits until they"
        " happen to be free at one time; 0: for none",
    )
    prefer_previous_node: bool = setting(
        default=False,
        description="place a pod that replaces another pod of its job on the node of that pod, if it fits there",
    )
    default_product: str = setting(
        default="",
        parse=_product,
        description="the product for jobs of several pods that name none, on a cluster of several products; empty: such"
        " jobs are refused (ProductNotNamed)",
    )
    sharing_products: list[str] = setting(
        default=[],
        parse=_product,
        description="products whose servers may take several pods of one job of several pods, against the makers'"
        " advice for 910A and A3",
    )
    super_pod_size: int = setting(
        default=DEFAULT_SUPER_POD_SIZE,
        gt=0,
        description="the most nodes of a SuperPod: no block of a job is larger; a SuperPod with more free nodes is an"
        " error",
    )
    reserve_nodes: int = setting(
        default=DEFAULT_RESERVE_NODES,
        ge=0,
        description="how many nodes of each SuperPod blocks leave free, where possible, to replace faulty ones; if it"
        " is not below super_pod_size: 2, or 0 for SuperPods of 1 or 2 nodes",
    )
    vnpus_per_job: int = setting(
        default=DEFAULT_VNPUS_PER_JOB,
        ge=0,
        description="how many vNPUs the pods of a job may have at one time: 1 by the makers' documents; 0: any number,"
        " as in MindCluster since 2026",
    )
    nslb_version: Literal["1.0", "2.0"] = setting(
        default="1.0",
        description="by which rule servers below few leaf switches are chosen (tor-affinity): 1.0, so that no flows of"
        " a job meet on a downlink of a spine switch; 2.0, where a controller computes the paths",
    )
    shared_tor_num: int = setting(
        default=2,
        ge=1,
        le=2,
        description="how many leaf switches a job shares with other jobs at most, with nslb_version 2.0",
    )
    publish_switches: bool = setting(
        default=False,
        description="write how jobs use the leaf switches in the ConfigMap tor-share-cm in volcano-system, as"
        " MindCluster's scheduler does; needs nslb_version 2.0, and the namespace must exist",
    )
    invalid_pods: Literal["deny", "warn"] = setting(
        default="deny", description="what the webhook for pods does with a pod whose request is invalid on every node"
    )
    nominate: Literal["off", "pending", "gated"] = setting(
        default="pending",
        description="nominate a node for a pod ahead of kube-scheduler, which then filters that node alone: pending, as"
        " soon as the pod is seen; gated, before kube-scheduler sees the pod, which has a scheduling gate until its"
        " chips are reserved; off, only pods of a gang whose Bindings were held for gang_hold_s",
    )
    scheduler_names: list[str] = setting(
        default=["default-scheduler"],
        min_length=1,
        description="the schedulers that call the extender or gRPC: only pods with one of these names in schedulerName"
        " are placed, bound and nominated; Volcano's extender plugin and the webhook for Bindings serve any scheduler",
    )
    nominate_from_nodes: int = setting(
        default=500,
        ge=0,
        description="with fewer nodes than this, pods that fit are not nominated: kube-scheduler filters all nodes in"
        " less time than a nomination takes",
    )
    gate_from_nodes: int = setting(
        default=2_000,
        ge=0,
        description="with fewer nodes than this, single pods that fit are not gated: kube-scheduler filters all nodes"
        " in less time than the requests for a gate take",
    )
    nominate_window: int = setting(
        default=128, ge=2, description="the most pods that are nominated and that kube-scheduler has not filtered yet"
    )
    nominate_per_s: float = setting(
        default=500.0, gt=0, description="the most requests per second by which pods are nominated"
    )
    gate_limit_s: float = setting(
        default=600.0,
        ge=0,
        description="seconds after which the gate of a pod that fits on no node is lifted, so that a cluster autoscaler"
        " sees the pod; 0 for no limit",
    )
    job_kinds: list[JobDescription] = setting(
        default=[],
        description="kinds of jobs of operators that the allocator does not know, JSON; see docs/jobs.md",
    )
    enqueue_pod_groups: bool = setting(
        default=False,
        description="change the phase of Volcano's pod groups to Inqueue, as its scheduler does, if they belong to"
        " an AscendJob, a Volcano Job or a job of Kubeflow that names one of scheduler_names: their operators create no"
        " pods before",
    )
    admission_checks: bool = setting(
        default=False,
        description="answer Kueue's AdmissionChecks whose controllerName is ascend-affinity.io/chips: a workload is"
        " admitted when all of its pods fit, and their chips are kept for them for gang_ttl_s",
    )
    reschedule: Literal["off", "dry-run", "on"] = setting(
        default="off",
        description="delete pods whose chip or node has failed, so that their controllers create them anew, as their"
        " jobs ask for (label fault-scheduling); dry-run: only say which; off where MindCluster's Volcano plugin does"
        " it",
    )
    reschedule_by: Literal["delete", "evict"] = setting(
        default="delete",
        description="how pods are rescheduled: delete, also where a PodDisruptionBudget would not allow it, because"
        " the job has failed already; evict, by the eviction API, which heeds these budgets",
    )
    reschedule_records: bool = setting(
        default=False,
        description="write what MindCluster's programs read of rescheduling: job-reschedule-reason in mindx-dl, and the"
        " retries that jobs have left, which its operator needs for fault-retry-times, in vcjob-fault-npu-cm in"
        " volcano-system; both namespaces must exist",
    )
    reschedule_reset_config: bool = setting(
        default=False,
        description="tell the processes of jobs, in the ConfigMap reset-config-<job> of those that have one, that pods"
        " were replaced (pod-rescheduling) or that they have to leave a sub-healthy node (graceExit)",
    )
    reschedule_not_ready_s: float = setting(
        default=30.0,
        ge=0,
        description="seconds for which a node may be missing or not Ready before its pods are rescheduled",
    )
    reschedule_grace_s: float = setting(
        default=900.0,
        ge=2,
        le=3600,
        description="seconds after which a rescheduled pod that is still there is deleted without its kubelet",
    )
    reschedule_pods_per_minute: int = setting(
        default=200,
        gt=0,
        description="how many pods are rescheduled in a minute at most; one job of any size always may be",
    )
    reschedules_per_hour: int = setting(
        default=6, gt=0, description="how often pods of one job are rescheduled in an hour at most"
    )
    reschedule_faulty_share: float = setting(
        default=0.1,
        gt=0,
        le=1,
        description="nothing is rescheduled while a larger share of the nodes has faults (and more than 3 nodes), or"
        " more than half of them: that is taken for a wrong report",
    )
    leader_election: bool = setting(
        default=False,
        description="elect a leader among several allocators, by a lease; without it only one may run",
    )
    lease_namespace: str = setting(default="kube-system", min_length=1, description="the namespace of the lease")
    lease_name: str = setting(default="ascend-allocator", min_length=1, description="the name of the lease")
    lease_duration_s: float = setting(
        default=15.0,
        ge=3,
        description="seconds without renewal after which another allocator takes over; renewed every 2/15 of this",
    )
    fence: bool = setting(
        default=False,
        description="the leader writes a Leader (ascend-affinity.io) in the lease's namespace, for an admission policy",
    )
    service: str = setting(
        default="",
        description="a Service without selector, in the lease's namespace, that points to the leader",
    )
    pod_ip: str = setting(default="", description="the endpoint of the Service while this allocator leads")
    max_report_age_s: float = setting(
        default=900.0,
        ge=0,
        description="a node's report is too old if it has not changed for so many seconds; device plugins renew it "
        "every 300 s",
    )
    node_health_namespace: str = setting(
        default="",
        description="namespace in which MindCluster's NodeD reports node health (ConfigMaps mindx-dl-nodeinfo-<node>)"
        " and ClusterD what it collects (cluster-info-*): mindx-dl; empty: they are not watched, and the allocator"
        " needs no RBAC rule for them",
    )

    @property
    def job_defaults(self) -> JobDefaults:
        """What counts for all jobs."""
        limits = SuperPodLimits.of(self.super_pod_size, self.reserve_nodes)
        switches = SwitchLimits(self.nslb_version, self.shared_tor_num)
        return JobDefaults(self.default_product, tuple(self.sharing_products), limits, self.vnpus_per_job, switches)

    @property
    def reschedules(self) -> bool:
        """Whether pods are deleted after faults; a dry run only says which ones would be."""
        return self.reschedule == "on"

    @property
    def tls_files(self) -> TlsFiles | None:
        """The certificates; None without TLS."""
        if self.tls_cert_file is None or self.tls_key_file is None:
            return None
        return TlsFiles(self.tls_cert_file, self.tls_key_file, self.client_ca_file)

    def __post_init__(self) -> None:
        self._check_endpoint()
        self._check_certificates()
        self._check_protection()
        self._check_combinations()
        check_descriptions(self.job_kinds)

    def _check_combinations(self) -> None:
        if self.volcano and "bindings" not in self.webhooks:
            raise InvalidValue("volcano: needs bindings in webhooks, which writes the chips on the pods")
        if self.insecure_volcano_address and not self.volcano:
            raise InvalidValue("insecure_volcano_address: needs volcano")
        if self.publish_switches and self.nslb_version != "2.0":
            raise InvalidValue("publish_switches: needs nslb_version 2.0: with 1.0 switches have no state")

    def _check_endpoint(self) -> None:
        if self.service:
            try:
                ipaddress.ip_address(self.pod_ip)
            except ValueError as error:
                raise InvalidValue(f"pod_ip: must be the address of the pod if service is set: {error}") from error

    def _check_certificates(self) -> None:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise InvalidValue("tls_cert_file and tls_key_file: give both or neither")
        if self.client_ca_file is not None and self.tls_files is None:
            raise InvalidValue("client_ca_file: client certificates need TLS, which needs tls_cert_file")
        if (self.client_ca_file is not None) != bool(self.client_names):
            raise InvalidValue("client_ca_file and client_names: give both or neither")
        if self.webhook_client_names and not self.client_names:
            raise InvalidValue("webhook_client_names: needs client_ca_file and client_names")
        if self.client_ca_file is None:
            return
        without = "extender_address demands certificates of its clients, which {} by default have not"
        if self.webhooks and not self.webhook_address:
            raise InvalidValue(f"webhook_address: must be given: {without.format('API servers')}")
        if not self.probe_address:
            raise InvalidValue(f"probe_address: must be given: {without.format('kubelets')}")

    def _check_protection(self) -> None:
        if self.insecure_anyone_may_bind_pods:
            return
        remedy = (
            "give tls_cert_file, tls_key_file, client_ca_file and client_names, or set insecure_anyone_may_bind_pods if"
            " the network itself restricts access"
        )
        for name, has_protection in (
            ("extender_address", self.client_ca_file is not None),
            ("webhook_address", self.tls_files is not None),
            ("grpc_address", self.client_ca_file is not None),
        ):
            address: str = getattr(self, name)
            if address and _is_reachable(address) and not has_protection:
                raise InvalidValue(
                    f"{name}: {address} is reachable from other machines, and every client that reaches it can have"
                    f" pods bound or chips reserved: {remedy}"
                )


def _is_reachable(address: str) -> bool:
    return not address.startswith("unix:") and not is_loopback(split_address(address)[0])
