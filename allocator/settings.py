"""The allocator's settings."""

import ipaddress
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_settings import SettingsConfigDict

from ascend.daemon.certificates import TlsFiles
from ascend.daemon.settings import Address, DaemonSettings, checked_address
from ascend.observe.probes import is_loopback, split_address


def _grpc_address(text: str) -> str:
    return text if text.startswith("unix:") else checked_address(text)


class Settings(DaemonSettings):
    """The Ascend allocator: chooses node and chips for pods and binds them with their chips written on them."""

    model_config = SettingsConfigDict(env_prefix="ASCEND_ALLOCATOR_", extra="forbid")

    extender_address: Address = Field(
        default="127.0.0.1:8080",
        description="where the extender, the webhooks, /livez, /readyz and /metrics are served",
    )
    grpc_address: Annotated[str, AfterValidator(_grpc_address)] = Field(
        default="127.0.0.1:50051", description="where ascend.allocator.v1 is served: host:port or unix:<path>"
    )
    tls_cert_file: Path | None = Field(
        default=None, description="our certificate, PEM; it and the next two files are read again when they change"
    )
    tls_key_file: Path | None = Field(default=None, description="its key, PEM")
    client_ca_file: Path | None = Field(
        default=None, description="vouches for the clients of gRPC and the extender, PEM; without it they show nothing"
    )
    client_names: list[str] = Field(
        default=[], description="which of these clients may ask: subject alternative names of their certificates"
    )
    webhooks: list[Literal["bindings", "pods"]] = Field(
        default=[],
        description="which admission webhooks are served: bindings, at /webhook/bindings, chooses and keeps chips for"
        " whoever asks; pods, at /webhook/pods, gives an opinion; none if empty",
    )
    webhook_client_names: list[str] = Field(
        default=[],
        description="the same as client_names for the webhooks: the API server's name, where it shows a certificate;"
        " empty: whoever reaches the webhooks may ask",
    )
    insecure: bool = Field(
        default=False, description="serve other machines without TLS, and gRPC without asking who they are"
    )
    reservation_ttl_s: float = Field(
        default=30.0, gt=0, description="seconds that chips are kept for a pod nobody binds"
    )
    gang_ttl_s: float = Field(
        default=120.0,
        gt=0,
        description="seconds that a gang's places are kept after one of its pods was bound last",
    )
    prefer_previous_node: bool = Field(
        default=False,
        description="a pod that takes the place of another one in its job goes to that one's node, if it fits there",
    )
    audit_period_s: float = Field(
        default=600.0,
        ge=0,
        description="seconds between comparisons of the state with the API server's objects; 0: never",
    )
    senseless_pods: Literal["deny", "warn"] = Field(
        default="deny", description="what the webhook for pods does with one that no node could ever take"
    )
    leader_election: bool = Field(
        default=False,
        description="several allocators run, and the one that holds the lease works; without it there must be only one",
    )
    lease_namespace: str = Field(default="kube-system", min_length=1, description="where the lease is")
    lease_name: str = Field(default="ascend-allocator", min_length=1, description="the lease's name")
    lease_duration_s: float = Field(
        default=15.0,
        ge=3,
        description="seconds without a renewal after which another takes over; it is renewed every 2/15 of this",
    )
    fence: bool = Field(
        default=False,
        description="the leader writes a Leader (ascend-affinity.io) beside the lease, for an admission policy",
    )
    service: str = Field(
        default="",
        description="a Service without selector, in the lease's namespace, that is to lead to the leader",
    )
    pod_ip: str = Field(default="", description="where the Service leads while we are the leader")
    max_report_age_s: float = Field(
        default=900.0,
        ge=0,
        description="seconds after which a node's report is not believed any more; device plugins renew it every 300",
    )
    node_health_namespace: str = Field(
        default="",
        description="namespace of the ConfigMaps mindx-dl-nodeinfo-<node> in which MindCluster's NodeD tells how nodes"
        " are (mindx-dl); empty: they are not read, and the allocator needs no right to",
    )

    @property
    def tls_files(self) -> TlsFiles | None:
        """The certificates; None where there are none."""
        if self.tls_cert_file is None or self.tls_key_file is None:
            return None
        return TlsFiles(self.tls_cert_file, self.tls_key_file, self.client_ca_file)

    @model_validator(mode="after")
    def _is_reached(self) -> Self:
        if self.service:
            try:
                ipaddress.ip_address(self.pod_ip)
            except ValueError as error:
                raise ValueError(f"pod_ip: with service, the address of the pod: {error}") from error
        return self

    @model_validator(mode="after")
    def _is_protected(self) -> Self:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_cert_file and tls_key_file: one is of no use without the other")
        if self.client_ca_file is not None and self.tls_files is None:
            raise ValueError("client_ca_file: clients show certificates over TLS only, which needs tls_cert_file")
        if (self.client_ca_file is not None) != bool(self.client_names):
            raise ValueError("client_ca_file and client_names: one says who vouches for clients, the other who may ask")
        if self.webhook_client_names and not self.client_names:
            raise ValueError("webhook_client_names: nobody vouches for clients without client_ca_file and client_names")
        if self.insecure:
            return self
        remedy = "or set insecure if the network itself keeps others out"
        if _is_reachable(self.extender_address) and self.tls_files is None:
            raise ValueError(
                f"extender_address: {self.extender_address} is reached by other machines, and whoever reaches it can "
                f"have pods bound: give tls_cert_file and tls_key_file, {remedy}"
            )
        if _is_reachable(self.grpc_address) and self.client_ca_file is None:
            raise ValueError(
                f"grpc_address: {self.grpc_address} is reached by other machines, and whoever reaches it can have pods "
                f"bound: give tls_cert_file, tls_key_file, client_ca_file and client_names, {remedy}"
            )
        return self


def _is_reachable(address: str) -> bool:
    return not address.startswith("unix:") and not is_loopback(split_address(address)[0])
