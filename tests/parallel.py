"""Parallel runs (`pytest -n 4`, `make test`): the order of the files, and lines that report the progress.

Workers are assigned whole files, in the order of the collection. Files with real-cluster tests come first; half of the
workers begins with the folders that have such files, the others with the rest. Each worker that runs such files has a
cluster of its own, and stops it before its first other file. A cluster uses CPU while its tests wait, so that few that
are fast cost less than many that are slow.
Within both groups the file that took longest in the last run comes first, or which an estimate says takes longest.
"""

import time
from collections import Counter
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from tests.cluster.fixtures import stop_cluster

_DURATIONS: Final = "ascend-affinity/durations"
_SILENCE_S: Final = 15.0
_REAL_FOLDERS: Final = ("cluster", "conformance", "deploy", "e2e", "workloads")
# The expected duration of a test that no earlier run recorded, by folder.
_EXPECTED_S: Final = {
    **dict.fromkeys((*_REAL_FOLDERS, "soak"), 4.0),
    **dict.fromkeys(("dcmi", "device_plugin"), 0.6),
}
_OTHER_TEST_S: Final = 0.05


def register(config: pytest.Config) -> None:
    """Register the plugins of this process, if the run is parallel."""
    if config.getoption("tx", None):
        cache: pytest.Cache | None = getattr(config, "cache", None)  # absent with -p no:cacheprovider
        last = {} if cache is None else cache.get(_DURATIONS, {})
        config.pluginmanager.register(Durations(cache, last))
        config.pluginmanager.register(Lanes())
        if config.get_verbosity() == 0:
            config.pluginmanager.register(Progress(config, last))
    elif (received := getattr(config, "workerinput", None)) is not None:
        number = int(received["workerid"].removeprefix("gw"))
        config.pluginmanager.register(Worker(number / received["workercount"], received[_DURATIONS]))


class Lanes:
    """Makes the scheduler of the run."""

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Producer) -> "Scheduling | None":
        return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


class Scheduling(LoadFileScheduling):  # type: ignore[misc] # it has no type annotations
    """Assigns the first file in order of a worker's part of the files, or of the other part if none is left."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        is_real = int(node.gateway.id.removeprefix("gw")) < self.numnodes / 2
        own = (file for file in self.workqueue if (_folder(file) in _REAL_FOLDERS) == is_real)
        if (first := next(own, None)) is not None:
            self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)


class Worker:
    """Orders the files, and stops the worker's real cluster when no further file of this worker needs it.

    Args:
        begin: the part of all files before the one that the worker collects first.
        durations: seconds that files took in an earlier run.
    """

    def __init__(self, begin: float, durations: Mapping[str, float]) -> None:
        self._begin = begin
        self._durations = durations
        self._real: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """Collect the files from another one on than the other workers.

        On a clean checkout a collection mostly rewrites assertions, and stores them for the other workers.
        """
        if session.config.args_source is pytest.Config.ArgsSource.TESTPATHS:
            root = session.config.rootpath
            files = [str(file) for folder in session.config.args for file in sorted((root / folder).rglob("test_*.py"))]
            first = int(self._begin * len(files))
            session.config.args = files[first:] + files[:first]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self._real = {_file(item.nodeid) for item in items if item.get_closest_marker("real")}

        tests = Counter(_file(item.nodeid) for item in items)

        def rank(item: pytest.Item) -> tuple[bool, float, str]:
            file = _file(item.nodeid)
            return file not in self._real, -self._durations.get(file, _expected_s(file, tests[file])), file

        items.sort(key=rank)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        if _file(item.nodeid) not in self._real:
            stop_cluster(item.session)


class Durations:
    """Records how long each file takes, and sends the workers the durations of earlier runs.

    Args:
        cache: pytest's cache, which keeps the durations.
        last: seconds that files took in earlier runs.
    """

    def __init__(self, cache: pytest.Cache | None, last: Mapping[str, float]) -> None:
        self._cache = cache
        self._last = last
        self._taken: dict[str, float] = {}

    def pytest_configure_node(self, node: WorkerController) -> None:
        node.workerinput[_DURATIONS] = dict(self._last)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = _file(report.nodeid)
        self._taken[file] = self._taken.get(file, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        if self._cache is not None:
            self._cache.set(_DURATIONS, {**self._last, **self._taken})


@dataclass(slots=True)
class _File:
    """The tests of a file.

    Attributes:
        tests: the number of tests.
        done: the number of tests that have ended.
        seconds: the time they took.
        outcomes: the number of tests by outcome.
    """

    tests: int = 0
    done: int = 0
    seconds: float = 0.0
    outcomes: dict[str, int] = field(default_factory=dict)


class Progress:
    """Prints a line per file that has ended, failures at once, and what is running after a silence.

    Args:
        config: the configuration of the run.
        durations: seconds that files took in an earlier run, from which the percentage is estimated.
    """

    def __init__(self, config: pytest.Config, durations: Mapping[str, float]) -> None:
        self._config = config
        self._durations = durations
        self._files: dict[str, _File] = {}
        self._running: dict[str, None] = {}
        self._started_s = self._printed_s = time.monotonic()
        self._ended = False

    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        if not self._files:
            for nodeid in ids:
                self._files.setdefault(_file(nodeid), _File()).tests += 1

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running.setdefault(_file(nodeid))
        if time.monotonic() - self._printed_s > _SILENCE_S:
            running = (f"{name} ({self._files[name].done} of {self._files[name].tests})" for name in self._running)
            self._print(f"running: {', '.join(running)}")

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> Generator[None, Any, Any]:
        """Replace the dots of the terminal reporter; the summary at the end keeps its words."""
        category, letter, word = yield
        if self._ended or not isinstance(report, pytest.TestReport):
            return category, letter, word
        file = self._files[_file(report.nodeid)]
        file.seconds += report.duration
        if category:
            file.outcomes[category] = file.outcomes.get(category, 0) + 1
        if category in {"failed", "error"}:
            self._print(f"{category.upper()} {report.nodeid}", red=True)
        return category, "", ""

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        name = _file(nodeid)
        file = self._files[name]
        file.done += 1
        if file.done == file.tests:
            del self._running[name]
            outcomes = ", ".join(f"{count} {outcome}" for outcome, count in file.outcomes.items())
            self._print(f"{name}: {outcomes} in {file.seconds:.1f} s", red="failed" in outcomes or "error" in outcomes)

    def pytest_sessionfinish(self) -> None:
        self._ended = True

    def _print(self, text: str, *, red: bool = False) -> None:
        self._printed_s = time.monotonic()
        minutes, seconds = divmod(round(self._printed_s - self._started_s), 60)
        terminal: pytest.TerminalReporter | None = self._config.pluginmanager.getplugin("terminalreporter")
        if terminal is not None:
            terminal.write_line(f"[{minutes:2}:{seconds:02} {self._percentage():3.0f}%] {text}", red=red)

    def _percentage(self) -> float:
        weights = {name: self._durations.get(name, _expected_s(name, file.tests)) for name, file in self._files.items()}
        done = sum(weights[name] * file.done / file.tests for name, file in self._files.items())
        return 100 * done / (sum(weights.values()) or 1.0)


def _expected_s(file: str, tests: int) -> float:
    return tests * _EXPECTED_S.get(_folder(file), _OTHER_TEST_S)


def _folder(file: str) -> str:
    return file.split("/")[1]


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]
