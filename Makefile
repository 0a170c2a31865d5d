# `make serve` and `make test` each do all the set-up they need; the second time they start at once.
PORT ?= 8000
MODEL ?= smollm2
PYTHON ?= python3
BIN := .venv/bin
# The CPU build of torch comes first: any other one is a CUDA build of several GB.
TORCH ?= torch==2.13.0
# $(call provide,command,packages) installs what has a command that is not there yet.
provide = command -v $(1) >/dev/null || (apt-get update -qq && apt-get install -y -qq $(2))

.PHONY: setup serve test test-all test-tpu browser compilers clients device-wheel sanitize check format clean

setup: .venv/.ready

.venv/.ready: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/pip install --quiet "$(TORCH)"
	$(BIN)/pip install --quiet --editable ".[cpu,server,dev]"
	$(BIN)/python -m pageport_cpu.kernel_store
	$(BIN)/pageport models get smollm2
	touch $@

serve: setup
	$(BIN)/pageport serve --model $(MODEL) --host 127.0.0.1 --port $(PORT)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright

test: check
	$(BIN)/python -m pytest -q -m "not full" -n 2 --dist loadfile

test-all: check browser clients compilers
	$(BIN)/python -m pytest -q -n 2 --dist loadfile
	$(MAKE) test-tpu
	$(MAKE) sanitize

# The TPU plugin in an environment of its own, with JAX and the compiler for TPUs.
test-tpu: .venv-tpu/.ready
	cd plugins/tpu && ../../.venv-tpu/bin/mypy
	cd plugins/tpu && OMP_NUM_THREADS=1 ../../.venv-tpu/bin/python -m pytest -q -n 2 --dist load

.venv-tpu/.ready: pyproject.toml plugins/tpu/pyproject.toml
	test -x .venv-tpu/bin/python || $(PYTHON) -m venv .venv-tpu
	.venv-tpu/bin/python -c "import torch" 2>/dev/null || .venv-tpu/bin/pip install --quiet "$(TORCH)"
	.venv-tpu/bin/pip install --quiet --editable ".[cpu]" --editable "./plugins/tpu[tpu]" mypy pytest pytest-timeout pytest-xdist
	touch $@

# What the page is tested in.
browser:
	$(call provide,chromium,chromium)

# What the kernels are compiled with besides g++.
compilers:
	$(call provide,clang++,clang)
	$(call provide,aarch64-linux-gnu-g++,g++-aarch64-linux-gnu)

# Other people's clients of the server.
clients: setup
	$(BIN)/pip install --quiet --editable ".[interop]"
	$(call provide,npm,nodejs npm)
	npm install --silent --no-package-lock --no-audit --no-fund --prefix tests/server/npm_client

# What bench/device/run.sh installs where there is no network.
device-wheel: setup
	rm -rf bench/device/wheels
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir bench/device/wheels .
	$(BIN)/pip download --quiet --no-deps --only-binary :all: --python-version 3.12 \
		--platform manylinux2014_x86_64 --platform manylinux_2_28_x86_64 \
		--dest bench/device/wheels --requirement bench/device/needs.txt

# The kernel tests once more, with kernels that check each memory access and each operation.
sanitize: setup
	$(BIN)/python backends/cpu/tests/sanitized.py $(BIN)/python -m pytest -q --timeout 1800 -m "kernels and not full" backends/cpu/tests

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .venv-tpu .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
