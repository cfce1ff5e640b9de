# Holdfast's build. `make help` lists the targets.

# One set of build flags everywhere: the build, the linter and the tests then
# share one build cache, and gVisor is compiled once.
export GOFLAGS    := -trimpath
export CGO_ENABLED := 0
SHELL             := /bin/bash
.SHELLFLAGS       := -euo pipefail -c
.DEFAULT_GOAL     := build

VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS  := -s -w -X github.com/holdfast-run/holdfast/cli.version=$(VERSION)
# gVisor's main is left out of the race run: it has no tests of its own here and
# would be compiled a second time for nothing.
UNIT     := $$(go list ./... | grep -v -e /e2e -e /cmd/runsc -e /embedded/build)
E2E_TIME := 15m
LINT     := v2.15.0
TOOLS    := bin/tools
STEP     := hack/step.sh

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## install the system packages that are missing (apt, root)
	@hack/setup.sh run

.PHONY: assets
assets: ## build the runtime and the guest that the binary carries
	@go run ./embedded/build

.PHONY: build
build: assets ## build bin/holdfast
	@mkdir -p bin
	@go build -ldflags '$(LDFLAGS)' -o bin/holdfast ./cmd/holdfast

.PHONY: up
up: setup build ## set up, build, start the daemon and run the main job once
	@bin/holdfast up --demo

.PHONY: down
down: ## stop the daemon that `make up` started; sandboxes go on
	@bin/holdfast down

.PHONY: test
test: ## set up, then all tests: unit (race detector) and end to end
	@$(STEP) setup hack/setup.sh test
	@$(STEP) build $(MAKE) --no-print-directory build
	@$(STEP) unit $(MAKE) --no-print-directory unit
	@$(STEP) e2e $(MAKE) --no-print-directory e2e

.PHONY: unit
unit: assets ## unit and conformance tests with the race detector (root)
	@CGO_ENABLED=1 go test -race -timeout 15m $(UNIT)

.PHONY: e2e
e2e: build ## real clients and faults against real daemons (root)
	@go test -count=1 -timeout $(E2E_TIME) ./e2e/...

.PHONY: lint
lint: $(TOOLS)/golangci-lint-$(LINT) ## static checks
	@bad=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$bad" || { printf 'lint: not gofmt-ed, run make fmt:\n%s\n' "$$bad" >&2; exit 1; }
	@$< run --allow-parallel-runners

# Built from source through the module proxy once; its version is in its name.
$(TOOLS)/golangci-lint-$(LINT):
	@mkdir -p $(TOOLS)
	@GOBIN=$(CURDIR)/$(TOOLS) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT)
	@mv $(TOOLS)/golangci-lint $@

.PHONY: fmt
fmt: ## format the Go code
	@gofmt -w $$(git ls-files '*.go')

.PHONY: generate
generate: ## make all generated code anew; CI checks that nothing changes
	@go generate ./...

.PHONY: bench
bench: build ## measure against the running daemon, beside Docker where there is one
	@bin/holdfast bench --vs docker

.PHONY: clean
clean: ## remove what was built, but not the tools
	@find bin -mindepth 1 -maxdepth 1 ! -name tools -exec rm -rf {} + 2>/dev/null || true
	@find embedded/assets -mindepth 1 ! -name README -delete
