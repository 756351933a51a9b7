"""Keeps data in a ConfigMap, whether it exists or not."""

from collections.abc import Callable, Mapping
from typing import Final

from ascend.errors import NotFound
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, JsonObject

MOST_BYTES: Final = 1 << 20
"""The API server accepts no ConfigMap whose values are longer."""
REREAD_S: Final = 60.0
"""How long what is stored counts as known: others may edit or delete it, or a former leader's write arrive late."""


async def store(client: KubeClient, namespace: str, name: str, data: Mapping[str, str]) -> None:
    """Set keys of a ConfigMap, which is created if absent; other keys stay.

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


class ConfigMapWriter:
    """Keeps keys of a ConfigMap at their values, with a request only if the stored values may differ.

    Args:
        client: the API server.
        namespace: its namespace.
        name: its name.
        monotonic: a clock, in seconds.
        absent: what a ConfigMap that does not exist counts as: it is not created for that.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        monotonic: Callable[[], float],
        *,
        absent: Mapping[str, str] | None = None,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._monotonic = monotonic
        self._absent = absent or {}
        self._stored: Mapping[str, str] | None = None
        self._reread_s = 0.0

    async def write(self, data: Mapping[str, str]) -> None:
        """Set keys, if they are not stored like this.

        Raises:
            ApiError: the API server refuses.
            Unreachable: it does not answer.
        """
        if self._stored is None or self._monotonic() >= self._reread_s:
            self._stored = await self._read()
            self._reread_s = self._monotonic() + REREAD_S
        if data.items() <= self._stored.items():
            return
        stored, self._stored = self._stored, None  # not known while a write is under way, or has failed
        await store(self._client, self._namespace, self._name, data)
        self._stored = {**stored, **data}

    def forget(self) -> None:
        """Read what is stored before the next write: others may have written meanwhile."""
        self._stored = None

    async def _read(self) -> Mapping[str, str]:
        try:
            return (await self._client.get(CONFIG_MAPS, self._name, self._namespace)).data
        except NotFound:
            return self._absent
