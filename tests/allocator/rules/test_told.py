"""Sentences as they are told in a namespace."""

import pytest

from allocator.rules.summary import told_in


@pytest.mark.parametrize(
    ("sentence", "told"),
    [
        ("8 chips are kept for job other/train", "8 chips are kept for a job of another namespace"),
        ("8 chips are kept for job ours/train", "8 chips are kept for job ours/train"),
        (
            "pod ours/a waits for job other/b.c-d, which tries before it",
            "pod ours/a waits for a job of another namespace, which tries before it",
        ),
        (
            "the free chips of n1 are unknown: pod other/x: 3 is no chip; pod other/y.",
            "the free chips of n1 are unknown: a pod of another namespace: 3 is no chip; a pod of another namespace.",
        ),
        ("job oursx/a and job ours/b", "a job of another namespace and job ours/b"),
        ("4 chips requested, 0 free of 8 healthy", "4 chips requested, 0 free of 8 healthy"),
    ],
)
def test_pods_and_jobs_of_other_namespaces_are_not_named(sentence: str, told: str) -> None:
    assert told_in("ours", sentence) == told
