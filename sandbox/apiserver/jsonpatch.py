"""JSON patch (RFC 6902) as a rule over JSON values, with the leniences of the library kube-apiserver uses.

Those leniences (evanphx/json-patch v4, seen on 1.34.4): `replace` of an absent member of an object adds it, and
`test` of an absent member against null succeeds.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any


class JsonPatchError(Exception):
    """An operation that cannot be applied, or a `test` that does not hold.

    Args:
        index: Which operation, from 0.
        why: What is wrong with it.
    """

    def __init__(self, index: int, why: str) -> None:
        super().__init__(f"operation {index}: {why}")
        self.index = index


class _CannotApplyError(Exception):
    """Raised inside one operation; leaves as JsonPatchError with the operation's index."""


def apply_json_patch(document: Any, operations: list[Any]) -> Any:
    """The document after all operations, in order; all or nothing.

    Args:
        document: A JSON value; not changed.
        operations: Objects with `op`, `path` and, by operation, `value` or `from`.

    Raises:
        JsonPatchError: An operation is malformed, its path does not exist, or a test fails.
    """
    root = [deepcopy(document)]  # boxed, so that the whole document can be replaced like any other element
    for index, operation in enumerate(operations):
        try:
            _apply(root, operation)
        except _CannotApplyError as error:
            raise JsonPatchError(index, str(error)) from error
    return root[0]


def _apply(root: list[Any], operation: Any) -> None:
    if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
        raise _CannotApplyError("an operation is an object with a path")
    apply = _OPERATIONS.get(str(operation.get("op")))
    if apply is None:
        raise _CannotApplyError(f"unknown op {operation.get('op')!r}")
    apply(root, operation)


def _pointer(path: str) -> list[str]:
    """The steps of a JSON pointer (RFC 6901) below the box."""
    if path and not path.startswith("/"):
        raise _CannotApplyError(f"path {path!r} does not begin with /")
    return ["0", *(step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:])]


def _step(container: Any, step: str) -> Any:
    if isinstance(container, dict):
        if step not in container:
            raise _CannotApplyError(f"no member {step!r}")
        return container[step]
    if isinstance(container, list):
        return container[_position(container, step, len(container) - 1)]
    raise _CannotApplyError(f"{step!r} is looked for in a value without members")


def _position(container: list[Any], step: str, last: int) -> int:
    if not step.isascii() or not step.isdigit() or (len(step) > 1 and step.startswith("0")) or int(step) > last:
        raise _CannotApplyError(f"no element {step!r} in a list of {len(container)}")
    return int(step)


def _parent(root: list[Any], path: str) -> tuple[Any, str]:
    *parents, last = _pointer(path)
    container: Any = root
    for step in parents:
        container = _step(container, step)
    return container, last


def _value(operation: dict[str, Any]) -> Any:
    if "value" not in operation:
        raise _CannotApplyError("no value")
    return deepcopy(operation["value"])


def _insert(root: list[Any], path: str, value: Any) -> None:
    container, last = _parent(root, path)
    if container is root:
        root[0] = value
    elif isinstance(container, dict):
        container[last] = value
    elif isinstance(container, list):
        position = len(container) if last == "-" else _position(container, last, len(container))
        container.insert(position, value)
    else:
        raise _CannotApplyError(f"cannot add {last!r} to a value without members")


def _take(root: list[Any], path: str) -> Any:
    container, last = _parent(root, path)
    value = _step(container, last)
    if container is root:
        raise _CannotApplyError("the whole document cannot be removed")
    if isinstance(container, dict):
        del container[last]
    else:
        container.pop(int(last))
    return value


def _add(root: list[Any], operation: dict[str, Any]) -> None:
    _insert(root, operation["path"], _value(operation))


def _remove(root: list[Any], operation: dict[str, Any]) -> None:
    _take(root, operation["path"])


def _replace(root: list[Any], operation: dict[str, Any]) -> None:
    container, last = _parent(root, operation["path"])
    if isinstance(container, dict):
        container[last] = _value(operation)
    elif isinstance(container, list):
        container[_position(container, last, len(container) - 1)] = _value(operation)
    else:
        raise _CannotApplyError(f"cannot replace {last!r} in a value without members")


def _source(operation: dict[str, Any]) -> str:
    source = operation.get("from")
    if not isinstance(source, str):
        raise _CannotApplyError("no from")
    return source


def _move(root: list[Any], operation: dict[str, Any]) -> None:
    source, path = _source(operation), operation["path"]
    if path.startswith(f"{source}/"):
        raise _CannotApplyError("a value cannot move into itself")
    if path != source:
        _insert(root, path, _take(root, source))


def _copy(root: list[Any], operation: dict[str, Any]) -> None:
    _insert(root, operation["path"], deepcopy(_step(*_parent(root, _source(operation)))))


def _test(root: list[Any], operation: dict[str, Any]) -> None:
    container, last = _parent(root, operation["path"])
    absent = isinstance(container, dict) and last not in container
    found = None if absent else _step(container, last)
    if not same_json(found, operation.get("value")):
        raise _CannotApplyError("test failed")


def same_json(left: Any, right: Any) -> bool:
    """Equality of JSON values, where true is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_json(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same_json, left, right))
    return bool(left == right)


_OPERATIONS: dict[str, Callable[[list[Any], dict[str, Any]], None]] = {
    "add": _add,
    "copy": _copy,
    "move": _move,
    "remove": _remove,
    "replace": _replace,
    "test": _test,
}
