"""The hardened values take away, and add nothing: no port that everybody reaches, no right, no privilege."""

from typing import Any

import pytest

from tests.deploy import helm

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("built_helm"), pytest.mark.timeout(600)]


@pytest.fixture
def hardened() -> list[dict[str, Any]]:
    return helm.render("--values", str(helm.HARDENED))


def of_kind(items: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {item["metadata"]["name"]: item for item in items if item["kind"] == kind}


def test_every_port_names_who_may_reach_it(hardened: list[dict[str, Any]]) -> None:
    rules = [rule for policy in of_kind(hardened, "NetworkPolicy").values() for rule in policy["spec"]["ingress"]]
    assert len(rules) == 4
    for rule in rules:
        assert rule["from"], rule
        cidrs = [peer["ipBlock"]["cidr"] for peer in rule["from"] if "ipBlock" in peer]
        assert not {"0.0.0.0/0", "::/0"} & set(cidrs)


def test_every_policy_of_the_default_installation_stays(hardened: list[dict[str, Any]]) -> None:
    for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "NetworkPolicy"):
        assert of_kind(helm.render(), kind).keys() == of_kind(hardened, kind).keys()


def test_no_right_is_added(hardened: list[dict[str, Any]]) -> None:
    for kind in ("ClusterRole", "Role"):
        default = of_kind(helm.render(), kind)
        for name, role in of_kind(hardened, kind).items():
            assert all(rule in default[name]["rules"] for rule in role["rules"]), name


def test_no_webhook_changes_an_object_that_is_stored(hardened: list[dict[str, Any]]) -> None:
    configurations = of_kind(hardened, "MutatingWebhookConfiguration").values()
    rules = [rule for each in configurations for webhook in each["webhooks"] for rule in webhook["rules"]]
    assert [rule["resources"] for rule in rules] == [["podexplanations"]]  # created in dry runs only


def test_the_certificates_are_renewed_and_no_key_is_rendered(hardened: list[dict[str, Any]]) -> None:
    assert len(of_kind(hardened, "Certificate")) == 3
    assert not of_kind(hardened, "Secret")
