# make finetune: everything from nothing. make test: every check. make help: the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help finetune test suite test-long test-all flaky lint cluster-up cluster-down test-cluster test-second-s3 test-images bench accept-main-job accept-elastic accept-executor accept-preprocess accept-checkpoint accept-cluster accept-hardening accept-first-hour lock licences sbom images release docs reference picture screenshots ui-picture liveness soak drill-on-cluster survival clean accept-frameworks accept-chaos accept-seeing accept-survivors accept-gpu gpu-bundle test-metrics test-frameworks
.DEFAULT_GOAL := help

help:  ## what can be made
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "make: Python 3.11 or newer is needed, this is %d.%d; run make PYTHON=python3.12" % sys.version_info[:2])'
	@$(PYTHON) -c 'import shutil, sys; free = shutil.disk_usage(".").free / 2**30; sys.exit(0 if free > 11 else f"make: installing takes 11 GiB of disk (7 stay; most is torch for CUDA), and {free:.1f} are free here: make room")'
	$(PYTHON) -m venv $(VENV)
	sed -n '/^pip==/,/[^\\]$$/p' constraints.txt > $(VENV)/pip.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(VENV)/pip.txt
	$(BIN)/python -m pip install --quiet --no-compile --require-hashes -r constraints.txt --build-constraint constraints.txt
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --no-deps --build-constraint constraints.txt -e .
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib everstep runtime steps pipelines >/dev/null 2>&1 || true
	@touch $@

# Each with the hashes of all its files, for every platform; nothing names where they were fetched from.
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
    --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock'
lock: $(READY)  ## constraints.txt, when pyproject.toml has changed; UPGRADE=NAME or NAME==VERSION: a newer one of that
	$(LOCK) $(addprefix --upgrade-package ,$(UPGRADE)) --all-extras pyproject.toml -o constraints.txt
	$(LOCK) --no-deps .ci/constraints.in -o .ci/constraints.txt

licences: $(READY)  ## docs/licences.md: what the licences of the images' packages allow
	$(BIN)/python -m supply.licences > $(VENV)/licences.md && mv $(VENV)/licences.md docs/licences.md

sbom: $(READY)  ## build/sbom: what each image carries, for scanners (CycloneDX)
	$(BIN)/python -m supply.sbom build/sbom

images: $(READY)  ## build/images: OCI archives of templates/Containerfile, as root, on Debian (TARGETS="submit preprocess")
	$(BIN)/python -m supply.images build/images $(TARGETS)

release: $(READY)  ## build/release: source archive, wheel, chart, the images of make images, checksums (VERSION=1.2.3: must be that)
	$(BIN)/python -m supply.release build/release $(VERSION)

docs: $(READY)  ## the site, in build/site; a broken link or a warning is an error
	$(BIN)/python -m sphinx --quiet --fail-on-warning --nitpicky --fresh-env --jobs auto docs build/site
	@echo "build/site/index.html"

reference: $(READY)  ## the pages of docs/reference, from the code
	$(BIN)/python -m docs.rendering

screenshots: $(READY)  ## docs/pictures/report-wide.png: the page of a run, in Chromium (RUN=NAME)
	$(BIN)/python -m docs.rendering.screenshots runs/$(RUN)/report.html

ui-picture: $(READY)  ## docs/pictures/ui.png: the page of `everstep ui` while a training runs, in Chromium
	$(BIN)/python -m docs.rendering.ui_picture

picture: $(READY)  ## docs/pictures/run.svg: the terminal of a real run of the default pipeline
	$(BIN)/python -m docs.rendering.terminal llama-finetune-$$(date +%H%M)

finetune: $(READY)  ## install, then fine-tune a small Llama on real text, on this machine
	$(BIN)/python pipelines/llama_finetune.py

lint: $(READY)  ## style, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

# Tests of processes mostly wait: for imports, for a deadline, for each other. What they import is compiled once.
unexport PYTHONDONTWRITEBYTECODE
JOBS ?= 4
PROFILE ?= dev
SUITE := $(BIN)/python -m tests.suite --jobs $(JOBS) --profile $(PROFILE) $(if $(SEED),--seed $(SEED))
test: $(READY)  ## lint, and the tests, JOBS at a time (PART=checkpoint: what a change there can break); says what was skipped
	@$(MAKE) --no-print-directory -j2 lint suite

suite: $(READY)
	$(SUITE) $(if $(WHICH),--which $(WHICH)) $(if $(PART),--part $(PART))

test-long: $(READY)  ## tests that `make test` skips as near-duplicates, and more examples (PROFILE=long)
	$(SUITE) --which long $(if $(PART),--part $(PART))

test-all: $(READY)  ## what `make test` and `make test-long` do, with every test imported once
	@$(MAKE) --no-print-directory -j2 lint suite WHICH=all

flaky: $(READY)  ## one test 50 times under load: TEST=PATH::NAME, or words as of pytest -k
	$(SUITE) --repeat '$(TEST)'

cluster-up: $(READY)  ## a real Kubernetes of two nodes with MinIO on this machine, as root (built by Go the first time)
	$(BIN)/python -m tests.cluster up

cluster-down: $(READY)  ## stop it, and leave nothing behind
	$(BIN)/python -m tests.cluster down

CLUSTER ?= tests/cluster
test-cluster: $(READY)  ## what only a real cluster can show (CLUSTER=FILES: of it only that); starts it and stops it
	$(BIN)/python -m pytest -rs $(CLUSTER) --junit-xml=.pytest_cache/cluster.xml -o junit_family=xunit1

test-second-s3: $(READY)  ## the store's tests of S3 on SeaweedFS (built by Go the first time: some 20 minutes)
	EVERSTEP_TEST_S3=seaweedfs $(BIN)/python -m pytest -q tests/store -k "not directory"

test-images: $(READY)  ## the images of templates/Containerfile, made from Debian's packages and run, as root (16 GB of disk)
	$(BIN)/python -m pytest -rs tests/images

test-metrics: $(READY)  ## metrics, alert rules and dashboard before a real Prometheus (built by Go: 6 minutes the first time)
	$(BIN)/python -m pytest -rs tests/prometheus

FRAMEWORKS ?= tests/frameworks
test-frameworks: $(READY)  ## users' frameworks and trackers, each in an environment of its own in ~/.cache (FRAMEWORKS=FILES: of it only that)
	$(BIN)/python -m pytest -rs $(FRAMEWORKS) --junit-xml=.pytest_cache/frameworks.xml -o junit_family=xunit1

bench: $(READY)  ## every figure beside its budget or peer, one table each (about 25 minutes on an idle machine)
	$(BIN)/python -m benchmarks.main_job
	$(BIN)/python -m benchmarks.recovery
	$(BIN)/python -m benchmarks.lost_machine
	$(BIN)/python -m benchmarks.executor
	$(BIN)/python -m benchmarks.node_check
	$(BIN)/python -m benchmarks.watching
	$(BIN)/python -m benchmarks.report
	$(BIN)/python -m benchmarks.brain
	$(BIN)/python -m benchmarks.master
	$(BIN)/python -m benchmarks.many_tasks
	$(BIN)/python -m benchmarks.preprocess
	$(BIN)/python -m benchmarks.checkpoint
	$(BIN)/python -m benchmarks.first_saves

accept-main-job: $(READY)  ## every line the main job promises: wanted, measured, holds or not
	$(BIN)/python -m benchmarks.accept_main_job

accept-elastic: $(READY)  ## every line the elastic runtime promises: wanted, measured, holds or not (about 30 minutes)
	$(BIN)/python -m benchmarks.accept_elastic

accept-executor: $(READY)  ## every line the executor of Argo manifests promises: wanted, measured, holds or not
	$(BIN)/python -m benchmarks.accept_executor

accept-preprocess: $(READY)  ## every line the tokenization promises: wanted, measured, holds or not (a quarter of an hour)
	$(BIN)/python -m benchmarks.accept_preprocess

accept-checkpoint: $(READY)  ## every line that checkpoints promise: wanted, measured, holds or not
	$(BIN)/python -m benchmarks.accept_checkpoint

accept-cluster: $(READY)  ## every line promised on a real Kubernetes, as root: wanted, measured, holds or not
	$(BIN)/python -m benchmarks.accept_cluster

accept-seeing: $(READY)  ## every line about seeing hangs, stacks and seconds: wanted, measured, holds or not
	$(BIN)/python -m benchmarks.accept_seeing

accept-hardening: $(READY)  ## every line about attacks, damage and leftovers: wanted, measured, holds or not
	$(BIN)/python -m benchmarks.accept_hardening

accept-first-hour: $(READY)  ## every line about a user's first hour: wanted, measured, holds or not
	$(BIN)/python -m benchmarks.accept_first_hour

accept-frameworks: $(READY)  ## every line about other frameworks, data and job formats: wanted, measured, holds or not
	$(BIN)/python -m benchmarks.accept_frameworks

accept-chaos: $(READY)  ## every line about injected faults and the simulator: wanted, measured, holds or not (two hours)
	$(BIN)/python -m benchmarks.accept_chaos

accept-survivors: $(READY)  ## every line that survivors promise: wanted, measured, holds or not (KILLS=200: two hours)
	$(BIN)/python -m benchmarks.accept_survivors --compare $(if $(KILLS),--kills $(KILLS))

accept-gpu: $(READY)  ## every line about GPUs: wanted, measured, holds or not; "no device" where there is none
	$(BIN)/python -m benchmarks.accept_gpu

gpu-bundle: $(READY)  ## build/gpu: what accept-gpu needs on a bare Linux with Python 3.12 and torch, without network
	$(BIN)/python -m benchmarks.gpu_bundle

SEQUENCES ?= 1000000
liveness: $(READY)  ## so many random sequences of whole jobs, in virtual time: each must end or train on (an hour for 10^6)
	$(BIN)/python -m tests.job.liveness --sequences $(SEQUENCES) --seed $(or $(SEED),1)

MINUTES ?= 30
soak: $(READY)  ## one training of 4 nodes under a fault every 15 s, pairs among them, and what is left (MINUTES, SEED)
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES) --seed $(or $(SEED),0)

EXPERIMENTS ?=
drill-on-cluster: $(READY)  ## the drill in pods of two nodes by Argo, as root; build/drill-argo.html (EXPERIMENTS="NAMES": only these)
	$(BIN)/python -m benchmarks.chaos_drill $(EXPERIMENTS)

ROUNDS ?= 50
survival: $(READY)  ## every fault of tests/survival ROUNDS times in a row on a busy machine (50: about 2 hours)
	EVERSTEP_ROUNDS=$(ROUNDS) $(BIN)/python -m pytest -x tests/survival tests/checkpoint/test_random_kills.py

clean:  ## remove what was installed and run
	rm -rf $(VENV) build runs .pytest_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
