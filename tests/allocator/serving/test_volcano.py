"""What Volcano's extender plugin asks, with calls that a real Volcano made (1.12; those with allocateFunc 1.14)."""

import json
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import yaml
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allocator.binding.known_pods import FOR_SCHEDULERS, KnownPods
from allocator.decision.preemption import Preemption
from allocator.decision.tentative import Tentative
from allocator.metrics import AllocatorMetrics
from allocator.observe.journal import Journal
from allocator.observe.refusal_events import RefusalEvents
from allocator.serving.volcano import VolcanoExtender
from allocator.serving.volcano_wire import StatusCode
from allocator.state.promises import Promise
from allocator.state.reservation import Stage
from ascend.annotations import MIN_AVAILABLE
from ascend.chips import RESOURCE
from ascend.errors import Refusal
from ascend.kube.client import KubeClient
from ascend.kube.events import Regarding
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from tests.allocator.builders import GROUP, TYPE, World, node, pod, report
from tests.allocator.cores import core_pod
from tests.allocator.decision.test_part_promises import end, holder, nominated, preempt, world_of
from tests.allocator.expiry import expire
from tests.allocator.superpods.world import SELECTOR, job, super_pods

PAYLOADS = Path(__file__).parent / "volcano"
ALL = range(8)


def payload(name: str) -> Any:
    return json.loads((PAYLOADS / f"{name}.json").read_text())


class Rig:
    """An allocator as Volcano sees it.

    Attributes:
        world: the cluster.
        closed: why calls are refused now.
        events: what Events say: the object, reason and note.
    """

    def __init__(self, world: World | None = None) -> None:
        self.world = world if world is not None else World()
        self.closed: Refusal | None = None
        self.events: list[tuple[Regarding, str, str]] = []
        metrics = AllocatorMetrics(self.world.ledger, lambda: 0.0, self.world.cluster.index, lambda: True)
        pods = KnownPods(
            cast("KubeClient", None),
            self.world.cluster,
            schedulers=["default-scheduler"],
            limit=FOR_SCHEDULERS,
            monotonic=lambda: 0.0,
        )
        preemption = Preemption(self.world.cluster, self.world.ledger, self.world.engine)
        preemption.resume()
        self.volcano = VolcanoExtender(
            pods=pods,
            engine=self.world.engine,
            tentative=Tentative(self.world.cluster, self.world.ledger, self.world.engine),
            preemption=preemption,
            journal=Journal(metrics, RefusalEvents(self._publish, lambda: 0.0), lambda: 0.0),
            closed=lambda: self.closed,
        )

    def _publish(self, regarding: Regarding, reason: str, note: str, *, action: str) -> bool:
        assert action
        self.events.append((regarding, reason, note))
        return True

    def predicate(self, each: Pod, name: str, *beside: dict[str, Any]) -> tuple[str, int]:
        call = {"task": task(each), "node": {"Name": name, "Tasks": {one["UID"]: one for one in beside}}}
        answer = self.volcano.predicate(msgspec.json.encode(call))
        return answer.status, answer.code

    def fits(self, each: Pod, name: str, *beside: dict[str, Any]) -> bool:
        return self.predicate(each, name, *beside) == ("", 0)

    def scores(self, each: Pod, size: int, idle: dict[str, int]) -> tuple[dict[str, float], str]:
        """The scores for a pod of nodes on which Volcano counts chips as idle, and the error."""
        nodes = [{"Name": name, "Tasks": {}, "Idle": amount(chips)} for name, chips in idle.items()]
        call = {"task": {**task(each), "InitResreq": amount(size)}, "nodes": nodes}
        answer = self.volcano.prioritize(msgspec.json.encode(call))
        return answer.node_score, answer.error_message

    def allocate(self, each: Pod, name: str, status: int = 2) -> str:
        call = {"task": task(each, status, name)}
        return self.volcano.on_allocate(msgspec.json.encode(call)).error_message

    def deallocate(self, each: Pod) -> None:
        assert not self.volcano.on_deallocate(msgspec.json.encode({"task": task(each, 1, "n1")})).error_message

    def ready(self, *tasks: dict[str, Any]) -> bool:
        call = {"job": {"Tasks": {each["UID"]: each for each in tasks}}}
        return self.volcano.job_ready(msgspec.json.encode(call)).status

    def victims(self, each: Pod, *candidates: Pod, on: str = "n1") -> set[str]:
        call = {"evictor": task(each), "evictees": [task(one, 32, on) for one in candidates]}
        answer = self.volcano.evictable(msgspec.json.encode(call))
        assert answer.status == 1
        return {msgspec.json.decode(one)["UID"] for one in answer.victims or []}


def amount(chips: int) -> dict[str, Any]:
    """An amount of Volcano, in thousandths."""
    return {"MilliCPU": 0, "Memory": 0, "ScalarResources": {RESOURCE: 1000 * chips}}


def task(each: Pod, status: int = 1, name: str = "") -> dict[str, Any]:
    return {"UID": each.uid, "NodeName": name, "Status": status, "Pod": msgspec.to_builtins(each)}


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.world.add(node("n1"), node("n2"))
    return made


@pytest.fixture
def recorded() -> Rig:
    """The nodes of the recorded calls."""
    made = Rig()
    made.world.add(*(node(name, labels={TYPE: "module-910b-8"}) for name in ("na", "nb")))
    return made


def unbound(one: dict[str, Any]) -> Pod:
    """The pod of a recorded task as the API server has it: Volcano writes a node on it before it binds."""
    made = msgspec.convert(one["Pod"], Pod)
    return replace(made, spec=replace(made.spec, node_name=""), status=replace(made.status, phase="Pending"))


@pytest.mark.parametrize("name", ["predicate", "predicate.largest"])
def test_recorded_predicates_are_answered(recorded: Rig, name: str) -> None:
    call = payload(name)
    for each in (call["node"]["Tasks"] or {}).values():
        recorded.world.add(msgspec.convert(each["Pod"], Pod))
    recorded.world.add(unbound(call["task"]))
    answer = recorded.volcano.predicate(json.dumps(call).encode())
    if name == "predicate":
        assert (answer.status, answer.code) == ("", 0)
    else:  # all eight chips are in use
        assert answer.status.startswith("NotEnoughChips: ")
        assert answer.code == StatusCode.UNSCHEDULABLE


def test_recorded_nodes_are_scored(recorded: Rig) -> None:
    recorded.world.add(unbound(payload("prioritize")["task"]))
    answer = recorded.volcano.prioritize(json.dumps(payload("prioritize")).encode())
    assert not answer.error_message
    assert set(answer.node_score.values()) <= {0.0, 100.0}
    assert answer.node_score.keys() == {each["Name"] for each in payload("prioritize")["nodes"]}


@pytest.mark.parametrize("name", ["preemptable", "preemptable.largest", "reclaimable"])
def test_recorded_pods_are_chosen_to_be_evicted(recorded: Rig, name: str) -> None:
    call = payload(name)
    for each in call["evictees"] or []:
        recorded.world.add(msgspec.convert(each["Pod"], Pod))
    recorded.world.add(unbound(call["evictor"]))
    answer = recorded.volcano.evictable(json.dumps(call).encode())
    assert answer.status == 1
    uids = [msgspec.json.decode(each)["UID"] for each in answer.victims or []]
    assert set(uids) <= {each["UID"] for each in call["evictees"] or []}


def test_recorded_jobs_and_queues_are_answered(recorded: Rig) -> None:
    assert recorded.volcano.job_enqueueable(json.dumps(payload("jobEnqueueable")).encode()).status == 0
    ready = json.dumps(payload("jobReady")).encode()
    recorded.world.add(*map(unbound, payload("jobReady")["job"]["Tasks"].values()))
    assert recorded.volcano.job_ready(ready).status
    placed = [each["UID"] for each in payload("jobReady")["job"]["Tasks"].values() if each["Status"] == 2]
    assert all(recorded.world.ledger.get(uid) is not None for uid in placed)


def test_recorded_placements_are_reserved_and_given_back(recorded: Rig) -> None:
    made = payload("allocateFunc.v1.14")
    recorded.world.add(unbound(made["task"]))
    recorded.volcano.on_allocate(json.dumps(made).encode())
    undone = payload("deallocateFunc.v1.14")
    assert not recorded.volcano.on_deallocate(json.dumps(undone).encode()).error_message


def test_a_pod_is_judged_beside_those_that_the_session_has_placed(rig: Rig) -> None:
    four, two, other = pod("four", 4), pod("two", 2), pod("other", 4)
    rig.world.add(four, two, other)
    rig.world.fill("n1", [0, 1])
    assert rig.fits(four, "n1")
    assert rig.fits(other, "n1", task(two, 2, "n1"))  # it gets the rest of the ring in use
    status, code = rig.predicate(other, "n1", task(four, 2, "n1"))
    assert "RingTooSmall" in status or "NotEnoughChips" in status
    assert code == StatusCode.UNSCHEDULABLE
    assert rig.fits(other, "n1", task(four, 4, "n1"))  # pipelined: it waits for others to end
    assert len(rig.world.ledger) == 0


def test_no_score_of_other_plugins_makes_up_for_a_node_that_refuses_a_pod(rig: Rig) -> None:
    four = pod("four", 4)
    rig.world.add(four, node("n3"))
    rig.world.fill("n1", [0, 4])  # six chips, three in each ring
    rig.world.fill("n3", [0, 1, 2, 3])
    scores, error = rig.scores(four, 4, {"n1": 6, "n2": 8, "n3": 4})
    assert not error
    assert scores["n1"] < -10_000
    assert 0 < scores["n2"] < scores["n3"] == 100.0


def test_a_pod_that_all_nodes_with_enough_chips_refuse_is_placed_on_none(rig: Rig) -> None:
    four = pod("four", 4)
    rig.world.add(four)
    for name in ("n1", "n2"):
        rig.world.fill(name, [0, 4])
    scores, error = rig.scores(four, 4, {"n1": 6, "n2": 6})
    assert (scores, error) == ({}, "pod default/four fits on none of 2 nodes")
    assert [note for regarding, _, note in rig.events if regarding.name == "four"] == [
        "4 chips requested must be within one ring; the rings have 3 + 3 free chips"
    ]


@given(st.lists(st.sets(st.integers(0, 7), max_size=7), min_size=2, max_size=4), st.sampled_from([1, 2, 4, 8]))
def test_without_predicates_a_pod_is_placed_where_these_would_accept_it(taken: list[set[int]], size: int) -> None:
    rig, asking = Rig(), pod("asking", size)
    idle = {f"n{number}": len(ALL) - len(chips) for number, chips in enumerate(taken)}
    rig.world.add(asking, *map(node, idle))
    for name, chips in zip(idle, taken, strict=True):
        rig.world.fill(name, sorted(chips))
    counted = {name: chips for name, chips in idle.items() if chips >= size}
    fitting = {name for name in counted if rig.fits(asking, name)}
    scores, error = rig.scores(asking, size, counted)
    assert bool(error) == bool(counted and not fitting)
    assert {name for name, score in scores.items() if score > 0} == fitting


def test_nodes_on_which_others_must_end_are_before_those_where_that_does_not_help(rig: Rig) -> None:
    four = pod("four", 4, priority=10)
    rig.world.add(four)
    rig.world.fill("n1", [0, 4])
    rig.world.fill("n2", range(8))
    scores, error = rig.scores(four, 4, {"n1": 6, "n2": 0})
    assert not error
    assert scores["n1"] < scores["n2"] == 0.0


def test_a_node_where_pods_terminate_is_better_than_one_where_others_must_be_evicted(rig: Rig) -> None:
    four = pod("four", 4, priority=10)
    rig.world.add(four, pod("ending", 8, node="n1", chips=range(8), phase="Running", terminating=True))
    rig.world.fill("n2", range(8))
    scores, _ = rig.scores(four, 4, {"n1": 0, "n2": 0})
    assert scores["n1"] > scores["n2"]


def test_a_pod_for_which_volcano_has_one_node_is_told_why_it_refuses(rig: Rig) -> None:
    four = pod("four", 4)
    rig.world.add(four)
    rig.world.fill("n1", [0, 4])
    assert "RingTooSmall" in rig.allocate(four, "n1")
    assert len(rig.events) == 1


def test_a_placed_pod_has_its_chips_until_that_is_undone(rig: Rig) -> None:
    first, second = pod("first", 8), pod("second", 8)
    rig.world.add(first, second)
    assert rig.allocate(first, "n1") == ""
    assert not rig.fits(second, "n1")
    rig.deallocate(first)
    assert rig.fits(second, "n1")
    assert rig.allocate(first, "n1", status=4) == ""
    assert rig.fits(second, "n1")


def test_a_pod_that_is_asked_about_again_is_no_longer_placed(rig: Rig) -> None:
    first, second = pod("first", 8), pod("second", 8)
    rig.world.add(first, second)
    rig.allocate(first, "n1")
    assert rig.fits(first, "n2")
    assert rig.fits(second, "n1")


def test_what_the_webhook_is_binding_stays(rig: Rig) -> None:
    first, second = pod("first", 8), pod("second", 8)
    rig.world.add(first, second)
    rig.allocate(first, "n1")
    rig.world.ledger.advance(first.uid, Stage.DOUBTFUL)
    rig.deallocate(first)
    assert not rig.fits(second, "n1")


def test_before_version_1_13_chips_are_reserved_when_a_job_is_ready(rig: Rig) -> None:
    pods = [pod(f"p{rank}", 8, annotations={GROUP: "g", MIN_AVAILABLE: "2"}) for rank in range(2)]
    rig.world.add(*pods)
    assert rig.ready(task(pods[0], 2, "n1"), task(pods[1], 2, "n2"))
    assert [rig.world.ledger.get(each.uid).node for each in pods] == ["n1", "n2"]  # type: ignore[union-attr]
    late = pod("late", 8)
    rig.world.add(late)
    assert not rig.ready(task(late, 2, "n1"))


def test_a_job_that_is_not_ready_keeps_nothing(rig: Rig) -> None:
    pods = [pod(f"p{rank}", 8, annotations={GROUP: "g", MIN_AVAILABLE: "2"}) for rank in range(2)]
    rig.world.add(*pods)
    rig.world.fill("n2", [0])
    assert not rig.ready(task(pods[0], 2, "n1"), task(pods[1], 2, "n2"))
    assert len(rig.world.ledger) == 0


def test_what_a_session_leaves_placed_is_given_back_when_it_closes(rig: Rig) -> None:
    pods = [pod(f"p{rank}", 8, annotations={GROUP: "g", MIN_AVAILABLE: "2"}) for rank in range(2)]
    other = pod("other", 8)
    rig.world.add(*pods, other)
    rig.allocate(pods[0], "n1")
    rig.allocate(pods[1], "n2", status=4)  # Volcano neither starts nor discards a gang of which a part is pipelined
    assert not rig.fits(other, "n1")
    rig.volcano.session_closed(b"{}")
    assert rig.fits(other, "n1")


def test_what_is_ready_stays_reserved_when_the_session_closes(rig: Rig) -> None:
    pods = [pod(f"p{rank}", 8, annotations={GROUP: "g", MIN_AVAILABLE: "2"}) for rank in range(2)]
    rig.world.add(*pods)
    for each, name in zip(pods, ("n1", "n2"), strict=True):
        rig.allocate(each, name)
    assert rig.ready(task(pods[0], 2, "n1"), task(pods[1], 2, "n2"))
    for _ in range(2):  # Volcano posts the Bindings whenever it comes to it
        rig.volcano.session_closed(b"{}")
    assert all(rig.world.ledger.get(each.uid) is not None for each in pods)


def test_a_job_is_not_ready_if_what_was_reserved_can_no_longer_be_used(rig: Rig) -> None:
    alone = pod("alone", 8)
    rig.world.add(alone)
    rig.allocate(alone, "n1")
    assert rig.ready(task(alone, 2, "n1"))
    rig.world.add(node("n1", allocatable=7), report("n1", free=range(1, 8), unhealthy=[0]))
    assert not rig.ready(task(alone, 2, "n1"))


def test_a_ready_job_keeps_its_chips_as_long_as_a_new_one(rig: Rig) -> None:
    alone = pod("alone", 8)
    rig.world.add(alone)
    rig.allocate(alone, "n1")
    rig.world.now_s += rig.world.ledger.ttl_s - 1
    assert rig.ready(task(alone, 2, "n1"))
    rig.world.now_s += rig.world.ledger.ttl_s - 1
    expire(rig.world.ledger)
    assert rig.world.ledger.get(alone.uid) is not None


def test_a_gang_that_is_not_complete_does_not_fit(rig: Rig) -> None:
    alone = pod("p0", 8, annotations={GROUP: "g", MIN_AVAILABLE: "2"})
    rig.world.add(alone)
    status, code = rig.predicate(alone, "n1")
    assert status.startswith("GangIncomplete: ")
    assert code == StatusCode.UNRESOLVABLE  # nobody is evicted for it


def test_a_pod_of_a_gang_that_has_started_fits_beside_pods_that_are_missing(rig: Rig) -> None:
    own = {GROUP: "g", MIN_AVAILABLE: "3"}
    rig.world.add(pod("p0", 8, node="n1", chips=range(8), phase="Running", annotations=own))
    again = pod("p1", 8, annotations=own)
    rig.world.add(again)  # of the third pod nothing is seen yet
    assert rig.fits(again, "n2")
    assert rig.world.engine.place_on(again, "n2").node == "n2"  # as its Binding by the webhook


def test_peers_on_910a_are_on_servers_of_their_own(rig: Rig) -> None:
    pods = [pod(f"p{rank}", 8, annotations={GROUP: "g", MIN_AVAILABLE: "2"}) for rank in range(2)]
    rig.world.add(*pods)
    assert not rig.fits(pods[1], "n1", task(pods[0], 2, "n1"))
    assert rig.fits(pods[1], "n2")


def test_an_invalid_request_is_refused_for_good_and_its_job_is_not_enqueued(rig: Rig) -> None:
    three = pod("three", 17)
    rig.world.add(three)
    status, code = rig.predicate(three, "n1")
    assert status.startswith("InvalidRequest: ")
    assert code == StatusCode.UNRESOLVABLE
    call = {"job": {"Tasks": {three.uid: task(three)}}}
    assert rig.volcano.job_enqueueable(msgspec.json.encode(call)).status == -1


def test_the_fewest_pods_whose_chips_help_are_evicted(rig: Rig) -> None:
    low = [pod(f"low{at}", 2, node="n1", chips=range(2 * at, 2 * at + 2), phase="Running") for at in range(4)]
    high = pod("high", 4, priority=10)
    rig.world.add(*low, high)
    assert rig.victims(high, *low) in ({"uid-low0", "uid-low1"}, {"uid-low2", "uid-low3"})  # a whole ring
    plain = pod("plain", None)
    rig.world.add(plain)
    assert rig.volcano.evictable(msgspec.json.encode({"evictor": task(plain), "evictees": None})).status == 0


def test_nobody_is_evicted_for_a_gang_that_is_not_complete(rig: Rig) -> None:
    low = [pod(f"low{at}", 4, node="n1", chips=range(4 * at, 4 * at + 4), phase="Running") for at in range(2)]
    pods = [pod(f"p{rank}", 8, annotations={GROUP: "g", MIN_AVAILABLE: "2"}, priority=10) for rank in range(2)]
    rig.world.add(*low, pods[0])
    assert rig.victims(pods[0], *low) == set()
    rig.world.add(pods[1])
    assert rig.victims(pods[0], *low) == {"uid-low0", "uid-low1"}


def test_a_peer_that_excludes_the_pod_is_not_evicted_for_it(rig: Rig) -> None:
    own = {GROUP: "g", MIN_AVAILABLE: "2"}
    peer = pod("p0", 8, node="n1", chips=ALL, phase="Running", annotations=own)
    late = pod("p1", 8, priority=10, annotations=own)
    rig.world.add(peer, late)
    assert rig.victims(late, peer) == set()


def test_nobody_is_evicted_for_a_job_in_blocks() -> None:
    rig = Rig(super_pods(2))
    low = pod("low", 16, node="0-0", chips=range(16), phase="Running", selector=SELECTOR)
    in_blocks, alone = job(2, 2), pod("alone", 16, selector=SELECTOR)
    rig.world.add(low, *in_blocks, alone)
    assert rig.victims(alone, low, on="0-0") == {"uid-low"}
    assert rig.victims(in_blocks[0], low, on="0-0") == set()


def test_nobody_is_evicted_if_volcano_would_stop_before_the_chips_are_linked(rig: Rig) -> None:
    low = [pod(f"low{at}", 2, node="n1", chips=[2 * at, 2 * at + 1], phase="Running") for at in range(2)]
    kept = pod("kept", 2, node="n1", chips=[4, 5], phase="Running", priority=100)
    high = pod("high", 4, priority=10)
    rig.world.add(*low, kept, high)
    assert rig.victims(high, *low) == set()  # with chips 6 and 7 the first one would be enough by number


def test_chips_of_pods_that_end_are_free_for_volcano(rig: Rig) -> None:
    low = [pod(f"low{at}", 2, node="n1", chips=[2 * at, 2 * at + 1], phase="Running") for at in range(2)]
    kept = pod("kept", 2, node="n1", chips=[4, 5], phase="Running", priority=100)
    high = pod("high", 4, priority=10)
    ending = pod("ending", 2, node="n1", chips=[6, 7], phase="Running", terminating=True)
    rig.world.add(*low, kept, ending, high)
    assert rig.victims(high, *low) == set()
    staying = pod("ending", 2, node="n1", chips=[6, 7], phase="Running")
    rig.world.add(staying)
    assert rig.victims(high, *low) == {"uid-low0", "uid-low1"}


def test_chips_of_pods_deleted_by_force_are_free_for_volcano(rig: Rig) -> None:
    low = [pod(f"low{at}", 2, node="n1", chips=[2 * at, 2 * at + 1], phase="Running") for at in range(2)]
    kept = pod("kept", 2, node="n1", chips=[4, 5], phase="Running", priority=100)
    lost, high = pod("lost", 2, node="n1", chips=[6, 7], phase="Running"), pod("high", 4, priority=10)
    rig.world.add(*low, kept, lost, high)
    rig.world.cluster.hold_deleted(lost.uid, "n1", rig.world.cluster.nodes["n1"].holdings[lost.uid])
    rig.world.cluster.pod_deleted(lost)
    assert rig.victims(high, *low) == set()  # with its chips, which it still has, one victim is enough by number


def documented() -> Any:
    """Volcano's configuration that the documentation recommends."""
    text = (Path(__file__).parents[3] / "docs" / "volcano.md").read_text()
    config_map = yaml.safe_load(text.partition("\n```yaml\n")[2].partition("```")[0])
    return yaml.safe_load(config_map["data"]["volcano-scheduler.conf"])


def documented_arguments() -> dict[str, Any]:
    """Those of the extender plugin in the configuration."""
    (plugin,) = (each for tier in documented()["tiers"] for each in tier["plugins"] if each["name"] == "extender")
    arguments: dict[str, Any] = plugin["arguments"]
    return arguments


def test_the_documented_arguments_are_of_the_types_that_volcano_reads(rig: Rig) -> None:
    arguments = documented_arguments()
    assert arguments.pop("extender.ignorable") is False  # before 1.15 a string is not read
    app = web.Application()
    rig.volcano.add_routes(app)
    answered = {route.resource.canonical for route in app.router.routes() if route.resource is not None}
    verbs = {value for key, value in arguments.items() if key.endswith("Verb")}
    assert {f"/volcano/{verb}" for verb in verbs} < answered


def test_other_scores_of_the_documented_configuration_do_not_outweigh_ours() -> None:
    (plugin,) = (each for tier in documented()["tiers"] for each in tier["plugins"] if each["name"] == "nodeorder")
    names = ["nodeaffinity", "podaffinity", "leastrequested", "mostrequested", "balancedresource"]
    names += ["tainttoleration", "imagelocality", "podtopologyspread"]
    weights = {name: plugin["arguments"].get(f"{name}.weight", "default") for name in names}
    assert weights == dict.fromkeys(names, 0) | {"nodeaffinity": 1}


def evicted(rig: Rig, verb: str, call: dict[str, Any]) -> list[str]:
    """Whom Volcano evicts, as Session.Preemptable and Session.Reclaimable go through the tiers; other plugins agree."""
    victims: list[str] | None = None
    for tier in documented()["tiers"]:
        for plugin in tier["plugins"]:
            if not plugin.get(f"enable{verb.capitalize()}", True):
                continue
            candidates, status = [each["UID"] for each in call["evictees"]], 1
            if plugin["name"] == "extender":
                answer = rig.volcano.evictable(msgspec.json.encode(call))
                candidates, status = [msgspec.json.decode(each)["UID"] for each in answer.victims or []], answer.status
            elif plugin["name"] not in {"priority", "gang", "conformance", "drf", "proportion"}:
                continue  # has no opinion
            if status == 0:
                continue
            if not candidates:
                victims = None
                break
            victims = [each for each in victims if each in candidates] or None if victims is not None else candidates
        if victims is not None:
            return victims
    return []


@pytest.mark.parametrize("verb", ["preemptable", "reclaimable"])
def test_no_tier_of_the_documented_configuration_evicts_whom_we_spare(rig: Rig, verb: str) -> None:
    low = [pod(name, 2, node="n1", chips=chips, phase="Running") for name, chips in (("a", [0, 1]), ("b", [4, 5]))]
    kept = [pod(name, 2, node="n1", chips=chips, phase="Running") for name, chips in (("c", [2, 3]), ("d", [6, 7]))]
    high = pod("high", 4, priority=10)
    rig.world.add(*low, *kept, high)
    # a and b have four chips, but of different rings.
    assert evicted(rig, verb, {"evictor": task(high), "evictees": [task(each, 32, "n1") for each in low]}) == []
    ring = [task(each, 32, "n1") for each in (low[0], kept[0])]
    assert len(evicted(rig, verb, {"evictor": task(high), "evictees": ring})) == 2


def test_an_allocator_that_does_not_lead_accepts_nothing(rig: Rig) -> None:
    rig.closed = Refusal(Reason.NOT_LEADER, "another allocator leads")
    each = pod("first", 8)
    status, code = rig.predicate(each, "n1")
    assert status.startswith("NotLeader: ")
    assert code == StatusCode.ERROR
    assert "NotLeader" in rig.allocate(each, "n1")
    assert not rig.ready(task(each, 2, "n1"))


def test_an_allocator_that_does_not_lead_lets_pods_without_chips_pass(rig: Rig) -> None:
    rig.closed = Refusal(Reason.NOT_LEADER, "another allocator leads")
    plain = pod("plain", None)
    rig.world.add(plain)
    assert rig.fits(plain, "n1")
    asked = {"task": task(plain), "nodes": [{"Name": "n1"}]}
    assert rig.volcano.prioritize(msgspec.json.encode(asked)).node_score == {"n1": 0.0}
    assert rig.volcano.evictable(msgspec.json.encode({"evictor": task(plain), "evictees": None})).status == 0
    assert rig.allocate(plain, "n1") == ""
    assert rig.ready(task(plain, 2, "n1"))


@given(
    st.binary(max_size=40) | st.text(max_size=20).map(str.encode) | st.sampled_from([b"{}", b"null", b'{"task":{}}'])
)
def test_no_call_is_an_error(body: bytes) -> None:
    rig = Rig()
    assert rig.volcano.predicate(body).code == StatusCode.ERROR
    assert rig.volcano.prioritize(body).error_message
    assert rig.volcano.evictable(body).status == 1
    assert rig.volcano.job_enqueueable(body).status == 0
    assert not rig.volcano.job_ready(body).status
    assert rig.volcano.on_allocate(body).error_message
    assert rig.volcano.on_deallocate(body).error_message


async def test_what_is_kept_of_a_chip_is_kept_from_a_session_as_well() -> None:
    world, preemption = world_of(holder("low", 10, 0), holder("stays", 10, 0, 2000), chips=1)
    rig = Rig(world)
    world.add(high := core_pod("high", 10, priority=1000), thief := core_pod("thief", 5, priority=1))
    assert await preempt(preemption, high) == ["low"]
    world.add(nominated(high))
    end(world, ["low"])
    assert rig.predicate(thief, "n1")[0].startswith("ChipsKept: ")
    assert rig.fits(high, "n1")


def test_what_is_kept_for_a_gang_is_not_kept_from_it(rig: Rig) -> None:
    pods = [pod(f"g{rank}", 8, annotations={GROUP: "train", MIN_AVAILABLE: "2"}) for rank in range(2)]
    rig.world.add(*pods)
    plan = rig.world.cluster.jobs.job_of(pods[0]).key.plan
    rig.world.ledger.promises.keep(Promise(plan, "job default/train", 0, {"n1": 0xFF, "n2": 0xFF}, 1e6))
    assert rig.fits(pods[0], "n1")
    assert not rig.fits(pod("other", 8), "n1")


def gang_of_two(rig: Rig, priority: int = 0) -> tuple[list[Pod], str]:
    """A gang that waits, and the name of its plan."""
    group = {GROUP: "train", MIN_AVAILABLE: "2"}
    pods = [pod(f"g{rank}", 8, annotations=group, priority=priority) for rank in range(2)]
    rig.world.add(*pods)
    return pods, rig.world.cluster.jobs.job_of(pods[0]).key.plan


def test_nodes_that_drain_for_a_later_gang_are_judged_as_the_binding_is(rig: Rig) -> None:
    (first, _), _ = gang_of_two(rig)
    for since, fits in (("2020-01-01T00:00:00Z", False), ("2040-01-01T00:00:00Z", True)):
        rig.world.ledger.promises.keep(
            Promise("other", "job default/other", 0, {"n1": 0xFF}, 1e6, drains=True, since=since)
        )
        assert rig.fits(first, "n1") is fits
        assert (rig.allocate(first, "n1") == "") is fits


def test_victims_are_found_on_nodes_that_drain_for_a_later_gang(rig: Rig) -> None:
    (first, _), _ = gang_of_two(rig, priority=5)
    lower = pod("lower", 4, node="n1", chips=range(4))
    rig.world.add(lower)
    since = "2040-01-01T00:00:00Z"
    rig.world.ledger.promises.keep(Promise("other", "job x", 5, {"n1": 0xFF}, 1e6, drains=True, since=since))
    assert rig.victims(first, lower) == {lower.uid}


def test_victims_are_found_on_nodes_that_are_kept_for_the_gang_itself(rig: Rig) -> None:
    (first, _), plan = gang_of_two(rig, priority=5)
    lower = pod("lower", 4, node="n1", chips=range(4))
    rig.world.add(lower)
    rig.world.ledger.promises.keep(Promise(plan, "job default/train", 5, {"n1": 0xFF}, 1e6))
    assert rig.victims(first, lower) == {lower.uid}


def test_the_successor_of_a_pod_that_is_gone_fits_where_that_was_placed(rig: Rig) -> None:
    (first, second), _ = gang_of_two(rig)
    assert (rig.allocate(first, "n1"), rig.allocate(second, "n2")) == ("", "")
    rig.world.cluster.pod_deleted(first)
    successor = replace(first, metadata=replace(first.metadata, name="again", uid="uid-again"))
    rig.world.add(successor)
    assert rig.fits(successor, "n1")
    assert not rig.fits(pod("other", 8), "n1")
    assert rig.allocate(successor, "n1") == ""
    assert not rig.fits(successor, "n2")
