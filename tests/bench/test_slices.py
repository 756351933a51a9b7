"""How many chips parts of chips take beside the fewest possible, by a packing that is independent of the allocator."""

import random
from collections import Counter

from tests.bench.slices import CHIPS, KIND, WHOLE, Allocator, AtRandom, FirstFit, left, optimum, parts, replay


def test_the_allocator_breaks_fewer_chips_than_simple_rules() -> None:
    pods = parts(1_500, demand=0.6, seed=1)
    rules = Allocator(), FirstFit(), AtRandom(random.Random(1))
    used, first, at_random = (replay(rule, pods, from_h=1.0) for rule in rules)
    for seen in (used, first, at_random):
        assert seen.states
        assert all(fewest <= chips <= CHIPS for _, _, chips, fewest in seen.states)
    assert used.mean(2) <= first.mean(2) < at_random.mean(2)
    assert used.mean(2) < 1.1 * used.mean(3)


def test_the_optimum_is_a_packing() -> None:
    five, ten, none, every = KIND.templates
    assert optimum(Counter({ten: 3, five: 3})) == 3  # 45 AI cores
    assert optimum(Counter({every: 2, five: 1, WHOLE: 1})) == 4
    # Nothing fits beside a part with all media units.
    assert not any(left([every]).fits(each) for each in KIND.templates)
    assert left([ten, five]).fits(five)
    assert left([none, ten]).cores == 0
