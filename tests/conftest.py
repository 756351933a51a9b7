"""Shared by all tests: the event loop of synchronous tests, and the hypothesis profiles."""

import asyncio
import gc
import os
from collections.abc import Generator, Iterator
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, settings

from ascend.errors import InvalidValue
from ascend.jobs.table import TABLE
from tests import parallel
from tests.cluster import requirements
from tests.deploy import image

# `gate` is the default; `long` needs `HYPOTHESIS_PROFILE=long` or `--hypothesis-profile=long`. Neither examples nor the
# generation of data have a time limit, because other programs can use the machine at the same time.
_RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# `gate` tries the same examples of a commit on every machine; `long` looks for others.
settings.register_profile("gate", _RELAXED, max_examples=25, stateful_step_count=20, derandomize=True)
settings.register_profile("long", _RELAXED, max_examples=1000, stateful_step_count=100)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))


@pytest.fixture(scope="session", autouse=True)
def no_stray_event_loop() -> Iterator[None]:
    """Synchronous tests get no event loop: looptime's hook would otherwise create one that is never closed."""
    asyncio.set_event_loop(None)
    yield
    asyncio.set_event_loop(None)


@pytest.fixture(autouse=True)
def no_described_kinds_of_other_tests() -> Iterator[None]:
    """The verbs of npuctl in a test leave the kinds of jobs of their settings to the process, which ends with them."""
    yield
    if TABLE.described:
        with suppress(InvalidValue):  # a program of several tests has them
            TABLE.describe(())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the tests and their modules out of garbage collections: all stay, and each walk of them takes 0.3 s."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    parallel.register(config)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report loudly that the tests of the real cluster, of the image, or of an upgrade were skipped."""
    reports = terminalreporter.getreports("skipped")
    reasons = (str(report.longrepr[2]) for report in reports if isinstance(report.longrepr, tuple))
    if untested := dict.fromkeys(reason for reason in reasons if "TESTED HERE" in reason):
        terminalreporter.section("SOME THINGS WERE NOT TESTED", sep="!", yellow=True, bold=True)
        for reason in untested:
            terminalreporter.line(f"  * {reason.removeprefix('Skipped: ')}")
    if any("real" in report.keywords for report in reports) and (
        sentences := [*requirements.missing(), *image.missing().values()]
    ):
        terminalreporter.section("THE REAL-CLUSTER TESTS WERE SKIPPED", sep="!", yellow=True, bold=True)
        for sentence in sentences:
            terminalreporter.line(f"  * {sentence}")
