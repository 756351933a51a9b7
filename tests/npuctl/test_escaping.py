"""Nothing that a tenant has written reaches the terminal of an administrator unescaped, from any verb in any format."""

import contextlib
import io
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

from ascend.annotations import ALLOCATED, MIN_AVAILABLE, PREDICATE_TIME, REAL
from ascend.chips import RESOURCE
from npuctl.cli import app
from npuctl.completion import names
from npuctl.output import SafeConsole
from npuctl.reading.source import Source
from tests.ascend.test_printable import TEXTS, obeyed
from tests.npuctl.manifests import Json, as_list, node, pod, report

NOW = "2026-01-01T00:00:00Z"
E = "\x1b]0;owned\x07\x1b[2J\x1b[31mEVIL\x1b[0m"
MARKUP = "[link=https://evil.example]click[/link][red]"

FREE_TEXT = st.just(E) | TEXTS.filter(lambda text: "\ud800" not in text and text.isprintable() is False)


def hostile(text: str) -> Json:
    """A cluster in which everything that an API server takes from a pod's author as free text is this text."""
    owner = {"apiVersion": "batch/v1", "kind": f"Job{text}", "name": f"own{text}", "uid": "u", "controller": True}
    grouped = pod("grouped", 8, annotations={"scheduling.k8s.io/group-name": text, MIN_AVAILABLE: "2"})
    alike = pod("alike", 8, annotations={"scheduling.volcano.sh/group-name": text, "sp-block": text})
    owned = pod("owned", 16, ownerReferences=[owner], annotations={MIN_AVAILABLE: "2"})
    minimum = pod("minimum", 4, ownerReferences=[owner], annotations={MIN_AVAILABLE: text})
    asked = pod("asked", 1, annotations={"huawei.com/schedule_policy": text, "sp-fit": text, "sp-block": "8"})
    asked["metadata"]["labels"] = {"fault-scheduling": text, "tor-affinity": text}
    placed = pod("placed", 1, node="n1", annotations={ALLOCATED: text, REAL: text, PREDICATE_TIME: "1"})
    finished = pod("finished", 1, phase="Failed")
    finished["status"] |= {"message": text, "reason": text}
    waits = pod("waits", 3)
    waits["spec"] |= {"schedulerName": text, "nodeSelector": {"zone": text}, "schedulingGates": [{"name": text}]}
    waits["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": text, "message": text}]}
    wrong = pod("wrong", text)
    wrong["spec"]["containers"][0] |= {"name": text, "env": [{"name": "VC_TASK_INDEX", "value": text}]}
    pods = [grouped, alike, owned, minimum, asked, placed, finished, waits]
    named = node("n2")
    named["metadata"]["annotations"]["baseDeviceInfos"] = text
    named["status"]["conditions"].append({"type": text, "status": "True", "reason": text, "message": text})
    named["spec"] = {"taints": [{"key": text, "value": text, "effect": "NoSchedule"}]}
    odd = report("n1")
    odd["data"] = {**odd["data"], "DeviceInfoCfg": text}
    return as_list(node("n1"), named, odd, *pods)


VERBS: Sequence[Sequence[str]] = (
    *(["explain", name] for name in ("grouped", "alike", "owned", "minimum", "asked", "placed", "finished", "waits")),
    *(["topo", *flags] for flags in ([], ["--view", "map"], ["--view", "nodes"], ["--view", "products"])),
    *(["topo", "--by", kind] for kind in ("switch", "hypernode")),
    ["doctor"],
    ["plan", "--candidates"],
)


def output_of(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.stdout + done.stderr


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(FREE_TEXT)
def test_no_verb_in_any_format_prints_a_control_character(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "objects.json"
        path.write_text(json.dumps(hostile(text)))
        for verb in VERBS:
            for output in ("table", "json", "yaml"):
                printed = output_of(*verb, "-f", str(path), "--now", NOW, "-o", output)
                assert set(obeyed(printed)) <= {"\n"}, (verb, output)


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_a_tenants_text_begins_no_line(verb: Sequence[str], tmp_path: Path) -> None:
    path = tmp_path / "objects.json"
    path.write_text(json.dumps(hostile("x\nFORGED: all chips are free")))
    printed = output_of(*verb, "-f", str(path), "--now", NOW)
    assert not [line for line in printed.splitlines() if line.startswith("FORGED")]


def test_markup_of_rich_in_a_tenants_text_is_text(tmp_path: Path) -> None:
    path = tmp_path / "objects.json"
    path.write_text(json.dumps(hostile(MARKUP)))
    printed = output_of("explain", "minimum", "-f", str(path), "--now", NOW)
    assert MARKUP in printed.replace("\n", "")


def test_json_and_yaml_mean_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "objects.json"
    path.write_text(json.dumps(hostile("a\u202eb")))
    for output, load in (("json", json.loads), ("yaml", yaml.safe_load)):
        answer: dict[str, Any] = load(output_of("explain", "waits", "-f", str(path), "--now", NOW, "-o", output))
        assert answer["gates"] == ["a\u202eb"]


def test_names_with_control_characters_are_refused_in_files(tmp_path: Path) -> None:
    path = tmp_path / "objects.json"
    for key in ("name", "namespace"):
        bad = pod("train", 1)
        bad["metadata"][key] = E
        path.write_text(json.dumps(as_list(bad)))
        for verb in (["plan"], ["topo"], ["doctor"]):
            printed = output_of(*verb, "-f", str(path))
            assert "metadata.name" in printed and not set(obeyed(printed)) - {"\n"}  # noqa: PT018 - one sentence


def test_names_that_can_not_be_typed_are_not_offered_for_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    from ascend.kube.containers import Container, Resources
    from ascend.kube.objects import Metadata, Pod, PodSpec

    containers = (Container("c", Resources({RESOURCE: "1"})),)
    pods = [
        Pod(metadata=Metadata(name, "default"), spec=PodSpec(containers=containers)) for name in ("good", f"bad{E}")
    ]

    async def listed(_resource: object, _source: Source, _namespace: str) -> list[Pod]:
        return pods

    monkeypatch.setattr("npuctl.completion._list", listed)
    source = Source.of(files=["-"])
    assert names("pods", "", "default", source) == ["good"]


@given(TEXTS)
def test_whatever_is_laid_out_is_printed_without_control_characters(text: str) -> None:
    table = Table("title")
    table.add_row(text)
    table.add_row(Text(text, style="bold"))
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        console = SafeConsole(width=40)
        console.print(text, Text.assemble("a", (text, "red")), table, Panel(text, title=text))
    assert set(obeyed(written.getvalue())) <= {"\n"}


def test_only_rich_writes_control_characters_on_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    written = Terminal()
    with contextlib.redirect_stdout(written):
        SafeConsole(width=80).print(Text(f"a{E}b", style="red"), E)
    assert "\x1b]0" not in written.getvalue()
    assert "\x1b[2J" not in written.getvalue()
    assert r"\x1b[2J" in written.getvalue()
