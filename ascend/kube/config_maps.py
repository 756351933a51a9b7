"""Stores data in a ConfigMap that only this program writes, whether it exists or not."""

from collections.abc import Mapping

from ascend.errors import NotFound
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, JsonObject


async def store(client: KubeClient, namespace: str, name: str, data: Mapping[str, str]) -> None:
    """Set keys of a ConfigMap; it is created if it does not exist, and its other keys stay.

    Args:
        client: the API server.
        namespace: its namespace.
        name: its name.
        data: the keys to set.

    Raises:
        ApiError: the API server refuses.
        Unreachable: it does not answer.
    """
    body: JsonObject = {"data": dict(data)}
    try:
        await client.patch(CONFIG_MAPS, name, body, namespace=namespace)
    except NotFound:
        await client.create(CONFIG_MAPS, {"metadata": {"name": name, "namespace": namespace}, **body}, namespace)
