# What needs a GPU.
GPU_E2E := gpu sdk responses_sdk anthropic_sdk replicas

.PHONY: test-gpu
test-gpu: installed-test ## Check the CUDA backend on this machine's GPU: kernels, steps, the contract, nano to real SDKs
	@$(BIN)/pytest -m "" tests/engines/native/cuda tests/engines/contract $(GPU_E2E:%=tests/e2e/test_%.py)
	@mkdir -p build && $(BIN)/python -m nano.report --device cuda --out build/nano-cuda.md

.PHONY: bench-gpu
bench-gpu: installed-test ## Measure the CUDA backend beside its floor
	@$(BIN)/python -m benchmarks.gpu

.PHONY: bench-gpu-disk
bench-gpu-disk: installed-test ## Start the engine on the GPU from a checkpoint on disk, and ask it
	@$(BIN)/python -m benchmarks.gpu_disk

.PHONY: bench-gpu-start
bench-gpu-start: installed-test ## Measure starts on the GPU: with nothing, and with what the one before left
	@$(BIN)/python -m benchmarks.gpu_start

.PHONY: bench-gpu-http
bench-gpu-http: installed-test ## Streams over HTTP from the engine on the GPU, beside the engine alone
	@$(BIN)/python -m benchmarks.gpu_http

.PHONY: bench-gpu-replicas
bench-gpu-replicas: installed-test ## Two GPUs as replicas: throughput, routing, a death amid streams
	@$(BIN)/python -m benchmarks.gpu_replicas

.PHONY: bench-gpu-split
bench-gpu-split: installed-test ## What tensor parallelism over two GPUs could bring at best
	@$(BIN)/python -m benchmarks.gpu_split

.PHONY: bench-gpu-death
bench-gpu-death: installed-test ## Kill engines on the GPU amid streams: which answers go on word for word
	@$(BIN)/python -m benchmarks.gpu_death

.PHONY: test-gpu-portable
test-gpu-portable: installed-test ## Check the CUDA backend as compiled for GPUs before Hopper, on this machine's GPU
	@$(BIN)/pytest -m "" -n 0 -p tests.engines.native.cuda.portable tests/engines/native/cuda

.PHONY: kernels-offline
kernels-offline: installed-test ## Compile every kernel for GPUs that are not here; hold them to each one's limits
	@$(BIN)/pytest -m "" -n 0 -s tests/engines/native/cuda/test_offline.py
