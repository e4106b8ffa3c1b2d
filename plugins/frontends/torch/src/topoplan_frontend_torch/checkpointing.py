"""What an export forgets: which calls lie in a region of ``torch.utils.checkpoint``, and ``torch.inference_mode``.

torch exports what a checkpointed function does and forgets that it was checkpointed; with ``use_reentrant=True`` what
follows is exported as if it had no gradients.  While `marked_checkpoints` is active, the two implementations of
``checkpoint`` run their function once and annotate the nodes that it makes.  All ways to checkpoint lead there:
``checkpoint_sequential``, wrappers of modules, and ``gradient_checkpointing_enable`` of transformers.

An export keeps ``torch.no_grad`` and drops ``torch.inference_mode``; `inference_without_gradients` makes one the other.
"""

from __future__ import annotations

import inspect
import itertools
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from topoplan import TopoplanError
from topoplan.errors import TopoplanWarning
from topoplan_frontend_torch.program import Region

__all__ = ["check_exported", "inference_without_gradients", "marked_checkpoints", "refuse_reentrant", "region_of"]

#: Key of the annotation of nodes.
_KEY = "topoplan_checkpoint"
#: The line of torch's code that runs a function of which autograd records nothing.
_REENTRANT = re.compile(r"checkpoint\.py\", line \d+, in forward\s+outputs = run_function\(\*args\)")
#: What ``checkpoint`` calls with ``use_reentrant=False``: since torch 2.14, and before.
_GENERATORS = ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")


@contextmanager
def marked_checkpoints(torch: Any) -> Iterator[None]:
    """Annotate what checkpointed functions do while a module is exported."""
    module, traceback = torch.utils.checkpoint, torch.fx.traceback
    generator = next((name for name in _GENERATORS if hasattr(module, name)), "")
    before = {name: getattr(module, name) for name in ("CheckpointFunction", generator) if name}
    marks = _Marks(getattr(traceback, "annotate", None))

    class Reentrant:
        """In the place of ``CheckpointFunction``."""

        @staticmethod
        def apply(function: Callable[..., Any], _preserve_rng_state: bool, *args: Any) -> Any:
            with marks.region(reentrant=True):
                return function(*args)

    def not_reentrant(*args: Any, **kwargs: Any) -> Iterator[None]:
        arguments = inspect.signature(before[generator]).bind(*args, **kwargs).arguments
        if arguments.get("context_fn", module.noop_context_fn) is not module.noop_context_fn:
            marks.is_selective = True
        stops_early = getattr(module, "_enable_checkpoint_early_stop", None)
        if stops_early is None:
            stops_early = arguments.get("early_stop", True)
        with marks.region(reentrant=not stops_early):
            yield

    for name in before:
        setattr(module, name, not_reentrant if name == generator else Reentrant)
    try:
        marks.check(module.checkpoint)
        with traceback.preserve_node_meta():
            yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)
    marks.warn()


@contextmanager
def inference_without_gradients(torch: Any) -> Iterator[None]:
    """Let ``torch.inference_mode`` do what ``torch.no_grad`` does while a module is exported."""
    mode = torch.inference_mode
    before = mode.__enter__, mode.__exit__
    entered: list[AbstractContextManager[Any]] = []

    def enter(self: Any) -> None:
        entered.append(torch.no_grad() if self.mode else nullcontext())
        entered[-1].__enter__()

    def leave(_self: Any, *error: Any) -> None:
        entered.pop().__exit__(*error)

    mode.__enter__, mode.__exit__ = enter, leave
    try:
        yield
    finally:
        mode.__enter__, mode.__exit__ = before


class _Marks:
    """The regions of one export; ``annotate`` is torch's, None where it has none.

    Attributes:
        is_selective: whether some region keeps chosen values, as its policy says.
    """

    def __init__(self, annotate: Callable[[dict[str, Any]], AbstractContextManager[None]] | None) -> None:
        self._annotate = annotate
        self._numbers = itertools.count()
        self._depth = 0
        self._are_lost = False
        self.is_selective = False

    @contextmanager
    def region(self, *, reentrant: bool) -> Iterator[None]:
        """Annotate the nodes of a region; one within another is a part of it."""
        self._are_lost |= self._annotate is None
        is_outer = self._depth == 0 and self._annotate is not None
        self._depth += 1
        mark = [next(self._numbers), int(reentrant)] if is_outer else []
        try:
            with self._annotate({_KEY: mark}) if is_outer and self._annotate is not None else nullcontext():
                yield
        finally:
            self._depth -= 1

    def check(self, checkpoint: Callable[..., Any]) -> None:
        """Run a function by torch's ``checkpoint``: a version that does it in yet another way makes no region."""
        if self._annotate is None:
            return
        depths: list[int] = []
        for reentrant in (False, True):
            checkpoint(lambda _: depths.append(self._depth), None, use_reentrant=reentrant)
        self._are_lost |= depths != [1, 1]

    def warn(self) -> None:
        """Say what a plan does not follow."""
        if self._are_lost:
            _warn("calls of torch.utils.checkpoint are not seen in this version of torch (2.9 to 2.14): without them")
        if self.is_selective:
            _warn("selective checkpointing is planned as if all of its region ran again")


def region_of(node: Any) -> Region | None:
    """Return the region that a node of an exported graph was annotated with."""
    mark = (node.meta.get("custom") or {}).get(_KEY)
    return Region(int(mark[0]), bool(mark[1])) if mark else None


def check_exported(exported: Any, where: str) -> None:
    """Raise `TopoplanError` where a program was exported elsewhere through a reentrant checkpoint.

    Autograd records nothing in there, nor in what follows, so that nothing says what is trained.
    """
    for module in exported.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            refuse_reentrant(node.meta.get("stack_trace"), region_of(node) is not None, where)


def refuse_reentrant(stack: Any, marked: bool, where: str) -> None:
    """Raise `TopoplanError` where the stack of a node leads through a reentrant checkpoint that is not marked."""
    if isinstance(stack, str) and _REENTRANT.search(stack) and not marked:
        raise TopoplanError(
            f"{where}: was exported through torch.utils.checkpoint with use_reentrant=True, which hides what is "
            "trained (give the module itself, or export it without checkpointing)"
        )


def _warn(text: str) -> None:
    warnings.warn(TopoplanWarning(f"frontend torch: {text}"), stacklevel=2)
