"""``npuctl simulate``: what jobs, servers and chips do on the virtual clock, and what is printed of it."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from allocator.settings import Settings
from ascend.daemon.settings import fixed_settings
from ascend.errors import InvalidValue
from npuctl.cli import app
from npuctl.reading.objects import ClusterObjects
from npuctl.simulate.answer import SimulationAnswer, result_of
from npuctl.simulate.engine import Engine
from npuctl.simulate.jobs import HOUR_S, SimulatedJob
from npuctl.simulate.measures import Measures
from npuctl.simulate.page import page
from npuctl.simulate.policies import POLICIES
from npuctl.simulate.servers import Fleet, PodPlace, described_nodes
from npuctl.simulate.sides import ALLOCATOR, Side
from npuctl.simulate.simulation import Simulation, VirtualScheduler
from tests.npuctl.manifests import as_list, node, pod

SETTINGS = fixed_settings(Settings, None, {})
NOW_NS = 1_767_225_600 * 10**9
POLICY_NAMES = (ALLOCATOR, *POLICIES)


def side(servers: str, policy: str = ALLOCATOR, **more: Any) -> Side:
    return Side("side", ClusterObjects.of(described_nodes(servers)), SETTINGS, NOW_NS, policy=policy, **more)


def jobs_of(*rows: tuple[float, int, int, float]) -> list[SimulatedJob]:
    """From rows of arrival in hours, pods, chips and hours."""
    return [
        SimulatedJob(arrives_h * HOUR_S, number, chips, lasts_h * HOUR_S, pods)
        for number, (arrives_h, pods, chips, lasts_h) in enumerate(sorted(rows))
    ]


def ends_h(measures: Measures) -> list[float | None]:
    return [
        ended / HOUR_S if (ended := outcome.ended_s) is not None else None for outcome in measures.outcomes.values()
    ]


class Watched(VirtualScheduler):
    """A scheduler whose placements are checked by a record of its own: who has each chip, and since when."""

    def __init__(self, inner: VirtualScheduler, elapsed_s: Callable[[], float], broken: Callable[[str], int]) -> None:
        self.inner, self.keeps, self._elapsed_s, self._broken = inner, inner.keeps, elapsed_s, broken
        self.holders: dict[tuple[str, int], SimulatedJob] = {}
        self.times: list[float] = []

    def submit(self, job: SimulatedJob) -> None:
        self.times.append(self._elapsed_s())
        self.inner.submit(job)

    def start(self, job: SimulatedJob, candidates: Any = None) -> Sequence[PodPlace] | None:
        self.times.append(self._elapsed_s())
        places = self.inner.start(job, candidates)
        for place in places or ():
            assert len(place.chips) == job.chips
            assert not any(self._broken(place.node) >> chip & 1 for chip in place.chips)
            for chip in place.chips:
                assert (place.node, chip) not in self.holders
                self.holders[place.node, chip] = job
        assert places is None or len(places) == job.pods
        return places

    def end(self, job: SimulatedJob) -> None:
        self.times.append(self._elapsed_s())
        self.holders = {at: holder for at, holder in self.holders.items() if holder is not job}
        self.inner.end(job)

    def set_health(self, name: str) -> None:
        self.times.append(self._elapsed_s())
        self.inner.set_health(name)

    @property
    def kept(self) -> int:
        return self.inner.kept


@st.composite
def workloads(draw: st.DrawFn) -> list[SimulatedJob]:
    hours = st.floats(0.0, 20.0, allow_nan=False)
    sizes = st.sampled_from([(1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (3, 8)])
    rows = draw(st.lists(st.tuples(hours, sizes, st.floats(0.01, 9.0)), min_size=1, max_size=25))
    return jobs_of(*((arrives_h, pods, chips, lasts_h) for arrives_h, (pods, chips), lasts_h in rows))


@settings(deadline=None, max_examples=25)
@given(
    jobs=workloads(),
    servers=st.sampled_from(["3x910A-8", "4x910B-8", "3xA3-16", "3x910A-8,2xA3-8"]),
    policy=st.sampled_from(POLICY_NAMES),
    faults=st.sampled_from([0.0, 2_000.0]),
    seed=st.integers(0, 5),
)
def test_no_chip_is_given_twice_every_job_ends_and_time_never_runs_back(
    jobs: list[SimulatedJob], servers: str, policy: str, faults: float, seed: int
) -> None:
    watched: list[Watched] = []
    chosen = side(servers, policy, faults=faults, repair_s=HOUR_S / 10, checkpoint_s=HOUR_S / 4, seed=seed)
    without = chosen.never(jobs)  # the allocator has the jobs of several pods name one of several products
    jobs = [job for job in jobs if (job.pods, job.chips) not in without]
    assume(jobs)

    def schedule(there: Fleet, elapsed_s: Callable[[], float]) -> VirtualScheduler:
        inner = chosen.schedule(jobs)(there, elapsed_s)
        watched.append(Watched(inner, elapsed_s, lambda name: there.state(name).broken))
        return watched[0]

    simulation = Simulation(chosen.servers(), schedule, faults=chosen.faults_of())
    measures = simulation.run(jobs)
    assert not simulation.waiting
    assert not simulation.running
    assert not watched[0].holders
    assert watched[0].times == sorted(watched[0].times)
    assert simulation.servers.free + simulation.servers.broken == simulation.servers.chips
    for job, outcome in measures.outcomes.items():
        assert outcome.ended_s is not None
        assert outcome.ended_s >= job.arrives_s + outcome.waited_s + job.lasts_s - 1e-3
        assert outcome.restarts or outcome.ended_s == pytest.approx(job.arrives_s + outcome.waited_s + job.lasts_s)
    spent = measures.time
    done = sum(job.size * job.lasts_s for job in jobs)
    assert spent.used == pytest.approx(done + spent.redone)
    total = spent.used + spent.broken + spent.idle + spent.kept + spent.stranded + spent.too_few
    assert total == pytest.approx(simulation.servers.chips * measures.until_s)


@settings(deadline=None, max_examples=6)
@given(jobs=workloads(), policy=st.sampled_from(POLICY_NAMES), seed=st.integers(0, 5))
def test_the_same_seed_gives_the_same_result(jobs: list[SimulatedJob], policy: str, seed: int) -> None:
    first, second = (
        side("3x910A-8", policy, faults=2_000.0, repair_s=HOUR_S / 10, seed=seed).run(jobs) for _ in range(2)
    )
    assert result_of("a", first) == result_of("a", second)


def test_a_job_waits_until_enough_linked_chips_are_free() -> None:
    # Two pods of 2 chips in each ring are left, so a pod of 4 has no ring until one of them ends.
    jobs = jobs_of((0.0, 1, 4, 1.0), (0.0, 1, 2, 5.0), (0.1, 1, 4, 1.0))
    waits = [outcome.waited_s / HOUR_S for outcome in side("1x910A-8").run(jobs).outcomes.values()]
    assert waits == pytest.approx([0.0, 0.0, 0.9])


def test_a_scheduler_that_only_counts_places_pods_across_rings_and_is_told_so() -> None:
    jobs = jobs_of(*((number / 100, 1, 2, 3.0) for number in range(16)))
    counting, ours = (result_of(name, side("4x910A-8", name, seed=1).run(jobs)) for name in ("spread", ALLOCATOR))
    assert counting.wrong > 0
    assert (ours.wrong, ours.linked, counting.linked) == (0, 16, 16)


def test_a_fault_ends_the_job_which_starts_again_from_its_last_checkpoint() -> None:
    jobs = jobs_of((0.0, 1, 8, 100.0))
    lasting, saving = (
        side("1x910B-8", faults=1_000.0, repair_s=HOUR_S, checkpoint_s=checkpoint_h * HOUR_S, seed=3).run(jobs)
        for checkpoint_h in (10.0, 0.0)
    )
    for measures in (lasting, saving):
        (outcome,) = measures.outcomes.values()
        assert outcome.restarts > 0
        assert outcome.ended_s == pytest.approx(100 * HOUR_S + outcome.waited_s + measures.time.redone / 8, rel=1e-6)
    assert lasting.time.redone > 0
    assert saving.time.redone == 0
    assert lasting.time.broken > 0


def test_jobs_that_faults_never_let_end_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npuctl.simulate.simulation._MOST_FAULTS", 50)
    with pytest.raises(InvalidValue, match="after 50 faults"):
        side("2x910B-8", faults=100_000.0).run(jobs_of((0.0, 2, 8, 1.0)))


def test_pods_of_the_cluster_hold_their_chips_as_long_as_is_said() -> None:
    jobs = jobs_of((0.0, 1, 8, 1.0))
    objects = ClusterObjects.of(described_nodes("1x910B-8"))
    place = {"uid-a": (PodPlace("s00000", (0,)), 2 * HOUR_S)}
    chosen = side("1x910B-8", "packed")
    servers = chosen.servers()
    servers.take(place["uid-a"][0])
    measures = Simulation(servers, chosen.schedule(jobs), residents=place).run(jobs)
    assert ends_h(measures) == pytest.approx([3.0])
    assert objects.nodes[0].name == "s00000"


def test_an_urgent_job_is_tried_before_older_ones() -> None:
    old = SimulatedJob(HOUR_S, 1, 8, HOUR_S)
    urgent = SimulatedJob(2 * HOUR_S, 2, 8, HOUR_S, priority=5)
    jobs = [SimulatedJob(0.0, 0, 8, 3 * HOUR_S), old, urgent]
    outcomes = side("1x910B-8").run(jobs).outcomes
    assert outcomes[urgent].waited_s == pytest.approx(HOUR_S)
    assert outcomes[old].waited_s == pytest.approx(3 * HOUR_S)


def test_the_engine_that_is_simulated_reads_the_settings() -> None:
    # A gang among pods of whole servers starts only if nodes are kept for it.
    rows = [*((float(hour), 1, 8, 4.0) for hour in range(40)), (5.5, 2, 8, 1.0)]
    rows += [(5.6, 1, 8, 4.0)] * 8
    jobs = jobs_of(*rows)
    gang = next(job for job in jobs if job.pods == 2)
    waits_h = [
        chosen.run(jobs).outcomes[gang].waited_s / HOUR_S
        for chosen in (side("4x910A-8"), side("4x910A-8").with_changes("earmark_share=0"))
    ]
    assert waits_h[0] == pytest.approx(7.5)
    assert waits_h[1] > 30
    assert isinstance(side("1x910A-8").schedule(())(side("1x910A-8").servers(), lambda: 0.0), Engine)


# The command


def write_jobs(folder: Path, *lines: str) -> Path:
    path = folder / "jobs.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def invoke(*options: str) -> Any:
    return CliRunner().invoke(app, ["simulate", *options])


def answer(*options: str) -> Any:
    done = invoke(*options, "-o", "json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_file_with_all_columns_is_simulated(tmp_path: Path) -> None:
    path = write_jobs(
        tmp_path,
        "submitted,duration,chips,pods,priority,namespace,kind",
        "2026-01-01T00:00:00Z,1h,8,2,0,research,gang",
        "2026-01-01T00:30:00Z,30m,4,2,3,serving,alone",
    )
    found = answer("--servers", "2x910B-8", "--jobs", str(path), "--compare", "servers=4x910B-8")
    assert (found["servers"], found["chips"], found["jobs"], found["hours"]) == (2, 16, 3, 0.5)
    few, many = found["settings"]
    assert [(size["chips"], size["jobs"], size["mean"]) for size in few["sizes"]] == [(4, 2, 0.5), (16, 1, 0.0)]
    assert [size["mean"] for size in many["sizes"]] == [0.0, 0.0]
    assert few["last_end"] == 1.5


def test_missing_columns_have_defaults_and_large_jobs_take_whole_servers(tmp_path: Path) -> None:
    path = write_jobs(tmp_path, "submit_s,chips,milli", "0,16,1", "10,,1")
    done = invoke("--servers", "2x910A-8", "--jobs", str(path), "-o", "json")
    assert "column milli not used" in done.stderr
    found = json.loads(done.stdout)
    assert [(size["chips"], size["jobs"]) for size in found["settings"][0]["sizes"]] == [(1, 1), (16, 1)]
    assert found["settings"][0]["last_end"] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("duration,chips", "1h,8", "soon,8"), "row 3, column duration: 'soon' is not a time"),
        (("submitted,chips", "-5,8"), "row 2, column submitted: '-5' is not a time: seconds, 1h30m, or RFC 3339"),
        (("submitted,chips", "0,none"), "row 2, column chips: 'none' is not a number from 1 to 10,000"),
        (("submitted,chips", "0,0"), "row 2, column chips: '0' is not"),
        (("submitted,pods", "0,1.5"), "row 2, column pods: '1.5' is not"),
        (("submitted,priority", "0,4294967296"), "row 2, column priority: '4294967296' is not a priority"),
        (("submitted,kind", "0,ring"), "row 2, column kind: 'ring' is not a kind: gang"),
        (("submitted,duration", "0,nan"), "row 2, column duration: 'nan' is not a time"),
        (("submitted,chips", "0,12"), "row 2, column chips: 12 is more than a server has, and not a multiple of 8"),
        (("submitted,chips", "0,1,2"), "row 2 has more values than there are columns"),
        (("a,b", "0,1"), "names none of the columns submitted, duration"),
        (("submitted",), "has no jobs"),
    ],
)
def test_a_wrong_value_is_named_with_its_row_and_column(tmp_path: Path, lines: tuple[str, ...], said: str) -> None:
    done = invoke("--servers", "2x910A-8", "--jobs", str(write_jobs(tmp_path, *lines)))
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--servers", "3x911"), "'3x911' is not NUMBERxPRODUCT"),
        (("--servers", "0x910B-8"), "'0x910B-8' is not"),
        (("--servers", "1x910B-8"), "the jobs are missing: --jobs FILE.csv, or --rate"),
        (("--servers", "1x910B-8", "--jobs", "/nowhere.csv"), "'/nowhere.csv'"),
        (("--servers", "1x910B-8", "--rate", "1=x"), "--rate: '1=x' is not [PODSx]CHIPS=JOBS_AN_HOUR[:HOURS]"),
        (("--servers", "1x910B-8", "--rate", "1=1", "--load", "lots"), "--load: 'lots' is not a number above 0"),
        (("--servers", "1x910B-8", "--rate", "1=1", "--hours", "0"), "--hours: 0 is not"),
        (("--servers", "1x910B-8", "--rate", "1=1", "--compare", "policy=best"), "there is no policy 'best'"),
        (("--servers", "1x910B-8", "--rate", "1=1", "--compare", "policy"), "'policy' is not KEY=VALUE"),
        (("--servers", "1x910A-8", "--rate", "3=5"), "none of the jobs fits"),
    ],
)
def test_wrong_options_are_one_line(options: tuple[str, ...], said: str) -> None:
    done = invoke(*options)
    assert (done.exit_code, said in done.stderr) == (2, True), done.stderr
    assert done.stderr.count("\n") == 1


def test_an_unknown_setting_is_named() -> None:
    done = invoke("--servers", "1x910B-8", "--rate", "1=1", "--compare", "earmark_shares=1")
    assert done.exit_code == 2
    assert "did you mean earmark_share?" in done.stderr


def test_jobs_that_never_fit_are_left_out_and_counted(tmp_path: Path) -> None:
    path = write_jobs(tmp_path, "submitted,chips", "0,3", "1,2", "2,3")
    found = answer("--servers", "1x910A-8", "--jobs", str(path))
    assert found["left_out"] == [{"jobs": 2, "pods": 1, "chips": 3}]
    assert found["jobs"] == 1


def test_the_objects_of_files_are_the_cluster_with_the_chips_that_are_in_use(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    servers = [node("n1"), node("n2", cordoned=True)]
    path.write_text(json.dumps(as_list(*servers, pod("a", 4, node="n1", chips=range(4)), pod("waits", 8))))
    jobs = write_jobs(tmp_path, "submitted,duration,chips", "0,1h,4", "0,1h,4")
    found = answer("-f", str(path), "--jobs", str(jobs), "--compare", "policy=tables")
    assert (found["servers"], found["chips"], found["jobs"]) == (1, 8, 2)
    assert [side["last_end"] for side in found["settings"]] == [2.0, 2.0]
    ended = answer("-f", str(path), "--jobs", str(jobs), "--running", "0.001")
    assert [side["last_end"] < 1.5 for side in ended["settings"]] == [True, True]


def test_rates_and_load_make_as_many_jobs_as_the_chips_can_do() -> None:
    found = answer("--servers", "20x910B-8", "--rate", "1=50", "--rate", "2x8=2:3", "--load", "0.5", "--seed", "4")
    ours, counting = found["settings"]
    assert found["jobs"] > 1_000
    work = sum(ours["chip_hours"][what] for what in ("used",))
    assert work / (found["hours"] * found["chips"]) == pytest.approx(0.5, rel=0.01)
    assert counting["chip_hours"]["used"] == pytest.approx(ours["chip_hours"]["used"])


def test_people_see_waits_by_size_and_what_chip_hours_were_lost_to() -> None:
    done = invoke("--servers", "4x910A-8", "--rate", "2=20", "--rate", "4=8", "--hours", "12", "--faults", "500")
    assert done.exit_code == 0, done.output
    for title in ("SETTING", "WAIT MEAN", "WRONG", "CHIP-HOURS", "STRANDED", "policy=spread"):
        assert title in done.stdout
    assert "4 servers (910A), 32 chips" in done.stdout


def test_the_page_is_complete_in_itself_and_escapes_what_it_shows(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    done = invoke("--servers", "4x910A-8", "--rate", "2=20", "--hours", "12", "--html", str(path))
    assert done.exit_code == 0, done.output
    text = path.read_text()
    assert text.count("<svg") == 1
    assert "policy=spread" in text
    assert not re.search(r"(src|href)=|url\(|@import|<script", text)
    found = simulate_side_named("<b>&\x1b")
    assert "<b>" not in page(found)
    assert "&lt;b&gt;&amp;" in page(found)
    assert "\x1b" not in page(found)
    ET.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])


def simulate_side_named(name: str) -> SimulationAnswer:
    result = result_of(name, side("1x910B-8").run(jobs_of((0.0, 1, 8, 1.0))))
    return SimulationAnswer("2026-01-01T00:00:00Z", 1, ("910B-8",), 8, 1, 0.0, (), (result,))


def test_a_page_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    done = invoke("--servers", "1x910B-8", "--rate", "1=1", "--html", str(tmp_path / "none" / "page.html"))
    assert done.exit_code == 2
    assert "--html: " in done.stderr
