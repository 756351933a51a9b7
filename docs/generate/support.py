"""The table of products: what is supported, from the table of products, and how it is tested, from marks on tests.

A test has the mark ``shows(<how>, <product>, …)``; the product ``all`` stands for every one.
"""

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

import msgspec

from ascend.grammar import count
from ascend.products import PRODUCTS, Family, Product
from ascend.rules.families import RULES
from ascend.rules.identity import CHIP_OF_SERVER_TYPE
from ascend.templates import divisible_types
from device_plugin.chips.switch_monitor import CHIP_TYPE as SWITCHED
from device_plugin.driver import ChipFacts, ChipType, Inventory
from device_plugin.driver.resetting import one_by_one, reset_groups
from device_plugin.driver.simulated_resets import partners
from device_plugin.driver.telemetry import HBM, NOT_ON, Quantity, Reading
from npuctl.selftest.node import Selftest
from tests.cluster.binaries import RUNS, VERSIONS

ROOT: Final = Path(__file__).parents[2]
REPORTS: Final = ROOT / "tests" / "dcmi" / "reports"
ALL: Final = "all"
HOW: Final = {
    "rules": "random servers and pods of every size: filter, score and chips follow the product's rule",
    "reference": "the same answers as MindCluster's own test cases",
    "driver": "the chips are read from a library with the interface of Huawei's driver, written for the tests",
    "sandbox": "from the driver to the container, in one process",
    "kubelet": "the same with a real kube-scheduler, kubelet and containerd",
    "image": "the same with both programs as pods of the chart, from the built image",
}
"""Ways to test a product, and what they show."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A mark on a test.

    Attributes:
        how: a key of ``HOW``.
        products: names of products.
        file: the test's file, relative to the repository.
        test: the test's name.
    """

    how: str
    products: tuple[str, ...]
    file: str
    test: str


def marks() -> Iterator[Shown]:
    """Yield all marks.

    Raises:
        ValueError: a mark names an unknown way or product.
    """
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        if "mark.shows(" not in text:
            continue
        for function in ast.walk(ast.parse(text)):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for how, *products in _arguments(function):
                    shown = tuple(PRODUCTS) if products == [ALL] else tuple(products)
                    if how not in HOW or not shown or not set(shown) <= set(PRODUCTS):
                        raise ValueError(f"{path}: {function.name}: no such way or product: {how}, {products}")
                    yield Shown(how, shown, path.relative_to(ROOT).as_posix(), function.name)


def _arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[list[str]]:
    for each in function.decorator_list:
        if isinstance(each, ast.Call) and ast.unparse(each.func) == "pytest.mark.shows":
            yield [str(ast.literal_eval(argument)) for argument in each.args]


def kubernetes_table() -> Iterator[str]:
    """Yield the lines of the table of versions of Kubernetes: with which of them the tests of the real cluster run."""
    yield "| Kubernetes | tests of the real cluster | long tests of the real cluster | the last run that was recorded |"
    yield "|---|---|---|---|"
    newest, runs = VERSIONS[0], json.loads(RUNS.read_text())
    for version in VERSIONS:
        by = "`make test` | `make test-long`" if version == newest else "`make test-long` | no"
        run, ended = runs.get(version), "none"
        if run is not None:
            counts = (f"{run[name]} {name}" for name in ("passed", "failed", "skipped") if run[name])
            ended = f"{run['date']}: {', '.join(counts)}"
        yield f"| {version} | {by} | {ended} |"


def support_table() -> Iterator[str]:
    """Yield the lines of the table of products."""
    shown = {(mark.how, product) for mark in marks() for product in mark.products}
    reported = [report for _, report in reports()]
    facts = ("product", "server", "requests", "in a job of several pods", "chips", "`accelerator-type`")
    yield f"| {' | '.join((*facts, *HOW, 'NPUs'))} |"
    yield f"|{'---|' * (len(facts) + len(HOW) + 1)}"
    for product in PRODUCTS.values():
        tested = " | ".join("yes" if (how, product.name) in shown else "no" for how in HOW)
        labels = ", ".join(f"`{name}`" for name in product.node_types)
        yield (
            f"| `{product.name}` | {product.chips}, {product.family} | {_numbers(product.requests)} |"
            f" {_distributed(product)} | {product.chip or 'any'} | {labels} | {tested} |"
            f" {_yes(any(_is_of(each, product) for each in reported))} |"
        )


def reports() -> Iterator[tuple[str, Selftest]]:
    """Yield the reports of real servers with the names of their files, without those of the tests' own library."""
    for path in sorted(REPORTS.glob("*.json")):
        if not path.stem.startswith("fake-"):
            yield path.stem, msgspec.json.decode(path.read_bytes(), type=Selftest)


def reports_table() -> Iterator[str]:
    """Yield the lines of the table of reports."""
    yield "| report | chips | driver | kernel | surprises | pods about whose chips all agree |"
    yield "|---|---|---|---|---|---|"
    found = list(reports())
    for name, report in found:
        server, versions = report.node.server, report.node.versions
        chips = f"{len(server.chips)}, {server.product}" if server is not None else report.node.problem
        driver = server.driver_version if server is not None else ""
        agree = f"{sum(each.agree for each in report.pods)} of {len(report.pods)}" if report.pods else "not tried"
        surprises = "; ".join(report.node.surprises) or "none"
        cells = (f"`{name}`", chips, driver, versions.get("kernel", ""), surprises, agree)
        yield f"| {' | '.join(cells)} |"
    if not found:
        yield "| none yet | | | | | |"


def _is_of(report: Selftest, product: Product) -> bool:
    """Whether a report may be of a product: of such chips, and as many."""
    server = report.node.server
    if server is None or len(server.chips) != product.chips:
        return False
    return any(
        server.product == kind and product.chip in {"", CHIP_OF_SERVER_TYPE[kind]} for kind in get_args(ChipType)
    )


def functions_table() -> Iterator[str]:
    """Yield the lines of the table of what the device plugin does on each product."""
    columns = ("hot reset", "faults of switches", "policy of dies", "telemetry", "hang detection", "job files")
    yield f"| {' | '.join(('product', *columns, 'choose_chips', 'vNPUs'))} |"
    yield f"|{'---|' * (len(columns) + 3)}"
    for product in PRODUCTS.values():
        kinds = [kind for kind in get_args(ChipType) if product.chip in {"", CHIP_OF_SERVER_TYPE[kind]}]
        cells = (
            _by_chip([_reset_group(product, kind) for kind in kinds]),
            _by_chip([_yes(kind == SWITCHED) for kind in kinds]),
            _yes(product.family is Family.DIES),
            _by_chip([f"{_values(kind)} of {len(Quantity)} values" for kind in kinds]),
            # It needs the utilization of the AI cores; job files do not depend on the chips.
            _by_chip([_yes(kind not in NOT_ON.get(Reading.UTILIZATION, ())) for kind in kinds]),
            "yes",
            _yes(product.family in RULES),
            _by_chip([_cut(kind) for kind in kinds]),
        )
        yield f"| `{product.name}` | {' | '.join(cells)} |"


def _reset_group(product: Product, kind: ChipType) -> str:
    """Return which chips of a server are reset together, if all of its cards are listed."""
    per_card = 2 if product.family is Family.DIES else 1
    chips = tuple(ChipFacts(each, each, each // per_card, each % per_card) for each in range(product.chips))
    server = Inventory(kind, chips)
    (size,) = {group.bit_count() for group in reset_groups(server, partners(server, server))}
    together = "all chips" if size == product.chips else count(size, "chip")
    return f"{together}, one by one" if one_by_one(server) else together


def _cut(kind: ChipType) -> str:
    """Return when the chips of a kind can be cut into vNPUs."""
    return "beforehand, or when a pod starts" if kind in divisible_types() else "beforehand"


def _values(kind: ChipType) -> int:
    readings = [each for each in Reading if kind not in NOT_ON.get(each, ())]
    return sum(len(HBM) if each is Reading.HBM else 1 for each in readings)


def _yes(is_so: bool) -> str:  # noqa: FBT001 - a plain word for it
    return "yes" if is_so else "no"


def _by_chip(cells: list[str]) -> str:
    return cells[0] if len({*cells}) == 1 else "depends on the chips"


def ways_table() -> Iterator[str]:
    """Yield the lines of the table of ways, with the tests that have the mark."""
    yield "| column | what was shown | by |"
    yield "|---|---|---|"
    every = list(marks())
    for how, meaning in HOW.items():
        tests = ", ".join(f"`{mark.test}`" for mark in every if mark.how == how)
        yield f"| {how} | {meaning} | {tests} |"


def _numbers(numbers: tuple[int, ...]) -> str:
    if len(numbers) > 2 and numbers == tuple(range(numbers[0], numbers[-1] + 1)):  # noqa: PLR2004 - three or more
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))


def _distributed(product: Product) -> str:
    numbers = product.allowed(distributed=True)
    return "same" if numbers == product.requests else _numbers(numbers)
