# make run      measure this machine and write the report
# make test     run the tests; SLOW=1 adds the slow ones and the coverage
# make history  read every release of the lock anew
# make golden   make all again of every golden log
# make install  only make the environment, with the `nearfree` command in .venv/bin
# make check    formatters, linters and types
# make env NAME=vllm   make a backend's environment from its lock under envs/
# make bench    speed, as ratios measured in one run
# make bench-protocol  the adaptive protocol beside the paper's, on the same settings
# make wheel    build dist/nearfree-*.whl, which answers without a clone; the same bytes each time
# make docs     rewrite the generated references; make lock: renew the locks

PYTHON ?= python3
VENV ?= .venv
unexport PYTHONDONTWRITEBYTECODE  # each job is a process, which would compile all that it imports
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
WORKERS := 2
ifdef SLOW
ALL_TESTS := -m "" --cov --durations=30 --durations-min=5
WORKERS := 3
endif

.PHONY: run install test golden history check bench bench-protocol docs wheel lock env clean

run: $(VENV)/installed
	@$(BIN)/nearfree fetch || true
	@$(BIN)/snakemake --cores all
	@echo "report: $(CURDIR)/results/report/index.html"

install: $(VENV)/installed

$(VENV)/python:
	@$(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info[:2] <= (3, 13); \
	    sys.exit(0 if ok else "nearfree needs Python 3.11 to 3.13: run make PYTHON=python3.12")'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/installed: envs/base.lock envs/cpu.lock pyproject.toml | $(VENV)/python
	@echo "installing into $(VENV)"
	@$(PIP) install --no-compile --no-deps --require-hashes -r envs/base.lock
	@$(PIP) install --no-compile -r envs/cpu.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/tested: envs/dev.lock $(VENV)/installed
	@echo "installing the test tools into $(VENV)"
	@$(PIP) install --no-compile --no-deps --require-hashes -r envs/dev.lock
	@$(PIP) check
	@touch $@

# A worker has one core at most: further threads of a product of matrices would spin while they wait.
test golden: export OPENBLAS_NUM_THREADS := 1
test: $(VENV)/tested
	$(BIN)/python -m pytest $(ALL_TESTS) --numprocesses $(WORKERS) --dist worksteal

golden: $(VENV)/tested
	NEARFREE_CASES=all $(BIN)/python -m pytest -m "" --numprocesses $(WORKERS) tests/golden

history: $(VENV)/tested
	NEARFREE_HISTORY=all $(BIN)/python -m pytest -m "" tests/sources/test_real_history.py

check: $(VENV)/tested
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile rules
	$(BIN)/snakemake --lint
	$(BIN)/python docs/generate.py --check

bench: $(VENV)/tested
	$(BIN)/python -m benchmarks.log
	$(BIN)/python -m benchmarks.sources
	$(BIN)/python -m benchmarks.predict
	$(BIN)/python -m benchmarks.forecast
	$(BIN)/python -m benchmarks.outlook
	$(BIN)/python -m benchmarks.audit

bench-protocol: $(VENV)/installed
	$(BIN)/python -m benchmarks.protocol

docs: $(VENV)/installed
	$(BIN)/python docs/generate.py

wheel: $(VENV)/installed
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) \
	    $(PIP) wheel --no-deps --no-build-isolation --wheel-dir dist .

lock:
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	    --extra workflow --extra hub pyproject.toml --output-file envs/base.lock
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	    --extra workflow --extra hub --extra dev --constraint envs/base.lock pyproject.toml --output-file envs/dev.lock
	printf 'triton==3.6.0\nnumpy<2.4\nmsgspec\nsetuptools\n' | \
	    uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	    --no-annotate - --output-file envs/interpreter.lock
	printf 'llama-cpp-python==0.3.36\nscikit-build-core\npathspec\ncmake\nninja\nmsgspec\nsetuptools>=77\n' | \
	    uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	    --no-annotate - --output-file envs/llama_cpp.lock
	printf 'openvino-genai==2026.4.1.0\nmsgspec\nsetuptools>=77\n' | \
	    uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	    --no-annotate --no-emit-package openvino-telemetry - --output-file envs/openvino.lock
	for file in envs/*.in; do \
	    uv --config-file envs/uv.toml pip compile --quiet $$file \
	        --output-file $${file%.in}.lock || exit 1; done

env: $(VENV)/installed
	@$(BIN)/nearfree environment make $(NAME)

clean:
	rm -rf $(VENV) .snakemake logs
