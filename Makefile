# The main targets are `make demo` and `make test`. They install their own requirements.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Tests start hundreds of processes; with this variable each of them would compile its libraries again.
unexport PYTHONDONTWRITEBYTECODE

# The installed uv, or else one in .tools/.
UV_VERSION := 0.11
UV := $(shell command -v uv 2>/dev/null || echo .tools/bin/uv)
RUN := $(UV) run --locked --quiet

# The distribution's Python if it is new enough: like the image's it is built with profile-guided optimization, while
# the builds of version managers are not and use more CPU. UV_PYTHON selects another one.
DISTRIBUTION_PYTHON := $(shell /usr/bin/python3 -c 'import sys; sys.version_info >= (3, 11) and print(sys.executable)' 2>/dev/null)
ifneq ($(DISTRIBUTION_PYTHON),)
export UV_PYTHON ?= $(DISTRIBUTION_PYTHON)
endif

# More test files run in parallel than there are cores, because those on a real cluster mostly wait; at first half of the workers
# has one (tests/parallel.py). Six clusters of kubelets and container runtimes need
# more inotify instances than a user has by default (128).
WORKERS ?= $(shell cores=$$(nproc 2>/dev/null || echo 2); echo $$((cores < 4 ? 2 * cores : 8)))

# Versions of Kubernetes whose programs `make test-long` runs the tests of the real cluster with, beside the newest one
# that `make test` takes (tests/cluster/binaries.py).
OTHER_KUBERNETES := 1.36.3 1.34.4 1.32.9
# The same for Kueue, beside 0.14.0 (tests/cluster/controllers.py).
OTHER_KUEUE := 0.17.0

.PHONY: help setup demo test test-fast test-long lint format bench soak release docs site protos cluster-up cluster-down

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

.tools/bin/uv:
	@echo "setting up uv in .tools/"
	@python3 -m venv .tools && .tools/bin/pip install --quiet --disable-pip-version-check 'uv>=$(UV_VERSION)'

setup: $(filter .tools/bin/uv,$(UV)) ## install the locked dependencies into .venv
	@$(UV) sync --locked --quiet

demo: $(filter .tools/bin/uv,$(UV)) ## run a cluster in one process; PRODUCT=910B-8 is the servers' (docs/support.md)
	@test -d .venv || echo "installing the locked dependencies into .venv"
	@$(RUN) --no-dev --extra sandbox python -m sandbox.demo $(PRODUCT)

test: setup lint ## lint, type checks and all tests; real-cluster tests if the machine can run them
	@$(RUN) python -m tests.cluster prepare
	@$(RUN) pytest --numprocesses=$(WORKERS)

test-fast: setup ## the tests that need no real cluster: what to run all day
	@$(RUN) pytest --numprocesses=$(WORKERS) -m 'not long and not real'

test-long: setup ## long tests, an hour: 1,000 examples per property, fuzzers, all benches, the soak
	@$(RUN) python -m tests.cluster prepare --long
	@$(RUN) pytest --numprocesses=$(WORKERS) -m 'hypothesis or long' --hypothesis-profile=long --timeout=1800
	@for version in $(OTHER_KUBERNETES); do \
		export KUBERNETES_VERSION=$$version; \
		$(RUN) python -m tests.cluster prepare; \
		$(RUN) pytest --numprocesses=$(WORKERS) -m 'real and not long' --junitxml=build/real-$$version.xml || failed=$$?; \
		$(RUN) python -m tests.cluster record build/real-$$version.xml; \
		[ -z "$${failed:-}" ] || exit $$failed; \
	done
	@for version in $(OTHER_KUEUE); do \
		KUEUE_VERSION=$$version $(RUN) pytest --numprocesses=$(WORKERS) -m 'real and long' -k kueue tests/workloads; \
	done
	@$(RUN) python -m tests.soak

LINTS := ruff-check ruff-format mypy import-contracts protos-current docs-current site-strict commit-subjects changelog-lengths
.PHONY: $(LINTS)

lint: setup ## ruff, mypy strict, import contracts, and whether generated files are current
	@$(MAKE) --no-print-directory --jobs --keep-going --output-sync $(LINTS)

ruff-check:
	@$(RUN) ruff check .

ruff-format:
	@$(RUN) ruff format --check .

mypy:
	@$(RUN) mypy

import-contracts:
	@$(RUN) lint-imports --no-logo

protos-current:
	@$(RUN) python -m protos.generate --check

docs-current:
	@$(RUN) python -m docs.generate --check

# Broken links and anchors, pages that the navigation lacks, anything that is loaded from another host.
site-strict:
	@$(RUN) python -m docs.generate.site --check

changelog-lengths:
	@if LC_ALL=C.UTF-8 grep -nE '^.{201,}' CHANGELOG.md; then echo "CHANGELOG.md: entries have at most 200 characters"; exit 1; fi

# Of commits since the rule is kept; without a history there is nothing to check.
commit-subjects:
	@{ git log --no-merges --since=2026-11-25 --format=%s 2>/dev/null || true; } | LC_ALL=C awk 'length($$0) > 72 { print "over 72 bytes: " $$0; long = 1 } END { exit long }'

format: setup ## format the code and apply automatic fixes
	@$(RUN) ruff check --fix .
	@$(RUN) ruff format .

bench: setup ## run all benches and print their tables
	@$(RUN) python -m tests.bench

soak: setup ## thousands of restarts and races on the sandbox, 20 minutes; `make test` runs a small part of it
	@$(RUN) python -m tests.soak

# Variables: docs/releasing.md#the-files.
release: setup ## make the files of a release from the commit, in dist/
	@$(RUN) python -m deploy.release build

docs: setup ## generate the tables and command outputs in README.md and docs/
	@$(RUN) python -m docs.generate

site: setup ## build the documents as a static site in dist/site; needs npm
	@$(RUN) python -m docs.generate.site

protos: setup ## generate the stubs in protos/
	@$(RUN) python -m protos.generate

cluster-up: setup ## start a real cluster with both programs
	@$(RUN) python -m tests.cluster up

cluster-down: setup ## stop the real cluster and clean up
	@$(RUN) python -m tests.cluster down
