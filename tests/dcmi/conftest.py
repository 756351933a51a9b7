"""The fake library in a folder of the test."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.dcmi import compiler
from tests.dcmi.fake import FakeChip, FakeDcmi


class MakeFake(Protocol):
    def __call__(self, chips: list[FakeChip], *, library: Path | None = None) -> FakeDcmi: ...


@pytest.fixture(scope="session", autouse=True)
def _c_compiler() -> None:
    compiler.require_compiler()


@pytest.fixture
def make_fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeFake]:
    """Make this process find the fake library; afterwards check that ``dcmi_init()`` ran alone whenever it ran."""
    fakes: list[FakeDcmi] = []

    def make(chips: list[FakeChip], *, library: Path | None = None) -> FakeDcmi:
        fake = FakeDcmi(tmp_path, chips, library=library)
        for name, value in fake.environment().items():
            monkeypatch.setenv(name, value)
        fakes.append(fake)
        return fake

    yield make
    assert [fake.races() for fake in fakes] == [0] * len(fakes)
