"""Conversion between the documents that clients send and the form the store keeps, and checks on posted documents."""

from sandbox.apiserver.resources import Json, ServedResource, Target
from sandbox.apiserver.status import bad_request
from sandbox.apiserver.validation import find_type_error


def to_object(resource: ServedResource, document: Json) -> Json:
    """Return a stored document as an object: with kind and apiVersion, in the field names of that version."""
    shown = resource.conversion.from_stored(document) if resource.conversion else document
    return {"kind": resource.kind, "apiVersion": resource.api_version, **shown}


def to_stored(resource: ServedResource, body: Json) -> Json:
    """Return a posted document in the stored form, without kind and apiVersion, which it may omit.

    Raises:
        StatusError: 400 for another kind or version.
    """
    kind, version = body.get("kind") or resource.kind, body.get("apiVersion") or resource.api_version
    if version != resource.api_version:
        raise bad_request(
            f"the API version in the data ({version}) does not match the expected API version ({resource.api_version})"
        )
    if kind != resource.kind:
        group = resource.group.partition(".")[0] or "core"
        raise bad_request(
            f'{kind} in version "{resource.version}" cannot be handled as a {resource.kind}: converting '
            f"({resource.version}.{kind}) to ({group}.{resource.kind}): unknown conversion"
        )
    document = {key: value for key, value in body.items() if key not in {"kind", "apiVersion"} and value is not None}
    if resource.conversion:
        document = resource.conversion.to_stored(document)
    metadata = document.get("metadata", {})
    if isinstance(metadata, dict):
        document["metadata"] = {key: value for key, value in metadata.items() if value is not None}
    return document


def check_types(resource: ServedResource, document: Json) -> None:
    """Refuse a posted document that has a value of a wrong type.

    Raises:
        StatusError: 400.
    """
    fault = find_type_error(resource, document)
    if fault:
        raise bad_request(
            f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {fault}'
        )


def fill_namespace(target: Target, metadata: Json) -> None:
    """Set the namespace of the path in the metadata, which may omit the namespace but not contradict the path.

    Raises:
        StatusError: 400.
    """
    if not target.resource.namespaced:
        metadata.pop("namespace", None)
    elif metadata.setdefault("namespace", target.namespace) != target.namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")


def check_name(target: Target, metadata: Json, *, required: bool = False) -> None:
    """Refuse a document whose name differs from the name in the path.

    Raises:
        StatusError: 400.
    """
    name = metadata.get("name", "")
    if not name and required:
        raise bad_request(
            f"the name of the object ({target.name} based on URL) was undeterminable: name must be provided"
        )
    if name != target.name:
        raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({target.name})")
