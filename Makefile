# hops: one binary, a platform for training models. `make help` lists the targets.
GO       ?= go
# All that is built here is built alike, so that nothing is compiled twice: what `make build` has made serves the tests, vet and the linters.
export GOFLAGS := -trimpath $(GOFLAGS)
BIN      := bin
TOOLS    := $(BIN)/tools
VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS  := -s -w -X main.version=$(VERSION)
GOLANGCI_VERSION := v2.15.0
NFPM_VERSION := v2.45.0
# The packages with the most concurrency; `make lint` runs their tests under the race detector.
RACE     := ./internal/... ./metadata/... ./namenode/... ./datanode/... ./client/dfs/... ./resourcemanager/... ./nodemanager/... ./training/...

.PHONY: help build build-static demo test race lint attack bench bench-checkpoint bench-controller bench-data bench-quick bench-training bench-micro bench-optimizers bench-scheduler bench-search bench-sim upgrade cover gen gen-check fmt compat compat-fuzz spark fuzz fault train packages cluster clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/hops (with NVML where there is a C compiler)
	@$(GO) build -ldflags '$(LDFLAGS)' -o $(BIN)/hops ./cmd/hops

build-static: ## build bin/hops without C: static, no NVML
	@CGO_ENABLED=0 $(GO) build -ldflags '$(LDFLAGS)' -o $(BIN)/hops ./cmd/hops

demo: build ## start a cluster, run a hyperparameter search on it, kill parts of it, check everything
	@$(BIN)/hops demo

# The tests draw the same examples every time; SEED=0 draws others. They wait more than they compute: three packages at a time, four tests of
# each. vet is for lint. The compiler collects its garbage less often, which changes nothing of what it makes.
test: ## run all tests (no root, GPU, Python package or network): make test SEED=0 for other random examples than the last time
	@RAPID_SEED=$(or $(SEED),1) $(GO) test -p 3 -parallel 4 -timeout 30m -vet=off -ldflags='-s -w' -toolexec 'env GOGC=400' ./...

race: ## run the tests of the concurrent packages under the race detector
	@$(GO) test -race -short -timeout 30m $(RACE)

lint: $(TOOLS)/golangci-lint ## static checks, import rules, race-enabled tests
	@$(GO) vet ./...
	@$(TOOLS)/golangci-lint run ./...
	@$(GO) test ./integration/archtest
	@$(MAKE) --no-print-directory race

bench: build ## measure hops beside Apache HDFS on this machine: all rows, within an hour (BENCH="-budget 45m")
	@$(GO) build -o $(BIN)/hops-bench ./integration/bench && $(BIN)/hops-bench -hops $(BIN)/hops $(BENCH)

bench-quick: build ## the main rows of one server, 3 rounds, within 20 minutes
	@$(GO) build -o $(BIN)/hops-bench ./integration/bench && $(BIN)/hops-bench -hops $(BIN)/hops -quick $(BENCH)

bench-data: build ## what an epoch over 100,000 files of 4 KiB costs, beside one OPEN each and HDFS through pyarrow where that is (ten minutes; integration/bench/data/run.sh)
	@integration/bench/data/run.sh $(BIN)/hops

bench-checkpoint: build ## what a checkpoint of 256 MB costs beside torch.save on the same disk (PYTHON: one with torch or numpy; 5 minutes; ROUNDS)
	@$(or $(PYTHON),python3) integration/bench/checkpoint/run.py --hops $(BIN)/hops --rounds $(or $(ROUNDS),7) | tee integration/bench/results/checkpoint.txt

bench-sim: ## the quality of scheduling: jobs like Philly's on the scheduler, yarn-like and slurm-like policies, simulated (a minute or two)
	@$(GO) run ./integration/bench/sim

attack: build ## attack servers as another local user: what each attack costs memory and a healthy client (root; 10 minutes; ATTACK="-only frames")
	@$(GO) build -o $(BIN)/hops-attack ./integration/attack && $(BIN)/hops-attack -hops $(BIN)/hops $(ATTACK)

bench-scheduler: build ## what the scheduler and three resource managers cost at 10,000 nodes, into integration/bench/results (10 minutes)
	@GOMAXPROCS=1 $(GO) test -run '^$$' -bench 'Placements|Full' -benchtime 20000x ./resourcemanager/scheduler | tee integration/bench/results/scheduler.txt
	@GOMAXPROCS=1 $(GO) test -run '^$$' -bench 'Gang' -benchtime 200x ./resourcemanager/scheduler | tee -a integration/bench/results/scheduler.txt
	@GOMAXPROCS=1 $(GO) test -run '^$$' -bench 'Preemption' -benchtime 100x ./resourcemanager/scheduler | tee -a integration/bench/results/scheduler.txt
	@echo "YARN's CapacityScheduler, measured elsewhere on an idle machine: 66-75 us of CPU a container at 10,000 nodes, 39-50 at 1,000" | tee -a integration/bench/results/scheduler.txt
	@uptime | tee -a integration/bench/results/scheduler.txt
	@$(GO) test -run '^$$' -bench 'Submissions|Grants' -benchtime 20000x ./resourcemanager/server | tee -a integration/bench/results/scheduler.txt
	@HOPS_BENCH_NODES=10000 $(GO) test -run '^$$' -bench 'AskToGrant|AtRest' -benchtime 200x ./resourcemanager/server | tee -a integration/bench/results/scheduler.txt
	@HOPS_BENCH_BINARY=$(CURDIR)/$(BIN)/hops $(GO) test -run '^$$' -bench GrantToProcess ./nodemanager/server | grep -v level= | tee -a integration/bench/results/scheduler.txt
	@HOPS_BENCH_NODES=10000 $(GO) test -run '^$$' -timeout 30m -bench Failover -benchtime 1x ./resourcemanager/server | tee -a integration/bench/results/scheduler.txt
	@HOPS_BENCH_NODES=10000 $(GO) test -run '^$$' -timeout 30m -bench Heartbeats -benchtime 1x ./resourcemanager/server | tee -a integration/bench/results/scheduler.txt
	@uptime | tee -a integration/bench/results/scheduler.txt

bench-training: build ## what a search adds to its trials: gaps between them, many short ones, an idle controller (3 minutes, a quiet machine): make bench-training TRAINING=--long for 10,000 (12 minutes), TRAINING=--idle for that alone
	@python3 integration/bench/training/run.py $(TRAINING) $(BIN)/hops

bench-controller: build ## what one controller takes, with its journal on a real filesystem and in memory: ask + tell, reports, metrics, decisions, 10,000 trials (2 minutes; COUNT=1)
	@integration/bench/training/controller.sh $(abspath $(BIN)/hops)

bench-search: ## the searches over recorded learning curves in virtual time, and how many trials they decide in a second of CPU, into integration/bench/results/search.txt
	@$(GO) run ./integration/bench/search | tee integration/bench/results/search.txt
	@uptime | tee -a integration/bench/results/search.txt
	@GOMAXPROCS=1 $(GO) test -run '^$$' -bench Trials -benchtime 3x ./training/search | grep cpu-s | tee -a integration/bench/results/search.txt

OPTUNA := integration/bench/optimizers/.venv
$(OPTUNA):
	@python3 -m venv $@.part && $@.part/bin/python3 -m pip install -q --no-compile optuna==5.0.0 cmaes==0.13.1 scipy $(TORCH) && cp integration/bench/results/optimizers-optuna.jsonl $@.part/peer.json && mv $@.part $@

bench-optimizers: $(OPTUNA) ## tpe, cmaes and gp beside Optuna 5 on 25 functions (40 minutes of CPU; more runs of Optuna's gp than are stored, 20 s to 3 minutes each, want TORCH=torch at the first run, 2.9 GB)
	@OMP_NUM_THREADS=1 $(OPTUNA)/bin/python3 integration/bench/optimizers/peer.py --out $(OPTUNA)/peer.json $(PEER)
	@$(GO) run ./integration/bench/optimizers -peer $(OPTUNA)/peer.json $(OPTIMIZERS)

bench-micro: ## run the Go benchmarks of the engines
	@$(GO) test -run '^$$' -bench . -benchtime 1s ./metadata/... ./internal/... ./namenode/... ./datanode/... ./client/... ./resourcemanager/... ./training/...

cover: ## tests with coverage per package, and cover.html
	@$(GO) test -coverprofile=cover.out ./... && $(GO) tool cover -html=cover.out -o cover.html && $(GO) tool cover -func=cover.out | tail -1

gen: $(TOOLS)/protogen ## regenerate Go code from .proto files
	@$(TOOLS)/protogen -plugins $(TOOLS)

gen-check: gen ## fail if generated code is not current
	@git diff --exit-code -- '*.pb.go'

fmt: $(TOOLS)/golangci-lint ## format the code
	@$(TOOLS)/golangci-lint fmt ./...

upgrade: ## upgrade a cluster of the release before (integration/process/older.txt) under load, server by server, back and forth, for good
	@HOPS_UPGRADE=1 $(GO) test -count=1 -timeout 40m -v -run TestRollingUpgrade ./integration/process

compat: build ## foreign clients, and a stock HDFS beside hops: every answer compared (JDK 17, Maven, Python; 5-10 minutes)
	@$(GO) run ./integration/hadoop -hops $(BIN)/hops $(COMPAT_FLAGS)

spark: build ## unmodified PySpark 4.0 and 3.5 on a real cluster: make spark SPARK_FLAGS='-versions 4.0.1 -cases GPU' (JDK 17, Python; PySpark from PyPI)
	@$(GO) run ./integration/spark -hops $(BIN)/hops $(SPARK_FLAGS)

compat-fuzz: build ## random operations on a stock HDFS and on hops: make compat-fuzz SECONDS=600 SEED=1
	@$(GO) run ./integration/hadoop fuzz -hops $(BIN)/hops -seconds $(or $(SECONDS),600) -seed $(or $(SEED),1) $(COMPAT_FLAGS)

fuzz: ## every fuzz target, one after the other; inputs that fail stay in testdata: make fuzz SECONDS=60 TARGETS='namespace|dtp'
	@$(GO) run ./integration/fuzz -seconds $(or $(SECONDS),60) -targets '$(TARGETS)'

fault: build ## the fault matrix: processes killed and frozen, disks full, hung and damaged, on a cluster under load (20 minutes; root and strace for all rows): make fault FAULT='-test.run M1 -repeats 100 -seed 2'
	@command -v strace >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get install -qq -y strace >/dev/null; } || true
	@$(GO) test -c -o $(BIN)/hops-fault ./integration/fault && cd integration/fault && HOPS_BINARY=$(CURDIR)/$(BIN)/hops $(CURDIR)/$(BIN)/hops-fault -test.timeout 6h -fault $(FAULT)

train: build ## the examples with PyTorch, TensorFlow, JAX, Optuna and MLflow on a real cluster, processes killed on the way: make train TRAIN='-cases DDP' (Python, a C compiler; packages from PyPI, 1.1 GB once); TRAIN=-horovod with Horovod (CMake; built once, six minutes)
	@$(GO) run ./integration/train $(TRAIN)

packages: ## build deb, rpm, an archive, a container image and a Python wheel into bin/packages, and try them (a C compiler; as root the deb is installed and run)
	@rm -f $(PACKAGED) && $(MAKE) --no-print-directory $(PACKAGED)
	@HOPS_TEST_PACKAGES=1 $(GO) test -count=1 ./deploy/packages

# Written last of the packages, which are made anew when what they are made of has changed.
PACKAGED := $(BIN)/packages/SHA256SUMS
$(PACKAGED): $(TOOLS)/nfpm $(wildcard $(shell git ls-files '*.go' ':!*_test.go' ':!integration' client/python examples go.mod go.sum deploy/packages LICENSE 2>/dev/null))
	@$(GO) run ./deploy/packages -nfpm $(abspath $(TOOLS))/nfpm -out $(BIN)/packages

cluster: ## a cluster of five machines made of network namespaces, from the deb of make packages: getting in, a search, failures (root; CLUSTER="-only join")
	@test "$$(id -u)" = 0 || { echo "make cluster: needs root, to make network namespaces and mounts (sudo make cluster)" >&2; exit 2; }
	@$(MAKE) --no-print-directory $(PACKAGED)
	@HOPS_TEST_MACHINES=1 $(GO) test -count=1 ./integration/machines
	@$(GO) build -o $(BIN)/hops-cluster ./integration/machines/cluster && $(BIN)/hops-cluster $(CLUSTER)

clean: ## remove what was built
	@rm -rf $(BIN) cover.out cover.html

$(TOOLS)/golangci-lint:
	@echo "installing golangci-lint $(GOLANGCI_VERSION) (once, a few minutes)"
	@GOBIN=$(abspath $(TOOLS)) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)

$(TOOLS)/protogen: internal/tools/go.mod internal/tools/protogen/main.go
	@mkdir -p $(TOOLS)
	@cd internal/tools && $(GO) build -o $(abspath $(TOOLS))/ ./protogen google.golang.org/protobuf/cmd/protoc-gen-go \
		google.golang.org/grpc/cmd/protoc-gen-go-grpc github.com/planetscale/vtprotobuf/cmd/protoc-gen-go-vtproto

$(TOOLS)/nfpm:
	@echo "installing nfpm $(NFPM_VERSION) (once, a minute)"
	@GOBIN=$(abspath $(TOOLS)) $(GO) install github.com/goreleaser/nfpm/v2/cmd/nfpm@$(NFPM_VERSION)
