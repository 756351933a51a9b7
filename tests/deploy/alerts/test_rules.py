"""The chart's PrometheusRule: what Prometheus reads, with a runbook for each alert."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.monitoring.alerts import ALERTS
from tests.deploy import helm

FAILURES = helm.REPOSITORY / "docs" / "failures.md"


def rules_of(*arguments: str) -> list[dict[str, Any]]:
    (found,) = [item for item in helm.render(*arguments) if item["kind"] == "PrometheusRule"]
    (group,) = found["spec"]["groups"]
    return list(group["rules"])


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    page = FAILURES.read_text()
    headings = [line.removeprefix("### ") for line in page.splitlines() if line.startswith("### Ascend")]
    assert headings == [alert.name for alert in ALERTS]


@pytest.mark.real
@pytest.mark.usefixtures("built_helm")
def test_prometheus_reads_the_rules_of_the_chart(tmp_path: Path) -> None:
    values = "prometheusRules.enabled=true,prometheusRules.longestWaitSeconds=7200000"
    rules = rules_of("--set", f"{values},prometheusRules.docsUrl=https://docs.example/")
    assert [rule["alert"] for rule in rules] == [alert.name for alert in ALERTS]
    for rule in rules:
        assert rule["annotations"]["runbook_url"] == f"https://docs.example/failures.md#{rule['alert'].lower()}"
    waits = next(rule for rule in rules if rule["alert"] == "AscendPodsWaitLong")
    assert waits["expr"].endswith("> 7200000")
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "chart", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.real
@pytest.mark.usefixtures("built_helm")
def test_alerts_that_are_disabled_are_left_out_and_unknown_ones_refused() -> None:
    chosen = ("--set", "prometheusRules.enabled=true", "--set-json")
    rules = rules_of(*chosen, 'prometheusRules.disabled=["AscendChipsFragmented"]')
    assert {alert.name for alert in ALERTS} - {rule["alert"] for rule in rules} == {"AscendChipsFragmented"}
    with pytest.raises(helm.HelmError, match="there is no alert AscendChipsFragments, only AscendAllocatorNoLeader, "):
        rules_of(*chosen, 'prometheusRules.disabled=["AscendChipsFragments"]')


@pytest.mark.real
@pytest.mark.usefixtures("built_helm")
def test_without_the_setting_there_is_no_rule() -> None:
    assert not [item for item in helm.render() if item["kind"] == "PrometheusRule"]
