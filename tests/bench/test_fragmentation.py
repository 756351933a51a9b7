"""What the allocator's places leave over, judged by books that know nothing of it."""

import random
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.bench.books import Books
from tests.bench.fragmentation import CHIPS, NODES, PODS_IN_TURN, replay
from tests.bench.placers import AtRandom, FirstFit, placers
from tests.bench.plot import Panel, save
from tests.bench.trace import in_turn, trace


def test_at_94_percent_demand_all_200_pods_fit_and_no_ring_is_broken() -> None:
    tally = replay(placers(0)["the allocator"](NODES), in_turn(PODS_IN_TURN), NODES)
    assert (tally.books.placed, tally.waiting, tally.books.broken) == (200, 0, 0)
    assert tally.books.sight().taken == 750
    assert tally.books.sight().nodes == 94  # the fewest that have so many chips


@pytest.mark.parametrize("seed", range(3))
def test_jobs_that_come_and_go_never_get_a_broken_ring(seed: int) -> None:
    jobs = trace(1_000, chips=20 * 8, demand=0.95, seed=seed)
    tally = replay(placers(seed)["the allocator"](20), jobs, 20)
    assert tally.books.broken == 0
    assert tally.books.placed + tally.waiting == len(jobs)
    assert max(sight.taken for _, sight in tally.hours) > 0.95 * 20 * 8


def test_the_check_finds_rings_that_counting_breaks() -> None:
    jobs = trace(1_000, chips=CHIPS, demand=0.9, seed=1)
    assert replay(FirstFit(NODES, keeps_rings=False), jobs, NODES).books.broken > 50
    assert replay(AtRandom(NODES, random.Random(1), keeps_rings=False), jobs, NODES).books.broken > 50
    assert replay(FirstFit(NODES, keeps_rings=True), jobs, NODES).books.broken == 0


def test_stranded_chips_and_the_largest_placement_are_counted() -> None:
    books = Books(2)
    assert books.sight().largest == 16
    books.take(0, (0,), 1)
    assert (books.sight().stranded, books.sight().largest, books.sight().nodes) == (3, 8, 1)
    books.take(1, (2, 3, 4), 3)
    assert (books.sight().stranded, books.sight().largest, books.broken) == (3 + 2 + 3, 4, 1)
    books.take(0, (4, 5, 6, 7), 4)
    assert (books.sight().taken, books.sight().largest) == (8, 2)
    books.give_back(1, (2, 3, 4))
    assert (books.sight().taken, books.sight().largest, books.sight().nodes) == (5, 8, 1)


@pytest.mark.parametrize("chips", [(0,), (0, 0), (7, 8), (1, 2)])
def test_an_invalid_placement_is_an_error(chips: tuple[int, ...]) -> None:
    books = Books(1)
    books.take(0, (2,), 1)
    with pytest.raises(AssertionError):
        books.take(0, chips, 2)


def test_a_plot_is_well_formed_and_stays_within_its_frame(tmp_path: Path) -> None:
    path = tmp_path / "new" / "plot.svg"
    series = {"a < b": [(55.0, 0.0), (95.0, 163.0)], "one point": [(60.0, 2.0)]}
    save(path, "R & D", [Panel("left", "x", "y", series), Panel("flat", "x", "y", {"zero": [(1.0, 0.0)]})])
    root = ET.fromstring(path.read_text())
    width, height = (float(number) for number in root.attrib["viewBox"].split()[2:])
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    points = [point.split(",") for line in lines for point in line.attrib["points"].split()]
    assert all(0 <= float(x) <= width and 0 <= float(y) <= height for x, y in points)
    words = [text.text for text in root.findall("{http://www.w3.org/2000/svg}text")]
    assert {"R & D", "a < b", "60", "200"} <= set(words)
