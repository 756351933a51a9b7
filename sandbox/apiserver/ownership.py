"""Server-side apply: which manager owns which field, and what follows for an apply.

A field is a path of map keys; elements of keyed lists are steps `(key, value)`, other lists are one field. Ownership
is kept from an object's first apply on; what was there before belongs to `before-first-apply`, as in Kubernetes.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from sandbox.apiserver.patches import merge_key_of, strategic_merge
from sandbox.apiserver.status import apply_conflict

Json = dict[str, Any]
Step = str | tuple[str, Any]
Path = tuple[Step, ...]
Owners = Mapping[str, frozenset[Path]]

BEFORE_FIRST_APPLY = "before-first-apply"
_UNOWNED_METADATA = frozenset(
    {
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "generateName",
        "generation",
        "managedFields",
        "name",
        "namespace",
        "resourceVersion",
        "uid",
    }
)


def fields_of(document: Json) -> dict[Path, Any]:
    """Every ownable field of an object with its value."""
    owned = {key: value for key, value in document.items() if key not in {"apiVersion", "kind"}}
    metadata = owned.get("metadata") or {}
    owned["metadata"] = {key: value for key, value in metadata.items() if key not in _UNOWNED_METADATA}
    return dict(_leaves(owned, ()))


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict) and value:
        for key, child in value.items():
            yield from _leaves(child, (*path, key))
    elif isinstance(value, list) and value and path and isinstance(path[-1], str):
        merge_key = merge_key_of(path[-1], value)
        if merge_key is None:
            yield path, value
            return
        for item in value:
            yield from _leaves(item, (*path, (merge_key, item[merge_key])))
    elif value != {}:
        yield path, value


def after_update(owners: Owners, before: Json, after: Json, manager: str) -> Owners:
    """Who owns what after an ordinary write: the writer owns what it changed. Nothing is tracked before an apply."""
    if not owners:
        return owners
    old, new = fields_of(before), fields_of(after)
    changed = frozenset(path for path, value in new.items() if path not in old or old[path] != value)
    kept = {name: (paths & new.keys()) - changed for name, paths in owners.items()}
    if changed:
        kept[manager] = kept.get(manager, frozenset()) | changed
    return {name: frozenset(paths) for name, paths in kept.items() if paths}


def apply_fields(live: Json, owners: Owners, intent: Json, manager: str, *, force: bool) -> tuple[Json, Owners]:
    """The object after a server-side apply, and who owns what then.

    Args:
        live: The object as it is, `{}` when it is to be created.
        owners: Who owns what, empty before the first apply.
        intent: The applied document: all fields the manager wants.
        manager: The field manager.
        force: Whether to take fields from other managers.

    Raises:
        StatusError: 409 where another manager owns a field with another value and force is not set.
    """
    current, wanted = fields_of(live), fields_of(intent)
    if not owners and current:
        owners = {BEFORE_FIRST_APPLY: frozenset(current)}
    others = {name: paths for name, paths in owners.items() if name != manager}
    disputed = [
        (name, path)
        for name, paths in sorted(others.items())
        for path in sorted(paths & wanted.keys(), key=str)
        if path in current and current[path] != wanted[path]
    ]
    if disputed and not force:
        raise apply_conflict([(name, _dotted(path)) for name, path in disputed])
    taken = {path for _, path in disputed}
    others = {name: paths - taken for name, paths in others.items()}
    merged = strategic_merge(live, intent)
    given_up = owners.get(manager, frozenset()) - wanted.keys() - frozenset().union(*others.values())
    for path in given_up:
        merged = _without(merged, path)
    after = {**others, manager: frozenset(wanted)}
    return merged, {name: paths for name, paths in after.items() if paths}


def _dotted(path: Path) -> str:
    return "".join(f".{step}" if isinstance(step, str) else f'[{step[0]}="{step[1]}"]' for step in path)


def _without(value: Any, path: Path) -> Any:
    step, rest = path[0], path[1:]
    if isinstance(step, tuple):
        key, wanted = step
        items = [(_without(item, rest) if rest else None) if item.get(key) == wanted else item for item in value]
        # an element of which only its key is left was the manager's alone
        return [item for item in items if item is not None and item.keys() != {key}]
    if not isinstance(value, dict) or step not in value:
        return value
    shorter = {name: child for name, child in value.items() if name != step}
    if rest:
        child = _without(value[step], rest)
        return {**shorter, step: child} if child or step in {"metadata", "spec", "status"} else shorter
    return shorter
