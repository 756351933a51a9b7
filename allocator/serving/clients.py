"""Which clients may ask for decisions: those whose certificate names one of the allowed subject alternative names.

The extender and gRPC can have any waiting pod bound, so with an authority for clients (``client_ca_file``) they want to
know who asks. The webhook for Bindings can have chips kept, but its caller, the API server, shows a certificate only
where its operator has given it one; so its names are a setting of their own (``webhook_client_names``). Probes and
metrics, which can do nothing, ask nobody.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from grpc_health.v1 import health

from allocator.serving.rpc_errors import Context, abort
from ascend.errors import Refusal
from ascend.reasons import Reason

ANONYMOUS_SERVICE = f"/{health.SERVICE_NAME}/"
"""Health may be asked by whoever has a certificate at all."""

_Method: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"


class AllowedClients(grpc.aio.ServerInterceptor):
    """The clients that may ask, for gRPC (as an interceptor) and for HTTP.

    Args:
        names: subject alternative names, without their kind: ``kube-scheduler.kube-system.svc``,
            ``spiffe://cluster.local/ns/kube-system/sa/volcano``, ``10.0.0.7``.
        setting: which setting they come from, for who is refused.
    """

    def __init__(self, names: frozenset[str], setting: str = "client_names") -> None:
        self._names = names
        self._setting = setting

    def http(self, prefix: str) -> Middleware:
        """A middleware that keeps all others from the paths that begin so."""

        @web.middleware
        async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.path.startswith(prefix):
                refusal = self._refusal(_names(request))
                if refusal is not None:
                    return web.Response(status=403, text=f"{refusal.reason}: {refusal}\n")
            return await handler(request)

        return middleware

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Method]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Method:
        """Put the question in front of a call."""
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith(
            ANONYMOUS_SERVICE
        ):  # None: there is no such method
            return handler
        made = {
            (False, False): (grpc.unary_unary_rpc_method_handler, handler.unary_unary),
            (False, True): (grpc.unary_stream_rpc_method_handler, handler.unary_stream),
            (True, False): (grpc.stream_unary_rpc_method_handler, handler.stream_unary),
            (True, True): (grpc.stream_stream_rpc_method_handler, handler.stream_stream),
        }
        make, behaviour = made[bool(handler.request_streaming), bool(handler.response_streaming)]
        guarded: _Method = make(
            self._guarded(behaviour),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
        return guarded

    def _guarded(self, behaviour: Any) -> Any:
        async def answer(request: Any, context: Context) -> Any:
            await self._require(context)
            return await behaviour(request, context)

        async def answers(request: Any, context: Context) -> AsyncIterator[Any]:
            await self._require(context)
            async for each in behaviour(request, context):
                yield each

        return answers if inspect.isasyncgenfunction(behaviour) else answer

    async def _require(self, context: Context) -> None:
        found = context.auth_context().get("x509_subject_alternative_name", ())
        refusal = self._refusal({name.decode() for name in found})
        if refusal is not None:
            await abort(context, refusal)

    def _refusal(self, found: set[str]) -> Refusal | None:
        if found & self._names:
            return None
        who = f"a certificate for {', '.join(sorted(found))}" if found else "no certificate"
        return Refusal(Reason.CLIENT_NOT_ALLOWED, f"the client shows {who}; {self._setting} says who may ask")


def _names(request: web.Request) -> set[str]:
    certificate = request.transport.get_extra_info("peercert") if request.transport is not None else None
    return {name for _, name in (certificate or {}).get("subjectAltName", ())}
