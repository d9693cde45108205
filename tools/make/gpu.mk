# What needs a GPU.
GPU_E2E := gpu sdk responses_sdk anthropic_sdk replicas

.PHONY: test-gpu
test-gpu: installed-test ## Check the CUDA backend on this machine's GPU: kernels, steps, the contract, nano to real SDKs
	@$(BIN)/pytest -m "" tests/engines/native/cuda tests/engines/contract $(GPU_E2E:%=tests/e2e/test_%.py)
	@mkdir -p build && $(BIN)/python -m tools.nano.report --device cuda --out build/nano-cuda.md

.PHONY: evals-gpu
evals-gpu: installed-test $(CLIENTS)/evals/.gpt-oss ## lm-eval, OpenAI's evals and Inspect on nano by the CUDA backend
	@$(BIN)/pytest -m clients tests/clients/test_evals.py

.PHONY: bench-gpu
bench-gpu: installed-test ## Measure the CUDA backend beside its floor
	@$(BIN)/python -m tools.benchmarks.gpu

.PHONY: bench-gpu-disk
bench-gpu-disk: installed-test ## Start the engine on the GPU from a checkpoint on disk, and ask it
	@$(BIN)/python -m tools.benchmarks.gpu_disk

.PHONY: bench-gpu-start
bench-gpu-start: installed-test ## Measure starts on the GPU: with nothing, and with what the one before left
	@$(BIN)/python -m tools.benchmarks.gpu_start

.PHONY: bench-gpu-http
bench-gpu-http: installed-test ## Streams over HTTP from the engine on the GPU, beside the engine alone
	@$(BIN)/python -m tools.benchmarks.gpu_http

.PHONY: bench-gpu-traffic
bench-gpu-traffic: installed-test ## Traffic at the engine on the GPU, by goal, and what steps take
	@$(BIN)/python -m tools.benchmarks.gpu_traffic

.PHONY: bench-gpu-serving
bench-gpu-serving: installed-test ## Starts and serving loads over HTTP at the default start on the GPU
	@$(BIN)/python -m tools.benchmarks.gpu_serving

.PHONY: bench-gpu-attention
bench-gpu-attention: installed-test ## Variants of a decode step's attention behind long contexts
	@$(BIN)/python -m tools.benchmarks.gpu_attention

.PHONY: bench-gpu-row-attention
bench-gpu-row-attention: installed-test ## Attention of decoding rows beside a chunk, by variant
	@$(BIN)/python -m tools.benchmarks.gpu_row_attention

.PHONY: bench-gpu-replicas
bench-gpu-replicas: installed-test ## Two GPUs as replicas: throughput and routing
	@$(BIN)/python -m tools.benchmarks.gpu_replicas

.PHONY: bench-gpu-stages
bench-gpu-stages: installed-test ## 120b over two GPUs held to 48 GB each, beside one GPU that holds it all
	@$(BIN)/python -m tools.benchmarks.gpu_stages

.PHONY: bench-gpu-tune
bench-gpu-tune: installed-test ## build-engine --tune on this GPU: what it takes, and what a step gains
	@$(BIN)/python -m tools.benchmarks.gpu_tune

.PHONY: test-gpu-portable
test-gpu-portable: installed-test ## Check the CUDA backend as compiled for GPUs before Hopper, on this machine's GPU
	@$(BIN)/pytest -m "" -n 0 -p tests.engines.native.cuda.portable tests/engines/native/cuda

.PHONY: kernels-offline
kernels-offline: installed-test ## Compile every kernel for GPUs that are not here; hold them to each one's limits
	@$(BIN)/pytest -m "" -n 0 -s tests/engines/native/cuda/offline/test_offline.py
