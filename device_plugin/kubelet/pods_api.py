"""Lists the kubelet's own pods (``/pods`` on its port), and counts the registrations it has received (``/metrics``).

The kubelet adds a pod to that list right before it admits it, one at a time
(docs/spec/kubelet.md#which-pod-is-being-admitted). It is verified before the token goes to it (``identity``). Rights:
``get`` on ``nodes/proxy``, or on ``nodes/pods`` with the kubelet's fine-grained authorisation; for the metrics on
``nodes/metrics``.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Self
from urllib.parse import urljoin

import aiohttp
import msgspec
import structlog

from ascend.addresses import join_address
from ascend.errors import TimedOut, Unreachable
from ascend.kube.objects import Pod
from device_plugin.kubelet.identity import REFUSALS, KubeletIdentity, Proof, Unverified

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

DEADLINE_S = 0.8
"""Short enough for a preferred allocation to use the documented rule in time if the kubelet is silent."""
METRICS_DEADLINE_S = 2.0
FOLLOW_S = 60.0
FOLLOW_AGAIN_S = 2.0
"""With ``DEADLINE_S`` less than between two looks of ``publish/readiness.py``: one late answer is no problem there."""


def pods_url(host: str) -> str:
    """Return the URL at which the kubelet with this address lists its pods by default."""
    return f"https://{join_address(host, 10250)}/pods"


class _PodList(msgspec.Struct):
    items: list[Pod] | None = None


_STARTED = re.compile(r"^process_start_time_seconds (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Registrations:
    """The registrations of a resource that a kubelet process has received, accepted or not.

    Attributes:
        total: their number.
        started_s: when the process was started; two readings may differ by a second.
    """

    total: int
    started_s: float


def parse_registrations(page: str, resource: str) -> Registrations:
    """Read those of a resource from a page of metrics.

    Raises:
        Unreachable: it is not the page of a kubelet.
    """
    counter = rf'^kubelet_device_plugin_registration_total\{{resource_name="{re.escape(resource)}"\}} (\S+)'
    total, started = re.search(counter, page, re.MULTILINE), _STARTED.search(page)
    try:
        if started is not None:
            return Registrations(0 if total is None else int(float(total[1])), float(started[1]))
    except (ValueError, OverflowError) as error:
        raise Unreachable(f"the kubelet's metrics: {error}") from error
    raise Unreachable("the kubelet's metrics have no process_start_time_seconds")


class KubeletPods:
    """Lists the kubelet's pods. Use as an async context manager.

    Args:
        url: returns the URL of the list, such as ``https://10.0.0.5:10250/pods``; called for every request.
        headers: returns the headers that authenticate us; called for every request.
        identity: verifies the kubelet before they are sent.
    """

    def __init__(
        self,
        url: Callable[[], str],
        headers: Callable[[], Awaitable[Mapping[str, str]]],
        identity: KubeletIdentity,
    ) -> None:
        self._url = url
        self._headers = headers
        self._identity = identity
        self._session: aiohttp.ClientSession | None = None
        self._refusal: str | None = None
        self._metrics_refusal: str | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def problem(self) -> str | None:
        """Why the kubelet was not verified, or refused its pods or metrics, the last time; None if it did not."""
        return self._pods_problem or self._metrics_refusal

    @property
    def _pods_problem(self) -> str | None:
        return self._identity.problem or self._refusal

    async def follow(self) -> None:
        """Ask now and then, so that ``problem`` is known before a pod comes, and ends after a mend, until cancelled."""
        loop, due_s = asyncio.get_running_loop(), 0.0
        while True:
            # Also others ask, as for a pod under admission, and what they find must not stay until this is due.
            if self._pods_problem is not None or loop.time() >= due_s:
                with suppress(Unreachable):
                    await self.list()
                due_s = loop.time() + FOLLOW_S
            if self._metrics_refusal is not None:
                with suppress(Unreachable):
                    await self._metrics()
            await asyncio.sleep(FOLLOW_AGAIN_S)

    async def list(self) -> list[Pod]:
        """Return the pods that the kubelet knows now.

        Raises:
            TimedOut: there is no answer in time.
            Unreachable: there is no usable answer, or the kubelet is not verified (``Unverified``).
        """
        url = self._url()
        try:
            listed = msgspec.json.decode(await self._read(url, DEADLINE_S), type=_PodList).items or []
        except Unreachable as error:
            self._refusal = error.message
            raise
        except (ValueError, RecursionError) as error:
            # msgspec raises them, also for input that is not UTF-8 or too deeply nested.
            self._refusal = f"{url}: {error}"
            raise Unreachable(self._refusal) from error
        self._refusal = None
        return listed

    async def registrations(self, resource: str) -> Registrations:
        """Return how often plugins have registered a resource.

        Raises:
            Unreachable: there is no usable answer in time.
        """
        page = await self._metrics()
        return parse_registrations(page.decode(errors="replace"), resource)

    async def _metrics(self) -> bytes:
        try:
            page = await self._read(urljoin(self._url().rstrip("/"), "metrics"), METRICS_DEADLINE_S)
        except Unreachable as error:
            if not isinstance(error, TimedOut):
                self._metrics_refusal = error.message
            raise
        self._metrics_refusal = None
        return page

    async def _read(self, url: str, deadline_s: float) -> bytes:
        if self._session is None:
            raise Unreachable("the session is not open")
        try:
            async with asyncio.timeout(deadline_s):
                return await self._read_verified(self._session, url)
        except TimeoutError as error:
            raise TimedOut(f"{url} has not answered within {deadline_s} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unreachable(f"{url}: {str(error) or type(error).__name__}") from error

    async def _read_verified(self, session: aiohttp.ClientSession, url: str) -> bytes:
        """Read from the kubelet, if it proves who it is.

        Raises:
            Unverified: it does not, and so nothing was sent.
        """
        identity = self._identity
        if identity.insecure:
            return await _body(session, url, await self._headers(), proof=False)
        if not url.startswith("https:"):
            return await _body(session, url, {}, proof=False)  # nobody can be verified there: without the token
        refusal: Exception | None = None
        for _ in ("as known", "as renewed meanwhile"):
            try:
                for proof in await identity.proofs():
                    try:
                        body = await _body(session, url, await self._headers(), proof=proof)
                    except REFUSALS as error:
                        refusal = refusal or error
                    else:
                        self._note(None)
                        return body
            except Unverified as error:
                refusal = error
            identity.forget()
        sentence = f"no token is sent to {url}, which is not proved to be the kubelet: {refusal}"
        self._note(sentence)
        raise Unverified(sentence) from refusal

    def _note(self, problem: str | None) -> None:
        if problem is not None and self._identity.problem is None:
            log.error("the kubelet can't be verified", error=problem)
        self._identity.problem = problem


MOST_BYTES: Final = 64 * 1024 * 1024
"""The most that is read: pods of up to 1.5 MB each must not fill the plugin's memory, which is limited."""


async def _body(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str], *, proof: Proof | Literal[False]
) -> bytes:
    # A kubelet redirects nobody, and what it would redirect to is not verified by its certificate.
    headers = {**headers, "Accept-Encoding": "identity"}  # a small packet may become a large chunk
    async with session.get(url, headers=headers, ssl=proof, allow_redirects=False) as response:
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > MOST_BYTES:
                response.close()
                raise Unreachable(f"{url} answers with more than {MOST_BYTES >> 20} MiB")
        if response.status != 200:  # noqa: PLR2004 - OK
            raise Unreachable(f"{url} answered {response.status} {response.reason}")
        return bytes(body)
