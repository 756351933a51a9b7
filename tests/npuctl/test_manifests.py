"""Files of Kubernetes objects: what is read of them, and what is said of those that can't be used."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend.chips import RESOURCE
from ascend.errors import InvalidValue
from npuctl.manifests import Reading, read_manifests
from npuctl.planning import plan
from npuctl.source import Source
from tests.npuctl.manifests import as_list, node, pod, pod_group, report


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def read(folder: Path, text: str, name: str = "objects.yaml") -> Reading:
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
    snapshot = read_manifests([str(folder / "a.yaml"), str(folder / "b.json")]).snapshot
    assert [each.name for each in snapshot.nodes] == ["n1", "n2"]
    assert [each.key for each in snapshot.pods] == ["default/p", "default/q"]
    assert [each.name for each in snapshot.config_maps] == ["mindx-dl-deviceinfo-n1"]


def test_the_servers_own_lists_whose_items_name_no_kind_are_read(folder: Path) -> None:
    items = [{"metadata": {"name": "n1"}}]
    reading = read(folder, json.dumps({"apiVersion": "v1", "kind": "NodeList", "items": items}))
    assert [each.name for each in reading.snapshot.nodes] == ["n1"]
    assert read(folder, json.dumps({"apiVersion": "v1", "kind": "PodList", "items": None})).snapshot.pods == ()


def test_of_two_objects_of_one_name_the_later_counts(folder: Path) -> None:
    reading = read(folder, json.dumps(as_list(node("n1", chips=8), node("n1", chips=3))))
    assert [each.allocatable_chips for each in reading.snapshot.nodes] == [3]


def test_an_object_with_the_uid_of_another_one_is_refused_with_document_and_field(folder: Path) -> None:
    holders = [pod("h1", 4, node="n1", chips=range(4), uid="u"), pod("h2", 4, node="n1", chips=range(4, 8), uid="u")]
    told = "document 2 (Pod default/h2): metadata.uid: 'u' is that of default/h1 already"
    assert refusal(folder, yaml.safe_dump_all(holders)) == told
    assert refusal(folder, yaml.safe_dump_all([node("n1"), *holders])).startswith("document 3 ")
    assert "uid-n1" in refusal(folder, yaml.safe_dump_all([node("n1"), pod("p", uid="uid-n1")]))


def test_the_uid_that_what_has_none_goes_by_is_its_own(folder: Path) -> None:
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "p", "namespace": "default"}}
    snapshot = read(folder, json.dumps(as_list(pod("p"), pod("q"), pod("p", namespace="x"), settings))).snapshot
    assert len({each.uid for each in snapshot.pods}) == 3
    stolen = yaml.safe_dump_all([pod("p"), pod("q", uid="default/p")])
    assert "document 2 (Pod default/q): metadata.uid: " in refusal(folder, stolen)


def test_an_object_that_is_there_twice_keeps_its_uid(folder: Path) -> None:
    reading = read(folder, json.dumps(as_list(pod("p", 1, uid="u"), pod("p", 2, uid="u"))))
    assert [each.uid for each in reading.snapshot.pods] == ["u"]


def test_pod_groups_of_both_kinds_are_told_apart(folder: Path) -> None:
    groups = [
        pod_group("a", 3),
        pod_group("a", 5, group="scheduling.x-k8s.io/v1alpha1"),
        pod_group("b", 1, group="x/v1"),
        pod_group("c", 1, group="x/v1"),
    ]
    reading = read(folder, json.dumps(as_list(*groups)))
    assert {kind: [each.spec.min_member for each in some] for kind, some in reading.snapshot.groups.items()} == {
        "PodGroup.scheduling.volcano.sh": [3],
        "PodGroup.scheduling.x-k8s.io": [5],
    }
    assert dict(reading.ignored) == {"PodGroup": 2}
    (warning,) = reading.warnings
    assert (
        "(PodGroup default/b): apiVersion: nobody here knows 'x/v1', but scheduling.volcano.sh/v1beta1 and " in warning
    )


def test_other_kinds_are_counted_and_left_alone(folder: Path) -> None:
    other = [{"kind": "Service", "apiVersion": "v1"}, {"kind": "Node", "apiVersion": "example.com/v1"}]
    reading = read(folder, json.dumps(as_list(*other, other[0])))
    assert dict(reading.ignored) == {"Service": 2, "Node": 1}


def test_what_people_write_is_read_as_the_api_server_would(folder: Path) -> None:
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
    first, second = read(folder, text).snapshot.pods
    assert (first.key, first.metadata.creation_timestamp) == ("default/train", "2026-01-01T00:00:00Z")
    assert [ask.count for ask in first.container_requests] == [4]
    assert (second.key, second.metadata.creation_timestamp) == ("team/other", None)
    assert first.uid != second.uid != ""


def test_json_that_only_yaml_reads_is_read_as_yaml(folder: Path) -> None:
    assert read(folder, "{apiVersion: v1, kind: Node, metadata: {name: n1}}").snapshot.nodes[0].name == "n1"


def test_json_that_is_nested_deeper_than_any_object_is_refused_by_item(folder: Path) -> None:
    deep = json.loads("[" * 900 + "]" * 900)
    told = refusal(folder, json.dumps(as_list(node("n1"), pod("p") | {"spec": {"foo": deep}})), "a.json")
    assert told.startswith("document 1 items[1] (Pod default/p): spec.foo[0][0]")
    assert len(told) < 500


def test_a_name_of_thousands_of_digits_is_refused_and_not_repeated(folder: Path) -> None:
    told = refusal(folder, json.dumps(pod("a-" + "1" * 5000)))
    assert told.endswith("metadata.name: a name has at most 253 characters, not 5002")
    assert len(told) < 500


def test_a_text_that_could_never_be_printed_is_refused(folder: Path) -> None:
    told = refusal(folder, json.dumps(pod("a") | {"spec": {"nodeName": "\ud800"}}), "a.json")
    assert told.startswith("document 1 (Pod default/a): the object: 'utf-8' codec can't encode")
    assert read(folder, json.dumps(pod("a") | {"spec": {"nodeName": "ü"}})).snapshot.pods[0].spec.node_name == "ü"


def test_what_is_named_again_and_again_is_looked_at_once(folder: Path) -> None:
    levels = [f"x{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 10)}]" for at in range(1, 20)]
    text = "\n".join(["kind: Pod", "metadata: {name: a}", "x0: &a0 [null, 1]", *levels])
    assert [each.key for each in read(folder, text).snapshot.pods] == ["default/a"]


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
def test_a_whole_quantity_of_chips_is_read_however_it_is_written(
    folder: Path, written: float | str, count: int
) -> None:
    text = json.dumps(as_list(node("n1", chips=8), pod("p", written)))
    snapshot = read(folder, text).snapshot
    assert [ask.count for ask in snapshot.pods[0].container_requests] == [count] * bool(count)
    assert snapshot.pods[0].requests_chips == bool(count)


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
def test_a_quantity_of_chips_that_is_not_whole_or_boundless_is_kept_as_it_is(folder: Path, written: str) -> None:
    (each,) = read(folder, json.dumps(pod("p", written))).snapshot.pods
    assert each.spec.containers[0].resources.limits[RESOURCE] == written


@pytest.mark.parametrize(
    "written", ["1_0", "NaN", "inf", " 8", "8 ", "\u0663", "8K", "8ki", "8mi", "e1", "1e", "+", ".", ""]
)
def test_what_the_api_server_takes_for_no_quantity_is_none(folder: Path, written: str) -> None:
    said = refusal(folder, json.dumps(pod("p", written)))
    assert said.endswith(f'spec.containers[0].resources.limits["{RESOURCE}"]: {written!r} is no quantity')


def _pod(**changes: Any) -> str:
    return yaml.safe_dump({**pod("p"), **changes})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (_pod(metadata={"namespace": "x"}), "document 1 (Pod x): metadata.name: it is missing"),
        (_pod(metadata=[1]), "document 1 (Pod): metadata: an object is expected, not list"),
        (_pod(spec={"nodeName": 7}), "document 1 (Pod default/p): spec.nodeName: Expected `str`, got `int`"),
        (_pod(spec={"containers": [{"name": "a"}, 3]}), "spec.containers[1]: Expected `object`, got `int`"),
        (yaml.safe_dump(pod("p", "two")), "spec.containers[0].resources.limits[\"huawei.com/Ascend910\"]: 'two' is no"),
        (yaml.safe_dump(pod("p", -1)), "-1 is no quantity"),
        (_pod(metadata={"name": "p", "labels": {"a": 1}}), 'metadata.labels["a"]: Expected `str`, got `int`'),
        (_pod(metadata={"name": "p", "creationTimestamp": "now"}), "metadata.creationTimestamp: 'now' is no RFC 3339"),
        (_pod(metadata={"name": "p", "deletionTimestamp": 3}), "metadata.deletionTimestamp: 3 is no RFC 3339"),
        ("metadata: {name: x}", "document 1: kind: it is missing"),
        ("kind: [a]", "document 1: kind: ['a'] is no kind"),
        ("just a text", "document 1: the document: an object is expected, not str"),
        (_pod(metadata={"name": "p", "labels": {"a": "b", 1: "c"}}), 'metadata.labels["1"]: Expected `str`, got `int`'),
        (
            yaml.safe_dump(node("n") | {"status": {"capacity": {"cpu": [1]}}}),
            'status.capacity["cpu"]: [1] is no quantity',
        ),
        (_pod(spec={"nodeSelector": {"a.b/c": True}}), 'spec.nodeSelector["a.b/c"]: Expected `str`, got `bool`'),
        (_pod(metadata={"name": "p" * 254}), "metadata.name: a name has at most 253 characters, not 254"),
        (_pod(metadata={"name": 7}), "document 1 (Pod): metadata.name: 7 is no name"),
        (_pod(spec={"priority": 1 << 64}), "spec.priority: a whole number has at most 64 bits, not 65"),
        ("kind: List\nitems: {a: 1}", "document 1: items: a list is expected, not dict"),
        ("kind: List\nitems: [1]", "document 1 items[0]: the item: an object is expected, not int"),
        ("kind: List\nitems: [{}]", "document 1 items[0]: kind: it is missing"),
        ("kind: Node\nmetadata: {name: n}\n---\nkind: Pod\n", "document 2 (Pod): metadata.name: it is missing"),
        ("kind: Node\nmetadata: {name: n}\n---\n\tx", "document 2: it is no YAML: found character"),
        ("[" * 5000, "document 1: "),
        ("kind: Node\nmetadata: {name: n}\n---\n" + "- " * 100_000, "document 2: it is nested over 1000 deep"),
        (f"kind: Pod\nmetadata: {{name: a}}\nspec: {'[' * 900}{']' * 900}", "document 1 (Pod a): spec[0][0][0]"),
        (f"kind: Pod\nmetadata: {{name: a}}\nspec: {'[' * 900}{']' * 900}", "it is nested over 100 deep"),
        ("kind: Pod\nmetadata: &a {name: a, labels: *a}", "document 1 (Pod a): metadata.labels.labels.labels"),
        ("kind: Pod\nmetadata: {name: &a [*a]}", "document 1 (Pod): metadata.name: [[[[[[[...]]]]]]] is no name"),
        ("kind: &a [*a]", "document 1: kind: [[[[[[[...]]]]]]] is no kind"),
        (f"kind: 0x{'f' * 5000}", "document 1: kind: this int is no kind"),
        (f"kind: Pod\nmetadata: {{name: 0x{'f' * 5000}}}", "document 1 (Pod): metadata.name: this int is no name"),
        (
            f"kind: Node\nmetadata: {{name: n}}\nstatus: {{capacity: {{cpu: 0x{'f' * 5000}}}}}",
            "document 1 (Node n): the object: Exceeds the limit",
        ),
    ],
)
def test_an_object_that_can_not_be_used_is_named_with_document_and_field(folder: Path, text: str, said: str) -> None:
    assert said in refusal(folder, text)


def test_files_that_are_no_json_no_text_or_not_there_are_named(folder: Path) -> None:
    assert "document 1: it is no JSON: Expecting" in refusal(folder, '{"kind": ', "a.json")
    assert "document 2: it is no JSON: maximum recursion" in refusal(folder, "{}" + '{"a":' * 100_000, "a.json")
    (folder / "b").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidValue, match="it can't be read: 'utf-8' codec"):
        read_manifests([str(folder / "b")])
    with pytest.raises(InvalidValue, match="/none: it can't be read: No such file"):
        read_manifests([str(folder / "none")])
    with pytest.raises(InvalidValue, match="it can't be read: Is a directory"):
        read_manifests([str(folder)])


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_whatever_stands_in_a_field_is_read_or_refused(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = data.draw(st.sampled_from([node("n"), pod("p"), report("n"), pod_group("g", 1), as_list(pod("p"))]))
    manifest = json.loads(json.dumps(whole))
    place: Any = manifest
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else list(range(len(place)))))
        inner = place[key]
        if not inner or not isinstance(inner, dict | list) or data.draw(st.booleans()):
            place[key] = data.draw(_ANYTHING)
            break
        place = inner
    path = tmp_path_factory.mktemp("any") / "objects.yaml"
    path.write_text(json.dumps(manifest))
    try:
        snapshot = read_manifests([str(path)]).snapshot
    except InvalidValue as refused:
        told = refused.message
        assert f"{path}: document 1" in told
        return
    source = Source.of(now="2026-01-01T00:00:00Z")
    plan(snapshot, source.settings, source.now_ns, candidates=True)
