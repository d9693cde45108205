"""A stand-in with the names of surface.json: it refuses any other name, and values it lacks.

Each test says what its LLM does (`plan`); without a word it generates from what it is given, so
that the same prompt has the same answer.
"""

from __future__ import annotations

from tensorrt_llm._llm import LLM, Plan, plan

__version__ = "1.2.1"
__all__ = ["LLM", "Plan", "plan"]
