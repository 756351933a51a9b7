"""`make demo` runs, whatever the encoding of the terminal."""

import os
import subprocess
import sys
from importlib.metadata import version

import pytest

from ascend.chips import chip_set
from ascend.products import PRODUCTS, Product
from ascend.rules.families import RULES
from sandbox.demo import late_pod_for, pods_for


def test_the_demo_shows_the_main_job_on_a_terminal_with_gbk() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "gbk"}
    done = subprocess.run([sys.executable, "-m", "sandbox.demo"], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr.decode("gbk")) == (0, "")
    output = done.stdout.decode("gbk")
    assert "[0-3 train-a]" in output
    assert "huawei.com/AscendReal: Ascend910-0,Ascend910-1,Ascend910-2,Ascend910-3" in output
    assert "RingTooSmall" in output
    # GBK has the middle dot of a free chip, but not the cross of an unhealthy one.
    assert "[4 x] [5-7 ·]" in output
    assert "[4-7 train-c]" in output


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
def test_the_demo_of_every_product_has_a_pod_that_waits_for_a_chip(product: Product) -> None:
    pods = pods_for(product)
    assert set(pods.values()) <= set(product.requests)
    place = RULES[product.family].place
    served = place(product, product.all_chips, pods["serve"])
    assert served is not None
    free = product.all_chips & ~served.taken
    request, chip = late_pod_for(product, free)
    assert place(product, free, request) is not None
    assert place(product, free & ~chip_set([chip]), request) is None
    # Nor does it fit beside the other pods.
    assert product.chips - sum(pods[name] for name in pods if name != "serve") < request


# A product of each family, and one that only a label tells: `make test` runs that one, beside the default's demo above.
@pytest.mark.parametrize(
    "product", [*(pytest.param(name, marks=pytest.mark.long) for name in ("910B-8", "910B-16", "A3-16")), "mesh-8"]
)
def test_the_demo_runs_for_other_products(product: str) -> None:
    done = subprocess.run([sys.executable, "-m", "sandbox.demo", product], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"each of 2 {product} servers" in done.stdout
    assert "train-c stays pending" in done.stdout
    *_, last = done.stdout.split("train-c runs:")
    assert " train-c" in last


def test_an_unknown_product_is_refused_with_the_known_ones() -> None:
    done = subprocess.run([sys.executable, "-m", "sandbox.demo", "910Z"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert all(name in done.stderr for name in PRODUCTS)


def test_the_demo_has_a_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sandbox.demo", "--version"], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == (f"sandbox.demo {version('ascend-affinity-sandbox')}\n", "")
