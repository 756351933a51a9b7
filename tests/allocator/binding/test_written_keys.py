"""The table of annotations that the allocator writes is whole: the policy of its ServiceAccount denies others."""

import ast
from pathlib import Path

from allocator.binding import annotations as writer
from ascend import annotations
from ascend.annotations import FENCE, Grant
from ascend.cores import Cut
from ascend.takes import Take
from tests import allocator_keys as written_keys

OF_NODES = {"BASE_DEVICE_INFOS", "SERVER_INDEX", "SUPER_POD_ID"}
"""What the writer reads of nodes."""


def test_the_table_has_every_annotation_of_bindings() -> None:
    source = ast.parse(Path(writer.__file__).read_text())
    imported = {
        alias.name
        for node in ast.walk(source)
        if isinstance(node, ast.ImportFrom) and node.module == annotations.__name__
        for alias in node.names
    }
    keys = {getattr(annotations, name) for name in imported - OF_NODES}
    written = {key for key in keys if isinstance(key, str)} | {FENCE}
    for take in (Take.whole((0,)), Take.part(Cut(0, "vir05_1c_16g"))):
        written |= Grant.of(take, 1).annotations().keys()
    assert written == set(written_keys.IN_BINDINGS)
