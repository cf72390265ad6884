# Everything a newcomer or CI runs. Needs Python 3.11 or newer; the rest is set up in .venv by the first target.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= 2

.PHONY: help demo test check fix chaos bench clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 18

demo: $(STAMP)  ## a real gateway, an example agent and Finch's side on this machine, talking
	@$(BIN)/finch-gateway demo

test: $(STAMP)  ## the whole test suite, with real processes (under ten minutes on two cores)
	@echo "Running the tests: real servers on free ports, real SQLite files, a real Valkey."
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile

check: $(STAMP)  ## style, types, imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

fix: $(STAMP)  ## put style right
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

chaos: $(STAMP)  ## kill the gateway at every point, many times; the long scenarios at full size (over half an hour)
	@PYTHONPATH=tests $(BIN)/python -m chaos --times 10 --at-once 12
	@CHAOS=full $(BIN)/python -m pytest -q -s tests/engine/test_interleavings.py tests/scenarios/test_races.py tests/scenarios/test_delivery.py

bench: $(STAMP)  ## ratios against reference servers, in one run
	@$(BIN)/pip install -q -r benchmarks/requirements.txt
	@$(BIN)/python -m benchmarks

clean:  ## remove what the targets made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; this is " + sys.version.split()[0] + ". Name another: make PYTHON=python3.12 ...") if sys.version_info < (3, 11) else None'
	@echo "Setting up $(VENV) (once; needs the package registry)..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
