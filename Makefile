# Every verb of the project. `make demo` and `make test` do all their set-up themselves.

SUPPORTED := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for name in python3.13 python3.12 python3.11 python3 python; do \
	$$name -c '$(SUPPORTED)' 2>/dev/null && echo $$name && break; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt

SPREAD := -n auto --dist loadfile --no-loadscope-reorder  # a file's tests share what takes long to make

.PHONY: demo test test-vllm lint fast golden audit clean
.DEFAULT_GOAL := demo

demo: .venv/.demo  ## from ShareGPT text to a verdict, in demo/
	$(BIN)/loadshape demo

test: .venv/.test  ## the whole suite
	$(BIN)/python -m pytest $(SPREAD)

test-vllm: .venv/.test $(if $(LOADSHAPE_VLLM_URL),,.vllm/.made)  ## against a real vLLM on the CPU (2.7 GB), or the one at LOADSHAPE_VLLM_URL
	LOADSHAPE_VLLM=.vllm $(BIN)/python -m pytest -m vllm tests/vllm

fast: .venv/.test  ## without the end-to-end parts
	$(BIN)/python -m pytest $(SPREAD) -m "not slow"

lint: .venv/.lint  ## ruff, mypy strict, and the house rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/house

golden: .venv/.demo  ## publish the digests of the demo (after a change that is meant to change them)
	$(BIN)/loadshape demo
	$(BIN)/python traces/golden/publish.py demo

audit: .venv/.test  ## measure the policies on the invented corpus, and publish the figures in sanitizers/figures.json
	$(BIN)/python sanitizers/corpus/publish.py

clean:
	rm -rf .venv .vllm demo

.venv/.made:
	@test -n "$(PYTHON)" || { echo "loadshape needs Python 3.11 to 3.13 with venv; on Debian: apt install python3 python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@

.venv/.demo: .venv/.made pyproject.toml constraints.txt
	$(PIP) --editable '.[demo]'
	@touch $@

.venv/.test: .venv/.made pyproject.toml constraints.txt
	$(PIP) --editable '.[test,lint]'
	@touch $@ .venv/.demo

.vllm/.made: .venv/.made tests/vllm/install.py tests/vllm/model.py
	$(BIN)/python tests/vllm/install.py .vllm
	@touch $@

.venv/.lint: .venv/.test
	@touch $@
