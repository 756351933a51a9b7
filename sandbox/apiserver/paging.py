"""Lists: which objects, which page, at which version, as JSON bytes."""

import base64
import binascii
from dataclasses import dataclass
from typing import Any

from msgspec import DecodeError, json

from sandbox.apiserver.selectors import Selection
from sandbox.apiserver.status import bad_request, expired, resource_version_too_large
from sandbox.apiserver.store import Entry, Store

_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)
_ANY_VERSION = -1  # the version in a token that accepts an inconsistent list


@dataclass(frozen=True, slots=True)
class Page:
    """What a list request asks for; `limit` 0 is no limit, `resource_version` None is the newest."""

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
    """The list document.

    Pages of one list all show the state of the first. Version 0 ignores the limit, as the real server's cache does.

    Args:
        store: Where the objects are.
        selection: Which ones.
        page: Which part of them.

    Raises:
        StatusError: 400 for a bad token, 410 where the first page's state is forgotten, 504 for a future version.
    """
    if page.resource_version is not None and page.resource_version > store.version:
        raise resource_version_too_large(page.resource_version, store.version)
    version, start = store.version, ""
    entries: list[Entry] | None = None
    if page.token:
        if page.resource_version:
            raise bad_request("specifying resource version is not allowed when using continue")
        asked, start = _read_token(page.token)
        if asked not in {_ANY_VERSION, store.version}:
            version = asked
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


def encode_list(selection: Selection, entries: list[Entry], metadata: dict[str, object]) -> bytes:
    """The list document of given objects, which carry no kind and apiVersion of their own, as on the real server."""
    resource = selection.resource
    head = f'{{"kind":"{resource.kind}List","apiVersion":"{resource.api_version}","metadata":'.encode()
    items = b",".join(entry.item_json(resource) for entry in entries)
    return head + json.encode(metadata) + b',"items":[' + items + b"]}"
