"""The patch types of the API: JSON merge patch, Kubernetes' strategic merge patch, and JSON patch.

The strategic merge patch knows the merge keys of the lists that our programs write; it replaces every other list.
No function changes its arguments; results share unchanged parts with them.
"""

from types import MappingProxyType
from typing import Any

import jsonpatch

from sandbox.apiserver.resources import Json

# patchMergeKey tags of k8s.io/api core/v1 and meta/v1.
MERGE_KEYS = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "schedulingGates": "name",
    "volumes": "name",
}
_MERGED_PRIMITIVES = frozenset({"finalizers"})
_DIRECTIVES = ("$setElementOrder/", "$deleteFromPrimitiveList/", "$retainKeys")


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386): objects merge by key, null deletes, any other value replaces.

    Args:
        target: The JSON value to patch.
        patch: The patch document.

    Returns:
        The patched value.
    """
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def strategic_merge(target: Json, patch: Json) -> Json:
    """Apply a strategic merge patch: a merge patch in which lists with a merge key merge by element.

    Args:
        target: The object to patch.
        patch: The patch, optionally with `$patch: delete|replace` and `$deleteFromPrimitiveList/<field>`.

    Returns:
        The patched object.
    """
    directive = patch.get("$patch")
    if directive == "delete":
        return {}
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    merged = dict(target)
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            field = key.partition("/")[2]
            merged[field] = [item for item in merged.get(field) or [] if item not in value]
        if key.startswith(_DIRECTIVES):
            continue
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _strategic_value(key, merged.get(key), value)
    return merged


def _strategic_value(key: str, target: Any, patch: Any) -> Any:
    if isinstance(patch, dict):
        return strategic_merge(target if isinstance(target, dict) else {}, patch)
    if isinstance(patch, list):
        existing = target if isinstance(target, list) else []
        if key in _MERGED_PRIMITIVES:
            return [*existing, *(item for item in patch if item not in existing)]
        merge_key = _merge_key(key, [*existing, *patch])
        if merge_key is not None:
            return _merge_keyed(existing, patch, merge_key)
    return patch


def _merge_key(field: str, items: list[Any]) -> str | None:
    """Return the key by which a list merges; None if the patch replaces the list or an element lacks the key."""
    key = MERGE_KEYS.get(field)
    if key is None or not all(isinstance(item, dict) and (key in item or "$patch" in item) for item in items):
        return None
    return key


def _merge_keyed(existing: list[Json], patch: list[Json], merge_key: str) -> list[Json]:
    if any(item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if "$patch" not in item]
    deleted = {item.get(merge_key) for item in patch if item.get("$patch") == "delete"}
    order = {item[merge_key]: index for index, item in enumerate(existing)}
    by_key = {item[merge_key]: item for item in existing}
    patched = [
        strategic_merge(by_key.get(item[merge_key], {}), item) for item in patch if item.get("$patch") != "delete"
    ]
    touched = {item[merge_key] for item in patched} | deleted
    untouched = [item for item in existing if item[merge_key] not in touched]
    return _interleave(untouched, patched, order, merge_key)


def _interleave(untouched: list[Json], patched: list[Json], order: dict[Any, int], merge_key: str) -> list[Json]:
    """Order the elements as the server does: patched ones first, but after the untouched ones that preceded them.

    Source: apimachinery strategicpatch `mergeSortedSlice`.
    """
    merged: list[Json] = []
    left, right = list(untouched), list(patched)
    while left and right:
        position = order.get(right[0][merge_key])
        follows = position is not None and order[left[0][merge_key]] < position
        merged.append(left.pop(0) if follows else right.pop(0))
    return [*merged, *left, *right]


class JsonPatchError(Exception):
    """A JSON patch is malformed, or an operation of it cannot be applied, or a test operation fails."""


class _Replace(jsonpatch.ReplaceOperation):
    def apply(self, obj: Any) -> Any:
        parent, key = self.pointer.to_last(obj)
        if isinstance(parent, dict) and key is not None:
            return jsonpatch.AddOperation(self.operation).apply(obj)
        return super().apply(obj)


class _Test(jsonpatch.TestOperation):
    def apply(self, obj: Any) -> Any:
        expected = self.operation.get("value")
        parent, key = self.pointer.to_last(obj)
        if expected is None and key is not None and isinstance(parent, dict) and key not in parent:
            return obj
        return jsonpatch.TestOperation({**self.operation, "value": expected}).apply(obj)


class _JsonPatch(jsonpatch.JsonPatch):
    """RFC 6902, except where the library of kube-apiserver is more lenient (evanphx/json-patch v4, seen on 1.34.4).

    There `replace` of an absent member of an object adds it, and `test` of an absent member against null succeeds.
    """

    operations = MappingProxyType({**jsonpatch.JsonPatch.operations, "replace": _Replace, "test": _Test})


def json_patch(document: Any, operations: list[Any]) -> Any:
    """Apply a JSON patch (RFC 6902): all operations in order, or none.

    Args:
        document: The JSON value to patch.
        operations: Objects with `op`, `path` and, depending on the operation, `value` or `from`.

    Returns:
        The patched value.

    Raises:
        JsonPatchError: An operation is malformed, its path does not exist, or a test fails.
    """
    try:
        return _JsonPatch(operations).apply(document)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        raise JsonPatchError(str(error)) from error
