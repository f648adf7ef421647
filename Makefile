# Every target sets up .venv by itself: nothing but python3 >= 3.11 and make is needed, no Java, no sudo. `image` alone needs
# no Python, but docker, podman or buildah.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
TOOLS  := $(VENV)/.release-tools
SITE_TOOLS := $(VENV)/.docs-tools
EXTRAS := broker,gateway,spark,loadtest,demo,dev

# What pip is doing, in one line that changes; errors go past it.
SHORT_PIP = /^ *(Collecting|Downloading|Building|Installing)/ { \
	printf "\r\033[K  %s", substr($$0, match($$0, /[A-Z]/), 70); fflush() } END { printf "\r\033[K" }

# Tests start hundreds of processes: each would compile the project anew where the environment has compiled files not kept.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo up docs generate test testall check faults freeze soak abuse bench loadtest clean simulate mutants pipeline kills image lock audit sbom release upgrade sparkbench sparktest sparkcluster check-ruff check-mypy check-basedpyright

help: ## list the targets
	@awk -F':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Tidelog needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)."; \
	  echo "Name another one like this: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	  echo "Creating $(VENV) ..."; \
	  $(PYTHON) -m venv --clear $(VENV) || { \
	    rm -rf $(VENV); \
	    echo "python3 -m venv failed: on Debian and Ubuntu install the package python3-venv and try again."; exit 1; }; }
	@echo "Installing Tidelog and what it needs into $(VENV) (a few minutes the first time) ..."
	@rm -f $@
	@# Python compiles what is imported; to compile all 12,000 files takes 40 s of processor time.
	@{ $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --no-compile -e '.[$(EXTRAS)]' && touch $@; } \
	  | if [ -t 1 ]; then awk '$(SHORT_PIP)'; else cat >/dev/null; fi
	@test -e $@ # a pipe ends with its last command's code
	@echo "Ready."

demo: $(STAMP) ## three nodes and real data: publish 336,776 flights, subscribe, analyse with Spark
	@$(BIN)/python -m tidelog_demo

up: $(STAMP) ## a node and a gateway on this machine, until Ctrl-C (data in .up/)
	@$(BIN)/tidelog up --data .up

$(SITE_TOOLS): $(STAMP)
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet -e '.[docs]' && touch $@

docs: $(SITE_TOOLS) ## the pages as a site that can be searched, links and anchors checked
	@$(BIN)/python -m tests.docs_site

# Tests that take all of a machine keep to one of the processes, see tests/conftest.py. The others wait for more than half of
# their time, so there are four processes more than there are processors, up to eight.
TESTERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n < 4 ? n + 4 : 8)))

generate: $(STAMP) ## regenerate what is derived from the code: protobuf modules, `tidelog.sync`, tables of pages, the list of the API
	@$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=proto --pyi_out=proto $(wildcard proto/tidelog_proto/*.proto)
	@$(BIN)/python -m tests.sync_methods
	@for table in configuration_table costs_table metrics_table access_table types_table public_api javascript_bundle; do \
	  $(BIN)/python -m tests.$$table || exit 1; done

test: check ## check, then the tests but the slow and the long ones, in several processes (TESTERS=6)
	$(BIN)/python -m tests.suite -m "not long and not slow" -n $(TESTERS) --dist loadgroup

testslow: $(STAMP) ## the slow tests: Spark, browsers, clusters under load, random requests, benchmarks (TESTERS=6)
	$(BIN)/python -m tests.suite -m "slow and not long" -n $(TESTERS) --dist loadgroup

testall: check ## check, then every test, the slow and the long ones too
	$(BIN)/python -m tests.suite -n $(TESTERS) --dist loadgroup

simulate: $(STAMP) ## replication and whole nodes in simulated clusters that fail: SEEDS=1000 WHOLE=300, or SEED=7 with its trace
	@$(BIN)/python -m tests.simulation.run $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1000))
	@$(BIN)/python -m tests.simulation.whole.run $(if $(SEED),--seed $(SEED),--seeds $(or $(WHOLE),300))

mutants: $(STAMP) ## get replication wrong in one way after the other, and see that the simulation notices
	@$(BIN)/python -m tests.simulation.kill --seeds $(or $(SEEDS),80)
	@$(BIN)/python -m tests.simulation.whole.kill --seeds $(or $(WHOLE),40)

check: $(STAMP) ## format, lint and types
	@$(MAKE) --no-print-directory --output-sync --jobs 3 check-ruff check-mypy check-basedpyright

check-ruff: $(STAMP)
	$(BIN)/ruff format --check
	@# Without a cache: a cached verdict on imports outlives the module that was moved.
	$(BIN)/ruff check --no-cache

check-mypy: $(STAMP)
	$(BIN)/mypy

check-basedpyright: $(STAMP)
	$(BIN)/basedpyright

faults: $(STAMP) ## kill, stop, cut off and fill up real nodes under load, and judge it (MINUTES=10 SEED=n NODES=3 SECURE=1)
	@$(BIN)/python -m tests.faults.run --minutes $(or $(MINUTES),10) --nodes $(or $(NODES),3) $(SEED:%=--seed %) $(SECURE:%=--secure)

freeze: $(STAMP) ## freeze processes at random while tests run, and list the tests that fail (FOLDER="tests/clients" MINUTES=5 SEED=n)
	@$(BIN)/python -m tests.freeze.run --minutes $(or $(MINUTES),5) $(SEED:%=--seed %) $(or $(FOLDER),tests/clients)

soak: $(STAMP) ## a day in the life: segments roll, expire and are compacted while nodes die (MINUTES=20 SEED=n, soak.svg)
	@$(BIN)/python -m tests.soak.run --minutes $(or $(MINUTES),20) $(SEED:%=--seed %)

abuse: $(STAMP) ## the largest request of every kind and route beside a polite client, and what that costs it (SECONDS=4)
	@$(BIN)/python -m tests.abuse.run --seconds $(or $(SECONDS),4)

bench: $(STAMP) ## throughput and latency beside the limit probe
	@$(BIN)/tidelog bench produce --flush both
	@$(BIN)/tidelog bench consume
	@$(BIN)/tidelog bench latency --flush both

sparkbench: $(STAMP) ## Spark over a topic beside Parquet files of the same rows (RECORDS=10000000 ROUNDS=3)
	@$(BIN)/tidelog bench spark --records $(or $(RECORDS),10000000) --rounds $(or $(ROUNDS),3)

# An older Spark in front of the one of .venv, in a directory of its own, which stays for the next time.
SPARK ?= 4.0
sparktest: $(STAMP) ## the tests of the Spark source with another Spark than the newest (SPARK=4.0)
	@test -e .spark-$(SPARK)/.installed || { echo "Installing pyspark $(SPARK) ..." && \
	  $(BIN)/python -m pip install --disable-pip-version-check --quiet --target .spark-$(SPARK) 'pyspark==$(SPARK).*' && \
	  touch .spark-$(SPARK)/.installed; }
	PYTHONPATH=$(CURDIR)/.spark-$(SPARK) $(BIN)/python -m pytest tests/spark

sparkcluster: $(STAMP) ## the connector on executors that have its zip alone: a standalone master and two workers, local-cluster
	$(BIN)/python -m pytest tests/spark_cluster

pipeline: $(STAMP) ## flights through two streaming queries of Spark into topics and a picture, killed in the middle (pipeline.svg)
	@$(BIN)/python -m examples.pipeline

kills: $(STAMP) ## a streaming query of Spark whose driver, workers and nodes are killed -9, and what it wrote (KILLS=20 SEED=n)
	@$(BIN)/python -m tests.spark_kills.run --kills $(or $(KILLS),20) $(SEED:%=--seed %)

loadtest: $(STAMP) ## locust's users in a ramp, limits, a report in loadtest.html (SECONDS=60 USERS=14 MIX=all WORKERS=1 LIMITS=options)
	@$(BIN)/python -m tidelog_loadtest.users.run --seconds $(or $(SECONDS),60) --users $(or $(USERS),14) --mix $(or $(MIX),all) \
	  --workers $(or $(WORKERS),1) $(LIMITS)

IMAGE ?= tidelog
# Docker counts where its daemon answers. podman and buildah keep the health check in Docker's format only.
image: ## build the container image with docker, podman or buildah, whichever is there (IMAGE=tidelog ENGINE=podman BASE=python@...)
	@for engine in $(or $(ENGINE),docker podman buildah); do \
	  if $$engine info >/dev/null 2>&1; then \
	    echo "Building $(IMAGE) with $$engine ..."; BUILDAH_FORMAT=docker exec $$engine build $(if $(BASE),--build-arg BASE=$(BASE)) -t $(IMAGE) .; fi; \
	  ! command -v $$engine >/dev/null || echo "$$engine is here, but '$$engine info' fails: does its daemon run?" >&2; \
	done; \
	echo "Nothing here builds images: install Docker (docs.docker.com/engine/install), or on Debian and Ubuntu the package" \
	  "podman or buildah, and try again." >&2; exit 1

# What a release needs, and nobody else.
$(TOOLS): $(STAMP)
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet -e '.[release]' && touch $@

lock: $(TOOLS) ## write anew which packages the image is made of, with their hashes (locks/)
	@$(LOCK) --extra broker --extra gateway --extra otel --output-file locks/image.txt pyproject.toml
	@echo 'hatchling>=1.27' | $(LOCK) --output-file locks/build.txt -
	@wc -l locks/*.txt

# Hashes of every platform's files; no addresses, so that it is the same wherever it is written.
LOCK = $(BIN)/uv pip compile --python-version 3.13 --python-platform linux --generate-hashes --upgrade --quiet \
	--no-emit-index-url --no-header --no-annotate

audit: $(TOOLS) ## ask for known weaknesses of what the image is made of, and of what builds it
	@# Strict: where the index says nothing of a package, nothing was asked about it, and that is no good news.
	@$(BIN)/pip-audit --strict --disable-pip --progress-spinner off $(addprefix -r ,$(sort $(wildcard locks/*.txt)))

sbom: $(TOOLS) ## the image's bill of materials, CycloneDX (sbom.json)
	@$(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --mc-type application --output-reproducible \
	  --output-file sbom.json locks/image.txt
	@$(BIN)/python -m tests.release.sbom

release: sbom ## build wheel and sdist in dist/, try the wheel without the sources, SHA256SUMS, SBOM; say which tag to push (DIRTY=1)
	@$(BIN)/python -m tests.release.run $(DIRTY:%=--dirty)

upgrade: $(STAMP) ## upgrade a cluster of an older build under load, and go back (FROM=<commit or wheel> SECONDS=4)
	@$(BIN)/python -m tests.upgrade.run $(FROM:%=--from %) --seconds $(or $(SECONDS),4)

clean: ## remove what the other targets made, .venv included
	rm -rf $(VENV) .spark-* .demo .up .upgrade tidelog-data build dist sbom.json .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
