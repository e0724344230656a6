# make quickstart    install into .venv, then train, evaluate and export a small model on this machine
# make test          the same .venv, and the tests; with arguments for pytest: make test ARGS="-k launch"
# make lint          formatting, style and types
# make bench         Headway beside its peers, on this machine
# make gpu-proof     the features that need a GPU, in at most eight minutes
#
# Another interpreter: make quickstart PYTHON=python3.12

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
PIP := $(BIN)/python -m pip install -qq --constraint constraints.txt
TORCH := $(shell grep '^torch==' constraints.txt)

# Every path is relative to this folder, so that it may have spaces in its name.
export DS_BUILD_OPS := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: quickstart test lint bench gpu-proof clean
.DELETE_ON_ERROR:

quickstart: .venv/installed
	$(BIN)/headway train recipes/quickstart.yaml

test: .venv/installed-dev
	$(BIN)/python -m pytest $(ARGS)

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: .venv/installed-bench
	$(BIN)/python bench/run.py $(ARGS)

gpu-proof: .venv/installed
	$(BIN)/python bench/gpu_proof.py $(ARGS)

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache

.venv/python-is-new-enough:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Headway needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1 || true)."; \
	  echo "    fix: make $(MAKECMDGOALS) PYTHON=python3.12   (or any newer interpreter on this machine)"; exit 1; }
	@$(PYTHON) -m venv .venv || { \
	  echo "$(PYTHON) could not make a virtual environment."; \
	  echo "    fix: install its venv module, on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@touch $@

# torch first and by its exact version: what is installed later then finds it and leaves it alone.
.venv/torch: .venv/python-is-new-enough constraints.txt
	@echo "Installing $(TORCH) into .venv (the largest part; it takes a few minutes)"
	$(PIP) "$(TORCH)"
	@touch $@

.venv/installed: .venv/torch pyproject.toml constraints.txt
	@echo "Installing Headway and its other dependencies into .venv"
	$(PIP) --editable .
	@touch $@

.venv/installed-dev: .venv/installed
	@echo "Installing the test tools into .venv"
	$(PIP) --editable '.[dev]'
	@touch $@

.venv/installed-bench: .venv/installed
	@echo "Installing the peers for the benchmark into .venv"
	$(PIP) --editable '.[bench]'
	@touch $@
