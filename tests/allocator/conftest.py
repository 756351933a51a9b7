"""For all tests of the allocator: nothing is recalled without a proof that it is still right."""

from typing import Any

import pytest

from allocator.gangs.pending import Waiting
from allocator.state.memo import Memo
from ascend.errors import Refusal


@pytest.fixture(autouse=True)
def checked_memos(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find each answer anew, and compare it with the answer that was kept for the same key."""
    recall, keep = Memo.recall, Memo.keep

    def forget(_memo: Memo[Any, Any], _key: object, _version: object) -> None:
        """Have the answer found again."""

    def compare(memo: Memo[Any, Any], key: Any, version: object, answer: Any) -> Any:
        known = recall(memo, key, version)
        assert known is None or _said(known) == _said(answer), key
        return keep(memo, key, version, answer)

    monkeypatch.setattr(Memo, "recall", forget)
    monkeypatch.setattr(Memo, "keep", compare)


@pytest.fixture
def unchecked_memos(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recall answers as the program does; the test says what that saves."""
    monkeypatch.undo()


def _said(answer: Any) -> object:
    """What of an answer counts: of refusals what they say, of waiting pods not the status that a scheduler writes."""
    if isinstance(answer, list):
        return [_said(part) for part in answer]
    if isinstance(answer, Waiting):
        return answer.rank, answer.pod.uid, _said(answer.member)
    return repr(answer) if isinstance(answer, Refusal) else answer
