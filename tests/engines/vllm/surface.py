"""What vLLM's sources have, from its wheels: writes or checks surface.json (make vllm-surface).

    python -m tests.engines.vllm.surface [--check] WHEEL ...

Nothing of vLLM is imported or installed. A name is kept if every version has it.
"""

from __future__ import annotations

import ast
import json
import sys
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).with_name("surface.json")
CLASSES: Final = (
    *("AsyncEngineArgs", "SamplingParams", "StructuredOutputsParams", "TokensPrompt"),
    *("RequestOutput", "CompletionOutput", "Logprob", "RequestStateStats", "SchedulerStats"),
    *("PrefixCacheStats", "IterationStats", "PromptTokenStats", "SpecDecodingStats"),
)
# Options of profiles with values of a closed list: the file, and the name it has there.
LITERALS: Final = {
    "kv_cache_dtype": ("vllm/config/cache.py", "CacheDType"),
    "speculative_config.method": ("vllm/config/speculative.py", "SpeculativeMethod"),
}
MOE_BACKENDS: Final = "vllm/model_executor/layers/fused_moe/oracle/mxfp4.py"  # for gpt-oss


class Sources:
    """The Python files of a wheel."""

    def __init__(self, wheel: Path) -> None:
        self._archive = zipfile.ZipFile(wheel)
        self.version = wheel.name.split("-")[1]
        names = self._archive.namelist()
        self._files = [name for name in names if name.startswith("vllm/") and name.endswith(".py")]
        self._classes: dict[str, ast.ClassDef] = {}

    def tree(self, name: str) -> ast.Module:
        """Parse a file."""
        return ast.parse(self._archive.read(name))

    def class_of(self, name: str) -> ast.ClassDef | None:
        """Find a class by its name; None where vLLM has none."""
        if name not in self._classes:
            line = f"\nclass {name}"
            for file in self._files:
                if line in self._archive.read(file).decode():
                    found = [n for n in self.tree(file).body if isinstance(n, ast.ClassDef)]
                    self._classes |= {node.name: node for node in found if node.name == name}
        return self._classes.get(name)

    def names(self, name: str) -> set[str]:
        """The fields of a class, and attributes of its __init__, its bases' too."""
        node = self.class_of(name)
        if node is None:
            return set()
        bases = (base.id for base in node.bases if isinstance(base, ast.Name))
        return {*_own(node), *(each for base in bases for each in self.names(base))}

    @cache  # noqa: B019  # a few files live as long as the program
    def environment(self) -> set[str]:
        """The variables that vllm.envs knows."""
        for node in ast.walk(self.tree("vllm/envs.py")):
            target = node.target if isinstance(node, ast.AnnAssign) else None
            if isinstance(target, ast.Name) and target.id == "environment_variables":
                assert isinstance(node, ast.AnnAssign)
                assert isinstance(node.value, ast.Dict)
                return {str(ast.literal_eval(key)) for key in node.value.keys if key is not None}
        raise ValueError("vllm/envs.py has no environment_variables")

    def values(self, option: str) -> set[str]:
        """What an option may be."""
        if option == "moe_backend":
            return _keys_of(self.tree(MOE_BACKENDS), "map_mxfp4_backend")
        file, name = LITERALS[option]
        return _literal(self.tree(file), name)


def _own(node: ast.ClassDef) -> Iterator[str]:
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            yield part.target.id
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            for inner in ast.walk(part):
                if not isinstance(inner, ast.Attribute) or not isinstance(inner.ctx, ast.Store):
                    continue
                if isinstance(inner.value, ast.Name) and inner.value.id == "self":
                    yield inner.attr


def _literal(tree: ast.Module, name: str) -> set[str]:
    """The strings of `name = Literal[...]`, those of the Literals that it names too."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == name for target in node.targets
        ):
            found = set()
            for part in ast.walk(node.value):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    found.add(part.value)
                elif isinstance(part, ast.Name) and part.id != name and part.id != "Literal":
                    found |= _literal(tree, part.id)
            return found
    return set()


def _keys_of(tree: ast.Module, function: str) -> set[str]:
    """The keys of the first dictionary that a function writes down."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            tables = (part for part in ast.walk(node) if isinstance(part, ast.Dict))
            return {str(ast.literal_eval(key)) for key in next(tables).keys if key is not None}
    raise ValueError(f"there is no {function}")


def surface(wheels: list[Path]) -> dict[str, Any]:
    """What every one of the wheels has."""
    sources = [Sources(wheel) for wheel in wheels]

    def common(*sets: set[str]) -> list[str]:
        return sorted(name for name in set.intersection(*sets) if not name.startswith("_"))

    return {
        "versions": [source.version for source in sources],
        "names": {name: common(*(s.names(name) for s in sources)) for name in CLASSES},
        "environment": common(*(s.environment() for s in sources)),
        "values": {
            option: common(*(s.values(option) for s in sources))
            for option in ("moe_backend", *LITERALS)
        },
    }


def _written(found: dict[str, Any]) -> str:
    """JSON with a line for each list."""
    parts = []
    for key, value in found.items():
        if isinstance(value, dict):
            rows = (f"  {json.dumps(name)}: {json.dumps(names)}" for name, names in value.items())
            parts.append(f" {json.dumps(key)}: {{\n{f',{chr(10)}'.join(rows)}\n }}")
        else:
            parts.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main(arguments: list[str]) -> int:
    """Write surface.json, or with --check compare it."""
    found = surface([Path(name) for name in arguments if name != "--check"])
    if "--check" not in arguments:
        FILE.write_text(_written(found), encoding="utf-8")
        return 0
    known = json.loads(FILE.read_text(encoding="utf-8"))
    different = [key for key in found if found[key] != known.get(key)]
    print(f"{FILE.name} differs in {', '.join(different)}" if different else "the same")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
