"""Restricts clients by the subject alternative names of their certificates.

A client of the extender or of gRPC can have pods bound, so with a CA for clients (``client_ca_file``) only the clients
in ``client_names`` are allowed. A client of the webhook for Bindings can have chips reserved, but its caller, the API
server, presents a certificate only if its operator has configured one; so there is a separate setting
(``webhook_client_names``). Certificates are demanded in the handshake (``allocator.serving.ports``); here their names
are checked.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import grpc
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from grpc_health.v1 import health

from allocator.serving.grpc_server import Context, abort
from ascend.daemon.validity import Validity
from ascend.errors import Refusal
from ascend.reasons import Reason

ANONYMOUS_SERVICE = f"/{health.SERVICE_NAME}/"
"""Health checks are open to every client with a valid certificate."""

_Method: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"


class AllowedClients(grpc.aio.ServerInterceptor):
    """The allowed clients, for gRPC (as an interceptor) and for HTTP.

    Args:
        names: subject alternative names, without their type: ``kube-scheduler.kube-system.svc``,
            ``spiffe://cluster.local/ns/kube-system/sa/volcano``, ``10.0.0.7``.
        setting: the setting that lists them, for messages.
    """

    def __init__(self, names: frozenset[str], setting: str = "client_names") -> None:
        self._names = names
        self._setting = setting
        self._presented: dict[str, Mapping[str, Any]] = {}

    @property
    def validities(self) -> Mapping[str, Validity]:
        """The lifetimes of the certificates that allowed clients of HTTP have last presented, by their names."""
        return {name: Validity.of_peer(certificate) for name, certificate in self._presented.items()}

    def knows(self, certificate: Mapping[str, Any] | None) -> bool:
        """Whether a verified certificate, or None, is that of an allowed client."""
        return not self._names.isdisjoint(_names(certificate))

    def http(self, *, also_anonymous: bool = False) -> Middleware:
        """A middleware that rejects all other clients.

        Args:
            also_anonymous: whether clients without any certificate are allowed too.
        """

        @web.middleware
        async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
            certificate: Any = request.transport.get_extra_info("peercert") if request.transport is not None else None
            if certificate or not also_anonymous:
                names = _names(certificate)
                refusal = self._refusal(names)
                if refusal is None:
                    self._presented.update(dict.fromkeys(names & self._names, certificate))
                else:
                    return web.Response(status=403, text=f"{refusal.reason}: {refusal}\n")
            return await handler(request)

        return middleware

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Method]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Method:
        """Check the client before a call is handled."""
        handler = await continuation(handler_call_details)
        # There is no handler for an unknown method.
        if handler is None or handler_call_details.method.startswith(ANONYMOUS_SERVICE):
            return handler
        makers = {
            (False, False): (grpc.unary_unary_rpc_method_handler, handler.unary_unary),
            (False, True): (grpc.unary_stream_rpc_method_handler, handler.unary_stream),
            (True, False): (grpc.stream_unary_rpc_method_handler, handler.stream_unary),
            (True, True): (grpc.stream_stream_rpc_method_handler, handler.stream_stream),
        }
        make, behaviour = makers[bool(handler.request_streaming), bool(handler.response_streaming)]
        guarded: _Method = make(
            self._guard(behaviour),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
        return guarded

    def _guard(self, behaviour: Any) -> Any:
        async def unary(request: Any, context: Context) -> Any:
            await self._require(context)
            return await behaviour(request, context)

        async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
            await self._require(context)
            async for answer in behaviour(request, context):
                yield answer

        return stream if inspect.isasyncgenfunction(behaviour) else unary

    async def _require(self, context: Context) -> None:
        found = context.auth_context().get("x509_subject_alternative_name", ())
        refusal = self._refusal({name.decode() for name in found})
        if refusal is not None:
            await abort(context, refusal)

    def _refusal(self, found: set[str]) -> Refusal | None:
        if found & self._names:
            return None
        shown = f"a certificate for {', '.join(sorted(found))}" if found else "no certificate"
        return Refusal(
            Reason.CLIENT_NOT_ALLOWED, f"the client presents {shown}; {self._setting} lists the allowed clients"
        )


def _names(certificate: Mapping[str, Any] | None) -> set[str]:
    return {name for _, name in (certificate or {}).get("subjectAltName", ())}
