"""Without a C compiler the tests of the real driver are skipped, and fail in CI."""

from pathlib import Path

import pytest

from tests.cluster import requirements
from tests.dcmi import compiler


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_without_headers_the_tests_are_skipped_loudly_and_fail_in_ci(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setattr(requirements, "STDIO", tmp_path / "stdio.h")
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="THE REAL DRIVER IS NOT TESTED HERE: There are no C headers"):
        compiler.require_compiler()


def test_c_source_that_does_not_compile_is_an_error_with_the_reason() -> None:
    with pytest.raises(RuntimeError, match="undeclared"):
        compiler.run("int main(void) { return nothing; }")
