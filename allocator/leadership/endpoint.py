"""Publishes the leader as the only endpoint of the Service, in an EndpointSlice that it writes itself.

Kubernetes would add every pod whose readiness probe passes. If only the leader's probe passed, a rolling update would
wait forever for the standby to become ready, and a PodDisruptionBudget would block draining the leader's node. So the
readiness probe of the pods checks whether an allocator can take part in the election (``/standbyz``), and the Service
has no selector: its one endpoint is the leader with synced informers, the one whose ``/readyz`` passes. The next leader
overwrites the object.

A condition in the status of the Service says that an allocator has been reachable there at some time. Until then an
admission policy denies what would become a storm of failed pods (deploy/charts, policies.yaml).
"""

import asyncio
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus

import structlog

from ascend.errors import ApiError, NotFound, Unreachable
from ascend.kube.client import STRATEGIC_MERGE_PATCH, KubeClient
from ascend.kube.objects import ENDPOINT_SLICES, SERVICES, JsonObject

log = structlog.get_logger()

PERIOD_S = 10.0
"""Time between writes; the API server stores nothing if the object is unchanged."""
RETRY_S = 1.0
ROUTED_S = 3.0
"""Time within which the API server reaches a new endpoint: kube-proxy writes its rules at most once a second."""
STARTED = "ascend-affinity.io/Started"
"""The type of the condition."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of an allocator.

    Attributes:
        namespace: the namespace of the Service.
        service: the name of the Service.
        ip: the address of the pod.
        ports: the ports, by name as in the Service.
    """

    namespace: str
    service: str
    ip: str
    ports: Mapping[str, int]

    @property
    def slice(self) -> str:
        """The name of the EndpointSlice."""
        return f"{self.service}-leader"


async def publish(client: KubeClient, endpoint: Endpoint, leads: Callable[[], bool]) -> None:
    """Keep the Service pointing to this allocator until cancelled; only the leader runs it.

    Args:
        client: the API server.
        endpoint: the address of this allocator.
        leads: whether this allocator still leads. A process that was suspended may not know yet that it does not; if it
            writes then, the next write of the new leader corrects it.
    """
    since = ""
    while leads():
        try:
            await _write(client, endpoint)
        except (ApiError, Unreachable) as error:
            log.warning("can't publish the endpoint of the leader", service=endpoint.service, error=error.message)
            await asyncio.sleep(RETRY_S)
            continue
        if not since:
            since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            log.info("the Service points to this allocator", service=endpoint.service, ip=endpoint.ip)
            await asyncio.sleep(ROUTED_S)
            continue
        try:
            await _tell_started(client, endpoint, since)
        except (ApiError, Unreachable) as error:
            # Without the condition a policy may deny pods; the endpoint serves its clients nevertheless.
            log.warning("can't write the condition Started", service=endpoint.service, error=error.message)
        await asyncio.sleep(PERIOD_S)


async def _tell_started(client: KubeClient, endpoint: Endpoint, since: str) -> None:
    condition = {
        "type": STARTED,
        "status": "True",
        "reason": "LeaderPublished",
        "message": "an allocator has answered at this Service",
        "lastTransitionTime": since,
    }
    body: JsonObject = {"status": {"conditions": [condition]}}
    await client.patch(
        SERVICES,
        endpoint.service,
        body,
        namespace=endpoint.namespace,
        content_type=STRATEGIC_MERGE_PATCH,
        subresource="status",
    )


async def _write(client: KubeClient, endpoint: Endpoint) -> None:
    content: JsonObject = {
        "addressType": f"IPv{ipaddress.ip_address(endpoint.ip).version}",
        "ports": [{"name": name, "port": port, "protocol": "TCP"} for name, port in sorted(endpoint.ports.items())],
        "endpoints": [{"addresses": [endpoint.ip], "conditions": {"ready": True}}],
    }
    try:
        await client.patch(ENDPOINT_SLICES, endpoint.slice, content, namespace=endpoint.namespace)
    except ApiError as error:
        if error.status == HTTPStatus.UNPROCESSABLE_ENTITY:
            # The previous leader had an address of the other IP family, and the family of a slice can't be changed.
            await client.delete(ENDPOINT_SLICES, endpoint.slice, endpoint.namespace)
        elif not isinstance(error, NotFound):
            raise
        # Owned by the Service, so that it is deleted with it.
        service = await client.get(SERVICES, endpoint.service, endpoint.namespace)
        owner = {"apiVersion": "v1", "kind": "Service", "name": service.name, "uid": service.uid}
        body: JsonObject = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": endpoint.slice,
                "namespace": endpoint.namespace,
                "labels": {
                    "kubernetes.io/service-name": endpoint.service,
                    "endpointslice.kubernetes.io/managed-by": "ascend-allocator",
                },
                "ownerReferences": [owner],
            },
            **content,
        }
        await client.create(ENDPOINT_SLICES, body, endpoint.namespace)
