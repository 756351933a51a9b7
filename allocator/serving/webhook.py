"""The admission webhooks: chips for whatever scheduler binds a pod, and a word at once about senseless requests.

``/webhook/bindings`` (mutating, CREATE of ``pods/binding``) puts the pod's chips into the Binding or refuses it with
the reason. ``/webhook/pods`` (validating, CREATE of ``pods``) says of a pod that no node could ever take what the
filter would say of it later: it denies it, or only warns. Which objects are shown to them is set where they are
registered (deploy/charts, webhooks.yaml), so that no other pod depends on us. Neither is served unless it is wanted:
whoever reaches the first can have chips kept.
"""

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec
from aiohttp import web

from allocator.binding.binding import PodRef
from allocator.binding.injection import Injector
from allocator.observe.journal import Journal
from allocator.serving.bodies import read_body
from ascend.annotations import OURS
from ascend.errors import UNREADABLE, ApiError, AscendError, Refusal
from ascend.kube.objects import KubeObject, Pod
from ascend.reasons import Reason

_VERSION = "admission.k8s.io/v1"
_FORBIDDEN = 403
_UNAVAILABLE = 503


class _Request(msgspec.Struct, rename="camel"):
    uid: str
    object: msgspec.Raw
    name: str = ""
    namespace: str = ""
    dry_run: bool = False


class _Review(msgspec.Struct, rename="camel"):
    request: _Request


class _Target(msgspec.Struct, frozen=True):
    name: str = ""


class _Binding(KubeObject, frozen=True, kw_only=True):
    target: _Target = _Target()


class _Generated(msgspec.Struct, rename="camel", frozen=True):
    generate_name: str = ""


class _Unnamed(msgspec.Struct):
    metadata: _Generated = _Generated()


class Webhook:
    """Answers the API server.

    Args:
        injector: chooses chips for Bindings.
        journal: writes down.
        closed: why no Binding is judged now; None when they are.
        validate: raises a Refusal for a pod that makes no sense on any node; others are not its business.
        senseless: what becomes of such a pod.
    """

    def __init__(
        self,
        injector: Injector,
        journal: Journal,
        closed: Callable[[], Refusal | None],
        validate: Callable[[Pod], object],
        senseless: Literal["deny", "warn"],
    ) -> None:
        self._injector = injector
        self._journal = journal
        self._closed = closed
        self._validate = validate
        self._senseless = senseless

    def add_routes(self, app: web.Application, served: Iterable[Literal["bindings", "pods"]]) -> None:
        """Add the paths of those that are wanted."""
        handlers = {"bindings": self._bindings, "pods": self._pods}
        for name in served:
            app.router.add_post(f"/webhook/{name}", handlers[name])

    async def _bindings(self, request: web.Request) -> web.Response:
        try:
            asked = await _read(request)
            binding = msgspec.json.decode(asked.object, type=_Binding)
        except UNREADABLE as error:
            return _unreadable(error)
        name = binding.name or asked.name
        ref = PodRef(asked.namespace or binding.metadata.namespace, name, binding.uid)
        with self._journal.timed("webhook"):
            closed = self._closed()
            if closed is not None:
                return _refused(asked, closed, _UNAVAILABLE)
            try:
                wanted = await self._injector.inject(ref, binding.target.name, dry_run=asked.dry_run)
            except AscendError as error:
                if not asked.dry_run:  # whoever only tries refuses nobody a pod
                    self._journal.not_injected(ref, binding.target.name, error)
                return _refused(asked, error, _code(error))
        return _answer(asked, {"allowed": True, **_patch(asked.object, wanted)})

    async def _pods(self, request: web.Request) -> web.Response:
        try:
            asked = await _read(request)
            pod = _named(msgspec.json.decode(asked.object, type=Pod), asked)
        except UNREADABLE as error:
            return _unreadable(error)
        try:
            self._validate(pod)
        except Refusal as refusal:
            if self._senseless == "deny":
                return _refused(asked, refusal)
            return _answer(asked, {"allowed": True, "warnings": [_text(refusal)]})
        return _answer(asked, {"allowed": True})


async def _read(request: web.Request) -> _Request:
    return msgspec.json.decode(await read_body(request), type=_Review).request


def _named(pod: Pod, asked: _Request) -> Pod:
    """With a name to speak of: a pod of a controller has none yet, only the beginning of one."""
    name = pod.name
    if not name:
        name = f"{msgspec.json.decode(asked.object, type=_Unnamed).metadata.generate_name}…"
    metadata = msgspec.structs.replace(pod.metadata, name=name, namespace=asked.namespace)
    return msgspec.structs.replace(pod, metadata=metadata)


def _patch(binding: msgspec.Raw, wanted: Mapping[str, str]) -> dict[str, str]:
    """A JSON patch that makes a Binding carry these annotations and no others of ours; nothing where it does already.

    A scheduler may send along what it saw on the pod, or what somebody has invented.
    """
    document = msgspec.json.decode(binding)
    present = document.get("metadata", {}).get("annotations") or {}
    kept = {key: value for key, value in present.items() if key not in OURS}
    annotations = {**kept, **wanted}
    if present == annotations:
        return {}
    steps = [] if "metadata" in document else [{"op": "add", "path": "/metadata", "value": {}}]
    steps.append({"op": "add", "path": "/metadata/annotations", "value": annotations})
    return {"patchType": "JSONPatch", "patch": base64.b64encode(msgspec.json.encode(steps)).decode()}


def _refused(asked: _Request, error: AscendError, code: int = _FORBIDDEN) -> web.Response:
    # The API server shows the message to whoever made the request: a scheduler writes it into the pod's Event.
    return _answer(asked, {"allowed": False, "status": {"code": code, "message": _text(error)}})


def _code(error: AscendError) -> int:
    if isinstance(error, Refusal):
        return _UNAVAILABLE if error.reason == Reason.NOT_LEADER else _FORBIDDEN
    return error.status if isinstance(error, ApiError) else _UNAVAILABLE


def _text(error: AscendError) -> str:
    return f"{error.reason}: {error.message}"


def _answer(asked: _Request, response: Mapping[str, object]) -> web.Response:
    body = {"apiVersion": _VERSION, "kind": "AdmissionReview", "response": {"uid": asked.uid, **response}}
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")


def _unreadable(error: Exception) -> web.Response:
    return web.Response(status=400, text=f"the AdmissionReview is not understood: {error}\n")
