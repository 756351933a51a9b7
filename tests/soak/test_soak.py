"""A seeded part of the soak: a tenth of the restarts, a twentieth of the races."""

import subprocess
import sys

import pytest

from tests.soak.__main__ import RACES, RESTARTS


@pytest.mark.timeout(300)  # on a machine that may be busy; it takes less than a minute
def test_restarts_and_races_leave_everybody_s_books_the_same() -> None:
    numbers = ["--seed", "4", "--restarts", str(RESTARTS // 10), "--races", str(RACES // 20), "--workers", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak", *numbers], capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mismatches" in done.stdout
