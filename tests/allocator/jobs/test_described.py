"""Jobs of operators that only the settings describe, as the example of docs/jobs.md does."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml
from typer.testing import CliRunner

from allocator.rescheduling.owners import why_nobody
from allocator.rules.job import JobKey, marks_of
from allocator.settings import Settings
from allocator.state.jobs import Jobs
from ascend.daemon.settings import fixed_settings
from ascend.errors import InvalidValue
from ascend.jobs.described import JobDescription
from ascend.jobs.kind import JobObject
from ascend.jobs.table import TABLE
from ascend.kube.client import KubeClient
from ascend.kube.objects import Pod
from npuctl.cli import app
from sandbox.apiserver import ApiServer
from sandbox.apiserver.resources import SERVED, Catalogue, ServedResource
from tests.allocator.harness import Json, events_of, pod_manifest, running, until
from tests.allocator.jobs.manifests import made
from tests.deploy import helm
from tests.npuctl.manifests import as_list, node

DOCS: Final = Path(__file__).parents[3] / "docs" / "jobs.md"
EXAMPLE: Final[Json] = yaml.safe_load(
    re.findall(r"```yaml\n(job_kinds:.*?)```", DOCS.read_text(), re.DOTALL)[0]
)  # what users copy
KIND: Final = "TrainingRun.trainers.example.com"
OWNER: Final = ("trainers.example.com/v1", "TrainingRun", "train")
PREFIX: Final = "trainers.example.com"
TEMPLATE: Final[Json] = {
    "spec": {"containers": [{"name": "main", "resources": {"limits": {"huawei.com/Ascend910": "8"}}}]}
}
SPEC: Final[Json] = {"leader": {"template": TEMPLATE}, "worker": {"replicas": 2, "template": TEMPLATE}}


def changed(**fields: Any) -> Json:
    """The description of the example, with other fields."""
    return {"job_kinds": [{**EXAMPLE["job_kinds"][0], **fields}]}


OTHER_LABEL: Final = "other.example.com/run"
TWO: Final[Json] = {
    "job_kinds": EXAMPLE["job_kinds"] + changed(kind="Other", plural="others", jobLabel=OTHER_LABEL)["job_kinds"]
}


def run_object(spec: object, name: str = "train") -> Json:
    """An object of the kind."""
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": OWNER[0], "kind": OWNER[1], "metadata": metadata, "spec": spec}


def run_pod(role: str, at: int, *, labelled: bool = True, owned: bool = True) -> Pod:
    """A pod as the operator makes it."""
    labels = {f"{PREFIX}/run": "train", f"{PREFIX}/role": role, f"{PREFIX}/index": str(at)}
    return made(f"train-{role}-{at}", OWNER if owned else None, labels if labelled else {})


def decoded(spec: object) -> JobObject:
    """An object as the allocator keeps it."""
    found: JobObject = msgspec.json.decode(
        msgspec.json.encode(run_object(spec)), type=TABLE.by_name[KIND].objects[0].type
    )
    return found


@pytest.fixture
def describe() -> Iterator[Callable[..., None]]:
    def use(given: Json) -> None:
        TABLE.describe(fixed_settings(Settings, None, given).job_kinds)

    use(EXAMPLE)
    yield use
    TABLE.describe(())


PODS: Final = [("leader", 0), ("worker", 0), ("worker", 1)]


@pytest.mark.usefixtures("describe")
@pytest.mark.parametrize("marks", [{"owned": False}, {}])
def test_pods_are_a_gang_of_the_size_that_the_object_states_with_ranks_by_role(marks: dict[str, bool]) -> None:
    jobs = Jobs()
    jobs.on_watched(KIND)
    pods = [run_pod(role, at, **marks) for role, at in PODS]
    for pod in reversed(pods):
        jobs.pod_applied(pod)
    job = jobs.job_of(pods[0])
    assert job.key == JobKey("default", "train", KIND)
    assert jobs.lacks_group(job)
    jobs.source_applied(KIND, decoded(SPEC))
    assert not jobs.lacks_group(job)
    assert job.min_available == 3
    assert [pod.name for _, pod in job.by_rank()] == [pod.name for pod in pods]
    jobs.source_applied(KIND, decoded({**SPEC, "minAvailable": 2}))
    assert job.min_available == 2


@pytest.mark.usefixtures("describe")
def test_pods_without_the_label_are_of_the_object_that_owns_them() -> None:
    jobs = Jobs()
    assert jobs.job_of(run_pod("worker", 0, labelled=False)).key == JobKey("default", "train", KIND)


def test_pods_of_the_same_owner_are_no_job_without_the_description() -> None:
    assert Jobs().job_of(run_pod("worker", 0)).key.kind == "TrainingRun"


def test_the_operator_replaces_a_deleted_pod_only_if_the_description_says_so(describe: Callable[..., None]) -> None:
    pod = run_pod("worker", 0)
    assert why_nobody(pod, None, 1) is None
    describe(changed(recreates=False))
    assert "not known" in (why_nobody(pod, None, 1) or "")


def test_without_a_minimum_each_pod_starts_by_itself_if_the_description_says_so(describe: Callable[..., None]) -> None:
    describe(changed(startsWhole=False))
    assert decoded(SPEC).facts.whole is None


def test_an_optional_role_may_be_missing(describe: Callable[..., None]) -> None:
    roles = [{**role, "optional": True} for role in EXAMPLE["job_kinds"][0]["roles"]]
    describe(changed(roles=roles))
    facts = decoded({"worker": SPEC["worker"]}).facts
    assert [(part.name, part.pods) for part in facts.parts] == [("worker", 2)]
    assert facts.whole == 2


@pytest.mark.usefixtures("describe")
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({**SPEC, "worker": {"replicas": "many", "template": TEMPLATE}}, r"got `str` - at `\$.spec.worker.replicas`"),
        ({**SPEC, "worker": {"replicas": -1, "template": TEMPLATE}}, r">= 0 - at `\$.spec.worker.replicas`"),
        ({**SPEC, "worker": {"replicas": 1.5, "template": TEMPLATE}}, r"got `float` - at `\$.spec.worker.replicas`"),
        ({**SPEC, "worker": {"template": TEMPLATE}}, "no spec.worker.replicas, where job_kinds has a number"),
        ({"worker": SPEC["worker"]}, "no spec.leader.template, where job_kinds has a template"),
        ({**SPEC, "leader": "text"}, r"got `str` - at `\$.spec.leader`"),
        ({**SPEC, "minAvailable": []}, r"got `array` - at `\$.spec.minAvailable`"),
        (None, r"got `null` - at `\$.spec`"),
    ],
)
def test_an_object_that_is_not_as_described_is_refused_with_the_field(spec: object, said: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=said):
        decoded(spec)


@pytest.mark.usefixtures("describe")
def test_nothing_but_what_is_described_is_kept_of_a_large_object() -> None:
    large = {**SPEC, "notes": ["x" * 1000] * 1000, "worker": {**SPEC["worker"], "more": {"deep": ["y"] * 1000}}}
    assert len(msgspec.json.encode(decoded(large))) < 1500
    assert decoded(large).facts == decoded(SPEC).facts


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"apiVersion": "v1"}, r"job_kinds\.0\.apiVersion: must be group/version of a custom resource \(got 'v1'\)"),
        ({"apiVersion": "batch/v1", "kind": "Job"}, r"job_kinds\.0\.kind: Job\.batch is known without a description"),
        ({"apiVersion": "kubeflow.org/v9", "kind": "TFJob"}, r"TFJob\.kubeflow\.org is known"),
        ({"plural": "../../secrets"}, r"job_kinds\.0\.plural: must be .* \(got '\.\./\.\./secrets'\)"),
        ({"jobLabel": "ray.io/cluster"}, r"job_kinds\.0\.jobLabel: pods of other kinds have it"),
        ({"jobLabel": "app.kubernetes.io/name"}, r"job_kinds\.0\.jobLabel: pods of other kinds have it"),
        ({"jobLabel": "a b"}, r"job_kinds\.0\.jobLabel: must be the key of a label \(got 'a b'\)"),
        ({"roleLabel": ""}, r"job_kinds\.0\.roleLabel: must be given"),
        ({"minAvailable": "status.x"}, r"job_kinds\.0\.minAvailable: must be names of fields .* \(got 'status\.x'\)"),
        ({"minAvailable": "spec" + ".a" * 99}, r"job_kinds\.0\.minAvailable: must be names of fields"),
        ({"roles": []}, r"job_kinds\.0\.roles: must be 1 to 16 \(got 0\)"),
        ({"roles": [{"name": "a", "template": "spec[0]"}]}, r"job_kinds\.0\.roles\.0\.template: must be names"),
        (
            {"roles": [{"name": "a", "template": "spec.a", "replicas": "spec.a"}]},
            r"job_kinds\.0\.roles: spec\.a can't be both",
        ),
        (
            {"roles": [{"name": "a", "template": "spec.a", "replicas": "spec.a.n"}]},
            r"job_kinds\.0\.roles: spec\.a\.n is a part of spec\.a",
        ),
        (
            {"roles": [{"name": "a", "template": "spec.a"}, {"name": "A", "template": "spec.b"}]},
            r"job_kinds\.0\.roles: each must have a name of its own",
        ),
        ({"recreates": 3}, r"job_kinds\.0\.recreates: expected `bool`, got `int`"),
        ({"replica": 3}, r"job_kinds\.0: object contains unknown field `replica`"),
        ({"roles": [3]}, r"job_kinds\.0\.roles\.0: expected `object`, got `int`"),
    ],
)
def test_a_wrong_description_is_named_at_the_start_with_field_and_value(fields: Json, said: str) -> None:
    with pytest.raises(InvalidValue) as error:
        fixed_settings(Settings, None, changed(**fields))
    assert re.search(said, str(error.value))


def test_two_descriptions_must_not_match_the_same_pods() -> None:
    first = EXAMPLE["job_kinds"][0]
    for second, said in (
        ({**first, "jobLabel": "example.com/x"}, r"job_kinds\.1\.kind: job_kinds\.0 has TrainingRun"),
        ({**first, "kind": "Other"}, r"job_kinds\.1\.jobLabel: job_kinds\.0 has trainers\.example\.com/run"),
    ):
        with pytest.raises(InvalidValue) as error:
            fixed_settings(Settings, None, {"job_kinds": [first, second]})
        assert re.search(said, str(error.value))


@pytest.mark.parametrize("others", [63, 64, 500])
@pytest.mark.usefixtures("describe")
def test_the_labels_of_a_description_are_kept_of_a_pod_with_many(others: int) -> None:
    manifest = pod_manifest("train-worker-1", 8, labels={
        **{f"a{number}": "x" for number in range(others)},
        **run_pod("worker", 1).metadata.labels,
    })  # fmt: skip
    pod = msgspec.json.decode(msgspec.json.encode(manifest), type=Pod)
    marks = marks_of(pod)
    assert (marks.job, marks.position.part, marks.position.at) == (JobKey("default", "train", KIND), "worker", 1)
    assert len(pod.metadata.labels) <= 64 + 3


def test_a_pod_with_the_labels_of_two_descriptions_is_told(describe: Callable[..., None]) -> None:
    describe(TWO)
    one, both = run_pod("worker", 0), run_pod("worker", 1)
    both.metadata.labels[OTHER_LABEL] = "x"
    jobs = Jobs()
    assert jobs.without_effect(one) == ()
    assert jobs.job_of(both).key == JobKey("default", "train", KIND)
    (said,) = jobs.without_effect(both)
    assert said.startswith(f"the pod is of {KIND} by label {PREFIX}/run, Other.{PREFIX} by label {OTHER_LABEL}")


async def test_allocators_of_one_process_have_the_same_descriptions(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    async with ApiServer() as server:
        async with running(server, first, **EXAMPLE):
            async with running(server, second, synced=False, **EXAMPLE):
                pass
            for other in ({}, TWO):
                with pytest.raises(InvalidValue, match="job_kinds: another program in this process"):
                    async with running(server, second, synced=False, **other):
                        pass
            assert [kind.name for kind in TABLE.described] == [KIND]
        async with running(server, first, synced=False, **TWO):
            assert len(TABLE.described) == 2
        assert not TABLE.described


@pytest.mark.usefixtures("describe")
def test_plan_expands_an_object_and_explain_finds_its_pods(tmp_path: Path) -> None:
    config, file = tmp_path / "allocator.yaml", tmp_path / "run.json"
    config.write_text(yaml.safe_dump(EXAMPLE))
    nodes = [node(f"node-{name}") for name in "abc"]
    file.write_text(json.dumps(as_list(*nodes, run_object(SPEC))))
    arguments = ["-f", str(file), "--config", str(config), "-o", "json"]
    setting = f"job_kinds={json.dumps(EXAMPLE['job_kinds'])}"
    for given in (arguments, ["-f", str(file), "--set", setting, "-o", "json"]):
        done = CliRunner().invoke(app, ["plan", *given])
        assert done.exit_code == 0, done.stderr
        planned = json.loads(done.stdout)
        assert sorted(pod["name"] for pod in planned["pods"]) == ["train-leader-0", "train-worker-0", "train-worker-1"]
    # With a server less, none starts.
    file.write_text(json.dumps(as_list(*nodes[1:], run_object(SPEC))))
    done = CliRunner().invoke(app, ["plan", *arguments])
    assert done.exit_code == 3
    assert json.loads(done.stdout)["pods"] == []
    labels = {role: dict(run_pod(*role).metadata.labels) for role in PODS}
    pods = [pod_manifest(f"train-{role}-{at}", 8, labels=labels[role, at]) for role, at in PODS]
    file.write_text(json.dumps(as_list(*nodes[1:], *pods, run_object(SPEC))))
    done = CliRunner().invoke(app, ["explain", "trainingrun/train", *arguments])
    assert done.exit_code == 3, done.output
    assert {pod["name"] for pod in json.loads(done.stdout)["pods"]} == {f"train-{role}-{at}" for role, at in PODS}


@pytest.mark.usefixtures("describe")
async def test_a_gang_starts_whole_on_an_api_server(tmp_path: Path) -> None:
    served = ServedResource(PREFIX, "v1", "trainingruns", "trainingrun", "TrainingRun")
    async with ApiServer() as server, running(server, tmp_path, **EXAMPLE) as allocator:
        server._catalogue = Catalogue((*SERVED, served))
        for name in "ab":
            await allocator.node(name)
        pods = [
            await allocator.pod(f"train-{role}-{at}", 8, labels=dict(run_pod(role, at).metadata.labels))
            for role, at in PODS
        ]
        jobs = allocator.app.cluster.jobs
        await server.create(run_object({**SPEC, "worker": "wrong"}))
        (job,) = jobs
        await until(lambda: "can't be read" in jobs.why_lacking(job))
        refused = await allocator.filter(pods[1], "ab")
        assert "GroupMissing" in str(refused)
        assert "`$.spec.worker`" in str(refused)
        (event, *_) = await events_of(allocator)
        assert (event["regarding"]["name"], "`$.spec.worker`" in event["note"]) == (pods[1]["metadata"]["name"], True)
        async with await KubeClient.connect(str(tmp_path / "kubeconfig")) as client:
            await client.patch(TABLE.by_name[KIND].objects[0], "train", {"spec": SPEC}, namespace="default")
        await until(lambda: all(job.min_available == 3 for job in jobs), timeout_s=30)
        refused = await allocator.filter(pods[1], "ab")
        assert not refused.get("NodeNames")
        await allocator.node("c")
        answer = await allocator.filter(pods[1], "abc")
        assert len(answer["NodeNames"]) == 1


def test_the_chart_grants_the_rights_to_that_kind_and_no_other(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"allocator": {"jobKinds": EXAMPLE["job_kinds"]}}))
    with_kind, without = helm.render("-f", str(values)), helm.render()

    def rules(items: list[Json]) -> list[Json]:
        return [
            rule
            for item in items
            if item["kind"] == "ClusterRole"
            and item["metadata"]["labels"]["app.kubernetes.io/component"] == "allocator"
            for rule in item["rules"]
        ]

    added = [rule for rule in rules(with_kind) if rule not in rules(without)]
    assert added == [{"apiGroups": [PREFIX], "resources": ["trainingruns"], "verbs": ["list", "watch"]}]
    (argument,) = {
        argument
        for item in with_kind
        if item["kind"] == "Deployment"
        for container in item["spec"]["template"]["spec"]["containers"]
        for argument in container.get("args", ())
        if argument.startswith("--job-kinds=")
    }
    assert json.loads(argument.partition("=")[2]) == EXAMPLE["job_kinds"]
    secrets = tmp_path / "secrets.yaml"
    secrets.write_text(
        yaml.safe_dump({"allocator": {"jobKinds": changed(apiVersion="v1", plural="secrets")["job_kinds"]}})
    )
    with pytest.raises(helm.HelmError, match="apiVersion"):
        helm.render("-f", str(secrets))


def test_the_description_is_decoded_as_the_chart_passes_it() -> None:
    found = msgspec.convert(EXAMPLE["job_kinds"], list[JobDescription])
    assert [kind.name for kind in found] == [KIND]
