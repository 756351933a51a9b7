"""The HTTP handlers: map methods and query parameters to operations, and results to responses."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from sandbox.apiserver.middleware import json_response
from sandbox.apiserver.paging import Page, encode_list, list_json
from sandbox.apiserver.patches import JsonPatchError, json_patch, merge_patch, strategic_merge
from sandbox.apiserver.registry import DeleteOptions, Registry
from sandbox.apiserver.resources import BINDINGS, PODS, Json, Target
from sandbox.apiserver.selectors import Selection, parse_field_selector, parse_label_selector
from sandbox.apiserver.status import (
    StatusError,
    bad_request,
    internal,
    method_not_allowed,
    success,
    unprocessable,
    unsupported_body_type,
    unsupported_patch_type,
)
from sandbox.apiserver.store import Store, StoredObject
from sandbox.apiserver.watching import WatchOptions, WatchStreams

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"

_DEFAULT_WATCH_TIMEOUT_S = 1800.0  # the real server chooses at random between this and twice this
_Verb = Callable[[web.Request, Target], Awaitable[web.StreamResponse]]
_TRUE = frozenset({"true", "1", ""})


def _number(query: str, request: web.Request) -> int | None:
    text = request.query.get(query, "")
    if not text:
        return None
    try:
        return int(text)
    except ValueError as error:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from error


def _flag(query: str, request: web.Request) -> bool:
    return query in request.query and request.query[query] in _TRUE


def is_watch(request: web.Request) -> bool:
    """Whether a GET of a collection is a watch, not a list."""
    return _flag("watch", request)


def _resource_version(request: web.Request) -> int | None:
    text = request.query.get("resourceVersion", "")
    if text and not text.isdecimal():
        why = f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        raise internal(why) if is_watch(request) else bad_request(f"invalid resource version: {why}")
    return int(text) if text else None


def _selection(request: web.Request, target: Target) -> Selection:
    return Selection(
        target.resource,
        target.namespace,
        parse_label_selector(request.query.get("labelSelector", "")),
        parse_field_selector(request.query.get("fieldSelector", ""), target.resource),
    )


def _dry_run(request: web.Request) -> bool:
    return request.query.get("dryRun") == "All"


async def _document(request: web.Request, kind: str) -> Json:
    if request.content_type not in {"application/json", "application/octet-stream"}:
        raise unsupported_body_type()
    body = await request.read()
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise bad_request(
            f"the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; "
            f"json parse error: {error}"
        ) from error


@dataclass(frozen=True, slots=True)
class Handlers:
    """The verbs of the API.

    Attributes:
        store: For lists.
        registry: For all other operations.
        streams: For watches.
    """

    store: Store
    registry: Registry
    streams: WatchStreams

    async def handle(self, request: web.Request, target: Target) -> web.StreamResponse:
        """Answer a request for a collection, an object or a subresource.

        Raises:
            StatusError: The request is refused; 405 for a verb that the target does not support.
        """
        verbs = self._verbs(target)
        handler = verbs.get(request.method)
        if handler is None:
            raise method_not_allowed()
        return await handler(request, target)

    def _verbs(self, target: Target) -> dict[str, _Verb]:
        if target.subresource == "binding":
            return {"POST": self._bind}
        if target.resource is BINDINGS:
            return {} if target.name or not target.namespace else {"POST": self._bind}
        if target.name:
            verbs: dict[str, _Verb] = {"GET": self._get, "PUT": self._put, "PATCH": self._patch}
            return verbs if target.subresource else {**verbs, "DELETE": self._delete}
        if target.resource.namespaced and not target.namespace:
            return {"GET": self._list_or_watch}
        return {"GET": self._list_or_watch, "POST": self._post, "DELETE": self._delete_collection}

    async def _get(self, _: web.Request, target: Target) -> web.StreamResponse:
        return _answer(self.registry.get(target), target)

    async def _list_or_watch(self, request: web.Request, target: Target) -> web.StreamResponse:
        selection = _selection(request, target)
        version = _resource_version(request)
        timeout_s = _number("timeoutSeconds", request)
        if not is_watch(request):
            page = Page(_number("limit", request) or 0, request.query.get("continue", ""), version)
            return json_response(list_json(self.store, selection, page))
        listing = _flag("sendInitialEvents", request)
        options = WatchOptions(
            since=None if listing or not version else version,
            initial_events=request.query.get("sendInitialEvents", "true") in _TRUE,
            bookmarks=_flag("allowWatchBookmarks", request),
            timeout_s=_DEFAULT_WATCH_TIMEOUT_S if not timeout_s else float(timeout_s),
        )
        return await self.streams.serve(request, selection, options)

    async def _post(self, request: web.Request, target: Target) -> web.StreamResponse:
        document = await _document(request, target.resource.kind)
        entry = await self.registry.create(target, document, dry_run=_dry_run(request))
        return _answer(entry, target, 201)

    async def _put(self, request: web.Request, target: Target) -> web.StreamResponse:
        document = await _document(request, target.resource.kind)
        entry, created = await self.registry.replace(target, document, dry_run=_dry_run(request))
        return _answer(entry, target, 201 if created else 200)

    async def _patch(self, request: web.Request, target: Target) -> web.StreamResponse:
        change = _decode_patch(request.content_type, await request.read())
        return _answer(await self.registry.patch(target, change, dry_run=_dry_run(request)), target)

    async def _bind(self, request: web.Request, target: Target) -> web.StreamResponse:
        binding = await _document(request, "Binding")
        name = target.name or str(binding.get("metadata", {}).get("name", ""))
        pod = Target(PODS, target.namespace, name, "binding")
        await self.registry.bind(pod, binding, dry_run=_dry_run(request))
        return json_response(msgspec.json.encode(success(201)), 201)

    async def _delete(self, request: web.Request, target: Target) -> web.StreamResponse:
        entry, gone = await self.registry.delete(target, await _delete_options(request))
        if not gone or target.resource.returns_deleted:
            return _answer(entry, target)
        details = {"name": entry.name, "kind": target.resource.plural, "uid": entry.document["metadata"]["uid"]}
        if target.resource.group:
            details["group"] = target.resource.group
        return json_response(msgspec.json.encode(success(details=details)))

    async def _delete_collection(self, request: web.Request, target: Target) -> web.StreamResponse:
        if "deletecollection" not in target.resource.verbs:
            raise method_not_allowed()
        options = await _delete_options(request)
        selection = _selection(request, target)
        metadata: dict[str, object] = {"resourceVersion": str(self.store.version)}
        entries = self.store.select(selection)
        for entry in entries:
            named = Target(target.resource, entry.namespace, entry.name, "")
            try:
                await self.registry.delete(named, options)
            except StatusError as error:
                if error.reason != "NotFound":  # another request deleted it first
                    raise
        return json_response(encode_list(selection, entries, metadata))


def _answer(entry: StoredObject, target: Target, status: int = 200) -> web.Response:
    return json_response(entry.object_json(target.resource), status)


def _decode_patch(content_type: str, body: bytes) -> Callable[[Json], Any]:
    """Return the function that applies a patch to an object. Server-side apply is not supported.

    Raises:
        StatusError: 400 for a body that is no patch of this type, 415 for another type.
    """
    if content_type not in {MERGE_PATCH, STRATEGIC_PATCH, JSON_PATCH}:
        raise unsupported_patch_type()
    try:
        if content_type == JSON_PATCH:
            operations = msgspec.json.decode(body, type=list[Any])
            return lambda document: _apply_json_patch(document, operations)
        patch = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise bad_request(f"error decoding patch: {error}") from error
    if content_type == MERGE_PATCH:
        return lambda document: merge_patch(document, patch)
    return lambda document: strategic_merge(document, patch)


def _apply_json_patch(document: Json, operations: list[Any]) -> Any:
    try:
        return json_patch(document, operations)
    except JsonPatchError as error:
        raise unprocessable() from error


async def _delete_options(request: web.Request) -> DeleteOptions:
    """Read the DeleteOptions from the body or, if it is empty, from the query, as the real server does."""
    body = await request.read()
    dry_run = _dry_run(request)
    if not body:
        return DeleteOptions(_number("gracePeriodSeconds", request), dry_run=dry_run)
    try:
        options = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise internal(f"couldn't get version/kind; json parse error: {error}") from error
    grace_s = options.get("gracePeriodSeconds")
    dry_run = dry_run or options.get("dryRun") == ["All"]
    return DeleteOptions(None if grace_s is None else int(grace_s), options.get("preconditions") or {}, dry_run)
