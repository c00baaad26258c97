# Rollcall: `make` lists the targets. Docker is needed for compose-*; what else one lacks it installs through
# scripts/setup.sh.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.PHONY: help build dev test lint generate fuzz bench soak compose-up compose-down compose-drill

# hashicorp/raft reports its metrics through go-metrics under this tag, through a deprecated library without it.
TAGS := hashicorpmetrics
# Without symbols and debug data: the images hold the binaries.
LDFLAGS ?= -s -w
# The Go that scripts/setup.sh had to fetch, if so.
export PATH := $(CURDIR)/build/go/bin:$(PATH)
# Another checkout on this machine reuses compiled packages, because their folder is not a part of them.
export GOFLAGS := $(GOFLAGS) -trimpath
# How long each fuzz target runs.
FUZZTIME ?= 30s

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build the static binaries: bin/rollcall, and bin/rollcall-dev for development
	@[ -e bin/rollcall ] || echo 'The first build compiles everything: about two minutes on two cores.'
	@scripts/setup.sh build
	@CGO_ENABLED=0 scripts/progress.sh 10 'compiling bin' go build -tags $(TAGS) -ldflags '$(LDFLAGS)' -o bin/ ./cmd/rollcall ./cmd/rollcall-dev

dev: ## Run a whole cluster on this machine, with its data in build/dev
	@[ -e bin/rollcall-dev ] || echo 'The first start takes two minutes and more: what is missing is installed, and everything compiled.'
	@scripts/setup.sh run
	@$(MAKE) --no-print-directory build
	bin/rollcall-dev --data build/dev

# Uncached, because the tests find real processes and clocks, which Go's test cache does not see. make lint vets the code.
# -short selects the smaller forms of some tests; make soak runs the larger ones.
GO_TEST_FLAGS ?= -parallel 4
GO_TEST := go test -short -vet=off -tags $(TAGS) -count=1 -timeout 40m $(GO_TEST_FLAGS) -run '$(RUN)'
# These packages run without the race detector: their tests drive processes that do not have it, or wait for Postgres in one
# goroutine, or simulate clusters in one. make soak runs those of our own code with it.
IN_PROCESS := $(addprefix ./internal/relayer/,tracker modeltest admin service keymonitor store) ./cmd/rollcall \
	./internal/discovery/coordinator ./internal/dispatch/upstream ./internal/escrow/watch ./internal/outbox ./fsm
WITHOUT_RACE := ./internal/relayer/crashtest ./internal/e2e ./internal/dispatch/crashtest ./internal/escrow/crashtest $(IN_PROCESS) \
	./cmd/rollcall-dev ./internal/dev/... ./internal/testutil/...

# The packages and tests to run: make test PACKAGES=./fsm RUN=TestRestore
PACKAGES ?= ./...
RUN ?= .
# All PostgreSQL servers of a run start from the files of one initdb, which is in the folder TESTPOSTGRES_RUN.
test: ## Run every test, most of them with the race detector
	@echo 'All tests take about 12 minutes on two cores, the first time longer: everything is compiled before.'
	@scripts/setup.sh test
	@export TESTPOSTGRES_RUN=$$(mktemp -d -t rollcall-test-XXXXXX); trap 'rm -rf "$$TESTPOSTGRES_RUN"' EXIT; trap 'exit 130' HUP INT TERM; \
	without=$$(go list -tags $(TAGS) $(WITHOUT_RACE)); all=$$(go list -tags $(TAGS) $(PACKAGES)) || exit; status=0; \
	race=$$(grep -vxF "$$without" <<<"$$all") && { scripts/progress.sh 60 'testing' $(GO_TEST) -race $$race || status=1; }; \
	rest=$$(grep -xF "$$without" <<<"$$all") && { scripts/progress.sh 60 'testing without the race detector' $(GO_TEST) $$rest || status=1; }; \
	exit $$status

lint: ## Check code, contract, scripts, and that generated code is fresh
	@scripts/setup.sh lint
	@scripts/lint.sh

generate: ## Generate Go from proto/
	@scripts/setup.sh lint
	build/tools/buf generate

fuzz: ## Fuzz every target for FUZZTIME (30s) each
	@scripts/setup.sh test
	@scripts/fuzz.sh $(FUZZTIME)

bench: ## Measure against peers: a table, and build/bench.json
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory build
	@scripts/bench.sh

soak: ## Torture the relayer, the relay path and the escrow monitor: 57,000 transactions, while everything around them fails
	@scripts/setup.sh test
	go test -tags $(TAGS),soak -count=1 -timeout 60m -v -run Soak ./internal/relayer/crashtest
	go test -tags $(TAGS),soak -count=1 -timeout 30m -v -run Soak ./internal/escrow/crashtest
	go test -tags $(TAGS),soak -count=1 -timeout 30m -v -run 'TestRelayPath_EverythingIsKilledInTurn|TestDirectory_LeadersKilled' ./internal/e2e
	go test -race -short -tags $(TAGS) -count=1 -timeout 30m $(IN_PROCESS)
	go test -race -tags $(TAGS) -count=1 -timeout 30m -run 'TestSeeds|TestMatrix|TestFaults|TestMachine_RandomLogs|TestRestore_DamagedSnapshot|PartitionsAndRepairs|PartitionsLosses|TestOutbox_Conforms|TestTables_Conform|TestInstant_TagRecovers_ManyEvents' \
		./internal/outbox ./internal/webhook ./internal/dispatch/queue ./internal/escrow/store ./internal/escrow/watch ./fsm ./internal/discovery/coordinator ./internal/discovery/director ./internal/relayer/modeltest

compose-up: ## Build the image and start everything with Docker Compose
	@$(MAKE) --no-print-directory build
	@scripts/compose.sh up

compose-down: ## Stop it and remove its containers, networks and volumes
	@scripts/compose.sh down

compose-drill: ## Break a composed cluster in every way we promise to survive
	@$(MAKE) --no-print-directory build
	@scripts/compose.sh drill
