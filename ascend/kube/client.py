"""A client of the API server, whose answers are decoded into slim objects, without models.

docs/spec/kube-api.md#client-cost; docs/spec/kube-api.md#watches
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from ascend.errors import TooLarge
from ascend.kube.answers import decode
from ascend.kube.objects import PODS, JsonObject, Resource, T
from ascend.kube.transport import REQUEST_TIMEOUT_S, Transport

MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"

UNVALIDATED: Final = {"fieldValidation": "Ignore"}
"""The query of frequent requests, without validation of unknown fields: for it the server decodes the body again."""

"""Within the timeout of the whole exchange."""

PAGE_SIZE = 500
PAGE_BYTES = 16 * 1024 * 1024
"""The most that is read of a page; one with more, of objects of up to 1.5 MB each, is asked for again in parts."""
_TURN_BYTES = 2 * 1024 * 1024
"""About so much is asked for in a page: finding its objects takes a few milliseconds."""
_SMALLER, _LARGER = 8, 2


class _ObjectList(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


class _AccessStatus(msgspec.Struct):
    allowed: bool


class _AccessReview(msgspec.Struct):
    status: _AccessStatus


class KubeClient(Transport):
    """The verbs of the API, on slim objects. Use it as an async context manager, within a running event loop."""

    async def get(self, resource: Resource[T], name: str, namespace: str = "", *, timeout_s: float | None = None) -> T:
        """Read one object."""
        path = resource.path(namespace=namespace, name=name)
        return decode(await self.request("GET", path, timeout_s=timeout_s), resource.type)

    async def list_objects(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        field_selector: str = "",
        timeout_s: float | None = None,
    ) -> list[T]:
        """List all objects of a kind in one response; use a reflector to keep a copy current."""
        query = {"fieldSelector": field_selector} if field_selector else None
        body = await self.request("GET", resource.path(namespace=namespace), query=query, timeout_s=timeout_s)
        page = decode(body, _ObjectList, "list")
        return [decode(item, resource.type) for item in page.items or ()]

    async def read_page(self, path: str, selectors: Mapping[str, str], token: str, size: int) -> tuple[bytes, int]:
        """The next page of a list, with at most so many objects, and how many the one after it may have; 0 begins."""
        size = size or max(PAGE_SIZE // 4, 1)  # the objects may be large
        while True:
            query = {**selectors, "limit": str(size)}
            if token:
                query["continue"] = token
            limit = PAGE_BYTES if size > 1 else None
            try:
                body = await self.request("GET", path, query=query, timeout_s=60.0, most_bytes=limit)
            except TooLarge:
                size = max(size // _SMALLER, 1)
            else:
                return body, max(min(size * _LARGER, PAGE_SIZE, size * _TURN_BYTES // len(body)), 1)

    async def create(self, resource: Resource[T], body: JsonObject, namespace: str = "") -> T:
        """Create an object; returns the object as stored. ``Conflict`` is raised if it exists."""
        manifest = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        return decode(await self.request("POST", resource.path(namespace=namespace), body=manifest), resource.type)

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        body: JsonObject | list[JsonObject],
        *,
        namespace: str = "",
        content_type: str = MERGE_PATCH,
        subresource: str = "",
        timeout_s: float | None = None,
    ) -> T:
        """Patch an object; returns it as stored. ``Conflict`` is raised if a precondition of the patch fails."""
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        answer = await self.request("PATCH", path, body=body, content_type=content_type, timeout_s=timeout_s)
        return decode(answer, resource.type)

    async def delete(
        self,
        resource: Resource[T],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        version: str = "",
        grace_s: int | None = None,
    ) -> None:
        """Delete an object.

        Args:
            resource: its kind.
            name: its name.
            namespace: its namespace.
            uid: the uid that it must have, else ``Conflict`` is raised; empty for any.
            version: the same of its resourceVersion.
            grace_s: the grace period of a pod; None for its own.
        """
        options: JsonObject = {}
        required = {"uid": uid, "resourceVersion": version}
        if preconditions := {key: value for key, value in required.items() if value}:
            options["preconditions"] = preconditions
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        await self.request("DELETE", resource.path(namespace=namespace, name=name), body=options or None)

    async def may(
        self,
        verb: str,
        resource: str,
        *,
        group: str = "",
        subresource: str = "",
        namespace: str = "",
        name: str = "",
        subject: JsonObject | None = None,
    ) -> bool:
        """Whether the server authorizes an action of this client, or of a subject: ``user``, ``groups``, ``extra``.

        From a SelfSubjectAccessReview, or a SubjectAccessReview, which takes a right of its own. An empty group is the
        core group, an empty namespace or name means all; ``resource`` is the plural name.
        """
        action = {
            "verb": verb,
            "resource": resource,
            "group": group,
            "subresource": subresource,
            "namespace": namespace,
            "name": name,
        }
        api, kind = "authorization.k8s.io/v1", "SelfSubjectAccessReview" if subject is None else "SubjectAccessReview"
        spec: JsonObject = {"resourceAttributes": action, **(subject or {})}
        body: JsonObject = {"apiVersion": api, "kind": kind, "spec": spec}
        answer = await self.request("POST", f"/apis/{api}/{kind.lower()}s", body=body)
        return decode(answer, _AccessReview, kind).status.allowed

    async def bind(
        self,
        *,
        namespace: str,
        name: str,
        uid: str,
        node: str,
        annotations: Mapping[str, str],
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        """Bind a pod to a node and annotate it, in one transaction of the API server (docs/architecture.md#decisions).

        The timeout applies in the server as well: a Binding that it has not made by then is not made later, also if it
        was posted a second time with fresh credentials.
        ``Conflict`` is raised if the pod was recreated or is already bound.
        """
        body: JsonObject = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": uid, "annotations": dict(annotations)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = PODS.path(namespace=namespace, name=name, subresource="binding")
        await self.request("POST", path, query=UNVALIDATED, body=body, timeout_s=timeout_s, limits_server=True)
