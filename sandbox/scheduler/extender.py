"""The HTTP client of a scheduler extender with nodeCacheCapable.

See docs/spec/kube-api.md#extender-messages, docs/spec/kube-api.md#extender-semantics; extender.go.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import msgspec

from ascend.errors import AscendError
from ascend.kube.objects import JsonObject
from sandbox.pods import FullPod

_HTTP_TIMEOUT_S: Final = 300.0
"""The ``httpTimeout`` of the extender, as in deploy/charts/ascend-affinity/kube-scheduler.yaml."""


class ExtenderFailure(AscendError):
    """The extender did not answer, or returned an error."""


@dataclass(frozen=True, slots=True)
class ExtenderResult:
    """The result of the extender's filter.

    Attributes:
        nodes: the names of the nodes that fit, in the extender's order.
        reasons: why other nodes do not fit, by name.
    """

    nodes: tuple[str, ...]
    reasons: Mapping[str, str]


class ExtenderClient:
    """Calls ``filter`` and ``bind``: the allocator's configuration has no ``prioritizeVerb``. Close it after use.

    Args:
        url: its ``urlPrefix``.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_HTTP_TIMEOUT_S))

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def filter(self, pod: FullPod, nodes: Sequence[str]) -> ExtenderResult:
        """Return which of the nodes fit the pod.

        Raises:
            ExtenderFailure: no answer, an error, or a node that was not in the request.
        """
        body = {"Pod": pod.as_json(), "Nodes": None, "NodeNames": list(nodes)}
        answer = _lower_keys(await self._send("filter", body))
        if answer.get("error"):
            raise ExtenderFailure(str(answer["error"]))
        left = tuple(answer.get("nodenames") or ())
        for name in left:
            if name not in nodes:
                raise ExtenderFailure(
                    f'extender "{self._url}" claims a filtered node "{name}" which is not found in the input node list'
                )
        failed = answer.get("failednodes") or {}
        return ExtenderResult(left, {**failed, **(answer.get("failedandunresolvablenodes") or {})})

    async def bind(self, pod: FullPod, node: str) -> None:
        """Let the extender bind the pod.

        Raises:
            ExtenderFailure: no answer, or an error.
        """
        body = {"PodName": pod.name, "PodNamespace": pod.metadata.namespace, "PodUID": pod.uid, "Node": node}
        answer = _lower_keys(await self._send("bind", body))
        if answer.get("error"):
            raise ExtenderFailure(str(answer["error"]))

    async def _send(self, verb: str, body: JsonObject) -> Any:
        url = f"{self._url}/{verb}"
        try:
            async with self._session.post(url, json=body) as response:
                if response.status != HTTPStatus.OK:
                    raise ExtenderFailure(f"failed {verb} with extender at URL {url}, code {response.status}")
                return msgspec.json.decode(await response.read())
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ExtenderFailure(f'Post "{url}": {str(error) or type(error).__name__}') from error
        except msgspec.DecodeError as error:
            raise ExtenderFailure(f'Post "{url}": {error}') from error


def _lower_keys(answer: Any) -> dict[str, Any]:
    # Go decodes JSON keys in any case.
    return {str(key).lower(): value for key, value in answer.items()} if isinstance(answer, dict) else {}
