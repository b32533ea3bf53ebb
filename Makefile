# Every target works on a fresh machine with Python 3.11 or later and make: it makes .venv itself.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
# What a node has, and no more: some libraries load whatever else they find installed.
RUNTIME := build/runtime
# What builds the pages into a site, and the copies of the pages that it reads.
SITE := build/site-tools
# What lists the contents of the image.
SBOM := build/sbom-tools
PAGES := build/site-pages

# How many files of tests `make test` runs at once; the cases on a kernel are one file.
WORKERS ?= 4
# Options of `make demo`: --gpus for the story of GPUs, --dra for that of claims, --sharing for that of
# GPUs in four ways, --keep to leave all running at its end. And of `make pictures`.
ARGS ?=
# VM cases by a part of their names, such as CASE=vfio; all without it.
CASE ?=
# How many minutes `make vm CASE=churn` takes (under one without it), `make soak` (60 without it), and
# `make matrix`, which else tries N=100 combinations and changes.
MINUTES ?=
# One guard of `make guards` by name; all without it.
GUARD ?=
# Attacks of `make hostile` by name; all without it.
ATTACK ?=
# The files of `make mutants` by a part of their names, such as FILE=model/use/free.py; all without it.
FILE ?=
# Passed to uv by `make lock`, such as UPGRADE="--upgrade-package grpcio".
UPGRADE ?=
# How many stories `make kills` tells (1000 without it), how many operations `make one-holder` tries by
# each API (10000 without it), how many changes `make mutants` tries (all without it), and the story,
# the worlds or the sample to have once more. DEPTH: in how many variants `make one-holder` plays each
# order of claims (1 without it).
N ?=
DEPTH ?=
SEED ?=
# Figures of `make bench` by name; all without it.
FIGURES ?=
# The commits that `make sizes` measures, such as REVISIONS="c1e33f3 HEAD"; HEAD without it.
REVISIONS ?=
# What `make image` builds with, on which base (pin it: name@sha256:digest), the image's name, and
# further options of the build, such as BUILD_OPTIONS="--secret id=pip.conf,src=/etc/pip.conf".
BUILDER ?= $(firstword $(notdir $(shell command -v docker podman buildah)))
BASE ?= debian:bookworm-slim
IMAGE ?= holdfast:$(VERSION)
BUILD_OPTIONS ?=
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' daemon/holdfast/__init__.py)

# Tests start hundreds of daemons, and collect hundreds of files: each module is to be compiled once,
# also where the environment says that nothing compiled is to be kept.
export PYTHONDONTWRITEBYTECODE :=

COMPILE := uv pip compile --no-config --universal --python-version 3.11 --quiet \
	--generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

.PHONY: types_checked format_checked lint_checked imports_checked plugin_checked quick_tested all_tested
.PHONY: help demo quick test check vm gpu kills one-holder matrix guards hostile mutants bench soak chart image image-of-packages site pictures sizes proto lock format clean

help:
	@echo "make demo     the main job on a simulated node: no root, no hardware (ARGS= passes options on)"
	@echo "make quick    check, unit and contract tests: what to run before a commit"
	@echo "make test     everything: check and all tests, the VM cases included"
	@echo "make check    formatting, lint, types and the direction of imports"
	@echo "make vm       the VM cases alone (CASE= selects; chart: with the daemon as the chart runs it)"
	@echo "make gpu      the main job on a real GPU that nobody uses, with NVIDIA's driver; as root"
	@echo "make kills    random stories in which no signal may hit somebody's work (N= how many, SEED= replays)"
	@echo "make one-holder  random operations by both APIs and all orders of two pods on one claim, with crashes (N=, DEPTH=, SEED=)"
	@echo "make matrix   combinations of settings and nodes, and changes between them (N=, MINUTES= bound it, SEED= replays)"
	@echo "make guards   remove each guard of a reclaim in a copy, and see its tests fail (GUARD= selects)"
	@echo "make hostile  attacks on a node by real processes in cgroups beside the daemon; as root (ATTACK= selects)"
	@echo "make mutants  change the rules line by line, and see a test fail each time (N= samples, FILE= selects)"
	@echo "make bench    measure beside floors and against reaches; writes build/bench.json (FIGURES= selects),"
	@echo "              and without it the table in docs/decisions/speed.md"
	@echo "make soak     let pods come and go for MINUTES= (60); writes build/soak.json and a plot, build/soak.png"
	@echo "make chart    check the chart; write its schema, docs/configuration.md and the manifests"
	@echo "make image    build the container image with docker, podman or buildah (IMAGE= names it, BASE= pins its base)"
	@echo "make image-of-packages  the same with buildah on a base of Debian's packages: as root, and without a registry"
	@echo "make site     build README.md and docs into build/site, with a search; a broken link fails"
	@echo "make pictures draw docs/pictures (ARGS=--record runs and records the demo first)"
	@echo "make sizes    modules and lines per room at some commits (REVISIONS= names them)"
	@echo "make proto    generate daemon/holdfast/_pb from proto/"
	@echo "make lock     resolve the dependencies into requirements*.lock"
	@echo "make format   format the code and fix what ruff can fix"
	@echo "make clean    remove what these targets made"

# gRPC logs the end of each connection of the simulated kubelet's, such as GOAWAY, on the terminal.
demo: $(STAMP)
	@GRPC_VERBOSITY=ERROR PYTHONPATH=daemon:tests $(PY) -m simulated $(ARGS)

# Side by side, each with its output in one piece: the types take as long as all the others.
TOGETHER := --no-print-directory --jobs=3 --output-sync=target --keep-going \
	types_checked format_checked lint_checked imports_checked plugin_checked

check: $(STAMP)
	@$(MAKE) $(TOGETHER)

types_checked:
	$(PY) -m mypy

format_checked:
	$(PY) -m ruff format --check .

lint_checked:
	$(PY) -m ruff check .

imports_checked:
	PYTHONPATH=tests $(VENV)/bin/lint-imports --no-logo

plugin_checked:
	cd deploy/kubectl-holdfast && $(CURDIR)/$(VENV)/bin/lint-imports --no-logo --no-cache

quick: $(STAMP)
	@$(MAKE) $(TOGETHER) quick_tested

# Make takes what has a plus for a make of its own, and shows what it prints at once. More workers than
# most machines have processors: many tests wait.
quick_tested:
	+$(PY) -m pytest -q -n 4 --dist worksteal -m "not slow" tests/unit tests/contract

test: $(STAMP)
	@$(MAKE) $(TOGETHER) all_tested

all_tested:
	+$(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

vm: $(STAMP)
	MINUTES=$(MINUTES) PYTHONPATH=daemon:tests $(PY) -m vm $(CASE)

kills: $(STAMP)
	PYTHONPATH=daemon:tests $(PY) -m kills --stories $(or $(N),1000) $(if $(SEED),--seed $(SEED))

one-holder: $(STAMP)
	PYTHONPATH=daemon:tests $(PY) -m oneholder $(if $(N),--operations $(N)) $(if $(DEPTH),--depth $(DEPTH)) \
		$(if $(SEED),--seed $(SEED))

matrix: $(STAMP)
	PYTHONPATH=daemon:tests $(PY) -m matrix $(if $(N),--number $(N)) $(if $(MINUTES),--minutes $(MINUTES)) \
		$(if $(SEED),--seed $(SEED))

guards: $(STAMP)
	PYTHONPATH=daemon:tests $(PY) -m guards $(GUARD)

hostile: $(STAMP)
	PYTHONPATH=daemon:tests $(PY) -m hostile $(ATTACK)

mutants: $(STAMP)
	PYTHONPATH=daemon:tests $(PY) -m mutants $(if $(N),--number $(N)) $(if $(SEED),--seed $(SEED)) \
		$(if $(FILE),--file $(FILE))

bench: $(STAMP) $(RUNTIME)/.installed
	GRPC_VERBOSITY=ERROR PYTHONPATH=daemon:tests $(PY) -m bench.run --python $(RUNTIME)/bin/python \
		--output build/bench.json $(FIGURES)
	$(if $(FIGURES),,PYTHONPATH=daemon:tests $(PY) -m bench.page build/bench.json docs/decisions/speed.md)

gpu: $(STAMP)
	PYTHONPATH=daemon:tests $(PY) -m gpu

soak: $(STAMP) $(RUNTIME)/.installed
	GRPC_VERBOSITY=ERROR PYTHONPATH=daemon:tests $(PY) -m bench.soak --python $(RUNTIME)/bin/python \
		--output build/soak.json --minutes $(or $(MINUTES),60)

chart: $(STAMP)
	PYTHONPATH=daemon:tests $(PY) -m chart
	$(PY) -m pytest -q tests/chart

# Beside the image, build/image has its archive, which `docker load` and `ctr images import` take, and
# the list of what is in it.
image: $(SBOM)/.installed
	@test -n "$(BUILDER)" || { echo "cannot build an image: no docker, podman or buildah here" >&2; exit 1; }
	$(BUILDER) build $(BUILD_OPTIONS) --build-arg BASE=$(BASE) --build-arg VERSION=$(VERSION) --tag $(IMAGE) .
	@mkdir -p build/image && rm -f build/image/holdfast.tar
	$(if $(filter buildah,$(BUILDER)),buildah push --quiet $(IMAGE) docker-archive:build/image/holdfast.tar:$(IMAGE),\
		$(BUILDER) save --output build/image/holdfast.tar $(IMAGE))
	SYFT_CHECK_FOR_APP_UPDATE=false $(SBOM)/bin/syft scan docker-archive:build/image/holdfast.tar --quiet \
		--source-name holdfast --source-version $(VERSION) --output cyclonedx-json=build/image/holdfast.cdx.json

image-of-packages: $(STAMP)
	PYTHONPATH=daemon:tests $(PY) -m image

# Pages keep their places, so that a link leads to the same file here and on the site. What they
# link to is copied too, so that a link to a file that is not there fails.
site: $(SITE)/.installed
	rm -rf $(PAGES) build/site
	mkdir -p $(PAGES)
	git ls-files -z -- '*.md' docs deploy daemon/holdfast tests/integration tests/golden/sharing | \
		xargs -0 cp --parents -t $(PAGES)
	$(SITE)/bin/mkdocs build --strict

pictures: $(STAMP)
	PYTHONPATH=daemon:tests $(PY) -m pictures $(ARGS)

sizes: $(STAMP)
	$(PY) tests/sizes.py $(REVISIONS)

proto: $(STAMP)
	$(PY) proto/generate.py

format: $(STAMP)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

# The locks of a node and of the image's build hold the versions that every test has.
lock:
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install -qq --upgrade pip
	build/lock/bin/python -m pip install -qq --group lock
	build/lock/bin/$(COMPILE) pyproject.toml --group dev --output-file requirements-dev.lock $(UPGRADE)
	build/lock/bin/$(COMPILE) pyproject.toml --constraint requirements-dev.lock \
		--output-file requirements.lock
	build/lock/bin/$(COMPILE) --group pyproject.toml:build --constraint requirements-dev.lock \
		--output-file requirements-build.lock
	build/lock/bin/$(COMPILE) --group pyproject.toml:site --constraint requirements-dev.lock \
		--output-file requirements-site.lock
	build/lock/bin/$(COMPILE) --group pyproject.toml:sbom --constraint requirements-dev.lock \
		--output-file requirements-sbom.lock

# Hashes are required of everything but holdfast itself, which is built by the locked hatchling.
$(STAMP): requirements-dev.lock pyproject.toml
	@PYTHON="$(PYTHON)" sh tests/prepare-python
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install -qq --require-hashes -r requirements-dev.lock
	@$(PY) -m pip install -qq --no-deps --no-build-isolation --editable .
	@touch $@

$(RUNTIME)/.installed: requirements.lock
	@PYTHON="$(PYTHON)" sh tests/prepare-python
	@echo "making $(RUNTIME)"
	@$(PYTHON) -m venv $(RUNTIME)
	@$(RUNTIME)/bin/python -m pip install -qq --require-hashes -r requirements.lock
	@touch $@

$(SITE)/.installed: requirements-site.lock
	@PYTHON="$(PYTHON)" sh tests/prepare-python
	@echo "making $(SITE)"
	@$(PYTHON) -m venv $(SITE)
	@$(SITE)/bin/python -m pip install -qq --require-hashes -r requirements-site.lock
	@touch $@

$(SBOM)/.installed: requirements-sbom.lock
	@PYTHON="$(PYTHON)" sh tests/prepare-python
	@echo "making $(SBOM)"
	@$(PYTHON) -m venv $(SBOM)
	@$(SBOM)/bin/python -m pip install -qq --require-hashes -r requirements-sbom.lock
	@touch $@

clean:
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find daemon tests proto deploy -name __pycache__ -type d -prune -exec rm -rf {} +
