"""A small part of the soak: on every node a few kubelet restarts and a few batches of races."""

import subprocess
import sys

import pytest

from tests.soak.__main__ import RACES, RESTARTS


@pytest.mark.timeout(300)  # the machine can be busy with other tests
def test_after_restarts_and_races_all_records_of_chips_agree() -> None:
    # One process: a node mostly waits, and other tests run at the same time.
    numbers = ["--seed", "4", "--restarts", str(RESTARTS // 333), "--races", str(RACES // 1000), "--workers", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak", *numbers], capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mismatches" in done.stdout
