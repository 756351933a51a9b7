"""Files of Kubernetes objects: what is read, and the errors of invalid ones."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend.chips import RESOURCE
from ascend.errors import InvalidValue
from ascend.kube.kept import short
from npuctl.plan.placement import Planning
from npuctl.plan.workloads import expand
from npuctl.reading.manifests import ManifestReading, read_manifests
from npuctl.reading.source import Source
from tests.npuctl.manifests import as_list, node, pod, pod_group, report

_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def read(folder: Path, text: str, name: str = "objects.yaml") -> ManifestReading:
    path = folder / name
    path.write_text(text)
    return read_manifests([str(path)])


def refusal(folder: Path, text: str, name: str = "objects.yaml") -> str:
    with pytest.raises(InvalidValue) as refused:
        read(folder, text, name)
    message = refused.value.message
    assert message.startswith(f"{folder / name}: ")
    return message.removeprefix(f"{folder / name}: ")


def test_documents_lists_and_several_files_are_one_cluster(folder: Path) -> None:
    (folder / "a.yaml").write_text("---\n" + yaml.safe_dump_all([node("n1"), as_list(node("n2"), pod("p"))]))
    (folder / "b.json").write_text(json.dumps(as_list(report("n1"))) + "\n" + json.dumps(pod("q")))
    objects = read_manifests([str(folder / "a.yaml"), str(folder / "b.json")]).objects
    assert [each.name for each in objects.nodes] == ["n1", "n2"]
    assert [each.key for each in objects.pods] == ["default/p", "default/q"]
    assert [each.name for each in objects.config_maps] == ["mindx-dl-deviceinfo-n1"]


def test_typed_lists_whose_items_have_no_kind_are_read(folder: Path) -> None:
    items = [{"metadata": {"name": "n1"}}]
    reading = read(folder, json.dumps({"apiVersion": "v1", "kind": "NodeList", "items": items}))
    assert [each.name for each in reading.objects.nodes] == ["n1"]
    assert read(folder, json.dumps({"apiVersion": "v1", "kind": "PodList", "items": None})).objects.pods == ()


def test_the_last_of_two_objects_with_one_name_counts(folder: Path) -> None:
    reading = read(folder, json.dumps(as_list(node("n1", chips=8), node("n1", chips=3))))
    assert [each.allocatable_chips for each in reading.objects.nodes] == [3]


def test_an_object_with_the_uid_of_another_object_is_refused(folder: Path) -> None:
    holders = [pod("h1", 4, node="n1", chips=range(4), uid="u"), pod("h2", 4, node="n1", chips=range(4, 8), uid="u")]
    sentence = "document 2 (Pod default/h2): metadata.uid: 'u' is also the uid of default/h1"
    assert refusal(folder, yaml.safe_dump_all(holders)) == sentence
    assert refusal(folder, yaml.safe_dump_all([node("n1"), *holders])).startswith("document 3 ")
    assert "uid-n1" in refusal(folder, yaml.safe_dump_all([node("n1"), pod("p", uid="uid-n1")]))


def test_an_object_without_a_uid_gets_one_of_its_own(folder: Path) -> None:
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "p", "namespace": "default"}}
    objects = read(folder, json.dumps(as_list(pod("p"), pod("q"), pod("p", namespace="x"), settings))).objects
    assert len({each.uid for each in objects.pods}) == 3
    stolen = yaml.safe_dump_all([pod("p"), pod("q", uid="default/p")])
    assert "document 2 (Pod default/q): metadata.uid: " in refusal(folder, stolen)


def test_an_object_that_occurs_twice_keeps_its_uid(folder: Path) -> None:
    reading = read(folder, json.dumps(as_list(pod("p", 1, uid="u"), pod("p", 2, uid="u"))))
    assert [each.uid for each in reading.objects.pods] == ["u"]


def test_pod_groups_are_read_by_kind(folder: Path) -> None:
    groups = [
        pod_group("a", 3),
        pod_group("a", 5, group="scheduling.x-k8s.io/v1alpha1"),
        pod_group("a", 0, group="scheduling.k8s.io/v1beta1")
        | {"spec": {"schedulingPolicy": {"gang": {"minCount": 4}}}},
        pod_group("b", 1, group="x/v1"),
        pod_group("c", 1, group="x/v1"),
    ]
    reading = read(folder, json.dumps(as_list(*groups)))
    assert {
        kind: [each.spec.min_member for each in some]
        for kind, some in reading.objects.by_kind.items()
        if kind.startswith("PodGroup.") and some
    } == {
        "PodGroup.scheduling.k8s.io/v1beta1": [4],
        "PodGroup.scheduling.volcano.sh/v1beta1": [3],
        "PodGroup.scheduling.x-k8s.io/v1alpha1": [5],
    }
    assert dict(reading.ignored) == {"PodGroup": 2}
    (warning,) = reading.warnings
    assert "(PodGroup default/b): apiVersion: 'x/v1' is not supported, only scheduling.k8s.io/v1beta1, " in warning


def test_other_kinds_are_counted_and_skipped(folder: Path) -> None:
    other = [{"kind": "Service", "apiVersion": "v1"}, {"kind": "Node", "apiVersion": "example.com/v1"}]
    reading = read(folder, json.dumps(as_list(*other, other[0])))
    assert dict(reading.ignored) == {"Service": 2, "Node": 1}


@settings(max_examples=100, deadline=None)
@given(
    field=st.sampled_from(["limits", "requests", "capacity", "allocatable", "labels", "data", "nodeSelector", "any"]),
    value=_ANYTHING,
)
def test_nothing_in_an_object_of_a_kind_that_nobody_reads_stops_the_reading(
    tmp_path_factory: pytest.TempPathFactory, field: str, value: object
) -> None:
    schema = {"properties": {"resources": {"properties": {field: {"type": "object", "x": value}}}, field: value}}
    spec = {"versions": [{"schema": {"openAPIV3Schema": schema}}], field: {"n": 1 << 80}}
    other = {"kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1", "spec": spec}
    reading = read(
        tmp_path_factory.mktemp("kinds"),
        yaml.safe_dump_all([{**other, "metadata": {"name": "things"}}, pod("p"), as_list(other, pod("q"))]),
    )
    assert [waiting.key for waiting in reading.objects.pods] == ["default/p", "default/q"]
    assert dict(reading.ignored) == {"CustomResourceDefinition": 2}
    assert not expand(reading.unsubmitted, reading.objects).unplanned


def test_defaults_and_conversions_are_those_of_the_api_server(folder: Path) -> None:
    text = f"""
apiVersion: v1
kind: Pod
metadata:
  name: train
  creationTimestamp: 2026-01-01T00:00:00Z
  labels:
spec:
  containers:
  - name: main
    resources: {{limits: {{{RESOURCE}: 4, cpu: 1.5}}, requests: null}}
---
---
apiVersion: v1
kind: Pod
metadata: {{name: other, namespace: team, creationTimestamp: null}}
"""
    first, second = read(folder, text).objects.pods
    assert (first.key, first.metadata.creation_timestamp) == ("default/train", "2026-01-01T00:00:00Z")
    assert [ask.count for ask in first.container_requests] == [4]
    assert (second.key, second.metadata.creation_timestamp) == ("team/other", None)
    assert first.uid != second.uid != ""


def test_flow_style_yaml_is_not_taken_for_json(folder: Path) -> None:
    assert read(folder, "{apiVersion: v1, kind: Node, metadata: {name: n1}}").objects.nodes[0].name == "n1"


def test_deeply_nested_json_is_refused_by_item(folder: Path) -> None:
    deep = json.loads("[" * 900 + "]" * 900)
    sentence = refusal(folder, json.dumps(as_list(node("n1"), pod("p") | {"spec": {"volumes": deep}})), "a.json")
    assert sentence.startswith("document 1 items[1] (Pod default/p): spec.volumes[0][0]")
    assert len(sentence) < 500


def test_a_name_of_thousands_of_characters_is_not_repeated(folder: Path) -> None:
    sentence = refusal(folder, json.dumps(pod("a-" + "1" * 5000)))
    assert sentence.endswith("metadata.name: Expected `str` of length <= 253")
    assert len(sentence) < 500


def test_a_string_that_can_not_be_printed_is_refused(folder: Path) -> None:
    sentence = refusal(folder, json.dumps(pod("a") | {"spec": {"nodeName": "\ud800"}}), "a.json")
    assert sentence.startswith("document 1 (Pod default/a): spec.nodeName: 'utf-8' codec can't encode")
    assert read(folder, json.dumps(pod("a") | {"spec": {"nodeName": "ü"}})).objects.pods[0].spec.node_name == "ü"


def test_yaml_aliases_are_normalized_once(folder: Path) -> None:
    levels = [f"x{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 10)}]" for at in range(1, 20)]
    text = "\n".join(["kind: Pod", "metadata: {name: a}", "x0: &a0 [null, 1]", *levels])
    assert [each.key for each in read(folder, text).objects.pods] == ["default/a"]


@pytest.mark.parametrize(
    ("written", "count"),
    [
        (8.0, 8),
        ("1.0", 1),
        ("1e0", 1),
        ("80E-1", 8),
        ("8000m", 8),
        ("4000000u", 4),
        ("2000000000n", 2),
        ("+8", 8),
        ("+08.", 8),
        (".008k", 8),
        ("0.0078125Ki", 8),
        ("0.0", 0),
        ("0e999999999", 0),
        ("008", 8),
    ],
)
def test_a_whole_quantity_of_chips_is_read_in_any_form(folder: Path, written: float | str, count: int) -> None:
    text = json.dumps(as_list(node("n1", chips=8), pod("p", written)))
    objects = read(folder, text).objects
    assert [ask.count for ask in objects.pods[0].container_requests] == [count] * bool(count)
    assert objects.pods[0].requests_chips == bool(count)


@pytest.mark.parametrize(
    "written",
    [
        "1.5",
        "8001m",
        "1n",
        ".5",
        "1e-1",
        "1e19",
        "1e99999",
        "1e999999999",
        "1e-999999999",
        "1e99999999999999999999999",
        "1e-99999999999999999999999",
        "1." + "0" * 100_000 + "1",
        "9" * 100_000,
        "9" * 100_000 + "Ei",
        "9.9Ei",
    ],
)
def test_a_fraction_or_huge_quantity_of_chips_is_kept_as_it_is(folder: Path, written: str) -> None:
    (each,) = read(folder, json.dumps(pod("p", written))).objects.pods
    assert each.spec.containers[0].resources.limits[RESOURCE] == short(written, 100)


@pytest.mark.parametrize(
    "written", ["1_0", "NaN", "inf", " 8", "8 ", "\u0663", "8K", "8ki", "8mi", "e1", "1e", "+", ".", ""]
)
def test_a_quantity_that_the_api_server_refuses_is_refused(folder: Path, written: str) -> None:
    sentence = refusal(folder, json.dumps(pod("p", written)))
    assert sentence.endswith(f'spec.containers[0].resources.limits["{RESOURCE}"]: {written!r} is not a quantity')


def _pod(**changes: Any) -> str:
    return yaml.safe_dump({**pod("p"), **changes})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (_pod(metadata={"namespace": "x"}), "document 1 (Pod x): metadata: Object missing required field `name`"),
        (_pod(metadata=[1]), "document 1 (Pod): metadata: Expected `object`, got `array`"),
        (_pod(spec={"nodeName": 7}), "document 1 (Pod default/p): spec.nodeName: Expected `str`, got `int`"),
        (_pod(spec={"containers": [{"name": "a"}, 3]}), "spec.containers[1]: Expected `object`, got `int`"),
        (
            yaml.safe_dump(pod("p", "two")),
            "spec.containers[0].resources.limits[\"huawei.com/Ascend910\"]: 'two' is not a",
        ),
        (yaml.safe_dump(pod("p", -1)), "-1 is not a quantity"),
        (_pod(metadata={"name": "p", "labels": {"a": 1}}), 'metadata.labels["a"]: a string is expected, not int'),
        (
            _pod(metadata={"name": "p", "creationTimestamp": "now"}),
            "metadata.creationTimestamp: Invalid RFC3339 encoded datetime",
        ),
        (
            _pod(metadata={"name": "p", "deletionTimestamp": 3}),
            "metadata.deletionTimestamp: Expected `datetime | null`, got `int`",
        ),
        ("metadata: {name: x}", "document 1 (x): Object missing required field `kind`"),
        ("kind: [a]", "document 1: kind: Expected `str`, got `array`"),
        ("just a text", "document 1: an object is expected, not str"),
        (
            _pod(metadata={"name": "p", "labels": {"a": "b", 1: "c"}}),
            'metadata.labels["1"]: a string is expected, not int',
        ),
        (
            yaml.safe_dump(node("n") | {"status": {"capacity": {"cpu": [1]}}}),
            'status.capacity["cpu"]: [1] is not a quantity',
        ),
        (_pod(spec={"nodeSelector": {"a.b/c": True}}), 'spec.nodeSelector["a.b/c"]: a string is expected, not bool'),
        (_pod(metadata={"name": "p" * 254}), "metadata.name: Expected `str` of length <= 253"),
        (_pod(metadata={"name": 7}), "document 1 (Pod): metadata.name: Expected `str`, got `int`"),
        (_pod(spec={"priority": 1 << 64}), "spec.priority: an integer has at most 64 bits, not 65"),
        ("kind: List\nitems: {a: 1}", "document 1: items: a list is expected, not dict"),
        ("kind: List\nitems: [1]", "document 1 items[0]: an object is expected, not int"),
        ("kind: List\nitems: [{}]", "document 1 items[0]: kind: Expected `str` of length >= 1"),
        (
            "kind: Node\nmetadata: {name: n}\n---\nkind: Pod\n",
            "document 2 (Pod): metadata: Object missing required field `name`",
        ),
        ("kind: Node\nmetadata: {name: n}\n---\n\tx", "document 2: not valid YAML: found character"),
        ("[" * 5000, "document 1: "),
        ("kind: Node\nmetadata: {name: n}\n---\n" + "- " * 100_000, "document 2: nested more than 1000 levels deep"),
        (f"kind: Pod\nmetadata: {{name: a}}\nspec: {'[' * 900}{']' * 900}", "document 1 (Pod a): spec[0][0][0]"),
        (f"kind: Pod\nmetadata: {{name: a}}\nspec: {'[' * 900}{']' * 900}", "nested more than 100 levels deep"),
        ("kind: Pod\nmetadata: &a {name: a, labels: *a}", "document 1 (Pod a): metadata.labels.labels.labels"),
        ("kind: Pod\nmetadata: {name: &a [*a]}", "document 1 (Pod): metadata.name[0][0][0]"),
        ("kind: &a [*a]", "document 1: kind[0][0][0]"),
        (f"kind: 0x{'f' * 5000}", "document 1: kind: an integer has at most 64 bits, not 20000"),
        (
            f"kind: Pod\nmetadata: {{name: 0x{'f' * 5000}}}",
            "document 1 (Pod): metadata.name: an integer has at most 64 bits, not 20000",
        ),
        (
            f"kind: Node\nmetadata: {{name: n}}\nstatus: {{capacity: {{cpu: 0x{'f' * 5000}}}}}",
            'document 1 (Node n): status.capacity["cpu"]: Exceeds the limit',
        ),
    ],
)
def test_an_invalid_object_is_named_with_document_and_field(folder: Path, text: str, sentence: str) -> None:
    assert sentence in refusal(folder, text)


def test_files_that_can_not_be_read_are_named(folder: Path) -> None:
    assert "document 1: not valid JSON: Expecting" in refusal(folder, '{"kind": ', "a.json")
    assert "document 2: not valid JSON: maximum recursion" in refusal(folder, "{}" + '{"a":' * 100_000, "a.json")
    (folder / "b").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidValue, match="can't be read: 'utf-8' codec"):
        read_manifests([str(folder / "b")])
    with pytest.raises(InvalidValue, match="/none: can't be read: No such file"):
        read_manifests([str(folder / "none")])
    with pytest.raises(InvalidValue, match="can't be read: Is a directory"):
        read_manifests([str(folder)])


_JOBS: list[Any] = [
    {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {"template": pod("p"), "suspend": False},
    },
    {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "v"},
        "spec": {"tasks": [{"template": pod("p"), "replicas": 2}], "minAvailable": 1, "runPolicy": {}},
    },
]


def changed(data: st.DataObject, whole: Any) -> Any:
    """A copy with anything in one of its fields."""
    manifest = json.loads(json.dumps(whole))
    place: Any = manifest
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else list(range(len(place)))))
        inner = place[key]
        if not inner or not isinstance(inner, dict | list) or data.draw(st.booleans()):
            place[key] = data.draw(_ANYTHING)
            return manifest
        place = inner


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_value_in_any_field_is_read_or_refused(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = data.draw(st.sampled_from([node("n"), pod("p"), report("n"), pod_group("g", 1), as_list(pod("p")), *_JOBS]))
    manifest = changed(data, whole)
    path = tmp_path_factory.mktemp("any") / "objects.yaml"
    path.write_text(json.dumps(manifest))
    try:
        reading = read_manifests([str(path)])
        objects = expand(reading.unsubmitted, reading.objects).objects
    except InvalidValue as refused:
        sentence = refused.message
        assert f"{path}: document 1" in sentence
        return
    source = Source.of(now="2026-01-01T00:00:00Z")
    asyncio.run(Planning(objects, source.settings, source.now_ns, candidates=True).rest())


def test_a_list_as_the_api_server_writes_it_is_read_like_single_objects(folder: Path) -> None:
    objects = [node("n1"), node("n2", cordoned=True), pod("p", 1), pod("q", "8000m"), report("n1"), pod_group("g", 2)]
    objects.append({**pod("bare"), "metadata": {"name": "bare", "creationTimestamp": None}})
    listed = read(folder, json.dumps(as_list(*objects)), "list.json").objects
    assert listed == read(folder, "\n".join(map(json.dumps, objects)), "single.json").objects
    assert [pod.uid for pod in listed.pods] == ["default/bare", "default/p", "default/q"]


@pytest.mark.parametrize("value", ["", None, "absent"])
@pytest.mark.parametrize("field", ["apiVersion", "kind"])
@pytest.mark.parametrize(
    "of_list", [{}, {"apiVersion": ""}, {"apiVersion": None}, {"kind": "List"}, {"kind": "NodeList"}]
)
def test_only_what_an_item_leaves_out_is_its_lists(
    folder: Path, of_list: dict[str, object], field: str, value: str | None
) -> None:
    """JSON lists have a fast path, lists in YAML have none: both are read alike."""
    item = {name: value for name, value in node("n").items() if name != field}
    if value != "absent":
        item[field] = value
    listed = {**as_list(item), **of_list}
    readings: list[object] = []
    for text in (json.dumps(listed), yaml.safe_dump(listed)):
        try:
            reading = read(folder, text, "list.yaml")
        except InvalidValue as refused:
            readings.append(refused.message)
        else:
            readings.append((reading.objects, [manifest.body for manifest in reading.manifests], reading.ignored))
    assert readings[0] == readings[1]


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_what_is_read_of_an_object_does_not_depend_on_a_list_around_it(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = data.draw(st.sampled_from([node("n"), pod("p", 2), report("n"), pod_group("g", 1), *_JOBS]))
    manifest = changed(data, whole)
    folder = tmp_path_factory.mktemp("any")
    try:
        single = read(folder, json.dumps(manifest), "single.json")
    except InvalidValue:
        return  # in a list, fields that nothing reads are not judged
    listed = read(folder, json.dumps(as_list(manifest)), "list.json")
    assert listed.objects == single.objects
    assert [each.body for each in listed.manifests] == [each.body for each in single.manifests]
    assert [each.origin.key for each in listed.unsubmitted] == [each.origin.key for each in single.unsubmitted]
