"""Where the Service leads: to the allocator that is ready, by an EndpointSlice that it writes itself.

Kubernetes would lead to every pod whose readiness probe passes. If only the leader passed it, a rolling update would
wait for ever for the standby to become ready, and a PodDisruptionBudget would let nobody drain the leader's node. So
the probe of the pods asks whether one can take part (``/standbyz``), and the Service has no selector: its one endpoint
is the leader with a complete view, the one whose ``/readyz`` passes. The next leader overwrites the object.
"""

import asyncio
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

import structlog

from ascend.errors import ApiError, NotFound, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.objects import ENDPOINT_SLICES, SERVICES, JsonObject

log = structlog.get_logger()

PERIOD_S = 10.0
"""Time between writes; where nothing differs the API server stores nothing."""
RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an allocator is reached.

    Attributes:
        namespace: of the Service.
        service: its name.
        ip: of the pod.
        ports: by name, as the Service has them.
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
    """Keep the Service leading here until cancelled; to be run by the leader only.

    Args:
        client: the API server.
        endpoint: where we are reached.
        leads: whether we still lead. Who has just stood still may not know yet; should it write all the same, the next
            write of the new leader puts that right.
    """
    published = False
    while leads():
        try:
            await _write(client, endpoint)
        except (ApiError, Unreachable) as error:
            log.warning("could not publish where the leader is", service=endpoint.service, error=error.message)
            await asyncio.sleep(RETRY_S)
            continue
        if not published:
            published = True
            log.info("the service leads here", service=endpoint.service, ip=endpoint.ip)
        await asyncio.sleep(PERIOD_S)


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
            # The leader before us was reached by addresses of the other kind, and a slice keeps its kind.
            await client.delete(ENDPOINT_SLICES, endpoint.slice, endpoint.namespace)
        elif not isinstance(error, NotFound):
            raise
        # Owned by the Service, so that it goes with it.
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
