"""The server: one aiohttp application on a local port, with the knobs that tests and the demo turn."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from sandbox.apiserver import discovery
from sandbox.apiserver.documents import whole
from sandbox.apiserver.faults import Faults
from sandbox.apiserver.handlers import Handlers, asks_to_watch, json_answer
from sandbox.apiserver.registry import AdmissionHook, Registry, Writing
from sandbox.apiserver.resources import SERVED, Catalogue, Resource, Target
from sandbox.apiserver.status import StatusError, method_not_allowed, no_such_resource, too_large, unauthorized
from sandbox.apiserver.store import Store
from sandbox.apiserver.watching import WatchStreams

Json = dict[str, Any]

_MAX_BODY_BYTES = 3_145_728
_USER = web.RequestKey("user", str)
_OPEN_PATHS = frozenset({"/healthz", "/livez", "/readyz"})
_SYSTEM_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_ACCESS_REVIEW = ["apis", "authorization.k8s.io", "v1", "selfsubjectaccessreviews"]
_READING = frozenset({"GET", "HEAD"})


def _now() -> datetime:
    return datetime.now(UTC)


class ApiServer:
    """An API server in this process, for tests and the demo.

    Use as `async with ApiServer() as server:`; then `server.url` is where clients connect. Beyond the API it offers
    `store` (all objects, direct), `admission` (a list of hooks, see `registry.AdmissionHook`), and failures on demand.

    Args:
        tokens: Bearer tokens to user names; None lets everybody in.
        port: Where to listen on 127.0.0.1; 0 lets the system choose.
        namespaces: Namespaces that exist from the start, besides the four that every cluster has.
        clock: Tells the time, aware, for creationTimestamp and the like.
        bookmark_interval_s: Time between bookmarks of a watch.
        history_limit: How many changes are remembered for watches that start in the past.
        watcher_limit: How many undelivered events a watch may have before its stream is closed.
        resources: The kinds to serve.
    """

    def __init__(
        self,
        *,
        tokens: Mapping[str, str] | None = None,
        port: int = 0,
        namespaces: Iterable[str] = (),
        clock: Callable[[], datetime] = _now,
        bookmark_interval_s: float = 60.0,
        history_limit: int = 20_000,
        watcher_limit: int = 10_000,
        resources: tuple[Resource, ...] = SERVED,
    ) -> None:
        self.denied: set[tuple[str, str]] = set()
        """Verbs and resources (as ``("patch", "nodes")``) that access reviews deny; nothing else looks at them."""
        self.requests: Counter[tuple[str, str]] = Counter()
        """How many requests came, by user (empty without tokens) and what was asked: ``get nodes``, ``watch pods``,
        ``post pods/binding``, ``get /apis``; probes don't count."""
        self.store = Store(history_limit=history_limit, watcher_limit=watcher_limit)
        self.admission: list[AdmissionHook] = []
        self.watches = WatchStreams(self.store, bookmark_interval_s)
        self._faults = Faults()
        self._tokens = tokens
        self._port = port
        self._namespaces = (*_SYSTEM_NAMESPACES, *namespaces)
        self._catalogue = Catalogue(resources)
        self._registry = Registry(self.store, clock, self.admission)
        self._handlers = Handlers(self.store, self._registry, self.watches)
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Where the server listens, without a slash at the end."""
        return f"http://127.0.0.1:{self._port}"

    def kubeconfig(self, token: str | None = None) -> Json:
        """A kubeconfig document that leads here.

        Args:
            token: The bearer token of its user, None for none.
        """
        user = {"token": token} if token is not None else {}
        context = {"cluster": "sandbox", "user": "sandbox", "namespace": "default"}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "sandbox", "cluster": {"server": self.url}}],
            "users": [{"name": "sandbox", "user": user}],
            "contexts": [{"name": "sandbox", "context": context}],
            "current-context": "sandbox",
        }

    async def create(self, document: Json) -> Json:
        """Create an object as a POST would, without HTTP; kind and apiVersion say which.

        Raises:
            StatusError: As the POST would be answered; 404 for a kind that is not served.
        """
        for resource in self._catalogue.of(document["apiVersion"]):
            if resource.kind == document["kind"]:
                namespace = document["metadata"].get("namespace", "default") if resource.namespaced else ""
                copy = msgspec.json.decode(msgspec.json.encode(document))
                target = Target(resource, namespace, "", "")
                entry = await self._registry.create(target, copy, Writing(manager="sandbox"))
                return whole(resource, entry.copy())
        raise no_such_resource()

    def compact(self) -> None:
        """Forget history: watches and pages that begin before now get 410 Expired."""
        self.store.compact()

    def drop_watches(self) -> None:
        """Break all watch connections."""
        self.watches.drop()

    def pause_watches(self) -> None:
        """Keep watch connections but deliver nothing on them, as behind a dead network path."""
        self.watches.pause()

    def resume_watches(self) -> None:
        """Deliver again, beginning with what has gathered."""
        self.watches.resume()

    def fail_next(self, method: str, path_regex: str, status: int, times: int = 1, retry_after_s: int = 1) -> None:
        """Answer the next matching requests with an error.

        Args:
            method: HTTP method, `*` for any.
            path_regex: Searched in path and query string.
            status: The HTTP status to answer.
            times: How many requests fail.
            retry_after_s: Retry-After of 429 and 503.
        """
        self._faults.fail_next(method, path_regex, status, times, retry_after_s)

    def lose_answer(self, method: str, path_regex: str, times: int = 1) -> None:
        """Carry out the next matching requests but break the connection instead of answering."""
        self._faults.lose_answer(method, path_regex, times)

    def delay(self, path_regex: str, seconds: float) -> None:
        """Hold up all matching requests; 0 seconds ends it."""
        self._faults.delay(path_regex, seconds)

    async def __aenter__(self) -> Self:
        for name in self._namespaces:
            await self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        middlewares = [_answer_errors, self._faults.middleware, self._authenticate]
        app = web.Application(middlewares=middlewares, client_max_size=_MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._route)
        # Cancelling handlers ends watches whose client has gone; nothing else awaits while a write is half done.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop_watches()
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _authenticate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._tokens is not None and request.path not in _OPEN_PATHS:
            scheme, _, token = request.headers.get("Authorization", "").partition(" ")
            if scheme != "Bearer" or token not in self._tokens:
                raise unauthorized()
            request[_USER] = self._tokens[token]
        return await handler(request)

    async def _route(self, request: web.Request) -> web.StreamResponse:
        parts = [part for part in request.path.split("/") if part]
        if request.path in _OPEN_PATHS:
            return web.Response(text="ok")
        if parts[:1] == ["api"] and len(parts) > 1:
            return await self._serve(request, parts[1], parts[2:])
        if parts[:1] == ["apis"] and len(parts) > len(("apis", "group")) and parts != _ACCESS_REVIEW:
            return await self._serve(request, "/".join(parts[1:3]), parts[3:])
        if parts == _ACCESS_REVIEW and request.method == "POST":
            self._count(request, parts[-1])
            return await self._review(request)
        self._count(request, request.path)
        documents: dict[str, Json | None] = {
            "version": discovery.VERSION,
            "api": discovery.api_versions(self.url.partition("//")[2]),
            "apis": discovery.group_list(self._catalogue),
        }
        document = documents.get("/".join(parts))
        if document is None and parts[:1] == ["apis"]:
            document = discovery.group(self._catalogue, parts[1])
        return _read_only(request, document)

    def _count(self, request: web.Request, what: str) -> None:
        verb = "watch" if asks_to_watch(request) else request.method.lower()
        self.requests[request.get(_USER, ""), f"{verb} {what}"] += 1

    async def _review(self, request: web.Request) -> web.StreamResponse:
        review: Json = msgspec.json.decode(await request.read())
        asked = review["spec"]["resourceAttributes"]
        names = (asked["resource"], asked.get("subresource", ""))
        denied = (asked["verb"], "/".join(filter(None, names))) in self.denied
        return json_answer(msgspec.json.encode({**review, "status": {"allowed": not denied}}), 201)

    async def _serve(self, request: web.Request, api_version: str, parts: list[str]) -> web.StreamResponse:
        if not self._catalogue.serves(api_version):
            self._count(request, request.path)
            return _read_only(request, None)
        if not parts:
            self._count(request, request.path)
            return _read_only(request, discovery.resource_list(self._catalogue, api_version))
        target = self._catalogue.target(api_version, parts)
        if target is None:
            raise no_such_resource()
        self._count(request, "/".join(filter(None, (target.resource.plural, target.subresource))))
        return await self._handlers.handle(request, target)


def _read_only(request: web.Request, document: Json | None) -> web.Response:
    if document is None:
        return web.Response(text="404 page not found\n", status=404)
    if request.method not in _READING:
        raise method_not_allowed()
    return json_answer(msgspec.json.encode(document))


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPRequestEntityTooLarge:
        refusal = too_large(_MAX_BODY_BYTES)
    except StatusError as error:
        refusal = error
    answer = json_answer(msgspec.json.encode(refusal.document()), refusal.code)
    if refusal.retry_after_s:
        answer.headers["Retry-After"] = str(refusal.retry_after_s)
    return answer
