# Rollcall: `make` lists the targets. Docker is needed for compose-*; what else one lacks it installs through
# scripts/setup.sh.

.DEFAULT_GOAL := help
.PHONY: help build dev test test-race test-processes lint generate fuzz bench soak compose-up compose-down compose-drill

# hashicorp/raft reports its metrics through go-metrics under this tag, through a deprecated library without it.
TAGS := hashicorpmetrics
# grpcnotrace leaves out gRPC's debug pages, and with them html/template: 280 KB.
BINARY_TAGS := $(TAGS),grpcnotrace
# Without symbols and debug data: the images hold the binaries.
LDFLAGS ?= -s -w
# Functions follow each other without gaps: the binary is 0.8 MB smaller.
ALIGNMENT := -funcalign=1
# Calls are inlined where speed counts, and where that lets the linker drop unused constants. Everything else is compiled
# without: the binary is 3.6 MB smaller.
INLINED := std github.com/rollcall-dev/... github.com/jackc/... github.com/decred/... go.etcd.io/... \
	$(addprefix github.com/hashicorp/,raft/... raft-boltdb/... go-msgpack/...) \
	google.golang.org/grpc $(addprefix google.golang.org/grpc/,internal/transport mem) \
	$(addprefix google.golang.org/protobuf/,proto internal/impl internal/order encoding/protowire reflect/protoreflect) \
	$(addprefix go.opentelemetry.io/otel/,attribute/... semconv/...)
NOT_INLINED := compress/... crypto/tls crypto/x509/... database/sql/... $(addprefix encoding/,asn1 csv gob pem xml) flag html/... io/fs log/... mime/... \
	net net/mail net/rpc os/exec os/user path/... regexp/... text/... \
	$(addprefix github.com/rollcall-dev/rollcall/,cmd/... $(addprefix internal/,cli/... discovery/directoryfile/... discovery/director/... discovery/foreman/... \
	$(addprefix platform/,config/... devinfo/... pki/... postgres/... redisclient/... tracing/... warnings/... httpserver/...) \
	$(addprefix relay/,forward/... health/... queue/queueurl/... queue/sqs/... reconciler/...) relayer/admin/... relayer/keymonitor/...))
GCFLAGS := -gcflags=all=-l $(INLINED:%=-gcflags=%=) $(NOT_INLINED:%=-gcflags=%=-l)
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
	CGO_ENABLED=0 scripts/progress.sh 10 'compiling bin' go build -tags $(BINARY_TAGS) $(GCFLAGS) -ldflags '$(ALIGNMENT) $(LDFLAGS)' -o bin/ ./cmd/rollcall ./cmd/rollcall-dev

dev: ## Run a whole cluster on this machine, with its data in build/dev
	@[ -e bin/rollcall-dev ] || echo 'The first start takes two minutes and more: what is missing is installed, and everything compiled.'
	@scripts/setup.sh run
	@$(MAKE) --no-print-directory build
	bin/rollcall-dev --data build/dev

# Uncached: what the tests find depends on real processes and clocks, which Go's test cache does not see. make lint vets the
# code. -short selects the smaller forms of some tests; make soak has the larger ones. The linker collects its garbage less often: that
# takes a tenth of its time.
PROCESSORS ?= $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN || echo 2)
GO_TEST := go test -short -vet=off -tags $(TAGS) -count=1 -timeout 25m -p $(PROCESSORS) -parallel $$((2 * $(PROCESSORS))) -toolexec 'env GOGC=400'
# The race detector multiplies processor time by up to seven, so these packages run without it: those whose tests drive
# processes, which do not have it; and those that spend their time on Postgres, in one goroutine, or in simulated clusters. make
# soak runs IN_PROCESS with it. Those that take longest are first.
IN_PROCESS := $(addprefix ./internal/relayer/,tracker modeltest admin service keymonitor store) ./cmd/rollcall \
	./internal/discovery/coordinator ./internal/relay/upstream ./fsm
PROCESS_TESTS := ./internal/relayer/crashtest ./internal/e2e ./internal/relay/crashtest $(IN_PROCESS) \
	./cmd/rollcall-dev ./internal/dev/... ./internal/testutil/...
# Tests of the coordinator in which callers, leaderships and a shutdown meet.
CONCURRENT := ^Test(Directory|Import|Leader|Propose|Register|Shutdown|Watch)

# All PostgreSQL servers of a run start from the files of one initdb, which is in the folder TESTPOSTGRES_RUN.
test: ## Run every test, most of them with the race detector
	@echo 'All tests take 7 to 10 minutes on two cores, the first time longer: everything is compiled before.'
	@scripts/setup.sh test
	@export TESTPOSTGRES_RUN=$$(mktemp -d -t rollcall-test-XXXXXX); trap 'rm -rf "$$TESTPOSTGRES_RUN"' EXIT; trap 'exit 130' HUP INT TERM; \
	$(MAKE) --no-print-directory --keep-going --jobs=2 test-race test-processes

# With the race detector a program, and each process of a test, waits a second at its end for other goroutines' reports: GORACE
# switches that off. A race fails the test all the same. Checks of unsafe pointers, which our code has none of, take 5 to 13 % of
# the processor time: they are off. Both kinds run at once, because tests of processes wait much.
RACE := GORACE=atexit_sleep_ms=0 scripts/progress.sh 60 'testing' $(GO_TEST) -race -gcflags=all=-d=checkptr=0
test-race:
	@status=0; \
	$(RACE) -run '$(CONCURRENT)' ./internal/discovery/coordinator || status=1; \
	$(RACE) $$(go list -tags $(TAGS) ./... | grep -vxF "$$(go list -tags $(TAGS) $(PROCESS_TESTS))") || status=1; \
	exit $$status

test-processes:
	@scripts/progress.sh 60 'testing processes' $(GO_TEST) $(PROCESS_TESTS)

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

soak: ## Torture the relayer and the relay path: 45,000 transactions, while everything around them fails
	@scripts/setup.sh test
	go test -tags $(TAGS),soak -count=1 -timeout 60m -v -run Soak ./internal/relayer/crashtest
	go test -tags $(TAGS),soak -count=1 -timeout 30m -v -run 'TestRelayPath_EverythingIsKilledInTurn|TestDirectory_LeadersKilled' ./internal/e2e
	go test -race -short -tags $(TAGS) -count=1 -timeout 30m $(IN_PROCESS)
	go test -race -tags $(TAGS) -count=1 -timeout 30m -run 'TestSeeds|TestFaults|TestMachine_RandomLogs|TestRestore_DamagedSnapshot|PartitionsAndRepairs|PartitionsLosses' \
		./fsm ./internal/discovery/coordinator ./internal/discovery/director ./internal/relayer/modeltest

compose-up: ## Build the image and start everything with Docker Compose
	@$(MAKE) --no-print-directory build
	@scripts/compose.sh up

compose-down: ## Stop it and remove its containers, networks and volumes
	@scripts/compose.sh down

compose-drill: ## Break a composed cluster in every way we promise to survive
	@$(MAKE) --no-print-directory build
	@scripts/compose.sh drill
