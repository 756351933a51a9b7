"""A seeded tenth of the soak."""

import subprocess
import sys

import pytest

from tests.soak.__main__ import RACES, RESTARTS


@pytest.mark.timeout(600)  # on a machine that may be busy, as it is beside other tests
def test_restarts_and_races_leave_everybody_s_books_the_same() -> None:
    numbers = ["--seed", "4", "--restarts", str(RESTARTS // 10), "--races", str(RACES // 10), "--workers", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak", *numbers], capture_output=True, text=True, check=False, timeout=580
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mismatches" in done.stdout
