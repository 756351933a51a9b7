"""Validation: those rules of the real server that our programs could violate."""

import re
from collections.abc import Iterator
from typing import Any

from sandbox.apiserver.resources import CONFIGMAPS, CORE_EVENTS, PODS, Json, ServedResource
from sandbox.apiserver.status import StatusCause

MAX_CONFIGMAP_BYTES = 1_048_576
MAX_ANNOTATIONS_BYTES = 262_144
EVENT_BYTES = {"reportingInstance": 128, "action": 128, "reason": 128, "message": 1024}
"""Limits of an Event with an eventTime. The real server counts bytes, although its message says characters."""

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MAX_SUBDOMAIN = 253
_NAME_PART = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_MAX_NAME_PART = 63
_JSON_NAMES = {bool: "bool", int: "number", float: "number", str: "string", list: "array", dict: "object"}

_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_KEY_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
POD_SPEC_RULE = (
    "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing "
    "tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def find_type_error(resource: ServedResource, document: Json) -> str | None:
    """Return the message of Go's decoder about the first value of a wrong type; None if there is none.

    It checks the fields that our programs write: labels, annotations, ConfigMap data and names; and that metadata, spec
    and status are objects.
    """
    for field in ("metadata", "spec", "status"):
        if field in document and not isinstance(document[field], dict):
            return _mismatch(document[field], f"{resource.kind}.{field}", f"{resource.kind}{field.title()}")
    metadata = document.get("metadata", {})
    maps = [(metadata.get(name), f"ObjectMeta.metadata.{name}") for name in ("labels", "annotations")]
    if resource is CONFIGMAPS:
        maps.append((document.get("data"), "ConfigMap.data"))
    for value, where in maps:
        if value is not None and not isinstance(value, dict):
            return _mismatch(value, where, "map[string]string")
        for item in (value or {}).values():
            if not isinstance(item, str):
                return _mismatch(item, where, "string")
    for name in ("name", "namespace", "uid", "resourceVersion", "generateName"):
        if not isinstance(metadata.get(name, ""), str):
            return _mismatch(metadata[name], f"ObjectMeta.metadata.{name}", "string")
    return None


def _mismatch(value: Any, where: str, expected: str) -> str:
    found = _JSON_NAMES.get(type(value), "null")
    return f"json: cannot unmarshal {found} into Go struct field {where} of type {expected}"


def find_faults(resource: ServedResource, document: Json) -> list[StatusCause]:
    """Return everything that makes an object invalid, whatever its previous version."""
    metadata = document["metadata"]
    causes: list[StatusCause] = []
    name = metadata.get("name", "")
    prefix = metadata.get("generateName", "")
    if prefix and not _SUBDOMAIN.fullmatch(prefix.removesuffix("-")):
        causes.append(_bad_value(prefix, _SUBDOMAIN_RULE, "metadata.generateName"))
    if not name:
        message = "Required value: name or generateName is required"
        causes.append(StatusCause("FieldValueRequired", message, "metadata.name"))
    elif not _SUBDOMAIN.fullmatch(name) or len(name) > _MAX_SUBDOMAIN:
        causes.append(_bad_value(name, _SUBDOMAIN_RULE, "metadata.name"))
    causes.extend(_metadata_faults(metadata))
    if resource is PODS and not document.get("spec", {}).get("containers"):
        causes.append(StatusCause("FieldValueRequired", "Required value", "spec.containers"))
    if resource is CONFIGMAPS and _total_bytes(document.get("data")) > MAX_CONFIGMAP_BYTES:
        message = f"Too long: may not be more than {MAX_CONFIGMAP_BYTES} bytes"
        causes.append(StatusCause("FieldValueTooLong", message, "[]"))
    if resource.storage == CORE_EVENTS.storage and document.get("eventTime"):
        causes.extend(_event_faults(document))
    return causes


def _event_faults(event: Json) -> Iterator[StatusCause]:
    for field, limit in EVENT_BYTES.items():
        if len(str(event.get(field) or "").encode()) > limit:
            yield StatusCause("FieldValueInvalid", f'Invalid value: "": can have at most {limit} characters', field)


def _metadata_faults(metadata: Json) -> Iterator[StatusCause]:
    for key, value in (metadata.get("labels") or {}).items():
        if not _is_qualified(key):
            yield _bad_value(key, _KEY_RULE, "metadata.labels")
        if value and (not _NAME_PART.fullmatch(value) or len(value) > _MAX_NAME_PART):
            yield _bad_value(value, _VALUE_RULE, "metadata.labels")
    annotations = metadata.get("annotations") or {}
    for key in annotations:
        if not _is_qualified(key.lower()):
            yield _bad_value(key, _KEY_RULE, "metadata.annotations")
    if _total_bytes(annotations) > MAX_ANNOTATIONS_BYTES:
        message = f"Too long: may not be more than {MAX_ANNOTATIONS_BYTES} bytes"
        yield StatusCause("FieldValueTooLong", message, "metadata.annotations")


def _bad_value(value: str, rule: str, field: str) -> StatusCause:
    return StatusCause("FieldValueInvalid", f'Invalid value: "{value}": {rule}', field)


def _is_qualified(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    if slash and not (_SUBDOMAIN.fullmatch(prefix) and len(prefix) <= _MAX_SUBDOMAIN):
        return False
    return bool(_NAME_PART.fullmatch(name)) and len(name) <= _MAX_NAME_PART


def _total_bytes(strings: dict[str, str] | None) -> int:
    return sum(len(key.encode()) + len(value.encode()) for key, value in (strings or {}).items())


def find_changed_uid(document: Json, before: Json) -> list[StatusCause]:
    """Return the cause if an update changes the uid. A PUT fails earlier, on the precondition (both seen on 1.34.4)."""
    uid = document["metadata"].get("uid", "")
    if not uid or uid == before["metadata"]["uid"]:
        return []
    return [_bad_value(uid, "field is immutable", "metadata.uid")]


def find_forbidden_changes(resource: ServedResource, document: Json, before: Json) -> list[StatusCause]:
    """Return the changes that an update may not make: of most fields of a pod's spec, and of immutable ConfigMaps."""
    if resource is CONFIGMAPS:
        return list(_immutable_faults(document, before)) if before.get("immutable") else []
    return list(_pod_spec_faults(document.get("spec") or {}, before["spec"])) if resource is PODS else []


def _immutable_faults(document: Json, before: Json) -> Iterator[StatusCause]:
    for field in ("immutable", "data", "binaryData"):
        if document.get(field) != before.get(field):
            yield StatusCause("FieldValueForbidden", "Forbidden: field is immutable when `immutable` is set", field)


def _pod_spec_faults(spec: Json, before: Json) -> Iterator[StatusCause]:
    old_gates = {gate.get("name") for gate in before.get("schedulingGates") or []}
    for gate in spec.get("schedulingGates") or []:
        if gate.get("name") not in old_gates:
            rule = f"Forbidden: only deletion is allowed, but found new scheduling gate '{gate.get('name')}'"
            yield StatusCause("FieldValueForbidden", rule, "spec.schedulingGates")
    if _immutable_part(spec, before) != _immutable_part(before, before):
        yield StatusCause("FieldValueForbidden", POD_SPEC_RULE, "spec")


def _immutable_part(spec: Json, before: Json) -> Json:
    mutable = {"activeDeadlineSeconds", "schedulingGates", "containers", "initContainers"}
    if _only_adds(spec.get("tolerations"), before.get("tolerations")):
        mutable.add("tolerations")
    if spec.get("terminationGracePeriodSeconds") == 1 and before.get("terminationGracePeriodSeconds", 0) < 0:
        mutable.add("terminationGracePeriodSeconds")
    kept = {key: value for key, value in spec.items() if key not in mutable and value not in ("", None)}
    for field in ("containers", "initContainers"):
        kept[field] = [
            {key: value for key, value in container.items() if key != "image"} for container in spec.get(field) or []
        ]
    return kept


def _only_adds(new: list[Json] | None, old: list[Json] | None) -> bool:
    return all(item in (new or []) for item in old or [])
