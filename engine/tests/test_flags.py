"""Options of commands that are made of classes: what typer receives, and what the command gets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import attrs
import pytest
import typer
from typer.testing import CliRunner

from topoplan import TopoplanError
from topoplan.options import option
from topoplan_engine.flags import AsJson, Flags, one_command


@attrs.frozen(kw_only=True)
class Paint:
    """How to paint."""

    coats: int = option(2, help="times that it is painted", minimum=1, maximum=9)
    width_mm: float | None = option(None, help="of the brush; unset: as broad as it needs", above=0)
    colour: str = option("red", help="its colour", short="-c", metavar="NAME")
    shades: tuple[int, ...] = option((1, 2), help="shades")
    walls: tuple[str, ...] = option((), help="which walls")
    dry: bool = option(False, help="wait until it is dry")
    file: Path | None = option(None, help="where it is written")
    hidden: tuple[int, ...] = attrs.field(default=(), metadata={"help": "no option"})


GOT: list[Any] = []


def paint(house: Annotated[str, typer.Argument()], paint: Paint, as_json: AsJson = False) -> None:
    """Paint."""
    GOT.append((paint, house, as_json))


def repaint(
    paint: Annotated[
        Mapping[str, Any],
        Flags(of=Paint, only=("coats", "width_mm"), several=("coats",), unset="as before"),
    ],
) -> None:
    """Paint again."""
    GOT.append(paint)


def whiten(paint: Annotated[Paint, Flags(without=("walls",), defaults={"colour": "white"})]) -> None:
    """Paint white."""
    GOT.append(paint)


def called(command, *words):
    """Return what a command gets, or what it raises."""
    GOT.clear()
    result = CliRunner().invoke(one_command("paint", command), words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return GOT[0]


def help_of(command):
    return " ".join(CliRunner().invoke(one_command("paint", command), ["--help"]).output.split())


def test_a_command_gets_an_instance_of_its_class():
    assert called(paint, "hut") == (Paint(), "hut", False)
    words = ["--coats=3", "--width-mm=1.5", "-c", "blue", "--shades=4,5", "--walls=a", "--walls=b", "--dry"]
    wanted = Paint(coats=3, width_mm=1.5, colour="blue", shades=(4, 5), walls=("a", "b"), dry=True, file=Path("x"))
    assert called(paint, *words, "--file", "x", "hut", "--json") == (wanted, "hut", True)
    assert called(paint, "hut", "--shades", "")[0].shades == ()


def test_a_mapping_holds_what_was_typed():
    assert called(repaint) == {}
    assert called(repaint, "--coats", "1,2") == {"coats": (1, 2)}
    assert called(repaint, "--width-mm", "2") == {"width_mm": 2.0}


def test_a_command_has_defaults_of_its_own():
    assert called(whiten).colour == "white"
    assert called(whiten, "-c", "blue").colour == "blue"
    assert "--walls" not in help_of(whiten)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--coats", "x"], "--coats: expected integer, got 'x'"),
        (["--coats", "10"], r"--coats: 10 is too large \(at most 9\)"),
        (["--coats", ""], "--coats: expected integer, got ''"),
        (["--width-mm", ""], "--width-mm: expected number, got ''"),
        (["--width-mm", "0"], r"--width-mm: 0.0 is too small \(more than 0\)"),
        (["--shades", "1,,2"], "--shades: expected integer, got ''"),
    ],
)
def test_what_is_wrong_names_the_option(words, message):
    with pytest.raises(TopoplanError, match=message):
        called(paint, "hut", *words)


def test_the_help_says_what_holds_and_what_may_stand_there():
    said = help_of(paint)
    assert "Paint: --coats <integer> Times that it is painted. [default: 2; 1 to 9]" in said
    assert "--width-mm <number> Of the brush. [default: as broad as it needs; more than 0]" in said
    assert "-c, --colour NAME Its colour. [default: red]" in said
    assert "--dry Wait until it is dry." in said
    assert "hidden" not in said
    said = help_of(repaint)
    assert (
        "--coats <integer,...> Times that it is painted; several with commas between. [default: as before; 1 to 9]"
        in said
    )


def test_what_was_not_typed_is_nothing_or_no_values():
    """Releases of typer before pydantic count the values of an option that may be given again."""
    command = typer.main.get_command(one_command("paint", paint))
    context = typer.Context(command)
    typed = {one.name: one.process_value(context, None) for one in command.get_params(context) if not one.required}
    assert typed["walls"] == ()
    assert typed["coats"] is typed["help"] is None
