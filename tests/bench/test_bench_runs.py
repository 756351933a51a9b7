"""The measurements can be made; how fast anything is, they only print."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(360)  # six benches, on a machine that may be busy
def test_the_quick_benches_that_need_no_cluster_print_their_tables_and_keep_their_samples(tmp_path: Path) -> None:
    kept = tmp_path / "samples.json"
    benches = ("decisions", "gangs", "fragmentation", "allocate", "freed", "startup")
    command = [sys.executable, "-m", "tests.bench", *benches, "--quick", "--json", str(kept), "--plots", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=320)
    assert done.returncode == 0, done.stderr
    for title in ("decisions: one pod", "decisions: as kube-scheduler asks", *(f"{bench}: " for bench in benches)):
        assert title in done.stdout
    assert (tmp_path / "fragmentation.svg").exists()
    samples = json.loads(kept.read_text())
    assert samples["conditions"]["seed"] in done.stdout
    for bench in benches:
        assert all(samples[bench].values())
        assert re.search(rf"^{bench}: .+: 0 of \d+$", done.stderr, re.MULTILINE), done.stderr


def test_an_unknown_bench_is_named_in_the_error() -> None:
    command = [sys.executable, "-m", "tests.bench", "speed"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "no such bench: speed" in done.stderr
