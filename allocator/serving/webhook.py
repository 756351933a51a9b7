"""The admission webhooks: they assign chips to pods that any scheduler binds, and validate pods at their creation.

``/webhook/bindings`` (mutating, CREATE of ``pods/binding``) adds the pod's chips to the Binding, or denies it with the
reason. ``/webhook/pods`` (validating, CREATE of ``pods``) denies a pod whose request is invalid on every node, or only
warns; the filter would refuse it later. It also denies pods of controllers that would fail one after the other
(``bypassing.py``). ``/webhook/gates`` (mutating, CREATE of ``pods``) adds the allocator's
scheduling gate (``allocator/nomination/gates.py``). ``/webhook/schedulers/<name>`` (mutating, CREATE of ``pods``) names
another scheduler on pods that name none. ``/webhook/explanations`` (mutating, CREATE of ``podexplanations``) answers
why a pod waits (``explanations.py``). The webhook configurations (deploy/charts, webhooks.yaml) select the objects, so
that no other pod depends on the allocator. All are off by default: every client that reaches the first one can have
chips reserved.
"""

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, Protocol, TypeAlias, TypeVar

import msgspec
from aiohttp import web

from allocator.binding.binding import PodRef
from allocator.binding.injection import Injector
from allocator.observe.journal import Journal
from allocator.serving.explanations import Asker, Explanations
from allocator.serving.extender_wire import text
from ascend.annotations import PLACEMENT_GATE, is_ours
from ascend.errors import UNREADABLE, ApiError, AscendError, InvalidValue, Refusal
from ascend.kube.objects import Pod, SchedulingGate
from ascend.reasons import Reason
from ascend.serving.bodies import BodyRefused
from ascend.serving.counts import Cause
from ascend.serving.http import read_body, refuse_body

_VERSION = "admission.k8s.io/v1"
_FORBIDDEN = 403
_NOT_FOUND = 404
_UNAVAILABLE = 503
_REFUSED: Final[Mapping[Reason, int]] = {
    Reason.NOT_LEADER: _UNAVAILABLE,
    Reason.POD_UNKNOWN: _NOT_FOUND,
    Reason.POD_GONE: _NOT_FOUND,
}

POD_BYTES: Final = (3 << 20) + (64 << 10)
"""An AdmissionReview of a pod: the API server takes objects of up to 3 MiB, before they are validated."""

BINDING_BYTES: Final = 1 << 20
"""An AdmissionReview of a Binding: names, and at most the annotations of a pod (256 KiB)."""

AT_ONCE_BYTES: Final = 16 << 10
"""More than the AdmissionReview of almost every pod, and decoded in a millisecond: strangers may send one on each of
hundreds of connections, and the leader renews its lease and answers probes meanwhile."""

MOST_VALUES: Final = 100_000
"""The most JSON values of a pod: decoding a million, as in 3 MiB of empty containers, would hold up all others for a
second. With each of its environment variables come eleven, most of them in ``managedFields``."""

_QUOTES: Final = 4
"""Those of a value and of its key."""

PREFIX: Final = "/webhook/"
"""Of the paths of all webhooks; a name follows."""

_T = TypeVar("_T")

WebhookName: TypeAlias = Literal["bindings", "pods", "gates", "schedulers", "explanations"]

_DEFAULT_SCHEDULER: Final = "default-scheduler"
"""What the API server writes on pods that name no scheduler."""


class _Request(msgspec.Struct, rename="camel"):
    uid: str
    object: msgspec.Raw
    name: str = ""
    namespace: str = ""
    dry_run: bool = False
    user_info: Asker = Asker()


class _Review(msgspec.Struct, rename="camel"):
    request: _Request


class _Target(msgspec.Struct, frozen=True):
    name: str = ""


class _Metadata(msgspec.Struct, rename="camel", frozen=True):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    annotations: dict[str, str] | None = None


class _Object(msgspec.Struct, frozen=True):
    metadata: _Metadata | None = None


class _Binding(_Object, frozen=True):
    target: _Target = _Target()


class _Asked(_Object, frozen=True):
    """A PodExplanation: its name is the pod's, and its spec has the pod's uid."""

    spec: _Metadata = _Metadata()


class _Gates(msgspec.Struct, rename="camel", frozen=True):
    scheduling_gates: tuple[SchedulingGate, ...] = ()


class _Gated(msgspec.Struct, frozen=True):
    """All gates of a pod, which are written back, however many there are."""

    spec: _Gates = _Gates()


class RequireCalled(Protocol):
    """Raises a Refusal for a pod that its scheduler would bind without calling the allocator."""

    async def __call__(self, pod: Pod, *, dry_run: bool) -> None:
        """Judge a pod that is created, or not really created."""


class Webhook:
    """Answers the API server.

    Args:
        injector: chooses chips for Bindings.
        journal: records decisions.
        closed: why Bindings are refused now; None if they are answered.
        validate: raises a Refusal for a pod whose request is invalid on every node.
        require_called: raises a Refusal for a pod that its scheduler would bind without calling the allocator.
        warnings: what the author of a pod is told, sentences.
        invalid: whether such a pod is denied or causes a warning.
        gates: whether a pod gets the allocator's scheduling gate.
        explanations: answers why a pod waits.
    """

    def __init__(
        self,
        injector: Injector,
        journal: Journal,
        closed: Callable[[], Refusal | None],
        *,
        validate: Callable[[Pod], object],
        require_called: RequireCalled,
        warnings: Callable[[Pod], Sequence[str]],
        invalid: Literal["deny", "warn"],
        gates: Callable[[Pod], bool],
        explanations: Explanations,
    ) -> None:
        self._injector = injector
        self._journal = journal
        self._closed = closed
        self._validate = validate
        self._require_called = require_called
        self._tell = warnings
        self._invalid = invalid
        self._wants_gate = gates
        self._explanations = explanations

    def add_routes(self, app: web.Application, served: Iterable[WebhookName]) -> None:
        """Add the paths of the webhooks to serve."""
        handlers = {
            "bindings": ("bindings", self._bindings),
            "pods": ("pods", self._pods),
            "gates": ("gates", self._gates),
            "schedulers": ("schedulers/{name}", self._schedulers),
            "explanations": ("explanations", self._explain),
        }
        for name in served:
            path, handler = handlers[name]
            app.router.add_post(f"{PREFIX}{path}", handler)

    async def _bindings(self, request: web.Request) -> web.Response:
        if (closed := self._closed()) is not None:  # a standby reads no body, so it has no uid to answer to
            return _not_read(_UNAVAILABLE, text(closed))
        if isinstance(read := await _read(request, BINDING_BYTES, _binding_of), web.Response):
            return read
        review, (binding, ref) = read
        with self._journal.measure("webhook", "bind"):
            closed = self._closed()
            if closed is not None:
                return _refused(review, closed, _UNAVAILABLE)
            try:
                wanted = await self._injector.inject(ref, binding.target.name, dry_run=review.dry_run)
            except AscendError as error:
                if not review.dry_run:  # a dry run refuses no pod
                    self._journal.not_injected(ref, binding.target.name, error)
                return _refused(review, error, _code(error))
        return _answer(review, {"allowed": True, **_patch(binding.metadata, wanted)})

    async def _pods(self, request: web.Request) -> web.Response:
        if isinstance(read := await _read(request, POD_BYTES, _pod_of), web.Response):
            return read
        review, pod = read
        try:
            self._validate(pod)
        except Refusal as refusal:
            if self._invalid == "deny":
                return _refused(review, refusal)
            told = [text(refusal, review.namespace), *self._tell(pod)]
        else:
            told = list(self._tell(pod))
        try:
            await self._require_called(pod, dry_run=review.dry_run)
        except Refusal as refusal:
            if not review.dry_run:
                self._journal.on_denial(refusal)
            return _refused(review, refusal)
        return _answer(review, {"allowed": True, **_warnings(told)})

    async def _gates(self, request: web.Request) -> web.Response:
        if (closed := self._closed()) is not None:
            # Without a leader nobody would lift the gate for a while; with this the API server leaves it out.
            return _not_read(_UNAVAILABLE, text(closed))
        if isinstance(read := await _read(request, POD_BYTES, _pod_of), web.Response):
            return read
        review, pod = read
        if not self._wants_gate(pod):
            return _answer(review, {"allowed": True})
        written = msgspec.json.decode(review.object, type=_Gated).spec.scheduling_gates
        gates = [{"name": gate.name} for gate in written if gate.name != PLACEMENT_GATE]
        gated = [*gates, {"name": PLACEMENT_GATE}]
        steps = [{"op": "add", "path": "/spec/schedulingGates", "value": gated}]
        return _answer(review, {"allowed": True, **_json_patch(steps)})

    async def _schedulers(self, request: web.Request) -> web.Response:
        if isinstance(read := await _read(request, POD_BYTES, _pod_of), web.Response):
            return read
        review, pod = read
        if not pod.requests_chips or pod.spec.node_name or pod.spec.scheduler_name not in {"", _DEFAULT_SCHEDULER}:
            return _answer(review, {"allowed": True})
        steps = [{"op": "add", "path": "/spec/schedulerName", "value": request.match_info["name"]}]
        return _answer(review, {"allowed": True, **_json_patch(steps)})

    async def _explain(self, request: web.Request) -> web.Response:
        if (closed := self._closed()) is not None:
            return _not_read(_UNAVAILABLE, text(closed))
        if isinstance(read := await _read(request, BINDING_BYTES, _asked_of), web.Response):
            return read
        review, asked = read
        if not review.dry_run:
            stored = "a PodExplanation is not stored; ask by a dry run (dryRun=All, kubectl create --dry-run=server)"
            return _refused(review, InvalidValue(stored))
        ref = PodRef(review.namespace, (asked.metadata or _Metadata()).name, asked.spec.uid)
        with self._journal.measure("webhook", "explain"):
            try:
                explained = await self._explanations.answer(ref, review.user_info)
            except AscendError as error:
                return _refused(review, error, _code(error))
        return _answer(review, {"allowed": True, **_json_patch([{"op": "add", "path": "/status", "value": explained}])})


async def _read(
    request: web.Request, most: int, decoded: Callable[[_Request], _T]
) -> tuple[_Request, _T] | web.Response:
    """The request of an AdmissionReview, and its object; or the answer, if they can't be read.

    Args:
        request: the call.
        most: the most bytes of its body.
        decoded: decodes the object.
    """
    try:
        body = await read_body(request, most, at_once=AT_ONCE_BYTES)
        if most == POD_BYTES and _is_too_much(body):
            raise refuse_body(request, Cause.BODY_VALUES, MOST_VALUES)
        review = msgspec.json.decode(body, type=_Review).request
        return review, decoded(review)
    except BodyRefused as error:
        return _not_read(error.status, text(error))
    except UNREADABLE as error:
        return web.Response(status=400, text=f"the AdmissionReview can't be decoded: {error}\n")


def _is_too_much(body: bytes) -> bool:
    """Whether a JSON text has too many values, at a fraction of the cost of decoding it."""
    if _separators(body) <= MOST_VALUES:
        return False
    # Some may be in strings: arguments, and annotations that are JSON themselves.
    return body.count(b'"') > _QUOTES * MOST_VALUES or _separators(_without_strings(body)) > MOST_VALUES


def _separators(text: bytes) -> int:
    return sum(map(text.count, (b",", b"{", b"[")))


def _without_strings(text: bytes) -> bytes:
    return b"".join(text.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2])


def _binding_of(review: _Request) -> tuple[_Binding, PodRef]:
    """A Binding and its pod.

    Raises:
        ValueError: Binding and request name different ones, which the API server does not accept from a scheduler.
    """
    binding = msgspec.json.decode(review.object, type=_Binding)
    named = binding.metadata or _Metadata()
    ref = PodRef(review.namespace or named.namespace, review.name or named.name, named.uid)
    if named.name not in {"", ref.name} or named.namespace not in {"", ref.namespace}:
        raise ValueError(f"the Binding for pod {ref.key} names another one")
    return binding, ref


def _pod_of(review: _Request) -> Pod:
    """The pod with a name for messages: a pod of a controller has no name yet, only ``generateName``."""
    pod = msgspec.json.decode(review.object, type=Pod)
    name = pod.name
    if not name:
        written = msgspec.json.decode(review.object, type=_Object).metadata or _Metadata()
        name = f"{written.generate_name}…"
    metadata = msgspec.structs.replace(pod.metadata, name=name, namespace=review.namespace)
    return msgspec.structs.replace(pod, metadata=metadata)


def _asked_of(review: _Request) -> _Asked:
    return msgspec.json.decode(review.object, type=_Asked)


def _patch(binding: _Metadata | None, wanted: Mapping[str, str]) -> dict[str, str]:
    """A JSON patch that gives a Binding these annotations and no others of ours; empty if nothing has to change.

    A scheduler may copy annotations of the pod into the Binding, and the pod's author may have written any.
    """
    present = (binding.annotations if binding is not None else None) or {}
    kept = {key: value for key, value in present.items() if not is_ours(key)}
    annotations = {**kept, **wanted}
    if present == annotations:
        return {}
    steps = [] if binding is not None else [{"op": "add", "path": "/metadata", "value": {}}]
    steps.append({"op": "add", "path": "/metadata/annotations", "value": annotations})
    return _json_patch(steps)


def _json_patch(steps: Sequence[Mapping[str, object]]) -> dict[str, str]:
    return {"patchType": "JSONPatch", "patch": base64.b64encode(msgspec.json.encode(steps)).decode()}


def _warnings(sentences: Sequence[str]) -> dict[str, object]:
    # kubectl prints them; a controller logs them at most.
    return {"warnings": list(sentences)} if sentences else {}


def _refused(review: _Request, error: AscendError, code: int = _FORBIDDEN) -> web.Response:
    # The API server returns the message to its client; a scheduler writes it into the pod's Event.
    return _answer(review, {"allowed": False, "status": {"code": code, "message": text(error, review.namespace)}})


def _code(error: AscendError) -> int:
    if isinstance(error, Refusal):
        return _REFUSED.get(error.reason, _FORBIDDEN)
    return error.status if isinstance(error, ApiError) else _UNAVAILABLE


def _answer(review: _Request, response: Mapping[str, object]) -> web.Response:
    body = {"apiVersion": _VERSION, "kind": "AdmissionReview", "response": {"uid": review.uid, **response}}
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")


def _not_read(status: int, sentence: str) -> web.Response:
    return web.Response(status=status, text=f"{sentence}\n")
