# Every target is one call; build.py sets up what it needs before it starts.
PYTHON ?= python3
LINE ?= qwen3.8-27b
BUILD = $(PYTHON) build.py
DEV = .build/venv-dev/bin/python

GPU = .build/$(LINE)/gpu
GPU_PYTHON ?= python3

.PHONY: image check release recipes checkpoint test test-e2e lint bench gpu-archive gpu-test gpu-bench engine \
	engine-stop clean

image:
	$(BUILD) image --line $(LINE)

check:
	$(BUILD) check --line $(LINE)

release:
	$(BUILD) release --line $(LINE) $(if $(DRY_RUN),--dry-run) $(if $(ALLOW_DIRTY),--allow-dirty) $(or $(REPOSITORY),$(error say where to: make release REPOSITORY=127.0.0.1:5000/sglang-xpu))

recipes:
	$(BUILD) recipe --write --line $(LINE)

checkpoint:
	$(BUILD) checkpoint $(or $(SOURCE),$(error say which: make checkpoint SOURCE=owner/name@revision)) --role $(or $(ROLE),target) --line $(LINE) $(ARGS)

test:
	$(BUILD) setup --dev && $(DEV) -m pytest --numprocesses 2

test-e2e:
	$(BUILD) setup --dev && $(DEV) -m pytest tests/image/test_e2e_tier.py

lint:
	$(BUILD) setup --dev && $(DEV) -m ruff check . && $(DEV) -m ruff format --check . && $(DEV) -m mypy

bench:
	$(BUILD) setup --dev && $(DEV) -m benchmarks.line --line $(LINE) --cold $(or $(COLD),0) && $(DEV) -m benchmarks.checkpoint

gpu-archive:
	$(BUILD) setup --dev && $(DEV) -m benchmarks.gpu_archive --line $(LINE)
	rm -rf $(GPU) && mkdir $(GPU) && tar -xzf $(GPU).tar.gz -C $(GPU)

gpu-test: gpu-archive
	$(GPU_PYTHON) $(GPU)/run.py test

gpu-bench: gpu-archive
	$(GPU_PYTHON) $(GPU)/run.py bench

engine:
	$(BUILD) engine start

engine-stop:
	$(BUILD) engine stop

clean:
	$(BUILD) engine stop && rm -rf .build
