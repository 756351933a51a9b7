"""The benches run; speed is only printed, never checked."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import __main__ as command_line
from tests.cluster import requirements

_REAL_CLUSTER = ("plugin", "scheduler", "scheduler-tls", "gang_starts", "waiting", "web")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_quick_benches_print_their_tables_and_keep_their_samples(tmp_path: Path) -> None:
    kept = tmp_path / "samples.json"
    command = [sys.executable, "-m", "tests.bench", "--quick", "--json", str(kept), "--plots", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=880)
    assert done.returncode == 0, done.stderr
    can_run = not requirements.missing() and not requirements.missing_compiler()
    benches = [bench for bench in command_line.BENCHES if can_run or bench not in _REAL_CLUSTER]
    for title in (
        "decisions: one pod",
        "decisions: kube-scheduler's filter call",
        *(f"{bench}: " for bench in benches),
    ):
        assert title in done.stdout
    assert (tmp_path / "fragmentation.svg").exists()
    samples = json.loads(kept.read_text())
    assert samples["conditions"]["seed"] in done.stdout
    for bench in benches:
        assert all(samples[bench].values())
        assert re.search(rf"^{bench}: .+: 0 of \d+$", done.stderr, re.MULTILINE), done.stderr


def test_an_unknown_bench_is_named_in_the_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tests.bench", "speed"])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert ended.value.code == 2
    assert "no such bench: speed" in capsys.readouterr().err
