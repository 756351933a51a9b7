"""The server: an aiohttp application on a local port, and the methods by which tests and the demo control it."""

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

import msgspec
from aiohttp import web

from sandbox.apiserver import discovery
from sandbox.apiserver.documents import to_object
from sandbox.apiserver.handlers import Handlers, is_watch
from sandbox.apiserver.middleware import (
    MAX_BODY_BYTES,
    PROBES,
    USER,
    Authentication,
    FaultInjection,
    answer_errors,
    json_response,
)
from sandbox.apiserver.registry import AdmissionHook, Registry
from sandbox.apiserver.resources import SERVED, Catalogue, Json, ServedResource, Target
from sandbox.apiserver.status import method_not_allowed, no_such_resource
from sandbox.apiserver.store import Store
from sandbox.apiserver.watching import WatchStreams

_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_ACCESS_REVIEWS = [
    ["apis", "authorization.k8s.io", "v1", kind] for kind in ("selfsubjectaccessreviews", "subjectaccessreviews")
]
_READ_METHODS = frozenset({"GET", "HEAD"})


def _now() -> datetime:
    return datetime.now(UTC)


class ApiServer(FaultInjection):
    """An API server in this process, for tests and the demo.

    Use as `async with ApiServer() as server:`; clients then connect to `server.url`. Besides the API it offers `store`
    (direct access to all objects), `admission` (a list of hooks, see `registry.AdmissionHook`), and fault injection.

    Args:
        tokens: User names by bearer token; None disables authentication.
        port: Port to listen on at 127.0.0.1; 0 lets the system choose.
        clock: Returns the current time, aware, for creationTimestamp and other timestamps.
        bookmark_interval_s: Time between the bookmarks of a watch.
        history_limit: How many changes are kept for watches that start in the past.
        watcher_limit: How many undelivered events a watch may have before the server closes it.
        resources: The kinds to serve.
    """

    def __init__(
        self,
        *,
        tokens: Mapping[str, str] | None = None,
        port: int = 0,
        clock: Callable[[], datetime] = _now,
        bookmark_interval_s: float = 60.0,
        history_limit: int = 20_000,
        watcher_limit: int = 10_000,
        resources: tuple[ServedResource, ...] = SERVED,
    ) -> None:
        super().__init__()
        self.denied: set[tuple[str, str]] = set()
        """Verbs and resources, such as ``("patch", "nodes")``, that SelfSubjectAccessReviews and SubjectAccessReviews
        deny. Requests themselves are not authorized."""
        self.requests: Counter[tuple[str, str]] = Counter()
        """Number of requests by user (empty without tokens) and request: ``get nodes``, ``watch pods``,
        ``post pods/binding``, ``get /apis``; probes are not counted."""
        self.store = Store(history_limit=history_limit, watcher_limit=watcher_limit)
        self.admission: list[AdmissionHook] = []
        self.watches = WatchStreams(self.store, bookmark_interval_s)
        self._authentication = Authentication(tokens)
        self._port = port
        self._catalogue = Catalogue(resources)
        self._registry = Registry(self.store, clock, self.admission)
        self._handlers = Handlers(self.store, self._registry, self.watches)
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """The server's base address, without a trailing slash."""
        return f"http://127.0.0.1:{self._port}"

    def kubeconfig(self, token: str | None = None) -> Json:
        """Return a kubeconfig document for this server.

        Args:
            token: The user's bearer token; None for a user without credentials.
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
        """Create an object as a POST does, without HTTP; its kind and apiVersion select the resource.

        Raises:
            StatusError: The POST would be refused; 404 for a kind that is not served.
        """
        for resource in self._catalogue.of(document["apiVersion"]):
            if resource.kind == document["kind"]:
                namespace = document["metadata"].get("namespace", "default") if resource.namespaced else ""
                copy = msgspec.json.decode(msgspec.json.encode(document))
                entry = await self._registry.create(Target(resource, namespace, "", ""), copy)
                return to_object(resource, entry.copy())
        raise no_such_resource()

    def compact(self) -> None:
        """Discard history: watches and list pages that start before now get 410 Expired."""
        self.store.compact()

    def drop_watches(self) -> None:
        """Close all watch connections."""
        self.watches.drop()

    def pause_watches(self) -> None:
        """Keep watch connections open but send nothing on them, as after a network failure."""
        self.watches.pause()

    def resume_watches(self) -> None:
        """Send events again, starting with those that are queued."""
        self.watches.resume()

    async def __aenter__(self) -> Self:
        for name in _NAMESPACES:
            await self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        middlewares = [answer_errors, self.inject_faults, self._authentication.authenticate]
        app = web.Application(middlewares=middlewares, client_max_size=MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._route)
        # A disconnected client cancels its handler, which ends its watch. Writes have no await in the middle.
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

    async def _route(self, request: web.Request) -> web.StreamResponse:
        parts = [part for part in request.path.split("/") if part]
        if request.path in PROBES:
            return web.Response(text="ok")
        if parts[:1] == ["api"] and len(parts) > 1:
            return await self._serve(request, parts[1], parts[2:])
        if parts[:1] == ["apis"] and len(parts) > len(("apis", "group")) and parts not in _ACCESS_REVIEWS:
            return await self._serve(request, "/".join(parts[1:3]), parts[3:])
        if parts in _ACCESS_REVIEWS and request.method == "POST":
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

    def _count(self, request: web.Request, resource: str) -> None:
        verb = "watch" if is_watch(request) else request.method.lower()
        self.requests[request.get(USER, ""), f"{verb} {resource}"] += 1

    async def _review(self, request: web.Request) -> web.StreamResponse:
        review: Json = msgspec.json.decode(await request.read())
        attributes = review["spec"]["resourceAttributes"]
        names = (attributes["resource"], attributes.get("subresource", ""))
        denied = (attributes["verb"], "/".join(filter(None, names))) in self.denied
        return json_response(msgspec.json.encode({**review, "status": {"allowed": not denied}}), 201)

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
    if request.method not in _READ_METHODS:
        raise method_not_allowed()
    return json_response(msgspec.json.encode(document))
