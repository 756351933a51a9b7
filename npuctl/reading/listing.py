"""Lists the objects of a cluster from its API server; reading files needs none of what this imports."""

import asyncio
from collections.abc import Callable, Iterator
from http import HTTPStatus
from itertools import chain
from typing import Any

import msgspec

from allocator.state.kinds import WatchedKind, all_kinds, watched_kinds
from ascend.errors import ApiError, NotFound, Unreachable
from ascend.kube.answers import decode
from ascend.kube.client import KubeClient
from ascend.kube.objects import PODS
from npuctl.reading.objects import ClusterObjects


async def list_objects(
    client: KubeClient, health_namespace: str = "", *, skipped: Callable[[str], None] | None = None
) -> ClusterObjects:
    """List the objects from an API server.

    Args:
        client: the API server.
        health_namespace: the namespace of NodeD's and ClusterD's ConfigMaps; empty if they are not used.
        skipped: called with a sentence on each object that can't be decoded, which the allocator ignores as well;
            without it one is an error.

    Raises:
        ApiError: the API server refused.
        Unreachable: it did not answer.
    """
    kinds = watched_kinds(health_namespace)
    found = await asyncio.gather(*(_list_kind(client, kind, health_namespace, skipped) for kind in kinds))
    groups = {kind.name: some for kind, some in zip(kinds, found, strict=True) if kind.is_optional and some is not None}
    fixed = (some for kind, some in zip(kinds, found, strict=True) if not kind.is_optional and some is not None)
    return ClusterObjects.of(chain.from_iterable(fixed), groups)


async def list_within(client: KubeClient, namespace: str, *, skipped: Callable[[str], None]) -> ClusterObjects:
    """List the objects of a namespace, for those who may not list those of the cluster.

    Kinds other than pods that can't be listed there are left out, as if the cluster did not serve them.

    Args:
        client: the API server.
        namespace: the namespace.
        skipped: called with a sentence on each object that can't be decoded.

    Raises:
        ApiError: the API server refused to list the pods.
        Unreachable: it did not answer.
    """
    kinds = [kind for kind in all_kinds() if kind.resource.namespaced and kind.scope == "all"]

    async def listed(kind: WatchedKind) -> list[Any] | None:
        path = kind.resource.path(namespace=namespace)
        try:
            return list(_decoded(await client.request("GET", path, query=kind.selectors), kind, skipped))
        except ApiError:
            if kind.resource is PODS:
                raise
            return None

    found = await asyncio.gather(*map(listed, kinds))
    given = [(kind, some) for kind, some in zip(kinds, found, strict=True) if some is not None]
    groups = {kind.name: some for kind, some in given if kind.is_optional}
    return ClusterObjects.of(chain.from_iterable(some for kind, some in given if not kind.is_optional), groups)


async def _list_kind(
    client: KubeClient, kind: WatchedKind, health_namespace: str, skipped: Callable[[str], None] | None
) -> list[Any] | None:
    """List the objects of a kind; None if it is optional and the cluster does not serve it."""
    path = kind.resource.path(namespace=kind.namespace(health_namespace))
    try:
        return list(_decoded(await client.request("GET", path, query=kind.selectors), kind, skipped))
    except ApiError as error:
        # The API server checks rights first, so a kind it does not serve is forbidden too.
        is_forbidden = error.status == HTTPStatus.FORBIDDEN
        if kind.is_optional and (isinstance(error, NotFound) or (is_forbidden and not await _is_served(client, kind))):
            return None
        raise


class _List(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


def _decoded(answer: bytes, kind: WatchedKind, skipped: Callable[[str], None] | None) -> Iterator[Any]:
    for item in decode(answer, _List, "list").items or ():
        try:
            yield decode(item, kind.resource.type)
        except Unreachable as error:
            if skipped is None:
                raise
            skipped(f"{kind.resource.kind} ignored: {error}")


class _Kind(msgspec.Struct):
    name: str


class _Kinds(msgspec.Struct):
    resources: list[_Kind]


async def _is_served(client: KubeClient, kind: WatchedKind) -> bool:
    """Whether the API server serves a kind, according to its discovery, which every authenticated user may read."""
    path = f"/{kind.resource.prefix}"
    try:
        kinds = decode(await client.request("GET", path), _Kinds, f"discovery document {path}")
    except NotFound:
        return False
    except ApiError:
        return True  # the error of the list request says more
    return any(resource.name == kind.resource.plural for resource in kinds.resources)
