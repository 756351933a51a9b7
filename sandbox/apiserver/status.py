"""Kubernetes `Status` errors, worded as kube-apiserver 1.34 words them.

Source of codes, reasons and sentences: apimachinery `pkg/api/errors/errors.go`, and what a running 1.34.4 answered.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sandbox.apiserver.resources import Resource

Json = dict[str, Any]

OBJECT_MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


class Cause(NamedTuple):
    """One entry of `details.causes`: what is wrong with which field."""

    reason: str
    message: str
    field: str


class StatusError(Exception):
    """A refusal, answered to the client as a `Status` object.

    Args:
        code: HTTP status.
        reason: The machine-readable word of the API conventions, empty where the real server sends none.
        message: The sentence for people.
        details: `details` of the Status object, omitted when None.
        continue_token: For an expired list: the token that goes on with an inconsistent list.
    """

    def __init__(
        self, code: int, reason: str, message: str, details: Mapping[str, Any] | None = None, continue_token: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.continue_token = continue_token

    @property
    def retry_after_s(self) -> int:
        """Seconds for the Retry-After header, 0 for none."""
        return int((self.details or {}).get("retryAfterSeconds", 0))

    def document(self) -> Json:
        """The `Status` object as the API server sends it."""
        status: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {"continue": self.continue_token} if self.continue_token else {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = dict(self.details)
        status["code"] = self.code
        return status


def success(code: int | None = None, details: Mapping[str, Any] | None = None) -> Json:
    """A `Status` of success, as answered by a binding (with code) or a delete (with details)."""
    status: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details is not None:
        status["details"] = dict(details)
    if code is not None:
        status["code"] = code
    return status


def _details(resource: Resource, name: str, *, kind: str = "") -> Json:
    details: Json = {"name": name} if name else {}
    if resource.group:
        details["group"] = resource.group
    details["kind"] = kind or resource.plural
    return details


def not_found(resource: Resource, name: str) -> StatusError:
    """404: no such object."""
    return StatusError(404, "NotFound", f'{resource.qualified} "{name}" not found', _details(resource, name))


def no_such_resource() -> StatusError:
    """404: a known group and version without this resource or subresource."""
    return StatusError(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(resource: Resource, name: str) -> StatusError:
    """409: create of a name that is taken."""
    return StatusError(409, "AlreadyExists", f'{resource.qualified} "{name}" already exists', _details(resource, name))


def conflict(resource: Resource, name: str, why: str, *, subresource: str = "", kind: str = "") -> StatusError:
    """409: the object is not in the state the request assumes."""
    qualified = kind or (f"{resource.qualified}/{subresource}" if subresource else resource.qualified)
    message = f'Operation cannot be fulfilled on {qualified} "{name}": {why}'
    shown_kind = kind or (f"{resource.plural}/{subresource}" if subresource else "")
    return StatusError(409, "Conflict", message, _details(resource, name, kind=shown_kind))


def precondition_failed(
    resource: Resource, namespace: str, name: str, *, what: str, given: str, found: str
) -> StatusError:
    """409: a uid or resourceVersion named in the request is not the object's (worded as etcd's storage layer does)."""
    key = "/".join(part for part in ("/registry", resource.plural, namespace, name) if part)
    return conflict(
        resource,
        name,
        f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: "
        f"Precondition failed: {what} in precondition: {given}, {what} in object meta: {found}",
    )


def apply_conflict(conflicts: Sequence[tuple[str, str]]) -> StatusError:
    """409: a server-side apply wants fields that another manager owns; pairs are (manager, field)."""
    causes = [
        {"reason": "FieldManagerConflict", "message": f'conflict with "{manager}"', "field": field}
        for manager, field in conflicts
    ]
    plural = "" if len(conflicts) == 1 else "s"
    listed = ", ".join(f'conflict with "{manager}": {field}' for manager, field in conflicts)
    message = f"Apply failed with {len(conflicts)} conflict{plural}: {listed}"
    return StatusError(409, "Conflict", message, {"causes": causes})


def invalid(resource: Resource, name: str, *causes: Cause) -> StatusError:
    """422: the object breaks rules of its kind."""
    details = _details(resource, name, kind=resource.kind)
    details["causes"] = [cause._asdict() for cause in causes]
    sentences = [f"{cause.field}: {cause.message}" for cause in causes]
    listed = sentences[0] if len(sentences) == 1 else "[" + ", ".join(sentences) + "]"
    return StatusError(422, "Invalid", f'{resource.qualified_kind} "{name}" is invalid: {listed}', details)


def unprocessable() -> StatusError:
    """422: a JSON patch that cannot be applied; the real server does not say which operation."""
    return StatusError(422, "Invalid", "the server rejected our request due to an error in our request", {})


def invalid_patch_result(why: str) -> StatusError:
    """422: the patched document is no longer an object of its kind."""
    cause = Cause("FieldValueInvalid", f"Invalid value: {why}", "patch")
    return StatusError(422, "Invalid", f' "" is invalid: patch: {cause.message}', {"causes": [cause._asdict()]})


def bad_request(message: str) -> StatusError:
    """400: the request cannot be understood."""
    return StatusError(400, "BadRequest", message)


def unauthorized() -> StatusError:
    """401: no token, or one nobody has."""
    return StatusError(401, "Unauthorized", "Unauthorized")


def forbidden(resource: Resource, name: str, why: str) -> StatusError:
    """403: what an admission hook raises to refuse."""
    message = f'{resource.qualified} "{name}" is forbidden: {why}'
    return StatusError(403, "Forbidden", message, _details(resource, name))


def method_not_allowed() -> StatusError:
    """405: the path exists, the verb does not."""
    return StatusError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


def expired(message: str, *, continue_token: str = "") -> StatusError:
    """410: history no longer reaches back to the resourceVersion asked for."""
    return StatusError(410, "Expired", message, continue_token=continue_token)


def too_large(limit_bytes: int) -> StatusError:
    """413: a body above the server's limit."""
    return StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit_bytes}")


def unsupported_patch_type() -> StatusError:
    """415: a PATCH that is none of the four content types."""
    return StatusError(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})


def unsupported_body_type() -> StatusError:
    """415: a body that is not JSON."""
    return StatusError(
        415,
        "UnsupportedMediaType",
        "the body of the request was in an unknown format - accepted media types include: application/json, "
        "application/yaml, application/vnd.kubernetes.protobuf",
    )


def too_many_requests(retry_after_s: int) -> StatusError:
    """429: come back later."""
    message = "Too many requests, please try again later."
    return StatusError(429, "TooManyRequests", message, {"retryAfterSeconds": retry_after_s})


def internal(message: str) -> StatusError:
    """500 without a reason: an error the real server did not foresee, such as a malformed resourceVersion."""
    return StatusError(500, "", message)


def resource_version_too_large(asked: int, current: int) -> StatusError:
    """504: a list at a version the server has not reached."""
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    return StatusError(504, "Timeout", message, {"causes": causes, "retryAfterSeconds": 1})


_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


def injected(code: int, retry_after_s: int) -> StatusError:
    """Any failure on demand, with the reason the real server gives for that code."""
    details: Json = {"retryAfterSeconds": retry_after_s} if retry_after_s else {}
    return StatusError(code, _REASONS.get(code, ""), f"injected failure {code}", details)
