"""Where code of plugins is called: an exception or a wrong return type becomes one line that names it.

`guarded` makes a subclass of a component whose methods are checked.  What they build is left as it is: who runs a
search or a simulator checks its calls (``who`` of the class names it in messages), or finds out by a traceback and
`Host.modules` who raised.  A `TopoplanError` of a plugin is its own message and passes.
"""

from __future__ import annotations

import functools
from abc import ABCMeta
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from topoplan.errors import FabricError, calling
from topoplan.plugin.components import CONTRACTS, Registered

R = TypeVar("R", bound=Registered)
#: Methods of components whose results are checked.
_CHECKED = ("build", "write", "read", "read_strategy", "refuses", "refuses_problem", "doubts", "order", "rounds")


def modules_of(code: Iterable[Any]) -> set[str]:
    """Return the modules of functions and classes and the packages that these are in; nothing of core itself."""
    names = {getattr(each, "__module__", None) or type(each).__module__ for each in code}
    names |= {name.partition(".")[0] for name in names}
    return {name for name in names if name.partition(".")[0] not in ("topoplan", "builtins", "types")}


def guarded(cls: type[R], provider: object) -> type[R]:
    """Return a subclass with checks around its methods; messages name the component and its ``provider``."""
    who = f"{cls.kind.value} {cls.name!r} ({provider})"
    methods = {name: _checked(cls, name, who) for name in _CHECKED if hasattr(CONTRACTS[cls.kind], name)}
    names = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    return cast(
        "type[R]", ABCMeta(cls.__name__, (cls,), {"__slots__": (), "guards": cls, "who": who, **names, **methods})
    )


def _checked(cls: type[Registered], name: str, who: str) -> Callable[..., Any]:
    method = getattr(cls, name)

    @functools.wraps(method)
    def call(component: Any, *arguments: Any) -> Any:
        from topoplan.plugin._guarded_builds import check_returned  # which imports numpy

        try:
            with calling(f"{who}: {name}"):
                value = method(component, *arguments)
        except FabricError as error:
            raise error.of(who) from None
        check_returned(value, cls.kind, name, who)
        return value

    return call
