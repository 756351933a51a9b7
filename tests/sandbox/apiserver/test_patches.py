"""The patch functions: the examples of the RFCs, and properties that hold for every document."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox.apiserver.patches import JsonPatchError, json_patch, merge_patch, strategic_merge
from sandbox.apiserver.resources import Json

_SCALARS = st.none() | st.booleans() | st.integers() | st.text("ab~/é0", max_size=5)
# The time an example takes depends on the load of the machine, not on the function.
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

_KEYS = st.sampled_from(["a", "b", "c", "a/b", "m~n", ""])
_VALUES: st.SearchStrategy[Any] = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3), max_leaves=8
)
_OBJECTS = st.dictionaries(_KEYS, _VALUES, max_size=4)


def _same_json(left: Any, right: Any) -> bool:
    """Whether JSON values are equal; unlike in Python, true is not equal to 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same_json(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same_json, left, right))
    return bool(left == right)


def _without_null_members(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_null_members(child) for key, child in value.items() if child is not None}
    return value


def _merge_difference(before: Json, after: Json) -> Json:
    """Return the merge patch that turns one object into another; neither has null members."""
    patch: Json = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            patch[key] = _merge_difference(old, value)
        elif key not in before or not _same_json(old, value):
            patch[key] = value
    return patch


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_returns_the_results_of_rfc_7386_appendix_a(target: Any, patch: Any, result: Any) -> None:
    assert merge_patch(target, patch) == result


@relaxed
@given(_VALUES, _VALUES)
def test_applying_a_merge_patch_twice_equals_applying_it_once(target: Any, patch: Any) -> None:
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once


@relaxed
@given(_OBJECTS.map(_without_null_members), _OBJECTS.map(_without_null_members))
def test_a_merge_patch_can_produce_any_object_without_nulls(before: Json, after: Json) -> None:
    assert merge_patch(before, _merge_difference(before, after)) == after


@relaxed
@given(_OBJECTS, _OBJECTS)
def test_patches_do_not_modify_the_original(target: Json, patch: Json) -> None:
    kept = repr(target)
    merge_patch(target, patch)
    strategic_merge(target, patch)
    assert repr(target) == kept


@relaxed
@given(_OBJECTS, _OBJECTS)
def test_strategic_merge_of_a_flat_patch_equals_a_merge_patch(target: Json, patch: Json) -> None:
    flat = {key: value for key, value in patch.items() if not isinstance(value, dict)}
    assert strategic_merge(target, flat) == merge_patch(target, flat)


def test_strategic_merge_merges_conditions_by_type_in_the_servers_order() -> None:
    before = {"conditions": [{"type": "Ready", "status": "False"}]}
    patch = {"conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "reason": "Why"}]}
    assert strategic_merge(before, patch) == {
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": "False", "reason": "Why"},
        ]
    }
    added = strategic_merge(before, {"conditions": [{"type": "PodScheduled", "status": "True"}]})
    assert [condition["type"] for condition in added["conditions"]] == ["PodScheduled", "Ready"]


def test_strategic_merge_merges_containers_by_name_and_obeys_directives() -> None:
    before = {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}], "tolerations": [{"key": "x"}]}
    patch = {
        "containers": [{"name": "b", "image": "2"}, {"name": "a", "$patch": "delete"}],
        "$setElementOrder/containers": [{"name": "b"}],
        "tolerations": [{"key": "y"}],
    }
    assert strategic_merge(before, patch) == {
        "containers": [{"name": "b", "image": "2"}],
        "tolerations": [{"key": "y"}],
    }
    finalizers = strategic_merge({"finalizers": ["a", "b"]}, {"$deleteFromPrimitiveList/finalizers": ["a"]})
    assert finalizers == {"finalizers": ["b"]}
    assert strategic_merge({"m": {"a": 1}}, {"m": {"$patch": "replace", "b": 2}}) == {"m": {"b": 2}}


@pytest.mark.parametrize(
    ("document", "operation", "result"),
    [
        ({"foo": "bar"}, {"op": "add", "path": "/baz", "value": "qux"}, {"baz": "qux", "foo": "bar"}),
        ({"foo": ["bar", "baz"]}, {"op": "add", "path": "/foo/1", "value": "x"}, {"foo": ["bar", "x", "baz"]}),
        ({"foo": ["bar"]}, {"op": "add", "path": "/foo/-", "value": ["x"]}, {"foo": ["bar", ["x"]]}),
        ({"baz": "qux", "foo": "bar"}, {"op": "remove", "path": "/baz"}, {"foo": "bar"}),
        ({"foo": ["bar", "qux", "baz"]}, {"op": "remove", "path": "/foo/1"}, {"foo": ["bar", "baz"]}),
        ({"baz": "qux"}, {"op": "replace", "path": "/baz", "value": "boo"}, {"baz": "boo"}),
        ({"a": {"b": 1}, "c": {}}, {"op": "move", "from": "/a/b", "path": "/c/d"}, {"a": {}, "c": {"d": 1}}),
        ({"a": [1, 2, 3]}, {"op": "move", "from": "/a/0", "path": "/a/2"}, {"a": [2, 3, 1]}),
        ({"a": {"b": 1}}, {"op": "copy", "from": "/a", "path": "/c"}, {"a": {"b": 1}, "c": {"b": 1}}),
        ({"/": 9, "~1": 10}, {"op": "test", "path": "/~01", "value": 10}, {"/": 9, "~1": 10}),
        ({"a": 1}, {"op": "add", "path": "", "value": {"b": 2}}, {"b": 2}),
        # kube-apiserver is more lenient here than the RFC.
        ({"a": 1}, {"op": "replace", "path": "/b", "value": 2}, {"a": 1, "b": 2}),
        ({"a": 1}, {"op": "test", "path": "/b", "value": None}, {"a": 1}),
        ({"a": 1}, {"op": "test", "path": "/b"}, {"a": 1}),
    ],
)
def test_json_patch_returns_the_results_of_rfc_6902_and_of_the_server(
    document: Any, operation: Json, result: Any
) -> None:
    assert json_patch(document, [operation]) == result


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/a", "value": "1"},
        {"op": "test", "path": "/a", "value": True},
        {"op": "add", "path": "/missing/child", "value": 1},
        {"op": "add", "path": "/list/9", "value": 1},
        {"op": "add", "path": "/list/01", "value": 1},
        {"op": "add", "path": "/a"},
        {"op": "remove", "path": "/missing"},
        {"op": "remove", "path": ""},
        {"op": "replace", "path": "/list/3", "value": 1},
        {"op": "replace", "path": "/a/b", "value": 1},
        {"op": "move", "from": "/list", "path": "/list/0"},
        {"op": "move", "from": "/missing", "path": "/missing"},
        {"op": "copy", "path": "/x"},
        {"op": "unknown", "path": "/a"},
        {"op": ["add"], "path": "/a", "value": 1},
        {"op": "add", "path": "no-slash", "value": 1},
        {"op": "add", "path": "/~2", "value": 1},
        {"op": "add", "path": 5, "value": 1},
        {"op": "add", "path": "/list/-/x", "value": 1},
        {"op": "copy", "from": "/list/-", "path": "/x"},
        {"op": "copy", "from": None, "path": "/x"},
        {},
        [],
        None,
        "not an object",
    ],
)
def test_json_patch_refuses_invalid_operations_and_changes_nothing(operation: Any) -> None:
    document = {"a": 1, "list": [1, 2]}
    with pytest.raises(JsonPatchError):
        json_patch(document, [{"op": "add", "path": "/b", "value": 1}, operation])
    assert document == {"a": 1, "list": [1, 2]}


_STEPS = st.sampled_from(["a", "b", "0", "1", "-", "-1", "01", "", "a~1b", "m~0n", "~2"])
_PATHS = st.lists(_STEPS, max_size=3).map(lambda steps: "".join(f"/{step}" for step in steps)) | _VALUES
_OPERATION_NAMES = st.sampled_from(["add", "remove", "replace", "move", "copy", "test"]) | _VALUES
_MEMBERS = {"op": _OPERATION_NAMES, "path": _PATHS, "from": _PATHS, "value": _VALUES}
_OPERATIONS = st.fixed_dictionaries({}, optional=_MEMBERS) | _VALUES


@relaxed
@given(_VALUES, st.lists(_OPERATIONS, max_size=3))
def test_any_json_patch_is_applied_or_refused_and_changes_no_argument(document: Any, operations: list[Any]) -> None:
    kept = repr((document, operations))
    with suppress(JsonPatchError):
        json_patch(document, operations)
    assert repr((document, operations)) == kept


def _pointer_step(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _difference(before: Any, after: Any, path: str = "") -> list[Json]:
    if isinstance(before, dict) and isinstance(after, dict):
        operations = [{"op": "remove", "path": f"{path}/{_pointer_step(key)}"} for key in before if key not in after]
        for key, value in after.items():
            below = f"{path}/{_pointer_step(key)}"
            if key in before:
                operations += _difference(before[key], value, below)
            else:
                operations.append({"op": "add", "path": below, "value": value})
        return operations
    return [] if _same_json(before, after) else [{"op": "replace", "path": path, "value": after}]


@relaxed
@given(_VALUES, _VALUES)
def test_a_guarded_json_patch_can_turn_any_document_into_any_other(before: Any, after: Any) -> None:
    guard = {"op": "test", "path": "", "value": before}
    result = json_patch(before, [guard, *_difference(before, after), {"op": "test", "path": "", "value": after}])
    assert _same_json(result, after)


@relaxed
@given(_OBJECTS, _KEYS, _VALUES)
def test_adding_and_removing_a_member_changes_nothing(document: Json, key: str, value: Any) -> None:
    path = f"/{_pointer_step(key)}"
    without = {name: child for name, child in document.items() if name != key}
    operations = [{"op": "add", "path": path, "value": value}, {"op": "remove", "path": path}]
    assert json_patch(document, operations) == without


@relaxed
@given(_VALUES, _VALUES)
def test_a_test_operation_succeeds_exactly_for_equal_values(left: Any, right: Any) -> None:
    operation = {"op": "test", "path": "/x", "value": right}
    if _same_json(left, right):
        assert _same_json(json_patch({"x": left}, [operation]), {"x": left})
    else:
        with pytest.raises(JsonPatchError):
            json_patch({"x": left}, [operation])
