# `make demo` and `make test` are all that a fresh machine needs; both set up .venv first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install demo test test-all test-frameworks check bench chaos clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else "Python 3.10 or newer is needed (3.11 is tested); say make PYTHON=/path/to/python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torch,postgres,metrics,tracing,dev]'
	touch $(STAMP)

demo: install
	$(BIN)/lmr demo

# Two at a time: a training that starts keeps one core busy and then waits. A file's tests stay together.
test: install
	$(BIN)/python -m pytest -m "not long" -n 2 --dist loadfile

test-all: install
	$(BIN)/python -m pytest

# Each framework in an environment of its own under .venv-frameworks.
test-frameworks: install
	$(BIN)/python tests/frameworks_matrix/run.py

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: install
	$(BIN)/python -m lmr.integrations.operate.main bench

# Real faults by chance against a real training; the same SEED gives the same faults.
MINUTES ?= 10
SEED ?= 1
chaos: install
	$(BIN)/python tests/chaos/run.py --minutes $(MINUTES) --seed $(SEED)

clean:
	rm -rf $(VENV) build dist src/*.egg-info
