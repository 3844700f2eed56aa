# make report   precision report of the built-in kernels on the CPU
# make test     the whole test suite
# make cubins   every CUDA source compiled for sm_80, sm_90, sm_100; needs no device
# make lint     ruff and mypy
# make evidence what reports holds: campaign, fuzzing, strangers, power of the rules, benchmarks
# Each makes its own .venv first, and installs again only when pyproject.toml or
# constraints.txt changed.

PYTHON ?= python3
WORKERS ?= 2
REPORT ?= out/report

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help report test cubins lint evidence clean

help:
	@sed -n 's/^# make/make/p' Makefile

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "scancheck needs Python 3.11 or newer, and $(PYTHON) is not one: $$($(PYTHON) --version 2>&1)." >&2; \
	    echo "Name another interpreter: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; \
	    exit 1; }
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[cuda,dev,flint,mambapy]'
	@touch $@

report: $(INSTALLED)
	$(BIN)/scancheck report -o $(REPORT)

test: $(INSTALLED)
	$(BIN)/python -m pytest -n $(WORKERS)

cubins: $(INSTALLED)
	$(BIN)/python -m scancheck.kernels.cuda.cubins

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict -p scancheck

evidence: $(INSTALLED)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[accelerated-scan,jax,mambapy]'
	$(BIN)/python benchmarks/campaign.py
	$(BIN)/python benchmarks/campaign.py --until-named
	$(BIN)/python benchmarks/fuzz_correct.py
	$(BIN)/python benchmarks/strangers.py
	$(BIN)/python benchmarks/fuzzing.py
	$(BIN)/python benchmarks/power.py
	$(BIN)/scancheck report -o reports/cpu/precision
	$(BIN)/python benchmarks/all.py

clean:
	rm -rf $(VENV) build dist out *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
