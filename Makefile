# Everything happens in .venv; nothing outside this folder is touched.
#
#   make run     set up, replay the bundled sessions on three real engines, say where the report is
#   make test    set up, run every test that needs no GPU; make test-all adds the slow suites (soak, fetched tokenizers)
#   make check   what CI runs beside the tests: lint, format, types, import contracts
#   make llama-server   build the real llama-server (used by engine=llama_server; about 20 minutes on 2 cores)

PYTHON ?= python3
VENV ?= .venv
# Installed before the rest, so that pip does not choose the build itself. A machine without a GPU saves
# several GB with PyTorch's CPU build: see README, "Install".
TORCH ?=
BIN := $(VENV)/bin

.PHONY: run test test-all check lint types imports format llama-server clean
.DEFAULT_GOAL := run

run: $(VENV)/.run
	$(BIN)/replay +experiment=quickstart

test: $(VENV)/.dev
	$(BIN)/pytest -m "not gpu and not slow"

test-all: $(VENV)/.dev
	$(BIN)/pytest -m "not gpu"

check: lint types imports

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

imports: $(VENV)/.dev
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

llama-server:
	bash docker/build_llama_server.sh

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "make: $(PYTHON) is missing or older than 3.11; install Python 3.11+ or run: make PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "make: $(PYTHON) has no venv module; on Debian and Ubuntu: apt install python3-venv" >&2; rm -rf $(VENV); exit 2; }

$(VENV)/.run: pyproject.toml | $(BIN)/python
	$(if $(TORCH),$(BIN)/pip install $(TORCH))
	$(BIN)/pip install -e ".[ostinato,embedded]"
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.run
	$(BIN)/pip install -e ".[ostinato,embedded,sweeps,dev]"
	@touch $@

clean:
	rm -rf $(VENV) .cache build
