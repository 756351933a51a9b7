"""The operations on objects, without HTTP: decode, admit, prepare, validate and store.

There is no await between reading an object and storing its next version, so writes are atomic. If an admission hook has
to be awaited and the object changes in the meantime, the write starts again.
"""

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import uuid4

from sandbox.apiserver.binding import bind, check_binding
from sandbox.apiserver.deletion import check_preconditions, is_finished, plan_deletion, timestamp
from sandbox.apiserver.documents import check_name, check_types, fill_namespace, to_object, to_stored
from sandbox.apiserver.resources import NAMESPACES, PODS, Json, ServedResource, Target
from sandbox.apiserver.status import (
    OBJECT_MODIFIED,
    StatusCause,
    already_exists,
    conflict,
    internal,
    invalid,
    invalid_patch_result,
    not_found,
    precondition_failed,
)
from sandbox.apiserver.store import Store, StoredObject
from sandbox.apiserver.strategy import (
    drop_empty_metadata,
    fill_defaults,
    prepare_for_create,
    prepare_for_update,
    restore_server_metadata,
)
from sandbox.apiserver.validation import find_changed_uid, find_faults, find_forbidden_changes, find_type_error

AdmissionHook = Callable[[str, ServedResource, str, Json], Awaitable[Json]]
"""An admission plugin or webhook.

Called with the operation (CREATE, UPDATE, DELETE), the resource, the subresource (empty for the object) and the whole
object. Returns the object to continue with (ignored for DELETE), or raises a StatusError such as `status.forbidden`.
"""

_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # k8s.io/apimachinery util/rand
_SUFFIX_LENGTH = 5


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """The supported part of the API's DeleteOptions."""

    grace_s: int | None = None
    preconditions: Json = field(default_factory=dict)
    dry_run: bool = False


class Registry:
    """All operations on objects. A write with `dry_run` returns its result without storing it.

    Args:
        store: The objects.
        clock: Returns the current time, aware, for timestamps.
        hooks: Admission hooks, called in order.
    """

    def __init__(self, store: Store, clock: Callable[[], datetime], hooks: list[AdmissionHook]) -> None:
        self._store = store
        self._clock = clock
        self._hooks = hooks

    def get(self, target: Target) -> StoredObject:
        """Return the named object.

        Raises:
            StatusError: 404.
        """
        entry = self._store.get(target.resource, target.namespace, target.name)
        if entry is None:
            raise not_found(target.resource, target.name)
        return entry

    async def create(self, target: Target, body: Json, *, dry_run: bool = False) -> StoredObject:
        """Create an object in the target's namespace.

        Args:
            target: The collection.
            body: The posted document; the caller must not modify it afterwards.
            dry_run: Do not store the object.

        Raises:
            StatusError: 400, 404 (namespace), 409 AlreadyExists, 422, 500 (resourceVersion set).
        """
        resource = target.resource
        document = to_stored(resource, body)
        check_types(resource, document)
        metadata = document["metadata"]
        if metadata.get("resourceVersion"):
            raise internal("resourceVersion should not be set on objects to be created")
        fill_namespace(target, metadata)
        if not metadata.get("name") and metadata.get("generateName"):
            suffix = "".join(secrets.choice(_SUFFIX_ALPHABET) for _ in range(_SUFFIX_LENGTH))
            metadata["name"] = metadata["generateName"] + suffix
        fill_defaults(resource, document)  # webhooks see the defaults, and those of what they add are set after them
        document = await self._admit("CREATE", target, document)
        if target.namespace and self._store.get(NAMESPACES, "", target.namespace) is None:
            raise not_found(NAMESPACES, target.namespace)
        now = timestamp(self._clock())
        for key in ("deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
            document["metadata"].pop(key, None)
        document["metadata"] |= {"uid": str(uuid4()), "creationTimestamp": now}
        fill_defaults(resource, document)
        prepare_for_create(resource, document, now)
        drop_empty_metadata(document)
        _refuse(resource, document, find_faults(resource, document))
        if self._store.get(resource, target.namespace, document["metadata"]["name"]) is not None:
            raise already_exists(resource, document["metadata"]["name"])
        if dry_run:
            return _unstored(resource, target.namespace, document)
        return self._store.put(resource, document)

    async def replace(self, target: Target, body: Json, *, dry_run: bool = False) -> tuple[StoredObject, bool]:
        """Replace an object (PUT); return the stored version and whether it was created.

        Raises:
            StatusError: 400, 404, 409 (uid or resourceVersion), 422.
        """
        resource = target.resource
        document = to_stored(resource, body)
        check_types(resource, document)
        fill_namespace(target, document["metadata"])
        check_name(target, document["metadata"], required=True)
        exists = self._store.get(resource, target.namespace, target.name) is not None
        if not exists and resource.create_on_update and not target.subresource:
            copy = {**document, "metadata": dict(document["metadata"])}
            return await self.create(target, copy, dry_run=dry_run), True

        def replaced(entry: StoredObject) -> Json:
            metadata = document["metadata"]
            uid, found = metadata.get("uid"), entry.document["metadata"]["uid"]
            if uid and uid != found:
                raise precondition_failed(resource, target.namespace, target.name, what="UID", given=uid, found=found)
            if not metadata.get("resourceVersion") and not resource.unconditional_update:
                message = "Invalid value: 0: must be specified for an update"
                cause = StatusCause("FieldValueInvalid", message, "metadata.resourceVersion")
                raise invalid(replace(resource, kind=resource.plural), target.name, cause)
            return {**document, "metadata": dict(metadata)}

        return await self._update(target, replaced, dry_run=dry_run), False

    async def patch(self, target: Target, change: Callable[[Json], Any], *, dry_run: bool = False) -> StoredObject:
        """Patch an object; `change` maps the whole object, in the target's version, to the patched one.

        Raises:
            StatusError: 400, 404, 409 (resourceVersion), 422.
        """
        resource = target.resource

        def patched(entry: StoredObject) -> Json:
            result = change(to_object(resource, entry.copy()))
            if not isinstance(result, dict) or result.get("kind") != resource.kind:
                raise invalid_patch_result("the result is not an object of the kind patched")
            document = to_stored(resource, result)
            fault = find_type_error(resource, document)
            if fault:
                raise invalid_patch_result(fault)
            check_name(target, document["metadata"])
            fill_namespace(target, document["metadata"])
            return document

        return await self._update(target, patched, dry_run=dry_run)

    async def bind(self, target: Target, binding: Json, *, dry_run: bool = False) -> None:
        """Bind the target pod, see `binding.bind`.

        Raises:
            StatusError: 400, 404, 409, 500.
        """
        check_binding(binding, target.name)
        while True:
            entry = self._store.get(PODS, target.namespace, target.name)
            admitted = await self._admit("CREATE", target, dict(binding))
            if entry is None:
                raise not_found(PODS, target.name)
            if self._store.get(PODS, target.namespace, target.name) is not entry:
                continue
            pod = bind(entry, admitted, timestamp(self._clock()))
            if not dry_run:
                self._store.put(PODS, pod)
            return

    async def delete(self, target: Target, options: DeleteOptions) -> tuple[StoredObject, bool]:
        """Delete an object; return its last version and whether it has been removed.

        Raises:
            StatusError: 404, 409 (preconditions).
        """
        resource = target.resource
        while True:
            entry = self.get(target)
            check_preconditions(resource, entry, options.preconditions)
            await self._admit("DELETE", target, entry.copy())
            if self._store.get(resource, target.namespace, target.name) is not entry:
                continue
            plan = plan_deletion(resource, entry, options.grace_s, self._clock())
            if options.dry_run:
                return entry, plan.remove
            marked = self._store.put(resource, plan.marked) if plan.marked is not None else entry
            if not plan.remove:
                return marked, False
            if resource is NAMESPACES:
                # There is no namespace controller, so the objects go at once.
                for stored in self._store.objects_in(target.name):
                    self._store.remove(stored)
                self._store.remove(marked)
                return marked, True
            return self._store.remove(marked), True

    async def _update(self, target: Target, change: Callable[[StoredObject], Json], *, dry_run: bool) -> StoredObject:
        resource = target.resource
        while True:
            entry = self.get(target)
            document = change(entry)
            before = entry.document
            version = document["metadata"].get("resourceVersion", "")
            if version and not version.isdecimal():
                raise internal(f'strconv.ParseUint: parsing "{version}": invalid syntax')
            if version and version != before["metadata"]["resourceVersion"]:
                raise conflict(resource, target.name, OBJECT_MODIFIED)
            document = await self._admit("UPDATE", target, document)
            if self._store.get(resource, target.namespace, target.name) is not entry:
                continue  # it changed while a hook was awaited: start again, preconditions included
            uid_faults = find_changed_uid(document, before)
            restore_server_metadata(document, before)
            fill_defaults(resource, document)
            prepare_for_update(resource, target.subresource, document, before)
            document["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
            drop_empty_metadata(document)
            faults = find_faults(resource, document) + find_forbidden_changes(resource, document, before)
            _refuse(resource, document, uid_faults + faults)
            if dry_run:
                return _unstored(resource, target.namespace, document)
            stored = self._store.put(resource, document)
            if "finalizers" in before["metadata"] and is_finished(document):
                self._store.remove(stored)
            return stored

    async def _admit(self, operation: str, target: Target, document: Json) -> Json:
        if not self._hooks:
            return document
        binding = target.subresource == "binding"
        admitted = document if binding else to_object(target.resource, document)
        for hook in tuple(self._hooks):
            admitted = await hook(operation, target.resource, target.subresource, admitted)
        return admitted if binding else to_stored(target.resource, admitted)


def _refuse(resource: ServedResource, document: Json, faults: list[StatusCause]) -> None:
    if faults:
        raise invalid(resource, document["metadata"].get("name", ""), *faults)


def _unstored(resource: ServedResource, namespace: str, document: Json) -> StoredObject:
    return StoredObject(resource.storage, namespace, document["metadata"]["name"], document, 0)
