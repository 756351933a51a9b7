"""The table of products: what is supported, from the table of products, and how it is tested, from marks on tests.

A test has the mark ``shows(<how>, <product>, …)``; the product ``all`` stands for every one.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ascend.products import PRODUCTS, Product

ROOT: Final = Path(__file__).parents[2]
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


def support_table() -> Iterator[str]:
    """Yield the lines of the table of products."""
    shown = {(mark.how, product) for mark in marks() for product in mark.products}
    facts = ("product", "server", "requests", "in a job of several pods", "chips", "`accelerator-type`")
    yield f"| {' | '.join((*facts, *HOW, 'NPUs'))} |"
    yield f"|{'---|' * (len(facts) + len(HOW) + 1)}"
    for product in PRODUCTS.values():
        tested = " | ".join("yes" if (how, product.name) in shown else "no" for how in HOW)
        labels = ", ".join(f"`{name}`" for name in product.node_types)
        yield (
            f"| `{product.name}` | {product.chips}, {product.family} | {_numbers(product.requests)} |"
            f" {_distributed(product)} | {product.chip or 'any'} | {labels} | {tested} | no |"
        )


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
