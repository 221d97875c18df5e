# Every target does its own set-up. Settings go on the line: make rollout EPISODES=200 SANDBOX=docker
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
SAO := .venv/bin/sao

CONFIG ?= demo
RUN ?= latest
EPISODES ?=
SANDBOX ?=
TASKS ?=
MODEL ?=
ENGINE ?=
ARGS ?=

STEPS ?=
SEED ?=
CRITIC ?=
CONTROL ?=
SCORE ?= 256

# ENGINE=vllm: the environment of the servers is made first.
VLLM = $(if $(filter vllm,$(ENGINE)),scripts/vllm-env.sh)
ENGINE_SET = $(if $(ENGINE),--set engine.kind=$(ENGINE))

.PHONY: help install image rollout train eval demo replay doctor test chaos attacks study lint clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: ## make .venv with the pinned dependencies (CPU torch where there is no GPU)
	@scripts/install.sh

image: install ## make the sandboxes' base image where a Docker engine answers
	@scripts/base-image.sh --if-engine

rollout: image ## run episodes in sandboxes: EPISODES=200 SANDBOX=docker|embedded TASKS=rows.jsonl MODEL=folder ENGINE=vllm
	@$(VLLM)
	@$(SAO) rollout --config $(CONFIG) $(if $(EPISODES),--episodes $(EPISODES)) $(if $(SANDBOX),--sandbox $(SANDBOX)) \
		$(if $(TASKS),--tasks $(TASKS)) $(if $(MODEL),--model $(MODEL)) $(ENGINE_SET) $(ARGS)

TRAIN = $(SAO) train --config $(CONFIG) $(if $(STEPS),--steps $(STEPS)) $(if $(SEED),--seed $(SEED)) \
		$(if $(TASKS),--tasks $(TASKS)) $(if $(SANDBOX),--sandbox $(SANDBOX)) $(if $(MODEL),--model $(MODEL)) $(if $(CRITIC),--critic $(CRITIC)) \
		$(if $(CONTROL),--control $(CONTROL)) $(ENGINE_SET)

train: image ## train the policy on its own episodes: STEPS=100 SEED=0 TASKS=rows.jsonl CONTROL=one_critic_update CRITIC=folder ENGINE=vllm
	@$(VLLM)
	@$(TRAIN) $(ARGS)

eval: image ## score a model on held-out tasks: MODEL=folder, or RUN=demo-train-001 for a trained one
	@$(SAO) eval micro-swe --config $(CONFIG) --tasks $(SCORE) $(if $(SANDBOX),--sandbox $(SANDBOX)) \
		$(if $(MODEL),--model $(MODEL),$(if $(filter-out latest,$(RUN)),--run $(RUN))) $(ARGS)

demo: image ## score, train, score again: SCORE=256 SEED=0; ends with a before/after table and curves
	@$(VLLM)
	@$(TRAIN) --score $(SCORE) $(ARGS)

replay: install ## show a trajectory turn by turn: RUN=demo-001
	@$(SAO) replay $(RUN) $(ARGS)

doctor: install ## what this machine can do, and how to mend what it cannot
	@$(SAO) doctor

test: install ## the tests; those that need a Docker engine say so when there is none
	@.venv/bin/python -m pytest $(ARGS)

chaos: image ## SIGKILL drivers in the middle: 30 times with sandboxes alone, 10 times a backend with episodes (minutes)
	@SAO_SANDBOX_KILLS=$${SAO_SANDBOX_KILLS:-30} .venv/bin/python -m pytest -s tests/envs/test_sandbox_chaos.py $(ARGS)
	@SAO_KILLS=$${SAO_KILLS:-10} .venv/bin/python -m pytest tests/sao/test_kill.py $(ARGS)

attacks: image ## attacks on the graders of training and evaluation: ARGS=--quick (embedded sandboxes alone)
	@.venv/bin/python -m benchmarks.attacks $(ARGS)

study: image ## three seeds of the demo and its controls into docs/results/demo.md (about two hours; goes on where it stopped)
	@.venv/bin/python -m benchmarks.demo_study $(ARGS)

lint: install ## ruff and mypy over the packages
	@.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy

clean: ## remove the environment and caches (runs/ stays)
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
