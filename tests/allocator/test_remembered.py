"""Answers are remembered as long as their state lasts, and never without bound."""

from allocator.state import remembered
from allocator.state.remembered import Remembered


def test_answers_are_forgotten_with_their_state() -> None:
    answers: Remembered[str, int] = Remembered()
    answers.under(1)["one"] = 1
    assert answers.under(1) == {"one": 1}
    assert answers.under(2) == {}
    assert answers.under(1) == {}


def test_ever_new_questions_about_one_state_are_not_remembered_for_ever() -> None:
    answers: Remembered[int, int] = Remembered()
    for question in range(remembered._MOST + 10):
        answers.under("state")[question] = question
    assert len(answers.under("state")) == 10


def test_of_large_questions_fewer_are_remembered() -> None:
    answers: Remembered[int, int] = Remembered(most=3)
    for question in range(5):
        answers.under("state")[question] = question
    assert answers.under("state") == {3: 3, 4: 4}
