# `make help` lists the targets. Each makes or refreshes the environment it needs, from python3.11 or from uv.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Options for the program that a target runs: make train ARGS="--seed=7 --total_frames=1000000"
ARGS ?=
PYTHON ?= python3.11
UV ?= uv

# The locks hold for this Python on this platform only.
PYTHON_VERSION := 3.11
PLATFORM := Linux x86_64

RUN := .venv/bin/python -m
RUN_NEWEST := .venv-newest/bin/python -m
# Two files of tests at a time: most of them wait, for processes or for a compiler that uses one core.
PYTEST := pytest --numprocesses=2 --dist=loadfile

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: train
train: .venv/.installed ## Train Ape-X on Pong in runs/pong; again: resume (ARGS="--seed=7 ...")
	exec $(RUN) launchers.train --agent=apex --environment=Pong-v5 --workdir=runs/pong $(ARGS)

.PHONY: test
test: .venv/.installed ## Run all tests (ARGS="tests/rl -k returns")
	$(RUN) $(PYTEST) $(ARGS)

.PHONY: test-newest
test-newest: .venv-newest/.installed ## Run the tests on the newest jax, without Reverb's and the benchmarks'
	$(RUN_NEWEST) $(PYTEST) -m "not reverb and not pinned" --ignore=tests/benchmarks $(ARGS)

.PHONY: lint
lint: .venv/.installed ## Check style, types and the import contract
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	.venv/bin/lint-imports --no-cache

.PHONY: benchmark
benchmark: .venv/.installed ## Measure frames per second (ARGS="--json=PATH")
	exec $(RUN) benchmarks.frames_per_second $(ARGS)

.PHONY: wheel
wheel: .venv/.installed ## Build the wheel into dist/
	$(RUN) build --wheel --no-isolation --outdir dist

.PHONY: lock
lock: ## Write both locks anew with uv (ARGS="--upgrade" or "--upgrade-package=rich")
	@command -v $(UV) >/dev/null || { echo "make: missing uv, which writes the locks (pip install uv)" >&2; exit 2; }
	$(LOCK) --custom-compile-command "make lock   (from requirements.in; ARGS=--upgrade raises what it leaves free)" requirements.in -o requirements.txt
	$(LOCK) --custom-compile-command "make lock   (from pyproject.toml, extra dev; ARGS=--upgrade raises everything)" --extra dev pyproject.toml -o requirements-newest.txt

LOCK = $(UV) pip compile --quiet --no-annotate --python-version $(PYTHON_VERSION) \
	--python-platform x86_64-manylinux_2_28 $(ARGS)

.PHONY: clean
clean: ## Delete both environments, builds and caches; runs/ stays
	rm -rf .venv .venv-newest build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

# The stamp is written last, so that an interrupted install is started afresh. An environment whose lock has
# changed is made anew, so that it never holds more than its lock.
.venv/.installed: requirements.txt
	$(INSTALL)

.venv-newest/.installed: requirements-newest.txt
	$(INSTALL)

define INSTALL
@set -e; fail() { echo "make: $$*" >&2; exit 2; }; \
test "$$(uname -sm)" = "$(PLATFORM)" || \
	fail "$< is locked for $(PLATFORM), this is $$(uname -sm); BUILD.md says what else can work"; \
if $(PYTHON) -c 'import ensurepip, venv' >/dev/null 2>&1; then \
	found=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	test "$$found" = $(PYTHON_VERSION) || \
		fail "$(PYTHON) is Python $$found, and $< is locked for Python $(PYTHON_VERSION) (dm-reverb has no wheel for a later one)"; \
	echo "Installing $< into $(@D) with $(PYTHON)"; rm -rf $(@D); \
	$(PYTHON) -m venv $(@D); \
	$(@D)/bin/python -m pip install --disable-pip-version-check -r $<; \
elif command -v $(UV) >/dev/null; then \
	echo "Installing $< into $(@D) with $(UV)"; rm -rf $(@D); \
	$(UV) venv --python $(PYTHON_VERSION) $(@D); \
	$(UV) pip install --python $(@D)/bin/python -r $<; \
else \
	fail "missing Python $(PYTHON_VERSION) with its venv module (Debian: python3.11-venv), or uv"; \
fi; \
touch $@
endef
