"""Reading and writing objects as the API does it: decode, admit, prepare, validate, commit. No HTTP.

Everything between reading an object and committing its successor happens without an await, so writes are atomic; where
an admission hook has to be awaited, the write starts over if the object has changed meanwhile.
"""

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import uuid4

from sandbox.apiserver.binding import bind, check_binding
from sandbox.apiserver.deletion import check_preconditions, is_finished, plan_deletion, timestamp
from sandbox.apiserver.documents import check_name, check_type, decode, settle_namespace, whole
from sandbox.apiserver.kinds import fill_defaults, prepare_create, prepare_update, restore_server_metadata, tidy
from sandbox.apiserver.ownership import Owners, after_update, apply_fields
from sandbox.apiserver.resources import NAMESPACES, PODS, Resource, Target
from sandbox.apiserver.selectors import Selection
from sandbox.apiserver.status import (
    OBJECT_MODIFIED,
    Cause,
    already_exists,
    bad_request,
    conflict,
    internal,
    invalid,
    invalid_patch_result,
    not_found,
    precondition_failed,
)
from sandbox.apiserver.store import Entry, Store
from sandbox.apiserver.validation import find_changed_uid, find_faults, find_forbidden_changes, find_type_error

Json = dict[str, Any]

AdmissionHook = Callable[[str, Resource, str, Json], Awaitable[Json]]
"""Called with operation (CREATE, UPDATE, DELETE), resource, subresource (empty for the object) and the whole object;
answers the object to go on with (ignored for DELETE) or raises a StatusError, such as `status.forbidden`."""

_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # k8s.io/apimachinery util/rand
_SUFFIX_LENGTH = 5


@dataclass(frozen=True, slots=True)
class Writing:
    """How a write is to be done: `dry_run` computes the answer only; `manager` owns the fields written."""

    dry_run: bool = False
    manager: str = "unknown"


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """DeleteOptions of the API, as far as they matter here."""

    grace_s: int | None = None
    preconditions: Json = field(default_factory=dict)
    dry_run: bool = False


class Registry:
    """All operations on objects.

    Args:
        store: Where objects live.
        clock: Tells the time, aware, for timestamps.
        hooks: Admission hooks, called in order.
    """

    def __init__(self, store: Store, clock: Callable[[], datetime], hooks: list[AdmissionHook]) -> None:
        self._store = store
        self._clock = clock
        self._hooks = hooks

    def get(self, target: Target) -> Entry:
        """The named object.

        Raises:
            StatusError: 404.
        """
        entry = self._store.get(target.resource, target.namespace, target.name)
        if entry is None:
            raise not_found(target.resource, target.name)
        return entry

    async def create(self, target: Target, body: Json, writing: Writing, owners: Owners | None = None) -> Entry:
        """Create an object in the target's namespace.

        Args:
            target: The collection.
            body: The posted document, taken over.
            writing: How to write.
            owners: Field owners, of a create by server-side apply.

        Raises:
            StatusError: 400, 404 (namespace), 409 AlreadyExists, 422, 500 (resourceVersion set).
        """
        resource = target.resource
        document = decode(resource, body)
        check_type(resource, document)
        metadata = document["metadata"]
        if metadata.get("resourceVersion"):
            raise internal("resourceVersion should not be set on objects to be created")
        settle_namespace(target, metadata)
        if not metadata.get("name") and metadata.get("generateName"):
            suffix = "".join(secrets.choice(_SUFFIX_ALPHABET) for _ in range(_SUFFIX_LENGTH))
            metadata["name"] = metadata["generateName"] + suffix
        document = await self._admit("CREATE", target, document)
        if target.namespace and self._store.get(NAMESPACES, "", target.namespace) is None:
            raise not_found(NAMESPACES, target.namespace)
        now = timestamp(self._clock())
        for key in ("deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
            document["metadata"].pop(key, None)
        document["metadata"] |= {"uid": str(uuid4()), "creationTimestamp": now}
        fill_defaults(resource, document)
        prepare_create(resource, document, now)
        tidy(document)
        _refuse(resource, document, find_faults(resource, document))
        if self._store.get(resource, target.namespace, document["metadata"]["name"]) is not None:
            raise already_exists(resource, document["metadata"]["name"])
        if writing.dry_run:
            return _unwritten(resource, target.namespace, document)
        return self._store.put(resource, document, owners)

    async def replace(self, target: Target, body: Json, writing: Writing) -> tuple[Entry, bool]:
        """PUT: the body takes the object's place; answers the stored version and whether it was created.

        Raises:
            StatusError: 400, 404, 409 (uid or resourceVersion), 422.
        """
        resource = target.resource
        document = decode(resource, body)
        check_type(resource, document)
        settle_namespace(target, document["metadata"])
        check_name(target, document["metadata"], required=True)
        exists = self._store.get(resource, target.namespace, target.name) is not None
        if not exists and resource.create_on_update and not target.subresource:
            return await self.create(target, {**document, "metadata": dict(document["metadata"])}, writing), True

        def substitute(entry: Entry) -> tuple[Json, Owners | None]:
            metadata = document["metadata"]
            uid, found = metadata.get("uid"), entry.document["metadata"]["uid"]
            if uid and uid != found:
                raise precondition_failed(resource, target.namespace, target.name, what="UID", given=uid, found=found)
            if not metadata.get("resourceVersion") and not resource.unconditional_update:
                message = "Invalid value: 0: must be specified for an update"
                cause = Cause("FieldValueInvalid", message, "metadata.resourceVersion")
                raise invalid(replace(resource, kind=resource.plural), target.name, cause)
            return {**document, "metadata": dict(metadata)}, None

        return await self._update(target, substitute, writing), False

    async def patch(self, target: Target, change: Callable[[Json], Any], writing: Writing) -> Entry:
        """PATCH: `change` maps the whole object, in the target's version, to the patched one.

        Raises:
            StatusError: 400, 404, 409 (resourceVersion), 422.
        """
        resource = target.resource

        def patched(entry: Entry) -> tuple[Json, Owners | None]:
            result = change(whole(resource, entry.copy()))
            if not isinstance(result, dict) or result.get("kind") != resource.kind:
                raise invalid_patch_result("the result is not an object of the kind patched")
            document = decode(resource, result)
            fault = find_type_error(resource, document)
            if fault:
                raise invalid_patch_result(fault)
            check_name(target, document["metadata"])
            settle_namespace(target, document["metadata"])
            return document, None

        return await self._update(target, patched, writing)

    async def apply(self, target: Target, intent: Json, writing: Writing, *, force: bool) -> tuple[Entry, bool]:
        """Server-side apply; answers the stored version and whether it was created.

        Raises:
            StatusError: 400, 409 (another manager's field, or a precondition), 422.
        """
        resource = target.resource
        if not intent.get("kind") or not intent.get("apiVersion"):
            raise bad_request("invalid object type: /, Kind=")
        wanted = decode(resource, intent)
        check_type(resource, wanted)
        check_name(target, wanted["metadata"], required=True)
        settle_namespace(target, wanted["metadata"])
        if self._store.get(resource, target.namespace, target.name) is None and not target.subresource:
            document, owners = apply_fields({}, {}, wanted, writing.manager, force=force)
            return await self.create(target, document, writing, owners), True

        def applied(entry: Entry) -> tuple[Json, Owners | None]:
            return apply_fields(entry.copy(), entry.owners, wanted, writing.manager, force=force)

        return await self._update(target, applied, writing), False

    async def bind(self, target: Target, binding: Json, writing: Writing) -> None:
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
            if not writing.dry_run:
                self._store.put(PODS, pod)
            return

    async def delete(self, target: Target, options: DeleteOptions) -> tuple[Entry, bool]:
        """Delete an object; answers its last version and whether it is gone already.

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
                self._empty(target.name)
                self._store.remove(marked)
                return marked, True
            return self._store.remove(marked), True

    def _empty(self, namespace: str) -> None:
        """Remove all objects of a namespace, at once: the sandbox has no namespace controller."""
        for entry in self._store.everything_in(namespace):
            self._store.remove(entry)

    def list(self, selection: Selection) -> list[Entry]:
        """All selected objects as they are now."""
        return self._store.select(selection)

    async def _update(
        self, target: Target, change: Callable[[Entry], tuple[Json, Owners | None]], writing: Writing
    ) -> Entry:
        resource = target.resource
        while True:
            entry = self.get(target)
            document, owners = change(entry)
            before = entry.document
            version = document["metadata"].get("resourceVersion", "")
            if version and not version.isdecimal():
                raise internal(f'strconv.ParseUint: parsing "{version}": invalid syntax')
            if version and version != before["metadata"]["resourceVersion"]:
                raise conflict(resource, target.name, OBJECT_MODIFIED)
            document = await self._admit("UPDATE", target, document)
            if self._store.get(resource, target.namespace, target.name) is not entry:
                continue  # changed while a hook was awaited: start over, preconditions included
            uid_faults = find_changed_uid(document, before)
            restore_server_metadata(document, before)
            fill_defaults(resource, document)
            prepare_update(resource, target.subresource, document, before)
            document["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
            tidy(document)
            faults = find_faults(resource, document) + find_forbidden_changes(resource, document, before)
            _refuse(resource, document, uid_faults + faults)
            if writing.dry_run:
                return _unwritten(resource, target.namespace, document)
            if owners is None:
                owners = after_update(entry.owners, before, document, writing.manager)
            stored = self._store.put(resource, document, owners)
            if "finalizers" in before["metadata"] and is_finished(document):
                self._store.remove(stored)
            return stored

    async def _admit(self, operation: str, target: Target, document: Json) -> Json:
        if not self._hooks:
            return document
        binding = target.subresource == "binding"
        admitted = document if binding else whole(target.resource, document)
        for hook in tuple(self._hooks):
            admitted = await hook(operation, target.resource, target.subresource, admitted)
        return admitted if binding else decode(target.resource, admitted)


def _refuse(resource: Resource, document: Json, faults: list[Cause]) -> None:
    if faults:
        raise invalid(resource, document["metadata"].get("name", ""), *faults)


def _unwritten(resource: Resource, namespace: str, document: Json) -> Entry:
    return Entry(resource.storage, namespace, document["metadata"]["name"], document, 0)
