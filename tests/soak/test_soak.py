"""A seeded tenth of the soak."""

import subprocess
import sys

import pytest

from tests.soak.__main__ import RACES, RESTARTS


@pytest.mark.timeout(600)  # the machine may be busy with other tests
def test_after_restarts_and_races_all_records_of_chips_agree() -> None:
    numbers = ["--seed", "4", "--restarts", str(RESTARTS // 10), "--races", str(RACES // 10), "--workers", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak", *numbers], capture_output=True, text=True, check=False, timeout=580
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mismatches" in done.stdout
