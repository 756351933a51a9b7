"""Job controllers are complete before tests use them, also on a machine that has none of their modules yet."""

import json
from pathlib import Path

import pytest

from tests.cluster import controllers
from tests.cluster.controllers import CONTROLLERS, Controller
from tests.cluster.errors import ClusterError


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Controller:
    """A controller whose program and module are in empty folders."""
    monkeypatch.setattr(Controller, "_folder", property(lambda _self: tmp_path / "built"))

    def go(_module: Path, verb: str, *arguments: str) -> str:
        if verb == "mod":
            return json.dumps({"Dir": str(tmp_path / "module")})
        Path(arguments[arguments.index("-o") + 1]).write_text("a program")
        return ""

    monkeypatch.setattr(controllers, "_go", go)
    return CONTROLLERS["jobset"]


def test_a_controller_without_definitions_is_not_built(controller: Controller, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="none of the manifests"):
        controller.build(lambda _line: None)
    assert not controller.is_built
    for each in controller.manifests:
        (tmp_path / "module" / each).mkdir(parents=True)
        (tmp_path / "module" / each / "one.yaml").write_text("kind: CustomResourceDefinition")
    controller.build(lambda _line: None)
    assert controller.is_built
    assert [each["kind"] for each in controller.objects][:1] == ["CustomResourceDefinition"]


def test_definitions_that_an_earlier_build_did_not_find_are_looked_for_again(
    controller: Controller, tmp_path: Path
) -> None:
    (tmp_path / "built").mkdir()
    (tmp_path / "built" / controller.name).write_text("a program")
    (tmp_path / "built" / "manifests.yaml").touch()
    assert not controller.is_built
