# Commands of the laboratory. `make` lists them; the environment is .venv and is made on first use.
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
# Marks of the tests that `make test-all` runs; continuous integration leaves out the longest (.ci/run).
SLOW ?= slow

BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
# Without stored bytecode each process that a test starts compiles torch and transformers again: 11 s instead of 4.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest
TESTS := $(PYTEST) -n $(WORKERS) --dist loadgroup --no-loadscope-reorder --ignore=tests/lint

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all smoke check format bench faults mutants coverage sequential recipes tutorials path mirror site wheel clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(STAMPS)/dev ## make .venv with everything for running and developing

demo: $(STAMPS)/run ## run the main recipe on an empty machine: table, report, nothing downloaded but packages
	@$(BIN)/python -m rlhf_lab +recipe=dpo_iterative

test: $(STAMPS)/dev ## run the tests; seven to twelve minutes on 2 cores
	@$(TESTS) -m 'not slow' tests

test-all: $(STAMPS)/dev ## run the slow tests that `make test` leaves out: Slurm, browser, studies, kills, faults
	@$(TESTS) -m '$(SLOW)' tests

smoke: $(STAMPS)/dev ## run the quick tests: unit, numeric, config
	@$(TESTS) -m 'not slow' tests/unit tests/numeric tests/config

check: $(STAMPS)/dev ## lint, formatting, types, and the rules of this repository in tests/lint
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(PYTEST) -n $(WORKERS) --dist loadgroup --no-loadscope-reorder tests/lint

format: $(STAMPS)/dev ## apply what `make check` asks of lint and formatting
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(STAMPS)/dev ## measure the sampler and training steps against other implementations
	@$(BIN)/python tests/bench/run.py

faults: $(STAMPS)/dev ## kill, starve and damage 200 runs and compare with uninterrupted ones; Linux, disks as root
	@$(BIN)/python tests/campaign/faults.py --faults 200 --seed 0 --out docs/results/faults.md

mutants: $(STAMPS)/dev ## make small faults in a copy of the code, one at a time, and see whether the fast tests notice
	@$(BIN)/python tests/campaign/mutants.py --out docs/results/mutants.md

coverage: $(STAMPS)/dev ## simulate how often intervals hold the truth and verdicts are wrong; 15 minutes
	@$(BIN)/python tests/campaign/interval_coverage.py --out docs/results/coverage.md

sequential: $(STAMPS)/dev ## simulate studies that stop when decided: wrong verdicts, power and seeds; two minutes
	@$(BIN)/python tests/campaign/sequential.py --out docs/results/sequential.md

recipes: $(STAMPS)/dev ## make the tables of recipes/README.md and docs/results/README.md
	@$(BIN)/python tests/recipe_table.py
	@$(BIN)/python tests/results_table.py

tutorials: $(STAMPS)/dev ## run the notebooks of docs and store their outputs
	@$(BIN)/python tests/tutorials.py

path: $(STAMPS)/dev ## count the lines that a step runs, for docs/code_path.md
	@OMP_NUM_THREADS=1 $(BIN)/python tests/code_path.py

mirror: $(VENV)/pyvenv.cfg ## measure the package's size, imports and readability; AGAINST=main shows before and after
	@$(BIN)/python tests/mirror.py $(if $(AGAINST),--against $(AGAINST))

site: $(STAMPS)/dev ## build the documentation site into build/site/site
	@OMP_NUM_THREADS=1 $(BIN)/python tests/build_site.py build/site
	@$(BIN)/python -m mkdocs build --strict --quiet -f build/site/mkdocs.yml
	@ls build/site/site/index.html

wheel: $(STAMPS)/dev ## build the wheel into dist/
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

clean: ## remove the environment, caches and builds; keeps outputs/
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment. One stamp for running, one for developing; both go with the folder and with either file below.
$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than Python 3.11; name a newer one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) -m venv failed; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }

$(STAMPS)/run: pyproject.toml constraints.txt $(VENV)/pyvenv.cfg
	@echo "installing what a run needs into $(VENV), once; a minute or two, most of it PyTorch …"
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e .
	@mkdir -p $(STAMPS) && touch $@ && echo "installed"

$(STAMPS)/dev: pyproject.toml constraints.txt $(VENV)/pyvenv.cfg
	@echo "installing what development needs into $(VENV), once; a minute or two, most of it PyTorch …"
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@mkdir -p $(STAMPS) && touch $(STAMPS)/run $@ && echo "installed"
