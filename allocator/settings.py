"""The allocator's settings."""

from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_settings import SettingsConfigDict

from ascend.daemon.settings import Address, DaemonSettings, checked_address


def _grpc_address(text: str) -> str:
    return text if text.startswith("unix:") else checked_address(text)


class Settings(DaemonSettings):
    """The Ascend allocator: chooses node and chips for pods and binds them with their chips written on them."""

    model_config = SettingsConfigDict(env_prefix="ASCEND_ALLOCATOR_", extra="forbid")

    extender_address: Address = Field(
        default="0.0.0.0:8080",
        description="where the extender, /livez, /readyz and /metrics are served",
    )
    grpc_address: Annotated[str, AfterValidator(_grpc_address)] = Field(
        default="127.0.0.1:50051", description="where ascend.allocator.v1 is served: host:port or unix:<path>"
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
