"""What Prometheus would have scraped before, during and after a fault, and what its rules make of it."""

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml
from prometheus_client.parser import text_string_to_metric_families

STEP_MIN: Final = 4
SAMPLES: Final = 25
"""A phase has a sample every four minutes, and lasts longer than the longest window of an alert and the longest time
for which one has to hold together."""
ALLOCATOR: Final = {"instance": "10.0.0.1:8080", "job": "monitoring/allocator", "node": "control-plane"}
PLUGIN: Final = {"instance": "10.0.0.2:9100", "job": "monitoring/device-plugin", "node": "n1"}
"""The labels that the chart's PodMonitors give the series of a program."""

Key = tuple[tuple[str, str], ...]


@dataclass
class Recording:
    """The series of one program in three phases: before a fault, during it, and after it.

    Attributes:
        target: labels of the program.
        start_s: when the first phase began, Unix seconds: Prometheus' tests begin at 0.
        phases: the values of each phase by the labels of the series; none while the program does not answer.
        counters: the names of series that only grow.
    """

    target: Mapping[str, str]
    start_s: float
    phases: list[Mapping[Key, float]] = field(default_factory=list)
    counters: set[str] = field(default_factory=set)

    def take(self, page: str) -> None:
        """Record the next phase from a program's page of metrics; it is empty if the program does not answer."""
        values: dict[Key, float] = {}
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if family.type in {"counter", "histogram"}:
                    self.counters.add(sample.name)
                # With honorLabels the labels of a sample win.
                labels = {"__name__": sample.name, **self.target, **sample.labels}
                since = self.start_s if "_timestamp_" in sample.name else 0.0
                values[tuple(sorted(labels.items()))] = sample.value - since
        self.phases.append(values)

    def series(self) -> list[dict[str, str]]:
        """The series as promtool reads them, as they are scraped."""
        found = []
        for key in sorted({key for phase in self.phases for key in phase}):
            name, labels = dict(key)["__name__"], [pair for pair in key if pair[0] != "__name__"]
            values = [phase.get(key) for phase in self.phases]
            parts = [
                _samples(before if name in self.counters else value, value)
                for before, value in zip([values[0], *values], values, strict=False)
            ]
            written = ",".join(f'{label}="{text}"' for label, text in labels)
            found.append({"series": f"{name}{{{written}}}", "values": " ".join(parts)})
        return found


def _samples(first: float | None, last: float | None) -> str:
    """The samples of a phase: a counter grows all the time to what it was at its end."""
    if last is None:
        return f"_x{SAMPLES}"
    first = last if first is None or first > last else first
    step = (last - first) / (SAMPLES - 1)
    return f"{first:.9f}{'+' if step >= 0 else '-'}{abs(step):.9f}x{SAMPLES - 1}"


def check(
    rules: Path,
    recording: Recording,
    firing: Sequence[AbstractSet[str]],
    names: Iterable[str],
    *,
    first: AbstractSet[str] = frozenset(),
) -> None:
    """Check which alerts fire at the end of each phase, and that all others don't.

    Args:
        rules: a file of rules.
        recording: the series.
        firing: the names of alerts that fire at the end of each phase.
        names: all names.
        first: the names of those that fire when the second phase has just begun.

    Raises:
        AssertionError: other ones do, or promtool does not read the rules or the series; its text.
    """
    times = {SAMPLES * number - 1: expected for number, expected in enumerate(firing, 1)}
    if first:
        times[SAMPLES + 1] = first
    asked = [
        {
            # An alert that does not fire has no series.
            "expr": f'max(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)',
            "eval_time": f"{STEP_MIN * sample}m",
            "exp_samples": [{"labels": "{}", "value": int(name in expected)}],
        }
        for sample, expected in times.items()
        for name in names
    ]
    test: dict[str, Any] = {
        "rule_files": [str(rules)],
        "evaluation_interval": f"{STEP_MIN}m",
        "tests": [{"interval": f"{STEP_MIN}m", "input_series": recording.series(), "promql_expr_test": asked}],
    }
    path = rules.with_name("test.yaml")
    path.write_text(yaml.safe_dump(test))
    done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
