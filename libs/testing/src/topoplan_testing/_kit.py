"""Collects the checks of a component or command and hands them to pytest, or runs them one after the other."""

from __future__ import annotations

import functools
import importlib
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from topoplan.errors import TopoplanError
from topoplan.plugin.components import Registered, check_class, unguarded


def checks_for(component: type[Registered]) -> dict[str, Callable[[], None]]:
    """Return the checks that apply to a component or command: promise -> function that raises if it is broken.

    A component that a host hands out, which names its plugin in what goes wrong, is checked as its author made it.
    """
    component = unguarded(component)
    try:
        check_class(component)
    except TopoplanError:  # the others would say less of the same
        return {check_class.__name__: functools.partial(check_class, component)}
    checks: dict[str, Callable[[], None]] = {}
    for module in ["common", *({component.kind.value} - {"machine", "command"})]:
        namespace = importlib.import_module(f"topoplan_testing._{module}")
        for name, function in vars(namespace).items():
            if name.startswith("check_") and inspect.getmodule(function) is namespace:
                (of,) = typing.get_args(typing.get_type_hints(function)["component"])
                if issubclass(component, of):
                    checks[name] = functools.partial(function, component)
    return checks


def check_component(component: type[Registered]) -> None:
    """Run all checks of a component or command; the first broken promise raises `AssertionError`."""
    for name, check in checks_for(component).items():
        try:
            check()
        except AssertionError as error:
            raise AssertionError(f"{component.kind.value} {component.name!r}: {name}: {error}") from error


def parametrize_with_checks(component: type[Registered], expected_failures: Mapping[str, str] | None = None) -> Any:
    """Parametrize a test with an argument ``check``: one case for every promise.

    Args:
        component: the component or command that is tested.
        expected_failures: name of a check -> why the component cannot keep this promise.  The case must
            then fail (a strict xfail), so that an excuse does not outlive its reason.
    """
    import pytest

    excuses = dict(expected_failures or {})
    checks = checks_for(component)
    unknown = excuses.keys() - checks.keys()
    if unknown:
        raise ValueError(f"expected_failures: no such check: {', '.join(sorted(unknown))} (have: {', '.join(checks)})")
    cases = []
    for name, check in checks.items():
        marks = [pytest.mark.xfail(strict=True, reason=excuses[name])] if name in excuses else []
        cases.append(
            pytest.param(check, id=f"{component.kind.value}-{getattr(component, 'name', '')}-{name}", marks=marks)
        )
    return pytest.mark.parametrize("check", cases)
