"""The fake library in a folder of this test's own."""

from pathlib import Path
from typing import Protocol

import pytest

from tests.cluster.requirements import in_ci
from tests.dcmi import compiler
from tests.dcmi.fake import FakeChip, FakeDcmi


class MakeFake(Protocol):
    def __call__(self, chips: list[FakeChip], *, library: Path | None = None) -> FakeDcmi: ...


@pytest.fixture(scope="session", autouse=True)
def _c_compiler() -> None:
    if (sentence := compiler.missing()) is not None:
        if in_ci():
            pytest.fail(f"{sentence}; CI demands these tests")
        pytest.skip(f"SKIPPED ALL TESTS OF THE REAL DRIVER: {sentence}")


@pytest.fixture
def make_fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeFake:
    """Makes this process find the fake."""

    def make(chips: list[FakeChip], *, library: Path | None = None) -> FakeDcmi:
        fake = FakeDcmi(tmp_path, chips, library=library)
        for name, value in fake.environment().items():
            monkeypatch.setenv(name, value)
        return fake

    return make
