"""Lists the kubelet's own pods (``/pods`` on its port), and counts the registrations it has received (``/metrics``).

The kubelet adds a pod to that list right before it admits it, one at a time
(docs/spec/kubelet.md#which-pod-is-being-admitted). Rights: ``get`` on ``nodes/proxy``, or on ``nodes/pods`` with the
kubelet's fine-grained authorisation; for the metrics on ``nodes/metrics``.
"""

import ssl
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Self
from urllib.parse import urljoin

import aiohttp
import msgspec

from ascend.addresses import join_address
from ascend.errors import TimedOut, Unreachable
from ascend.kube.objects import Pod
from device_plugin.kubelet.registrations import Registrations, parse_registrations

DEADLINE_S = 0.8
"""Short enough for a preferred allocation to use the documented rule in time if the kubelet is silent."""
METRICS_DEADLINE_S = 2.0


def pods_url(host: str) -> str:
    """Return the URL at which the kubelet with this address lists its pods by default."""
    return f"https://{join_address(host, 10250)}/pods"


class _PodList(msgspec.Struct):
    items: list[Pod] | None = None


class KubeletPods:
    """Lists the kubelet's pods. Use as an async context manager.

    Args:
        url: returns the URL of the list, such as ``https://10.0.0.5:10250/pods``; called for every request.
        headers: returns the headers that authenticate us; called for every request.
        ca_file: verifies the kubelet's certificate. Without it the certificate is not verified: by default kubelets
            sign their own, and the address is this node's own.
    """

    def __init__(
        self,
        url: Callable[[], str],
        headers: Callable[[], Awaitable[Mapping[str, str]]],
        *,
        ca_file: str | None = None,
    ) -> None:
        self._url = url
        self._headers = headers
        self._ssl = _unverified() if ca_file is None else ssl.create_default_context(cafile=ca_file)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self._ssl))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def list(self) -> list[Pod]:
        """Return the pods that the kubelet knows now.

        Raises:
            TimedOut: there is no answer in time.
            Unreachable: there is no usable answer.
        """
        url = self._url()
        try:
            return msgspec.json.decode(await self._read(url, DEADLINE_S), type=_PodList).items or []
        except (ValueError, RecursionError) as error:
            # msgspec raises them, also for input that is not UTF-8 or too deeply nested.
            raise Unreachable(f"{url}: {error}") from error

    async def registrations(self, resource: str) -> Registrations:
        """Return how often plugins have registered a resource.

        Raises:
            Unreachable: there is no usable answer in time.
        """
        page = await self._read(urljoin(self._url().rstrip("/"), "metrics"), METRICS_DEADLINE_S)
        return parse_registrations(page.decode(errors="replace"), resource)

    async def _read(self, url: str, deadline_s: float) -> bytes:
        if self._session is None:
            raise Unreachable("the session is not open")
        limit = aiohttp.ClientTimeout(total=deadline_s)
        try:
            async with self._session.get(url, headers=await self._headers(), timeout=limit) as response:
                body = await response.read()
                if response.status != 200:  # noqa: PLR2004 - OK
                    raise Unreachable(f"{url} answered {response.status} {response.reason}")
                return body
        except TimeoutError as error:
            raise TimedOut(f"{url} has not answered within {deadline_s} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unreachable(f"{url}: {str(error) or type(error).__name__}") from error


def _unverified() -> ssl.SSLContext:
    # Not from create_default_context, which would first read all authorities that the machine trusts.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
