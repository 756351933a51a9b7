"""What the flags of kubectl say instead of the kubeconfig."""

import asyncio
import ssl
from collections.abc import Mapping

import pytest

from ascend.errors import InvalidValue
from ascend.kube.identity import Access
from npuctl.reading.source import Overrides, Source


async def _own() -> Mapping[str, str]:
    return {"Authorization": "Bearer own"}


ACCESS = Access("https://own:6443", ssl.create_default_context(), _own)


def applied(overrides: Overrides) -> tuple[str, Mapping[str, str]]:
    access = overrides.applied(ACCESS)

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
