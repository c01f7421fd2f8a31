# One environment per VENV, made on first use and renewed when pyproject.toml changes. The tests and the demo run the
# built wheel that is installed there, not the source folder.
PYTHON ?= python3
VENV ?= .venv
ARGS ?=
SOAK ?= 60
CONSTRAINTS ?=
GROUP ?= dev

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
WHEEL := build/wheel/$(notdir $(VENV))
# Most tests wait for something; three at a time keep two cores busy without starving each other.
PYTEST := AIOELECT_TEST_WHEEL=1 $(BIN)/pytest --numprocesses 3
# Folders too: their time changes when a file goes.
SOURCES := $(shell find aioelect -not -name '*.pyc' -not -name __pycache__) $(wildcard README.md LICENSE pytest_aioelect.py)
FAST := -m "not faults and not slow"

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test fast faults soak check format lowest bench bench-quick bench-docs measure docs site pages redis810 prometheus faketime dashboard live-picture wheel clean

help: ## show the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/installed ## watch an election, a hand-over, a take-over and a fence at work
	@$(BIN)/aioelect demo $(ARGS)

test: $(VENV)/installed ## run all tests (ARGS=tests/tour for some)
	@$(PYTEST) $(ARGS)

fast: $(VENV)/installed ## run the tests without real faults and without the slow ones
	@$(PYTEST) $(FAST) $(ARGS)

faults: $(VENV)/installed ## run the tests with real faults on real servers
	@$(PYTEST) -m faults $(ARGS)

soak: $(VENV)/installed ## run the random faults for a minute, and show their figures (SOAK=60)
	@AIOELECT_SOAK=$(SOAK) AIOELECT_TEST_WHEEL=1 $(BIN)/pytest -m soak --capture=no $(ARGS)

check: $(VENV)/installed ## run the linters, the type checker and the import contracts
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

format: $(VENV)/dependencies ## format the code and apply safe fixes
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

lowest: build/lowest.txt ## run the fast tests on the oldest supported redis-py and anyio
	@$(MAKE) --no-print-directory fast VENV=.venv-lowest CONSTRAINTS=build/lowest.txt

bench: ## measure aioelect beside its rivals, about 15 minutes (ARGS="pair hand-over" for some cases)
	@$(MAKE) --no-print-directory measure VENV=.venv-bench GROUP=bench ARGS="run $(ARGS)"

bench-quick: ## the same in small, to see that every case works
	@$(MAKE) --no-print-directory measure VENV=.venv-bench GROUP=bench ARGS="run --quick $(ARGS)"

bench-docs: ## show the figures of the last whole "make bench" in the documents
	@$(MAKE) --no-print-directory measure VENV=.venv-bench GROUP=bench ARGS="publish build/bench.json"

measure: $(VENV)/installed
	@$(BIN)/python benchmarks $(ARGS)

docs: $(VENV)/installed ## renew the generated parts of the documents
	@$(BIN)/python scripts/make_docs.py

site: ## build the documentation site into build/site, and check every link in it
	@$(MAKE) --no-print-directory pages VENV=.venv-site GROUP=site

pages: $(VENV)/dependencies
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict && echo build/site/index.html

redis810: $(BIN)/python ## compile Redis 8.10 for the tests (cached)
	@scripts/build_redis.sh $(BIN)/python

prometheus: ## fetch Prometheus and promtool for the tests of alerts and dashboard (cached, Debian)
	@scripts/get_debian.sh prometheus

faketime: ## fetch libfaketime for the tests of servers whose clock is wrong (cached, Debian)
	@scripts/get_debian.sh faketime

dashboard: $(BIN)/python ## renew deploy/grafana/aioelect.json
	@$(BIN)/python scripts/make_dashboard.py

live-picture: $(VENV)/installed ## renew docs/live.png (needs chromium, and a server at REDIS_URL)
	@$(BIN)/python scripts/make_live_picture.py $(ARGS)

wheel: $(VENV)/dependencies ## build the wheel into dist/
	@$(PIP) wheel --no-deps --no-build-isolation --wheel-dir dist . && ls dist/*.whl

clean: ## remove what make made
	rm -rf .venv .venv-* build dist

build/lowest.txt: pyproject.toml scripts/lowest.py
	@mkdir -p build
	@$(PYTHON) scripts/lowest.py > $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "aioelect needs Python 3.11 or newer; try: make PYTHON=python3.11")'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/dependencies: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	@echo "Installing the development dependencies into $(VENV)"
	@$(PIP) install 'pip>=25.1'
	@$(PIP) install $(addprefix --constraint ,$(CONSTRAINTS)) --group $(GROUP)
	@$(if $(filter dev,$(GROUP)),$(PIP) install --upgrade --target $(VENV)/arq 'arq>=0.26') # wants another redis-py than the tests
	@touch $@

$(VENV)/installed: $(VENV)/dependencies $(SOURCES)
	@rm -rf $(WHEEL)
	@$(PIP) wheel --no-deps --no-build-isolation --wheel-dir $(WHEEL) .
	@$(PIP) install --force-reinstall --no-deps $(WHEEL)/*.whl
	@$(PIP) install $(addprefix --constraint ,$(CONSTRAINTS)) "$$(ls $(WHEEL)/*.whl)[demo]"
	@touch $@
