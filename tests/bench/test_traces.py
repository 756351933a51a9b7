"""The table of policies on traces: each row has each policy, and what is better by more than 2 % is said."""

from dataclasses import replace
from pathlib import Path

from tests.bench import traces


def write(folder: Path) -> None:
    rows = [f"{600 * number},{3600 * (1 + number % 3)},{(1, 2, 4, 8)[number % 4]}" for number in range(40)]
    (folder / "philly-4.csv").write_text("\n".join(["submit_s,duration_s,chips", *rows]))


def test_each_policy_has_its_figures_and_only_those_that_count_break_rings(tmp_path: Path) -> None:
    write(tmp_path)
    found = list(traces.rows(tmp_path, ["philly-4/910A-8"]))
    assert [row.load for row in found] == list(traces.LOADS)
    assert all(list(row.figures) == list(traces.SIDES) for row in found)
    wrong = {side: sum(row.figures[side][traces.WRONG] for row in found) for side in traces.SIDES}
    assert {side for side, share in wrong.items() if share} == {"spread", "packed"}
    traces.picture(tmp_path / "plot.svg", found)
    assert (tmp_path / "plot.svg").read_text().count("<polyline") > 3
    assert traces.table_of(found[0]).row_count == len(traces.SIDES)


def test_a_policy_that_is_better_is_named(tmp_path: Path) -> None:
    write(tmp_path)
    row = next(traces.rows(tmp_path, ["philly-4/910B-8"]))
    same = replace(row, figures=dict.fromkeys(row.figures, row.figures["fgd"]))
    assert not list(traces.worse(same))
    better = {**same.figures, "fgd": {what: value / 2 - 1 for what, value in row.figures["fgd"].items()}}
    assert any("that of fgd" in sentence for sentence in traces.worse(replace(row, figures=better)))
