"""Puts functions in the place of others and takes them out again: afterwards every name has its original."""

from __future__ import annotations

import sys
from typing import Any, Callable, List, Tuple


class Patches:
    """Replaced attributes of classes and modules, in order."""

    def __init__(self) -> None:
        self._done: List[Tuple[Any, str, Any]] = []
        self._functions: List[Tuple[Any, Any]] = []

    def method(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replaces a method that `owner` itself defines; where it defines none, nothing changes."""
        original = vars(owner).get(name)
        if original is None:
            return
        wrapper = make(original)
        wrapper.__name__, wrapper.__doc__, wrapper.__wrapped__ = name, getattr(original, "__doc__", None), original
        self._done.append((owner, name, original))
        setattr(owner, name, wrapper)

    def function(self, module: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replaces a function under every name that a loaded module has for it."""
        original = getattr(module, name, None)
        if original is None:
            return
        wrapper = make(original)
        wrapper.__name__, wrapper.__doc__, wrapper.__wrapped__ = name, getattr(original, "__doc__", None), original
        _swap([(original, wrapper)])
        self._functions.append((wrapper, original))

    def restore(self) -> None:
        """Everything is again what it was, also in modules that imported a replaced function since."""
        while self._done:
            owner, name, original = self._done.pop()
            setattr(owner, name, original)
        _swap(self._functions)
        self._functions = []


def _swap(pairs: List[Tuple[Any, Any]]) -> None:
    if not pairs:
        return
    found = {id(old): new for old, new in pairs}
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if type(names) is not dict:
            continue
        for name, value in list(names.items()):
            if id(value) in found:
                names[name] = found[id(value)]
