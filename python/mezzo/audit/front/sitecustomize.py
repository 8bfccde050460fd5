"""Python imports this module at its start, because `mezzo doctor --run` puts its folder first in PYTHONPATH."""

import importlib.util
import os
import sys

_folder = os.path.dirname(os.path.abspath(__file__))


def _chain() -> None:
    """Imports the sitecustomize that this one stands before, if there is one."""
    rest = [path for path in sys.path if os.path.abspath(path or ".") != _folder]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def _follow() -> None:
    package = os.path.dirname(_folder)
    spec = importlib.util.spec_from_file_location("mezzo_audit", os.path.join(package, "__init__.py"), submodule_search_locations=[package])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mezzo_audit"] = module
    spec.loader.exec_module(module)
    from mezzo_audit import _follow  # type: ignore[import-not-found]

    _follow.wait_for_torch()


if os.environ.get("MEZZO_AUDIT_FOLDER"):
    _follow()
_chain()
