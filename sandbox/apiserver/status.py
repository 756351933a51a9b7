"""Errors as Kubernetes `Status` objects, with the messages of kube-apiserver 1.34.

Source of codes, reasons and messages: apimachinery `pkg/api/errors/errors.go`, and responses of a running 1.34.4.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from sandbox.apiserver.resources import Json, ServedResource

OBJECT_MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


class StatusCause(NamedTuple):
    """An entry of `details.causes`: what is wrong with which field."""

    reason: str
    message: str
    field: str


class StatusError(Exception):
    """An error that the client receives as a `Status` object.

    Args:
        code: HTTP status.
        reason: The machine-readable reason of the API conventions; empty where the real server sends none.
        message: The message.
        details: `details` of the Status object; None omits them.
        continue_token: Of an expired list: the token that continues with an inconsistent list.
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
        """Seconds for the Retry-After header; 0 for none."""
        return int((self.details or {}).get("retryAfterSeconds", 0))

    def document(self) -> Json:
        """Return the `Status` object as the API server sends it."""
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
    """Return the `Status` of a successful binding (with code) or delete (with details)."""
    status: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details is not None:
        status["details"] = dict(details)
    if code is not None:
        status["code"] = code
    return status


def _details(resource: ServedResource, name: str, *, kind: str = "") -> Json:
    details: Json = {"name": name} if name else {}
    if resource.group:
        details["group"] = resource.group
    details["kind"] = kind or resource.plural
    return details


def not_found(resource: ServedResource, name: str) -> StatusError:
    """404: the object does not exist."""
    return StatusError(404, "NotFound", f'{resource.qualified} "{name}" not found', _details(resource, name))


def no_such_resource() -> StatusError:
    """404: a served group and version has no such resource or subresource."""
    return StatusError(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(resource: ServedResource, name: str) -> StatusError:
    """409: a create with a name that is in use."""
    return StatusError(409, "AlreadyExists", f'{resource.qualified} "{name}" already exists', _details(resource, name))


def conflict(resource: ServedResource, name: str, why: str, *, subresource: str = "", kind: str = "") -> StatusError:
    """409: the object is not in the state that the request requires."""
    qualified = kind or (f"{resource.qualified}/{subresource}" if subresource else resource.qualified)
    message = f'Operation cannot be fulfilled on {qualified} "{name}": {why}'
    shown_kind = kind or (f"{resource.plural}/{subresource}" if subresource else "")
    return StatusError(409, "Conflict", message, _details(resource, name, kind=shown_kind))


def precondition_failed(
    resource: ServedResource, namespace: str, name: str, *, what: str, given: str, found: str
) -> StatusError:
    """409: a uid or resourceVersion in the request differs from the object's (the message of etcd's storage layer)."""
    key = "/".join(part for part in ("/registry", resource.plural, namespace, name) if part)
    return conflict(
        resource,
        name,
        f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: "
        f"Precondition failed: {what} in precondition: {given}, {what} in object meta: {found}",
    )


def invalid(resource: ServedResource, name: str, *causes: StatusCause) -> StatusError:
    """422: the object violates the validation rules of its kind."""
    details = _details(resource, name, kind=resource.kind)
    details["causes"] = [cause._asdict() for cause in causes]
    sentences = [f"{cause.field}: {cause.message}" for cause in causes]
    listed = sentences[0] if len(sentences) == 1 else "[" + ", ".join(sentences) + "]"
    return StatusError(422, "Invalid", f'{resource.qualified_kind} "{name}" is invalid: {listed}', details)


def unprocessable() -> StatusError:
    """422: a JSON patch cannot be applied; like the real server, the message does not name the operation."""
    return StatusError(422, "Invalid", "the server rejected our request due to an error in our request", {})


def invalid_patch_result(why: str) -> StatusError:
    """422: the patched document is not a valid object of its kind."""
    cause = StatusCause("FieldValueInvalid", f"Invalid value: {why}", "patch")
    return StatusError(422, "Invalid", f' "" is invalid: patch: {cause.message}', {"causes": [cause._asdict()]})


def bad_request(message: str) -> StatusError:
    """400: the request is malformed."""
    return StatusError(400, "BadRequest", message)


def unauthorized() -> StatusError:
    """401: the token is missing or unknown."""
    return StatusError(401, "Unauthorized", "Unauthorized")


def forbidden(resource: ServedResource, name: str, why: str) -> StatusError:
    """403: an admission hook denies the request."""
    message = f'{resource.qualified} "{name}" is forbidden: {why}'
    return StatusError(403, "Forbidden", message, _details(resource, name))


def method_not_allowed() -> StatusError:
    """405: the path does not support the verb."""
    return StatusError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


def expired(message: str, *, continue_token: str = "") -> StatusError:
    """410: the history no longer contains the requested resourceVersion."""
    return StatusError(410, "Expired", message, continue_token=continue_token)


def too_large(limit_bytes: int) -> StatusError:
    """413: the body exceeds the limit of the server."""
    return StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit_bytes}")


def unsupported_patch_type() -> StatusError:
    """415: a PATCH with a content type that is not supported."""
    return StatusError(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})


def unsupported_body_type() -> StatusError:
    """415: the body is not JSON."""
    return StatusError(
        415,
        "UnsupportedMediaType",
        "the body of the request was in an unknown format - accepted media types include: application/json, "
        "application/yaml, application/vnd.kubernetes.protobuf",
    )


def internal(message: str) -> StatusError:
    """500 without a reason: an error that the real server does not classify, such as a malformed resourceVersion."""
    return StatusError(500, "", message)


def resource_version_too_large(requested: int, current: int) -> StatusError:
    """504: a list at a resourceVersion that the server has not reached."""
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    message = f"Timeout: Too large resource version: {requested}, current: {current}"
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


def injected(code: int, retry_after_s: int, message: str = "") -> StatusError:
    """Return an injected failure, with the reason of the real server for that code."""
    details: Json = {"retryAfterSeconds": retry_after_s} if retry_after_s else {}
    return StatusError(code, _REASONS.get(code, ""), message or f"injected failure {code}", details)
