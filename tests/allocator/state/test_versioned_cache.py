"""Answers are cached while the state is unchanged, and only up to a limit."""

from allocator.state.versioned_cache import VersionedCache


def test_answers_are_dropped_with_their_version() -> None:
    answers: VersionedCache[str, int] = VersionedCache(10)
    answers.at(1)["one"] = 1
    assert answers.at(1) == {"one": 1}
    assert answers.at(2) == {}
    assert answers.at(1) == {}


def test_many_questions_about_one_version_stay_below_the_limit() -> None:
    answers: VersionedCache[int, int] = VersionedCache(3)
    for question in range(5):
        answers.at("version")[question] = question
    assert answers.at("version") == {3: 3, 4: 4}
