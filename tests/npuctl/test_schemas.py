"""What the verbs print for programs is as their published schemas say."""

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from docs.generate.schemas import ANSWERS, SCHEMAS, path_of
from npuctl.cli import app

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"
OBJECTS = ("-f", str(EXAMPLES / "cluster.yaml"), "-f", str(EXAMPLES / "cluster-vnpus.yaml"))
NOW = ("--now", "2026-01-01T00:05:00Z")


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("capacity", ("capacity",)),
        ("defragment", ("defragment",)),
        ("doctor", ("doctor", "--cluster")),
        ("explain", ("explain", "train-c")),
        ("explain", ("explain", "train-a")),
        ("explain-job", ("explain", "job/train")),
        ("plan", ("plan",)),
        ("plan", ("plan", "--candidates")),
        ("queue", ("queue",)),
        ("simulate", ("simulate", "--rate", "1=2")),
        ("topo", ("topo",)),
        ("usage", ("usage",)),
        ("whatif", ("whatif", "--drain", "node-a")),
    ],
)
def test_an_answer_is_as_its_schema_says(name: str, command: tuple[str, ...], tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        """{apiVersion: batch/v1, kind: Job, metadata: {name: train}, spec: {parallelism: 2, template: {spec:
        {containers: [{name: a, resources: {limits: {huawei.com/Ascend910: 8}}}]}}}}"""
    )
    files = (*OBJECTS, "-f", str(job)) if name == "explain-job" else OBJECTS
    done = CliRunner().invoke(app, [*command, *files, *NOW, "-o", "json"])
    answer = json.loads(done.stdout)
    read = msgspec.json.decode(done.stdout, type=ANSWERS[name])
    assert json.loads(msgspec.json.encode(read)) == answer
    assert next(iter(answer)) == "schema"
    schema = json.loads(path_of(name).read_text())
    definition = schema["$defs"][schema["$ref"].rpartition("/")[2]]
    assert definition["properties"]["schema"]["enum"] == [answer["schema"]]
    assert answer.keys() <= definition["properties"].keys()


def test_every_schema_is_published() -> None:
    assert all(path.read_text() == make() for path, make in SCHEMAS.items())
