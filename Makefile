# Every target makes its own virtual environment; nothing has to be installed but Python, with pip and venv.
#   make VENV=some/folder PYTHON=python3.12 test

PYTHON ?= python3
VENV ?= .venv
# A plain version is enough for the CPU. For a GPU build pass the requirement and pip's options for its index:
#   make TORCH='torch --index-url https://download.pytorch.org/whl/cu130' demo
TORCH ?= torch==2.13.0
# Test processes at a time.
JOBS ?= 2
# A virtual environment with another torchserve, for `make bench`.
REF ?=

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.ONESHELL:
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

BIN := $(VENV)/bin
# pip tells what it fetches and what it installs, and nothing else; its exit status and its errors stay.
PIP = $(BIN)/python -m pip install --disable-pip-version-check --no-input
SHORT = sed -un -e 's/^ *\(Downloading\|Processing\) \(.*\)/    \2/p' -e 's/^Installing collected packages.*/    installing .../p'

.PHONY: help demo text-generator test check lint types imports docs docs-check protos bench clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1 \t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 24

demo: $(VENV)/.stamp-demo ## train, pack, serve and query a model for handwritten digits, over REST and gRPC
	@$(BIN)/python examples/digits/demo.py

text-generator: $(VENV)/.stamp-demo ## train and serve a model that streams tiny tales; call it over HTTP and gRPC
	@$(BIN)/python examples/text_generator/demo.py

test: $(VENV)/.stamp-dev ## run the test suite
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(PYTEST_ARGS)

check: lint types imports docs-check ## lint, types, imports, generated documentation and code

lint: $(VENV)/.stamp-dev ## ruff: rules and format
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.stamp-dev ## mypy --strict
	@$(BIN)/mypy

imports: $(VENV)/.stamp-dev ## which package may import which
	@$(BIN)/lint-imports

docs: $(VENV)/.stamp-dev ## rewrite the generated tables
	@$(BIN)/python docs/generate_configuration.py

docs-check: $(VENV)/.stamp-dev
	@$(BIN)/python docs/generate_configuration.py --check
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python scripts/generate_protos.py --check

protos: $(VENV)/.stamp-dev ## generate the code of the gRPC messages again
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python scripts/generate_protos.py

bench: $(VENV)/.stamp-bench ## load tests; REF=path/to/venv compares with the torchserve there
	@$(BIN)/python -m benchmarks --out bench-out $(if $(REF),--reference $(REF)) $(BENCH_ARGS)

clean: ## remove the virtual environment, caches and results
	rm -rf $(VENV) .venv-ci bench-out demo-out build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.stamp-venv:
	@echo "==> Making $(VENV) with $$($(PYTHON) --version)"
	$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or newer is needed" if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv $(VENV)
	echo '*' > $(VENV)/.gitignore
	touch $@

$(VENV)/.stamp-torch: $(VENV)/.stamp-venv
	@echo "==> Installing torch"
	$(PIP) $(TORCH) | $(SHORT)
	touch $@

$(VENV)/.stamp-demo $(VENV)/.stamp-dev $(VENV)/.stamp-bench: $(VENV)/.stamp-%: $(VENV)/.stamp-torch pyproject.toml
	@echo "==> Installing relight with what '$*' needs"
	$(PIP) -e '.[$*]' | $(SHORT)
	touch $@
