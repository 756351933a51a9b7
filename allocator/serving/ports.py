"""The addresses of HTTP: calls of schedulers, webhooks, and probes, each with its demands on clients.

Calls demand a certificate in the handshake, before a byte of a request is read. API servers present none to webhooks by
default, and kubelets none to probes, so these have addresses of their own. Without certificates, as on loopback, one
address serves them all.
"""

import resource
import ssl
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Middleware

from allocator.serving.clients import AllowedClients
from allocator.settings import Settings
from ascend.daemon.certificates import Certificates
from ascend.daemon.validity import Validity
from ascend.serving import limits
from ascend.serving.bodies import Bodies
from ascend.serving.counts import Refusals
from ascend.serving.http import serve_http
from ascend.serving.http2 import MOST_STREAMS
from ascend.serving.limits import Limits

CALLS: Final = "http"
WEBHOOKS: Final = "webhooks"
PROBES: Final = "probes"
INSECURE_VOLCANO: Final = "volcano"


class Ports:
    """The applications, to which routes are added before they are served.

    Args:
        settings: the addresses, the files of certificates, and the clients that are allowed.

    Attributes:
        certificates: of this server; None without TLS.
        clients: the allowed clients of calls; None if all are.
        calls: the extender's verbs, and Volcano's.
        webhooks: the admission webhooks.
        probes: the probes and metrics.
        insecure_volcano: Volcano's verbs, for everyone; None if that is not served.

    Raises:
        InvalidValue: the certificates can't be used.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.certificates = Certificates(tls) if (tls := settings.tls_files) is not None else None
        clients = AllowedClients(frozenset(settings.client_names)) if settings.client_names else None
        self.clients = clients
        is_open = settings.insecure_anyone_may_bind_pods
        self._calls_verify = ssl.CERT_OPTIONAL if is_open else ssl.CERT_REQUIRED
        self.calls = _application(clients.http(also_anonymous=is_open) if clients is not None else None)
        self.webhooks, self.probes = self.calls, self.calls
        names = settings.webhook_client_names
        self._webhooks_verify = ssl.CERT_REQUIRED if names else ssl.CERT_NONE
        self._callers = callers = AllowedClients(frozenset(names), "webhook_client_names") if names else None
        if settings.webhook_address:
            self.webhooks = _application(callers.http() if callers is not None else None)
        if settings.probe_address:
            self.probes = _application()
        self.insecure_volcano = _application() if settings.insecure_volcano_address else None

    def validities(self) -> Mapping[str, Validity]:
        """The lifetimes of the certificates, and of those that clients of calls have presented."""
        own = self.certificates.validities if self.certificates is not None else {}
        return {**own, **(self.clients.validities if self.clients is not None else {})}

    async def serve(self, stack: AsyncExitStack, refusals: Refusals) -> Mapping[str, str]:
        """Serve until the stack is closed; return the addresses, by name.

        Args:
            stack: ends the servers.
            refusals: counts who is refused.

        Raises:
            InvalidValue: an address can't be listened on.
        """
        settings, found, bodies = self._settings, dict[str, str](), Bodies()

        async def add(
            name: str,
            app: web.Application,
            address: str,
            verify: ssl.VerifyMode | None,
            within: Limits,
            *,
            clients: AllowedClients | None = None,
        ) -> None:
            tls = self.certificates.http(verify) if self.certificates is not None and verify is not None else None
            knows = clients.knows if clients is not None else bool
            served = serve_http(app, address, tls=tls, knows=knows, limits=within, refusals=refusals, bodies=bodies)
            found[name] = await stack.enter_async_context(served)

        calls = _calls_within(settings)
        await add(CALLS, self.calls, settings.extender_address, self._calls_verify, calls, clients=self.clients)
        if settings.webhook_address:
            verify = self._webhooks_verify
            await add(WEBHOOKS, self.webhooks, settings.webhook_address, verify, limits.CALLS, clients=self._callers)
        if settings.probe_address:
            # With TLS, although a kubelet does not verify it: metrics name the namespaces of tenants.
            await add(PROBES, self.probes, settings.probe_address, ssl.CERT_NONE, limits.PROBES)
        if self.insecure_volcano is not None:
            address = settings.insecure_volcano_address
            await add(INSECURE_VOLCANO, self.insecure_volcano, address, None, limits.CALLS)
        return found


def most_calls(settings: Settings) -> int:
    """How many Bindings may be held at the same time, so that other calls are answered.

    Each is a request of a scheduler's connection over HTTP/2, or without certificates a connection of its own.
    """
    if _calls_within(settings) is limits.CALLS and settings.tls_files is not None:
        return MOST_STREAMS * 7 // 8
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(limits.OPEN_CALLS.connections, descriptors - limits.OPEN_CALLS.spare_descriptors) * 7 // 8


def _calls_within(settings: Settings) -> Limits:
    is_closed = bool(settings.client_names) and not settings.insecure_anyone_may_bind_pods
    return limits.CALLS if is_closed else limits.OPEN_CALLS


def _application(guard: Middleware | None = None) -> web.Application:
    return web.Application(middlewares=(guard,) if guard is not None else ())
