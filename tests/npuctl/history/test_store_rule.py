"""The rule of the store: at every recorded time the history says what was true then."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from npuctl.history import store as store_module
from npuctl.history.intervals import OPEN, IntervalKind, Key, KeyState
from npuctl.history.reader import HistoryReader
from npuctl.history.store import GAP_S, HistoryStore, NotRecorded

NODES = ("n1", "n2")
MEMORY = Path("/dev/shm")
STATES = st.fixed_dictionaries(
    {}, optional={name: st.sampled_from(["0", "1", "0,1"]).map(KeyState) for name in ("p", "q")}
)


class StoreMachine(RuleBasedStateMachine):
    """Changes of two nodes, pauses, restarts and failures of the commit."""

    def __init__(self) -> None:
        super().__init__()
        # Every commit waits for the disk, on which the rule does not depend.
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        self.path = Path(self.folder.name) / "history.db"
        self.store = HistoryStore(self.path)
        self.now_s = 1_800_000_000
        self.true: dict[str, dict[Key, KeyState]] = {}
        self.known: list[tuple[int, dict[Key, KeyState]]] = []

    @initialize()
    def begin(self) -> None:
        self.record({})

    def record(self, observed: dict[str, dict[Key, KeyState]]) -> None:
        self.true.update(observed)
        self.store.record(self.now_s, observed if self.store.goes_on(self.now_s) else self.true)
        whole = {key: state for some in self.true.values() for key, state in some.items()}
        self.known = [(time_s, was) for time_s, was in self.known if time_s != self.now_s]
        self.known.append((self.now_s, whole))

    @rule(node=st.sampled_from(NODES), states=STATES, passed=st.sampled_from([0, 1, 20, GAP_S, 5_000]))
    def change(self, node: str, states: dict[str, KeyState], passed: int) -> None:
        self.now_s += passed
        self.record({node: {Key(IntervalKind.RUNS, "a/job", node, name): state for name, state in states.items()}})

    @rule(passed=st.sampled_from([0, 1, GAP_S]))
    def restart(self, passed: int) -> None:
        self.store.close()
        self.store = HistoryStore(self.path)
        self.now_s += passed

    @rule(node=st.sampled_from(NODES), states=STATES)
    def fail(self, node: str, states: dict[str, KeyState]) -> None:
        """What could not be written is true all the same, and is written next time."""
        self.now_s += 1
        self.true[node] = {Key(IntervalKind.RUNS, "a/job", node, name): state for name, state in states.items()}

        def fails(*_given: Any) -> None:
            raise OSError(0, "no space")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store_module.HistoryStore, "_remove_old", fails)
            with pytest.raises(NotRecorded, match="no space"):
                self.store.record(self.now_s, self.true)

    @invariant()
    def every_recorded_time_is_as_it_was(self) -> None:
        reader = HistoryReader(self.path)
        for time_s, was in self.known:
            assert {interval.key: interval.state for interval in reader.at(time_s)} == was, time_s

    @invariant()
    def intervals_of_the_same_do_not_overlap(self) -> None:
        last: dict[Key, int] = {}
        for interval in HistoryReader(self.path).of_job("a/job", 0) if self.known else ():
            assert last.get(interval.key, 0) <= interval.began <= interval.ended <= OPEN
            last[interval.key] = interval.ended

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()


TestStore = StoreMachine.TestCase
