"""A stand-in for TensorRT-LLM that computes: make test-trtllm lets the contract's tests use it.

Written from the library's documented behaviour, for the adapter to meet what a stub cannot show:
arguments that are validated, grammars followed by the llguidance that it pins, a loop of steps in
a thread, statistics after each step, errors as words. A model is computed by transformers on the
CPU, in float32; its tokens are a real model's. What is not here: GPUs, MPI, drafts, speed.
"""

from tensorrt_llm.llmapi.llm import LLM

__all__ = ["LLM"]
__version__ = "1.2.1"
