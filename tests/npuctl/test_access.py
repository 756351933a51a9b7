"""What the flags of kubectl say instead of the kubeconfig."""

import asyncio
import json
import math
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ascend.errors import InvalidValue, Unreachable
from ascend.kube.identity import Access
from npuctl.reading.source import Overrides, Source


async def _own() -> Mapping[str, str]:
    return {"Authorization": "Bearer own"}


ACCESS = Access("https://own:6443", ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), _own)


def applied(overrides: Overrides) -> tuple[str, Mapping[str, str]]:
    access = overrides.apply_to(ACCESS)

    async def headers() -> Mapping[str, str]:
        return await access.headers()

    return access.url, asyncio.run(headers())


def test_without_flags_nothing_changes() -> None:
    assert applied(Overrides()) == ("https://own:6443", {"Authorization": "Bearer own"})


def test_flags_name_server_token_user_and_group() -> None:
    source = Source.of(server="https://other:6443/", token="t", user="ann", group="ops")
    assert applied(source.overrides) == (
        "https://other:6443",
        {"Authorization": "Bearer t", "Impersonate-User": "ann", "Impersonate-Group": "ops"},
    )


def test_a_group_needs_a_user() -> None:
    with pytest.raises(InvalidValue, match="--as-group needs --as"):
        Source.of(group="ops")


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("2m", 120), ("1h30m", 5400), ("45", 45), ("0", math.inf), ("0s", math.inf)]
)
def test_a_timeout_is_read_as_by_kubectl(text: str, seconds: float) -> None:
    assert Source.of(request_timeout=text).overrides.timeout_s == seconds


@pytest.mark.parametrize("text", ["", "x", "-1s", "30d", "9" * 20, "1s2m"])
def test_what_is_no_timeout_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match=r"--request-timeout: .* is not a time like 30s"):
        Source.of(request_timeout=text)


KUBECONFIG = {
    "current-context": "own",
    "contexts": [{"name": "own", "context": {"cluster": "a", "user": "ann", "namespace": "team"}}],
    "clusters": [{"name": name, "cluster": {"server": f"https://{name}:6443"}} for name in ("a", "b")],
    "users": [{"name": name, "user": {"token": f"token of {name}"}} for name in ("ann", "bob")],
}


async def accessed(folder: Path, document: Mapping[str, Any], **options: Any) -> tuple[str, str]:
    path = folder / "config"
    path.write_text(json.dumps(document))
    async with await Source.of(kubeconfig=str(path), **options).connect() as client:
        return client.url, next(iter((await client.identity_headers()).values()))


async def test_a_cluster_and_a_user_of_the_kubeconfig_replace_those_of_the_context(tmp_path: Path) -> None:
    assert await accessed(tmp_path, KUBECONFIG) == ("https://a:6443", "Bearer token of ann")
    assert await accessed(tmp_path, KUBECONFIG, kubeconfig_cluster="b") == ("https://b:6443", "Bearer token of ann")
    assert await accessed(tmp_path, KUBECONFIG, kubeconfig_user="bob") == ("https://a:6443", "Bearer token of bob")
    without = {**KUBECONFIG, "current-context": "", "contexts": []}
    both = {"kubeconfig_cluster": "b", "kubeconfig_user": "bob"}
    assert await accessed(tmp_path, without, **both) == ("https://b:6443", "Bearer token of bob")


@pytest.mark.parametrize("option", ["kubeconfig_cluster", "kubeconfig_user"])
async def test_a_name_that_the_kubeconfig_has_not_is_an_error(option: str, tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="Expected object with name gone"):
        await accessed(tmp_path, KUBECONFIG, **{option: "gone"})
