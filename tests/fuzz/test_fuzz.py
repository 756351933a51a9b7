"""No bytes from a stranger crash a reader: the corpus, many changes of it, and (long) what a fuzzer finds."""

import importlib.util
import time
from pathlib import Path

import pytest

from tests.fuzz import targets
from tests.fuzz.fuzzing import CORPUS, fuzz
from tests.fuzz.mutation import mutate

CHANGES = 100
"""How many changes of each input `make test` tries; always the same ones."""

MOST_S = 2.0
"""The most CPU seconds for one input of a few KB: a reader whose time grows with the square of its input takes more."""

inputs = sorted(path for path in CORPUS.rglob("*") if path.is_file())
each_input = pytest.mark.parametrize("path", inputs, ids=lambda path: f"{path.parent.name}-{path.name}")
SHAPES = (b"[", b'{"a":', b"- ", b'{"data":{"a":"', b"\\", b"\xff", b"9", b"&a [*a,", b"Ascend910-0,", b'""')


def run(name: str, data: bytes) -> None:
    started_s = time.process_time()
    targets.run(name, data)
    assert time.process_time() - started_s < MOST_S, data[:200]


def test_every_target_has_a_corpus() -> None:
    assert {path.parent.name for path in inputs} == set(targets.TARGETS)
    assert sum(path.stat().st_size for path in inputs) < 200_000


@each_input
def test_no_change_of_an_input_crashes_its_reader(path: Path) -> None:
    data = path.read_bytes()
    run(path.parent.name, data)
    for seed in range(CHANGES):
        run(path.parent.name, mutate(data, 16_384, seed))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", targets.TARGETS)
def test_no_depth_or_length_crashes_a_reader(name: str, shape: bytes) -> None:
    for times in (1, 300, 3_000):
        run(name, shape * times)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris has no wheels for this machine")
@pytest.mark.parametrize("name", targets.TARGETS)
def test_a_fuzzer_finds_no_crash(name: str) -> None:
    outcome = fuzz(name, 30)
    assert not outcome.output, f"{outcome.crash!r}\n{outcome.output}"
    assert outcome.executions > 100
