"""`make demo` runs, whatever the encoding of the terminal."""

import os
import subprocess
import sys
from importlib.metadata import version


def test_the_demo_shows_the_main_job_on_a_terminal_with_gbk() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "gbk"}
    done = subprocess.run([sys.executable, "-m", "sandbox.demo"], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr.decode("gbk")) == (0, "")
    output = done.stdout.decode("gbk")
    assert "[0-3 train-a]" in output
    assert "huawei.com/AscendReal: Ascend910-0,Ascend910-1,Ascend910-2,Ascend910-3" in output
    assert "RingTooSmall" in output
    # GBK has the middle dot of a free chip, but not the cross of an unhealthy one.
    assert "[4 ·] [5 x] [6-7 ·]" in output
    assert "[4-7 train-c]" in output


def test_the_demo_has_a_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sandbox.demo", "--version"], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == (f"sandbox.demo {version('ascend-affinity-sandbox')}\n", "")
