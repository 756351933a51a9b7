"""Settings of a job in several places, malformed, contradictory, or changed while its pods wait, break nothing."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.rules.job_products import SCHEDULE_POLICY
from ascend.annotations import MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.jobs.pod_groups import VOLCANO
from ascend.kube.objects import Metadata, Pod
from ascend.kube.workloads import PodGroup, PodGroupSpec
from ascend.reasons import Reason
from tests.allocator.builders import GROUP, TYPE, World, node
from tests.allocator.jobs.manifests import TEMPLATE, job_object, kubeflow

B8, OTHER = "chip8-node8", "chip4-node8"
OBJECT = "PyTorchJob"
VALUES: dict[str, list[str]] = {
    SCHEDULE_POLICY: ["", B8, OTHER, "chip9", "chip2-node16-sp", "\x00", "x" * 5000],
    MIN_AVAILABLE: ["", "0", "1", "2", "3", "-1", "+2", "1e3", "\u0663", "2 ", "9" * 5000, "2.0"],
    "sp-block": ["", "8", "16", "abc", "9" * 5000],
}
LABELS = {"subHealthyStrategy": ["", "ignore", "forceExit", "?"], "tor-affinity": ["", "null", "large-model-schema"]}


def some(values: dict[str, list[str]]) -> st.SearchStrategy[dict[str, str]]:
    return st.fixed_dictionaries({}, optional={key: st.sampled_from(each) for key, each in values.items()})


MARKS = st.fixed_dictionaries({"annotations": some(VALUES), "labels": some(LABELS)})
NUMBERS = st.sampled_from([None, -1, 0, 1, 2, 3, 2**31])


def world() -> World:
    made = World()
    for name, product in (("a0", "module"), ("a1", "module"), ("b0", "module-910b-8"), ("b1", "module-910b-8")):
        made.add(node(name, labels={TYPE: product}))
    made.cluster.jobs.on_watched(VOLCANO)
    made.cluster.jobs.on_watched(OBJECT)
    return made


def group_of(minimum: int | None, **metadata: Any) -> PodGroup:
    spec = PodGroupSpec() if minimum is None else PodGroupSpec(minimum)
    return PodGroup(metadata=Metadata("train", "default", **metadata), spec=spec)


def source_of(minimum: int | None = None, **metadata: Any) -> Any:
    policy = "" if minimum is None else f", runPolicy: {{schedulingPolicy: {{minAvailable: {minimum}}}}}"
    spec = f"{{pytorchReplicaSpecs: {{Worker: {{replicas: 2, template: {TEMPLATE}}}}}{policy}}}"
    return job_object(OBJECT, spec, **metadata)


def members(*, labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None) -> list[Pod]:
    pods = [kubeflow(OBJECT, "worker", at) for at in range(2)]
    for pod in pods:
        pod.metadata.labels.update(labels or {})
        pod.metadata.annotations.update({GROUP: "train"} | (annotations or {}))
    return pods


def outcome(made: World, pod: Pod) -> str:
    try:
        return made.engine.place(pod).node
    except Refusal as refusal:
        return refusal.reason.value


def final(made: World, pods: list[Pod]) -> list[str]:
    return [outcome(made, pod) for pod in pods]


STATES = st.fixed_dictionaries(
    {
        "group": st.none() | st.tuples(NUMBERS, MARKS),
        "source": st.none() | st.tuples(NUMBERS, MARKS),
        "pods": MARKS,
    }
)


def show(made: World, before: Any, state: Any) -> list[Pod]:
    """Show a state, as the informers do after the one before."""
    jobs = made.cluster.jobs
    if state["group"] is not None:
        jobs.group_applied(VOLCANO, group_of(state["group"][0], **state["group"][1]))
    elif before is not None and before["group"] is not None:
        jobs.group_deleted(VOLCANO, group_of(before["group"][0]))
    if state["source"] is not None:
        jobs.source_applied(OBJECT, source_of(state["source"][0], **state["source"][1]))
    elif before is not None and before["source"] is not None:
        jobs.source_deleted(OBJECT, source_of())
    pods = members(**state["pods"])
    made.add(*pods)
    return pods


@given(st.lists(STATES, min_size=2, max_size=4))
def test_pods_that_wait_end_as_if_only_the_last_settings_had_been_there(states: list[Any]) -> None:
    made, before = world(), None
    for state in states[:-1]:
        pods = show(made, before, state)
        for pod in pods:
            outcome(made, pod)
        with suppress(Refusal):
            made.engine.filter(pods[0])
        before = state
    pods = show(made, before, states[-1])
    made.now_s += 1000.0  # no reservation of former settings is left
    fresh = world()
    assert final(made, pods) == final(fresh, show(fresh, None, states[-1]))


@pytest.mark.parametrize("first", ["group", "source", "pod"])
def test_each_two_places_that_contradict_each_other_are_named(first: str) -> None:
    made = world()
    of = {where: {} if where == first else {SCHEDULE_POLICY: B8} for where in ("group", "source", "pod")}
    last = next(where for where in ("pod", "source") if where != first)
    of[last] = {SCHEDULE_POLICY: OTHER}
    made.cluster.jobs.group_applied(VOLCANO, group_of(2, annotations=of["group"]))
    made.cluster.jobs.source_applied(OBJECT, source_of(annotations=of["source"]))
    pods = members(annotations=of["pod"])
    made.add(*pods)
    refusal = made.refusal(pods[0])
    assert refusal.reason is Reason.POLICY_MISMATCH
    names = {"group": f"{VOLCANO} default/train", "source": f"{OBJECT} default/train", "pod": f"pod {pods[0].key}"}
    assert [where for where, name in names.items() if f"on {name}" in refusal.message] == [
        where for where in names if where != first
    ]


def test_an_empty_value_that_contradicts_another_is_shown() -> None:
    made = world()
    made.cluster.jobs.group_applied(VOLCANO, group_of(2, annotations={SCHEDULE_POLICY: ""}))
    made.cluster.jobs.source_applied(OBJECT, source_of(annotations={SCHEDULE_POLICY: B8}))
    pods = members()
    made.add(*pods)
    assert f"is '' on {VOLCANO} default/train, but chip8-node8 on" in made.refusal(pods[0]).message


def test_a_group_that_appears_with_another_product_moves_pods_that_are_planned() -> None:
    made = world()
    made.cluster.jobs.source_applied(OBJECT, source_of(annotations={SCHEDULE_POLICY: B8}))
    pods = members()
    made.add(*pods)
    assert outcome(made, pods[0]) == Reason.GROUP_MISSING.value
    made.cluster.jobs.group_applied(VOLCANO, group_of(2, annotations={SCHEDULE_POLICY: B8}))
    assert sorted(final(made, pods)) == ["b0", "b1"]
    made.cluster.jobs.group_applied(VOLCANO, group_of(2, annotations={SCHEDULE_POLICY: OTHER}))
    assert final(made, pods) == [Reason.POLICY_MISMATCH.value] * 2


def test_pods_whose_group_was_deleted_wait_for_it() -> None:
    made = world()
    group = group_of(2, annotations={SCHEDULE_POLICY: B8})
    made.cluster.jobs.group_applied(VOLCANO, group)
    made.cluster.jobs.source_applied(OBJECT, source_of())
    pods = members()
    made.add(*pods)
    assert sorted(final(made, pods)) == ["b0", "b1"]
    made.cluster.jobs.group_deleted(VOLCANO, group)
    assert final(made, pods) == [Reason.GROUP_MISSING.value] * 2
    assert len(made.ledger) == 0
    made.cluster.jobs.group_applied(VOLCANO, group)
    assert sorted(final(made, pods)) == ["b0", "b1"]
