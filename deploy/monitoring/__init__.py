"""What wakes and what shows: the alerts and the dashboards of the chart."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from deploy.monitoring import alerts, dashboards

FILES: Final[Mapping[Path, Callable[[], str]]] = {
    alerts.PATH: alerts.render,
    **{dashboards.FOLDER / f"{board.uid}.json": partial(dashboards.render, board) for board in dashboards.BOARDS},
}
"""The chart's files, and what makes each."""
