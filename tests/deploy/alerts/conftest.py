"""The rules as the chart has them, for promtool."""

from pathlib import Path

import pytest

from ascend.observe import exposition
from deploy.monitoring.alerts import LONGEST_WAIT_S, render


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """A file of rules; pods may wait for an hour."""
    path = tmp_path / "alerts.yaml"
    path.write_text(render().replace(LONGEST_WAIT_S, "3600"))
    return path


@pytest.fixture(autouse=True)
def _new_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page is made anew, however much time pages take."""
    monkeypatch.setattr(exposition, "BURST_S", 1e6)
