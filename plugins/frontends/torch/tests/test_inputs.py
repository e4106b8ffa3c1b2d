"""What users write for the inputs of a module."""

from __future__ import annotations

import pytest

from topoplan import TopoplanError
from topoplan_frontend_torch.inputs import InputSpec, parse_inputs, with_batch_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2x128:int64", [InputSpec((2, 128), "int64")]),
        ("8", [InputSpec((8,))]),
        ("8x3x224x224-8x13:bfloat16", [InputSpec((8, 3, 224, 224)), InputSpec((8, 13), "bfloat16")]),
        ("4x2-mask=4x2:bool", [InputSpec((4, 2)), InputSpec((4, 2), "bool", "mask")]),
    ],
)
def test_shapes_types_and_names(text, expected):
    assert list(parse_inputs(text, "here")) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' is no input"),
        ("2x0", "'2x0' is no input"),
        ("2x128:int46", "did you mean 'int64'?"),
        ("2x128:", "no type of elements ''"),
        ("a=2-a=3", "given twice"),
        ("a=2-3", "come before those with one"),
        ("2 x 3", "write 2x128:int64"),
    ],
)
def test_what_is_no_input_is_told_with_the_syntax(text, words):
    with pytest.raises(TopoplanError) as error:
        parse_inputs(text, "here")
    assert words in str(error.value)


def test_a_batch_size_replaces_the_first_size_of_all_inputs_that_have_it():
    specs = parse_inputs("8x3-8-3x3", "here")
    assert [spec.shape for spec in with_batch_size(specs, 32)] == [(32, 3), (32,), (3, 3)]
    assert with_batch_size(specs, None) == specs
