"""How usable the free chips are beside the allocator's placements, by a check that is independent of the allocator."""

import random
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from npuctl.simulate.chart import Panel
from tests.bench.fragmentation import CHIPS, NODES, PODS_IN_TURN, replay
from tests.bench.occupancy import Occupancy
from tests.bench.outcome import save_chart
from tests.bench.placers import AtRandom, FirstFit, placers
from tests.bench.trace import in_turn, trace


def test_at_94_percent_demand_all_200_pods_fit_and_no_ring_is_broken() -> None:
    result = replay(placers(0)["the allocator"](NODES), in_turn(PODS_IN_TURN), NODES)
    assert (result.occupancy.placed, result.waiting, result.occupancy.broken) == (200, 0, 0)
    assert result.occupancy.sample().taken == 750
    assert result.occupancy.sample().nodes == 94  # the fewest with 750 chips


@pytest.mark.parametrize("seed", range(3))
def test_jobs_that_come_and_go_never_get_a_broken_ring(seed: int) -> None:
    jobs = trace(1_000, chips=20 * 8, demand=0.95, seed=seed)
    result = replay(placers(seed)["the allocator"](20), jobs, 20)
    assert result.occupancy.broken == 0
    assert result.occupancy.placed + result.waiting == len(jobs)
    assert max(sample.taken for _, sample in result.hours) > 0.95 * 20 * 8


def test_the_check_finds_rings_that_counting_breaks() -> None:
    jobs = trace(1_000, chips=CHIPS, demand=0.9, seed=1)
    assert replay(FirstFit(NODES, keeps_rings=False), jobs, NODES).occupancy.broken > 50
    assert replay(AtRandom(NODES, random.Random(1), keeps_rings=False), jobs, NODES).occupancy.broken > 50
    assert replay(FirstFit(NODES, keeps_rings=True), jobs, NODES).occupancy.broken == 0


def test_stranded_chips_and_the_largest_placement_are_counted() -> None:
    occupancy = Occupancy(2)
    assert occupancy.sample().largest == 16
    occupancy.add(0, (0,), 1)
    assert (occupancy.sample().stranded, occupancy.sample().largest, occupancy.sample().nodes) == (3, 8, 1)
    occupancy.add(1, (2, 3, 4), 3)
    assert (occupancy.sample().stranded, occupancy.sample().largest, occupancy.broken) == (3 + 2 + 3, 4, 1)
    occupancy.add(0, (4, 5, 6, 7), 4)
    assert (occupancy.sample().taken, occupancy.sample().largest) == (8, 2)
    occupancy.remove(1, (2, 3, 4))
    assert (occupancy.sample().taken, occupancy.sample().largest, occupancy.sample().nodes) == (5, 8, 1)


@pytest.mark.parametrize("chips", [(0,), (0, 0), (7, 8), (1, 2)])
def test_an_invalid_placement_is_an_error(chips: tuple[int, ...]) -> None:
    occupancy = Occupancy(1)
    occupancy.add(0, (2,), 1)
    with pytest.raises(AssertionError):
        occupancy.add(0, chips, 2)


def test_a_plot_is_well_formed_and_stays_within_its_frame(tmp_path: Path) -> None:
    path = tmp_path / "new" / "plot.svg"
    series = {"a < b": [(55.0, 0.0), (95.0, 163.0)], "one point": [(60.0, 2.0)]}
    save_chart(path, "R & D", [Panel("left", "x", "y", series), Panel("flat", "x", "y", {"zero": [(1.0, 0.0)]})])
    root = ET.fromstring(path.read_text())
    width, height = (float(number) for number in root.attrib["viewBox"].split()[2:])
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    points = [point.split(",") for line in lines for point in line.attrib["points"].split()]
    assert all(0 <= float(x) <= width and 0 <= float(y) <= height for x, y in points)
    words = [text.text for text in root.findall("{http://www.w3.org/2000/svg}text")]
    assert {"R & D", "a < b", "60", "200"} <= set(words)
