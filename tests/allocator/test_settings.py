"""The settings: where they come from, and which of them are refused."""

from pathlib import Path

import pytest

from allocator.settings import Settings
from ascend.daemon.settings import SettingsSource
from ascend.errors import InvalidValue


def test_flags_override_the_environment_which_overrides_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("reservation_ttl_s: 7\nlog_level: DEBUG\ngrpc_address: 127.0.0.1:1\n")
    monkeypatch.setenv("ASCEND_ALLOCATOR_LOG_LEVEL", "WARNING")
    monkeypatch.setenv("ASCEND_ALLOCATOR_GRPC_ADDRESS", "127.0.0.1:2")
    settings = SettingsSource(Settings, "p", ["--config", str(file), "--grpc-address", "unix:/run/a.sock"]).read()
    assert settings.reservation_ttl_s == 7
    assert settings.log_level == "WARNING"
    assert settings.grpc_address == "unix:/run/a.sock"
    assert settings.extender_address == "127.0.0.1:8080"


def test_the_environment_can_name_the_settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("reservation_ttl_s: 7\n")
    monkeypatch.setenv("ASCEND_ALLOCATOR_CONFIG", str(file))
    assert SettingsSource(Settings, "p", []).read().reservation_ttl_s == 7


CLIENTS = "--tls-cert-file=c --tls-key-file=k --client-ca-file=a --client-names=a,b"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--extender-address=0.0.0.0:8080", "extender_address: 0.0.0.0:8080"),
        ("--extender-address=:8080", "extender_address: :8080"),
        ("--extender-address=[::]:8080", "extender_address: [::]:8080"),
        ("--grpc-address=10.0.0.7:1", "grpc_address: 10.0.0.7:1"),
        ("--webhook-address=0.0.0.0:1", "webhook_address: 0.0.0.0:1"),
        ("--volcano=true", "volcano: needs bindings in webhooks"),
        ("--insecure-volcano-address=127.0.0.1:1", "insecure_volcano_address: needs volcano"),
        ("--publish-switches=true", "publish_switches: needs nslb_version 2.0"),
        ("--grpc-address=0.0.0.0:1 --tls-cert-file=c --tls-key-file=k", "client_ca_file and client_names"),
        ("--extender-address=:1 --tls-cert-file=c --tls-key-file=k", "insecure_anyone_may_bind_pods"),
        (f"--extender-address=:1 {CLIENTS} --webhook-address=:2", "probe_address: must be given"),
        (f"--extender-address=:1 {CLIENTS} --probe-address=:2 --webhooks=pods", "webhook_address: must be given"),
        ("--tls-cert-file=c", "tls_cert_file and tls_key_file"),
        ("--client-ca-file=c --client-names=n", "client_ca_file"),
        ("--tls-cert-file=c --tls-key-file=k --client-ca-file=a", "client_ca_file and client_names"),
        ("--client-names=n", "client_ca_file and client_names"),
        ("--webhook-client-names=n", "webhook_client_names"),
    ],
)
def test_addresses_that_others_can_reach_require_tls_and_clients_with_certificates(flags: str, words: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        SettingsSource(Settings, "p", flags.split()).read()
    assert words in str(refused.value)
    assert "got" not in str(refused.value)


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--extender-address=localhost:1 --grpc-address=[::1]:1",
        "--grpc-address=unix:/run/a.sock",
        "--extender-address=0.0.0.0:8080 --grpc-address=0.0.0.0:1 --insecure-anyone-may-bind-pods=true",
        "--tls-cert-file=c --tls-key-file=k --webhook-address=:1 --probe-address=:2",
        "--probe-address=:2",
        f"--extender-address=:1 --grpc-address=:2 {CLIENTS} --probe-address=:3",
        f"--extender-address=:1 --grpc-address=:2 {CLIENTS} --probe-address=:3 --webhook-address=:4 --webhooks=pods",
    ],
)
def test_protected_and_insecure_addresses_are_accepted(flags: str) -> None:
    assert SettingsSource(Settings, "p", flags.split()).read().client_names in ([], ["a", "b"])


def test_webhooks_are_served_only_if_configured() -> None:
    assert SettingsSource(Settings, "p", []).read().webhooks == []
    assert SettingsSource(Settings, "p", ["--webhooks=bindings,pods"]).read().webhooks == ["bindings", "pods"]
    with pytest.raises(InvalidValue, match=r"webhooks\.0"):
        SettingsSource(Settings, "p", ["--webhooks=binding"]).read()
