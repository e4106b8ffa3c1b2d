"""Options of commands, made of the attrs classes that hold them: one declaration for commands, TOML files and Python.

A parameter of a command that is annotated with a class becomes one option for each field of that class that
`topoplan.options.option` declares, and the command gets an instance.  `topoplan.options.structure` reads what was
typed, so that a bad value has the same message wherever it was written.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import attrs
import typer

from topoplan.errors import TopoplanError
from topoplan.options import OptionInfo, describe, structure
from topoplan_engine.class_code import keep_class_code
from topoplan_engine.completion import completion_of, names_of
from topoplan_engine.text_command import TextCommand
from topoplan_engine.wordlists import listed

__all__ = [
    "AllowCode",
    "AsJson",
    "Details",
    "Exports",
    "Flags",
    "Folder",
    "Open",
    "one_command",
    "typed_command",
    "with_flags",
]

keep_class_code()  # of all classes that a command imports from here on

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Details = Annotated[bool, typer.Option("--details", help="Print all that is known of the plan, below the first table.")]
Exports = Annotated[
    list[str] | None,
    typer.Option(
        "-x",
        "--export",
        metavar="EXPORTER[:KEY=VALUE]=PATH",
        help="Write the plan, e.g. flatbuffer=dlrm.fbuf.",
        autocompletion=names_of("exporter", "="),
    ),
]

Open = Annotated[bool, typer.Option("--open", help="Open the HTML file that -x html=FILE writes in a browser.")]

AllowCode = Annotated[
    bool,
    typer.Option(
        "--allow-code",
        help="Let the file name code that is imported and run, such as a PyTorch module; only for files you trust.",
    ),
]

Folder = Annotated[
    str | None,
    typer.Option(
        "--run",
        metavar="DIR",
        help="Keep the search in a new folder: topoplan resume DIR goes on with it, whatever ended it.",
    ),
]


@attrs.frozen(kw_only=True)
class Flags:
    """Which options of a class a command has: ``run: Annotated[RunOptions, Flags(only=("seed",))]``.

    ``Annotated[Mapping[str, Any], Flags(of=RunOptions)]`` hands over what was typed and nothing else, for a command
    where that goes over what a file says.

    Attributes:
        of: the class, where the annotation is a mapping.
        only, without: names of the fields that become options, and of those that do not; unless given, all do.
        several: names of numbers of which a mapping holds several, typed with commas between.
        defaults: the command's own, in place of the class's.
        unset: where an option of a mapping is not given, this holds; unless given, the default.
    """

    of: Any = None
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    several: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = attrs.field(factory=dict)
    unset: str = ""

    def parameters(self, section: str) -> list[inspect.Parameter]:
        """Return the parameters that typer makes options of, which stand in this section of the help."""
        return [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=typer.Option(
                    False if hint is bool else None,
                    *filter(None, (field.metadata["short"], field.metadata["flag"] or f"--{info.key}")),
                    help=self._help(field, info),
                    metavar=field.metadata["metavar"] or f"<{self._type(info)}>",
                    autocompletion=completion_of(field.name),
                    show_default=False,
                    rich_help_panel=section,
                ),
                annotation={bool: bool, tuple[str, ...]: list[str]}.get(hint, str),
            )
            for field, hint, info in self._fields()
        ]

    def read(self, typed: dict[str, Any]) -> dict[str, Any]:
        """Take this class's options out of ``typed``, and return the values of those that were given.

        Raises:
            TopoplanError: a value is not right; the message names its option.
        """
        values: dict[str, Any] = {}
        for field, hint, info in self._fields():
            text, several = typed.pop(field.name), field.name in self.several
            if text is None or text is False or text == []:
                continue
            if text == "" and field.default is None:
                raise TopoplanError(f"--{info.key}: expected {self._type(info)}, got ''")
            if several or (isinstance(text, str) and typing.get_origin(hint) is tuple):
                text = listed(text) if text or not field.default else []  # nothing, where that is another value
            try:
                words = text if several else [text]
                options = [structure(self.of, {info.key: word}, "--", allow_code=True) for word in words]
            except TopoplanError as error:
                if hint != tuple[int, ...]:
                    raise
                raise TopoplanError(f"{error} (write integers with commas between, such as 8,16)") from None
            parsed = tuple(getattr(option, field.name) for option in options)
            values[field.name] = parsed if several else parsed[0]
        return values

    def _help(self, field: attrs.Attribute[Any], info: OptionInfo) -> str:
        """Return a sentence, and in brackets what holds where the option is not given, and its range."""
        meaning, _, unset = info.help.partition("; unset: ")
        default = self.defaults.get(field.name, field.default)
        spelled = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
        default = self.unset or unset or ("" if default is None or default is False else spelled)
        brackets = "; ".join(filter(None, (default and f"default: {default}", info.range)))
        several = "; several with commas between" if field.name in self.several else ""
        return f"{meaning[:1].upper()}{meaning[1:]}{several}." + (f"  [{brackets}]" if brackets else "")

    def _type(self, info: OptionInfo) -> str:
        """Name the type of an option, of which a command line sets something."""
        several = ",..." if info.key.replace("-", "_") in self.several else ""
        return info.type.removesuffix(" or nothing") + several

    def _fields(self) -> Iterator[tuple[attrs.Attribute[Any], Any, OptionInfo]]:
        hints = typing.get_type_hints(self.of)
        for field, info in zip(attrs.fields(self.of), describe(self.of), strict=True):
            if "unit" in field.metadata and field.name in (self.only or hints) and field.name not in self.without:
                yield field, hints[field.name], info


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that typer can read, in place of one that takes values of classes of options."""
    parameters: list[inspect.Parameter] = []
    classes: dict[str, tuple[Flags, bool]] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        annotation, *notes = typing.get_args(parameter.annotation) or (parameter.annotation,)
        flags, whole = next((note for note in notes if isinstance(note, Flags)), Flags()), attrs.has(annotation)
        if whole:
            flags = attrs.evolve(flags, of=annotation)
        if flags.of is None:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        else:
            classes[parameter.name] = flags, whole
            parameters += flags.parameters(parameter.name.capitalize())

    def run(**typed: Any) -> None:
        values = {}
        for name, (flags, whole) in classes.items():
            options = flags.read(typed)
            values[name] = flags.of(**{**flags.defaults, **options}) if whole else options
        command(**typed, **values)

    run.__doc__ = command.__doc__
    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def typed_command(context: typer.Context, without: tuple[str, ...] = ()) -> str:
    """Return the command line that was typed, but for options that change no result.

    Args:
        context: of the command.
        without: names of the parameters to leave out.
    """
    import shlex

    words = ["topoplan", str(context.command.name)]
    for parameter in sorted(context.command.params, key=lambda each: each.param_type_name != "argument"):
        value, flag = context.params[str(parameter.name)], max(parameter.opts, key=len)
        if parameter.name in without or value in (None, False, (), []):
            continue
        for word in value if isinstance(value, list) else [value]:
            words += [flag] if flag.startswith("--") else []
            words += [] if word is True else [shlex.quote(str(word))]
    return " ".join(words)


def one_command(name: str, command: Callable[..., None]) -> typer.Typer:
    """Make the typer application of a plugin that has one command."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(name, cls=TextCommand)(with_flags(command))
    return app
