"""Writes the tables of ``docs/device-plugin.md`` that the code knows: settings, metrics, rights.

``python -m device_plugin.reference`` writes them, with ``--check`` it only says whether they are current.
"""

import re
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from prometheus_client.metrics import MetricWrapperBase
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ascend.daemon.settings import RELOADED
from device_plugin.metrics import Metrics
from device_plugin.publish.rights import KUBELET_PODS, rights
from device_plugin.settings import Settings

_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}

DOCUMENT = Path(__file__).parents[1] / "docs" / "device-plugin.md"


def render(text: str) -> str:
    """The document with its tables as the code has them; each lies between ``<!-- name -->`` and ``<!-- /name -->``."""
    tables: dict[str, Callable[[], Iterator[str]]] = {"settings": _settings, "metrics": _metrics, "rights": _rights}
    for name, rows in tables.items():
        table = "\n".join(rows())
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text = pattern.sub(lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text)  # type: ignore[misc]  # mypy can't infer a lambda's default
    return text


def _settings() -> Iterator[str]:
    yield "| setting | default | values | meaning |"
    yield "|---|---|---|---|"
    for name, field in sorted(Settings.model_fields.items()):
        mark = " *" if field.json_schema_extra == RELOADED else ""
        yield f"| `{name}`{mark} | {_default(field)} | {_values(field)} | {field.description} |"


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "must be given"
    return f"`{field.default}`" if field.default not in {None, ""} else "-"


def _values(field: FieldInfo) -> str:
    if typing.get_origin(field.annotation) is Literal:
        return ", ".join(f"`{each}`" for each in typing.get_args(field.annotation))
    # pydantic keeps what was said of a field as objects with one attribute each.
    bounds = [
        f"{sign} {getattr(each, name)}"
        for each in field.metadata
        for name, sign in _BOUNDS.items()
        if hasattr(each, name)
    ]
    kind = _kind(field.annotation)
    return f"{kind} {', '.join(bounds)}" if bounds else kind


def _kind(annotation: Any) -> str:
    kinds = [each for each in typing.get_args(annotation) if each is not type(None)] or [annotation]
    return {"float": "number", "str": "text", "Path": "path", "int": "number"}.get(kinds[0].__name__, "text")


def _metrics() -> Iterator[str]:
    yield "| metric | kind | labels | meaning |"
    yield "|---|---|---|---|"
    metrics = [each for each in vars(Metrics()).values() if isinstance(each, MetricWrapperBase)]
    described = [next(iter(each.describe())) for each in metrics]
    rows = {
        metric.name + ("_total" if metric.type == "counter" else ""): (metric, wrapper)
        for metric, wrapper in zip(described, metrics, strict=True)
    }
    for name, (metric, wrapper) in sorted(rows.items()):
        labels = ", ".join(f"`{label}`" for label in wrapper._labelnames) or "-"  # noqa: SLF001 - it has no other name
        yield f"| `{name}` | {metric.type} | {labels} | {metric.documentation} |"


def _rights() -> Iterator[str]:
    yield "| right | what for |"
    yield "|---|---|"
    manual = set(rights(manual_readmission=True)) - set(rights(manual_readmission=False))
    for right in rights(manual_readmission=True):
        yield f"| `{right}`{' (only `readmission: manual`)' if right in manual else ''} | {right.why} |"
    yield f"| one of {', '.join(f'`{right}`' for right in KUBELET_PODS)} | {KUBELET_PODS[0].why} |"


def main() -> None:
    """Write the document, or with ``--check`` leave with status 1 where it is not current."""
    before = DOCUMENT.read_text()
    after = render(before)
    if sys.argv[1:] == ["--check"]:
        if before != after:
            sys.exit(f"{DOCUMENT.name} is not current: run `make docs`")
    else:
        DOCUMENT.write_text(after)


if __name__ == "__main__":
    main()
