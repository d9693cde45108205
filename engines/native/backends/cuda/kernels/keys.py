"""The keys under which Triton keeps compiled kernels, made the same in every process.

Triton hashes a kernel with the functions that it calls, and adds the globals of those that it has
hashed before (`DependenciesFinder._update_hash` of 3.6 and 3.7): a key depends on which kernel of a
process came first. So all are hashed in one order before any is launched.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from threading import Lock

from triton.runtime.jit import JITFunction

import engines.native.backends.cuda.kernels as package

_order = Lock()  # one thread hashes, and others wait for it


def fix_keys() -> None:
    """Hash every kernel and what it calls, by the names of modules and functions."""
    with _order:
        for name in sorted(module.name for module in iter_modules(package.__path__)):
            for _, each in sorted(vars(import_module(f"{package.__name__}.{name}")).items()):
                if isinstance(each, JITFunction):
                    _ = each.cache_key
