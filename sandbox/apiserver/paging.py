"""Lists of objects as JSON, whole or in pages (`limit` and `continue`)."""

import base64
import binascii
from dataclasses import dataclass
from typing import Any

from msgspec import DecodeError, json

from sandbox.apiserver.selectors import Selection
from sandbox.apiserver.status import bad_request, expired, resource_version_too_large
from sandbox.apiserver.store import Store, StoredObject

_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)
_ANY_VERSION = -1  # in a token: continue with an inconsistent list


@dataclass(frozen=True, slots=True)
class Page:
    """The parameters of a list request; `limit` 0 is no limit, `resource_version` None is the latest."""

    limit: int = 0
    token: str = ""
    resource_version: int | None = None


def _token(version: int, start: str) -> str:
    encoded = json.encode({"v": "meta.k8s.io/v1", "rv": version, "start": f"{start}\0"})
    return base64.urlsafe_b64encode(encoded).decode().rstrip("=")


def _read_token(token: str) -> tuple[int, str]:
    try:
        padded = token + "=" * (-len(token) % 4)
        content = json.decode(base64.urlsafe_b64decode(padded.encode()), type=dict[str, Any])
        return int(content["rv"]), str(content["start"])
    except (binascii.Error, DecodeError, UnicodeError, KeyError, ValueError) as error:
        raise bad_request(f"invalid continue token: continue key is not valid: {error}") from error


def list_json(store: Store, selection: Selection, page: Page) -> bytes:
    """Return the list document of a page.

    All pages of a list show the state of the first. As in the real server's cache, resourceVersion 0 ignores the limit.

    Args:
        store: The objects.
        selection: The objects to list.
        page: The page.

    Raises:
        StatusError: 400 for an invalid token, 410 if the state of the first page is no longer kept, 504 for a future
            resourceVersion.
    """
    if page.resource_version is not None and page.resource_version > store.version:
        raise resource_version_too_large(page.resource_version, store.version)
    version, start = store.version, ""
    entries: list[StoredObject] | None = None
    if page.token:
        if page.resource_version:
            raise bad_request("specifying resource version is not allowed when using continue")
        requested, start = _read_token(page.token)
        if requested not in {_ANY_VERSION, store.version}:
            version = requested
            entries = store.recall(selection, version)
            if entries is None:
                raise expired(_EXPIRED, continue_token=_token(_ANY_VERSION, start.rstrip("\0")))
    if entries is None:
        entries = store.select(selection)
    shown = [entry for entry in entries if entry.key >= start] if start else entries
    metadata: dict[str, object] = {"resourceVersion": str(version)}
    if page.limit and page.resource_version != 0 and len(shown) > page.limit:
        store.remember(selection, version, entries)
        remaining = len(shown) - page.limit
        shown = shown[: page.limit]
        metadata["continue"] = _token(version, shown[-1].key)
        if not selection.is_filtered:
            metadata["remainingItemCount"] = remaining
    return encode_list(selection, shown, metadata)


def encode_list(selection: Selection, entries: list[StoredObject], metadata: dict[str, object]) -> bytes:
    """Return the list document of the entries. As on the real server, items have no kind and apiVersion."""
    resource = selection.resource
    head = f'{{"kind":"{resource.kind}List","apiVersion":"{resource.api_version}","metadata":'.encode()
    items = b",".join(entry.item_json(resource) for entry in entries)
    return head + json.encode(metadata) + b',"items":[' + items + b"]}"
