"""The generated parts of each page, and how a page is rendered.

A generated table is between ``<!-- name -->`` and ``<!-- /name -->``, in the chart between comments with these. To add
one, write a function that returns its lines, and add it to ``TABLES`` below. Output of npuctl needs no entry: each
console block that begins with ``$ npuctl`` is run.
"""

import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

from allocator.settings import Settings as AllocatorSettings
from ascend.reasons import Category
from device_plugin.metrics import Metrics as DevicePluginMetrics
from device_plugin.settings import Settings as DevicePluginSettings
from docs.generate.console import with_output
from docs.generate.support import functions_table, kubernetes_table, reports_table, support_table, ways_table
from docs.generate.tables import (
    allocator_registry,
    authors_table,
    checks_table,
    controllers_table,
    enqueued_jobs,
    jobs_table,
    log_fields_table,
    metrics_table,
    reasons_table,
    rights_table,
    settings_table,
    telemetry_table,
    unsupported_table,
    watched_jobs,
    workloads_table,
    writers_table,
)
from docs.generate.told import told_table

ROOT: Final = Path(__file__).parents[2]
_TEMPLATES: Final = ROOT / "deploy" / "charts" / "ascend-affinity" / "templates"
_RIGHTS: Final = (_TEMPLATES / "allocator" / "rbac.yaml", _TEMPLATES / "_jobs.tpl")
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *_RIGHTS)

TABLES: Final[dict[str, dict[str, Callable[[], Iterable[str]]]]] = {
    "allocator-reference.md": {
        "settings": lambda: settings_table(AllocatorSettings),
        "metrics": lambda: metrics_table(allocator_registry()),
    },
    "unsupported.md": {"unsupported": unsupported_table},
    "device-plugin-reference.md": {
        "settings": lambda: settings_table(DevicePluginSettings),
        "metrics": lambda: metrics_table(DevicePluginMetrics().registry),
        "rights": rights_table,
    },
    "device-plugin.md": {"told": told_table},
    "logs.md": {"log-fields": log_fields_table},
    "telemetry.md": {"telemetry": telemetry_table},
    "security.md": {"writers": writers_table, "authors": authors_table},
    "npuctl-operate.md": {"node-checks": checks_table},
    "jobs.md": {"jobs": jobs_table},
    "npuctl.md": {"workloads": workloads_table},
    "rbac.yaml": {"enqueued-jobs": enqueued_jobs},
    "_jobs.tpl": {"watched-jobs": watched_jobs},
    "support.md": {
        "products": support_table,
        "functions": functions_table,
        "ways": ways_table,
        "reports": reports_table,
        "kubernetes": kubernetes_table,
        "controllers": controllers_table,
    },
    "reasons.md": {category.name.lower().replace("_", "-"): partial(reasons_table, category) for category in Category},
}

_TABLE = re.compile(r"(?P<start><!-- (?P<name>[a-z-]+) -->\n).*?(?P<end>[ #]*<!-- /(?P=name) -->)", re.DOTALL)


def render(path: Path) -> str:
    """Return the text of a page with its generated parts regenerated.

    Raises:
        ValueError: the markers of a table are missing, or belong to an unknown table.
    """
    tables = TABLES.get(path.name, {})
    text = path.read_text()
    marked = [found["name"] for found in _TABLE.finditer(text)]
    if sorted(marked) != sorted(tables):
        raise ValueError(f"{path.name}: tables {sorted(tables)} are expected between markers, found {sorted(marked)}")

    def table(found: re.Match[str]) -> str:
        lines = "\n".join(tables[found["name"]]())
        return f"{found['start']}{lines}\n{found['end']}"

    return with_output(_TABLE.sub(table, text))
