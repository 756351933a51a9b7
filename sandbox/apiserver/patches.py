"""Merge patches as rules over JSON values: RFC 7386 merge patch and Kubernetes' strategic merge patch.

The strategic merge knows the merge keys of the lists we meet; every other list is replaced as a whole.
Nothing given is ever changed: results share unchanged parts with their inputs.
"""

from typing import Any

Json = dict[str, Any]

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
    """RFC 7386: objects merge key by key, null deletes, anything else replaces.

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
    """Kubernetes' strategic merge: like a merge patch, but keyed lists merge by element.

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
        merge_key = merge_key_of(key, [*existing, *patch])
        if merge_key is not None:
            return _merge_keyed(existing, patch, merge_key)
    return patch


def merge_key_of(field: str, items: list[Any]) -> str | None:
    """The key by which a list merges, None where it is replaced or an element lacks the key."""
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
    """The server's order: patched elements as early as possible, but not before untouched ones they used to follow.

    Source: apimachinery strategicpatch `mergeSortedSlice`.
    """
    merged: list[Json] = []
    left, right = list(untouched), list(patched)
    while left and right:
        position = order.get(right[0][merge_key])
        follows = position is not None and order[left[0][merge_key]] < position
        merged.append(left.pop(0) if follows else right.pop(0))
    return [*merged, *left, *right]
