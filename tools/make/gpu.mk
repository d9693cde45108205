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

.PHONY: bench-gpu-serving
bench-gpu-serving: installed-test ## Starts and serving loads over HTTP at the default start on the GPU
	@$(BIN)/python -m tools.benchmarks.gpu_serving

.PHONY: test-gpu-portable
test-gpu-portable: installed-test ## Check the CUDA backend as compiled for GPUs before Hopper, on this machine's GPU
	@$(BIN)/pytest -m "" -n 0 -p tests.engines.native.cuda.portable tests/engines/native/cuda

.PHONY: kernels-offline
kernels-offline: installed-test ## Compile every kernel for GPUs that are not here; hold them to each one's limits
	@$(BIN)/pytest -m "" -n 0 -s tests/engines/native/cuda/offline/test_offline.py
