"""A seeded tenth of the soak's races.

Its restarts are left to ``make soak``: now and then, on a busy machine, the sandbox's kubelet refuses a pod after a
plugin was killed while it registered ("no healthy devices present"), and why is not understood yet.
"""

import subprocess
import sys

import pytest

from tests.soak.__main__ import RACES


@pytest.mark.timeout(600)  # on a machine that may be busy, as it is beside other tests
def test_races_leave_everybody_s_books_the_same() -> None:
    numbers = ["--seed", "4", "--restarts", "0", "--races", str(RACES // 10), "--workers", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak", *numbers], capture_output=True, text=True, check=False, timeout=580
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mismatches" in done.stdout
