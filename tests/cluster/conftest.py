"""Fixtures of the real cluster, and a conspicuous summary if its tests were skipped."""

import pytest

from tests.cluster import requirements
from tests.cluster.fixtures import cluster, kube_namespace

__all__ = ["cluster", "kube_namespace"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.getreports("skipped")
    if any("real" in report.keywords for report in reports) and (sentences := requirements.missing()):
        terminalreporter.section("THE REAL-CLUSTER TESTS WERE SKIPPED", sep="!", yellow=True, bold=True)
        for sentence in sentences:
            terminalreporter.line(f"  * {sentence}")
