# Everything needs Python >= 3.11 and make, nothing else: each target makes the virtual
# environment that it runs in. `make help` lists the targets.

PYTHON ?= $(shell tools/find-python)
VENV   := .venv
FUZZ   ?= 3000

# Libraries that have lox inside in a test. gymnax may hold JAX back (1.0.1: below 0.12).
LIBRARIES := diffrax distrax dm-haiku equinox flax gymnax optax optimistix

BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PYTEST := python -m pytest

# The demo needs little: it has a small environment of its own until there is the large one.
# Python compiles the modules that it imports, so pip does not compile all of them.
DEMO   := $(if $(wildcard $(READY)),$(VENV),.venv-demo)

# $(call calm,environment): XLA's CPU back end can deadlock in jaxlib 0.10.2, even without lox.
calm = case "$$($(1)/bin/python -c 'import importlib.metadata as m; print(m.version("jaxlib"))')" in \
	0.10.2) export XLA_FLAGS="$$XLA_FLAGS --xla_cpu_enable_concurrency_optimized_scheduler=false";; esac;

# $(call install,interpreter,environment,requirements): uv finds versions that fit and installs
# them in seconds. pip, which takes minutes, does it where uv cannot, for example because
# only pip has been told which index to use.
define install
	@[ -n "$(1)" ] || exit 1
	@echo "Setting up $(2) ($$($(1) --version)), which may take some minutes"
	@rm -rf $(2)
	@$(1) -m venv $(2)
	@pip="$(2)/bin/python -m pip install -qq --disable-pip-version-check"; \
		$$pip uv && $(2)/bin/uv pip install -q --python $(2)/bin/python $(3) || $$pip $(3)
	@touch $(2)/.ready
endef

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | \
		awk -F ':.*## ' '{ printf "make %-10s %s\n", $$1, $$2 }'

.PHONY: demo
demo: $(DEMO)/.ready ## Train PPO with 4 learning rates and 8 seeds, show and keep what it logs
	@$(call calm,$(DEMO)) $(DEMO)/bin/python examples/ppo.py --out build/demo

.PHONY: pictures
pictures: $(READY) ## Draw the pictures of the examples in docs/pictures anew
	@$(call calm,$(VENV)) $(BIN)/python tools/pictures.py $(ARGS)

.PHONY: test
test: $(READY) ## Run the tests on the newest JAX
	@$(BIN)/$(PYTEST) $(ARGS)

.PHONY: test-full
test-full: $(READY) ## Run the tests in every combination, which takes much longer
	@LOX_FULL=1 $(BIN)/$(PYTEST) $(ARGS)

# Every minor release of JAX: the whole suite on the oldest, a middle and the newest one, the
# laws on the others, and on the newest with the flags that will be its next defaults.
WHOLE := 0.7.2 0.10.2 newest
LAWS  := 0.8.3 0.9.2 0.11.2
FLAGS := JAX_REMAT3=1 JAX_CUSTOM_VJP3=1 JAX_CUSTOM_JVP3=1

.PHONY: test-jax
test-jax: ## Run the tests on every minor release of JAX, and with its upgrade flags
	@failed=; \
	for each in $(WHOLE:%=test-jax-%) $(LAWS:%=laws-jax-%) laws-flags; do \
		echo "== $$each"; \
		$(MAKE) --no-print-directory $$each || failed="$$failed $$each"; \
	done; \
	[ -z "$$failed" ] || { echo "Failed:$$failed" >&2; exit 1; }

.PHONY: test-jax-newest
test-jax-newest: test

test-jax-%: .venv-jax-%/.ready
	@$(<D)/bin/$(PYTEST) $(ARGS)

laws-jax-%: .venv-jax-%/.ready
	@$(<D)/bin/$(PYTEST) tests/laws $(ARGS)

.PHONY: laws-flags
laws-flags: $(READY)
	@$(FLAGS) $(BIN)/$(PYTEST) tests/laws $(ARGS)

.PHONY: test-libraries
test-libraries: .venv-libraries/.ready ## Run the tests with flax, equinox, diffrax and others
	@$(<D)/bin/$(PYTEST) tests/libraries docs/cookbook $(ARGS)

.PHONY: coverage
coverage: $(READY) ## Run the tests and show the lines and branches that they miss
	@$(BIN)/$(PYTEST) --cov $(ARGS)

.PHONY: fuzz
fuzz: $(READY) ## Compare FUZZ=3000 random programs with their eager runs
	@LOX_FUZZ=$(FUZZ) $(BIN)/$(PYTEST) tests/laws/test_random_programs.py $(ARGS)

.PHONY: fuzz-store
fuzz-store: $(READY) ## Damage stores in FUZZ=3000 ways, and read what is left
	@LOX_FUZZ_STORE=$(FUZZ) $(BIN)/$(PYTEST) -n2 -rP tests/host/store/test_mutations.py $(ARGS)

.PHONY: soak
soak: $(READY) ## Deliver a million records, and run a loop ten thousand times, in order
	@LOX_RUNS=10000 $(BIN)/$(PYTEST) -n0 tests/stream/soak.py tests/stream/test_tap.py -k "soak or swap" $(ARGS)

.PHONY: deliberate-bugs
deliberate-bugs: $(READY) ## Put bugs into a copy of lox, one by one, and check that tests fail
	@$(BIN)/python tools/deliberate_bugs.py $(ARGS)

.PHONY: kills
kills: $(READY) ## Kill processes that write to object storage, and count their rows
	@$(BIN)/python tools/remote_kills.py $(ARGS)

.PHONY: bench
bench: $(READY) ## Measure what lox costs; ARGS=--write updates the figures, --quick takes seconds
	@$(call calm,$(VENV)) $(BIN)/python benchmarks/run.py $(ARGS)

.PHONY: lint
lint: $(READY) ## Run ruff, import-linter and pyright
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/lint-imports --no-cache --no-logo
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --pythonpath $(BIN)/python

.PHONY: docs
docs: $(READY) ## Build the documentation, build/docs/index.html
	@$(BIN)/sphinx-build -E -W --keep-going -n -q -d build/doctrees docs build/docs
	@echo build/docs/index.html

.PHONY: package
package: ## Build the wheel and the sdist, and try each in an empty environment
	@[ -n "$(PYTHON)" ] || exit 1
	@rm -rf dist build/package
	@echo "Building the wheel and the sdist in dist/"
	@$(PYTHON) -m venv build/package/tools
	@build/package/tools/bin/python -m pip install -qq --disable-pip-version-check build twine
	@build/package/tools/bin/python -m build -q
	@build/package/tools/bin/twine check --strict dist/*
	@for file in dist/*; do \
		echo "Installing $$file into an empty environment"; \
		rm -rf build/package/empty && mkdir -p build/package/empty/work || exit 1; \
		$(PYTHON) -m venv build/package/empty/venv || exit 1; \
		build/package/empty/venv/bin/python -m pip install -qq --disable-pip-version-check $$file || exit 1; \
		(cd build/package/empty/work && ../venv/bin/python ../../../../tools/smoke.py) || exit 1; \
		echo "$$file is fine"; \
	done

.PHONY: clean
clean: ## Remove the environments and all that was built
	rm -rf .venv .venv-demo .venv-jax-* .venv-libraries .venv-peer-* build dist .coverage .pytest_cache .ruff_cache
	find lox lox_host logify tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +

$(READY): pyproject.toml
	$(call install,$(PYTHON),$(VENV),-e '.[dev]')

.venv-demo/.ready: pyproject.toml
	@[ -n "$(PYTHON)" ] || exit 1
	@echo "Setting up $(@D) with JAX, lox, matplotlib and tornado ($$($(PYTHON) --version))"
	@rm -rf $(@D)
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install --no-compile --disable-pip-version-check -e '.[plot,view]'
	@touch $@

.venv-jax-0.7.2/.ready: pyproject.toml
	$(call install,$(shell tools/find-python 3.11),$(@D),-e '.[dev]' jax==0.7.2)

.venv-jax-0.10.2/.ready: pyproject.toml
	$(call install,$(shell tools/find-python 3.12 3.13 3.11),$(@D),-e '.[dev]' jax==0.10.2)

# Only what the laws need.
$(LAWS:%=.venv-jax-%/.ready): pyproject.toml
	$(call install,$(shell tools/find-python 3.12 3.13),$(@D),-e . pytest 'pytest-xdist>=3.7' jax==$(@D:.venv-jax-%=%))

# What the benchmarks compare lox with, each on the newest JAX that it works on.
PEER-jax-tap := jax-tap
PEER-flax    := flax
PEER-clu     := clu flax
PEER-oryx    := oryx jax==0.5.0
# The page of MLflow: `mlflow-skinny`, which the tests use, has none.
PEER-mlflow  := mlflow

.venv-peer-%/.ready:
	$(call install,$(shell tools/find-python 3.12 3.13),$(@D),$(PEER-$*) nanoarrow rich)

.venv-libraries/.ready: pyproject.toml
	$(call install,$(PYTHON),$(@D),-e . pytest 'pytest-xdist>=3.7' $(LIBRARIES))
