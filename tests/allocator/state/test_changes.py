"""The changes of nodes, for clients that watch them."""

import pytest

from allocator.state.changes import Changes


def test_each_change_is_returned_once_latest_first() -> None:
    changes = Changes()
    for name in ("a", "b", "a", "c"):
        changes.note(name)
    assert changes.since(0) == ["c", "a", "b"]
    assert changes.since(3) == ["c"]
    assert changes.since(changes.revision) == []


def test_a_client_too_far_behind_has_to_read_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allocator.state.changes._LIMIT", 3)
    changes = Changes()
    for name in "abcd":
        changes.note(name)
    assert changes.since(0) is None
    assert changes.since(1) == ["d", "c", "b"]
