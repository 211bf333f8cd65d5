"""The header's parser: bounds before allocation, and a clean refusal of whatever is not a header."""

import json
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.checkpoint.checkpoint import load
from pipeline.checkpoint.safetensors_header import (
    MAX_HEADER,
    Header,
    HeaderError,
    header_length,
    offset_problems,
    parse,
    parse_json,
    span_problems,
)
from tests.fast.checkpoints import in_memory
from tests.fast.small_checkpoints import with_header

GOOD = {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}


def entry(**changes: Any) -> bytes:
    return json.dumps({"a": {**GOOD, **changes}}).encode()


def test_header_gives_shape_span_and_end_of_file() -> None:
    text = json.dumps({"__metadata__": {"format": "pt"}, "a": GOOD, "b": {**GOOD, "data_offsets": [12, 24]}}).encode()
    header = parse(text)
    assert list(header.tensors) == ["a", "b"]
    assert header.tensors["b"].span == 12
    assert header.file_size == 8 + len(text) + 24
    assert [*offset_problems(header), *span_problems(header)] == []


def test_padding_of_the_header_counts() -> None:
    assert parse(entry() + b"   ").data_start == 8 + len(entry()) + 3


@pytest.mark.parametrize(
    ("prefix", "size", "says"),
    [
        (b"", 0, "has 0 bytes"),
        (b"\1" * 7, 7, "has 7 bytes"),
        (bytes(8), 1000, "zeroed"),
        ((93).to_bytes(8, "little"), 100, "only 92 bytes follow"),
        (b"\xff" * 8, 1000, "only 992 bytes follow"),
        ((MAX_HEADER + 1).to_bytes(8, "little"), 1 << 40, "over the limit"),
    ],
)
def test_length_is_bounded_before_it_is_used(prefix: bytes, size: int, says: str) -> None:
    with pytest.raises(HeaderError, match=says):
        header_length(prefix, size)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "no JSON"),
        (b"[]", "no JSON object"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "no JSON"),
        (b'{"a": 1}', "has not exactly"),
        (b'{"a": {}, "a": {}}', "occurs twice"),
        (b'{"a": {"dtype": "F32", "dtype": "F32"}}', "occurs twice"),
        (entry(more=1), "has not exactly"),
        (entry(dtype=3), "dtype is no text"),
        (entry(shape=[-1]), "whole numbers"),
        (entry(shape=[True]), "whole numbers"),
        (entry(shape=[1.0]), "whole numbers"),
        (entry(shape="23"), "whole numbers"),
        (entry(shape=[1] * 17), "17 dimensions"),
        (entry(data_offsets=[0]), "two of the latter"),
        (entry(data_offsets=[0, 1 << 63]), "whole numbers"),
    ],
)
def test_what_is_no_header_is_refused(text: bytes, says: str) -> None:
    with pytest.raises(HeaderError, match=says):
        parse(text)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"shape": [2, 4]}, "takes 16 bytes, found 12"),
        ({"dtype": "F32"}, "takes 24 bytes, found 12"),
        ({"dtype": "F4", "shape": [23]}, "takes 12 bytes, found 12"),
        ({"dtype": "X"}, "unknown dtype"),
        ({"shape": [(1 << 63) - 1] * 16}, "found 12"),
    ],
)
def test_shape_and_dtype_must_fill_the_span(changes: dict[str, Any], says: str) -> None:
    (problem,) = span_problems(parse(entry(**changes)))
    assert says in problem


@pytest.mark.parametrize(("dtype", "shape"), [("F4", [24]), ("F6_E2M3", [16]), ("F8_E4M3", [12]), ("F64", [1, 1])])
def test_other_dtypes_are_counted_in_bits(dtype: str, shape: list[int]) -> None:
    size = 8 if dtype == "F64" else 12
    assert list(span_problems(parse(entry(dtype=dtype, shape=shape, data_offsets=[0, size])))) == []


@pytest.mark.parametrize(
    ("offsets", "says"),
    [
        ([[4, 8]], "leaves a gap"),
        ([[0, 4], [2, 6]], "overlaps"),
        ([[0, 4], [5, 6]], "leaves a gap"),
        ([[4, 0]], "before it begins"),
    ],
)
def test_offsets_must_be_contiguous(offsets: list[list[int]], says: str) -> None:
    rows = {f"t{at}": {"dtype": "U8", "shape": [1], "data_offsets": pair} for at, pair in enumerate(offsets)}
    (problem,) = offset_problems(parse(json.dumps(rows).encode()))
    assert says in problem


def test_empty_tensors_lie_anywhere_between() -> None:
    rows = {
        name: {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
        for name, begin, end in (("a", 0, 0), ("b", 0, 4), ("c", 4, 4), ("d", 4, 5))
    }
    assert list(offset_problems(parse(json.dumps(rows).encode()))) == []


@given(st.binary(max_size=300))
def test_arbitrary_bytes_as_a_file_get_an_answer(data: bytes) -> None:
    found = load(in_memory({"model.safetensors": data}))
    assert found.headers or {"INT-01", "INT-02"} & set(found.problems)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_as_a_header_get_an_answer(data: bytes) -> None:
    found = load(in_memory({"model.safetensors": with_header(data)}))
    assert found.headers or {"INT-01", "INT-02"} & set(found.problems)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
ENTRIES = st.fixed_dictionaries(
    {"dtype": st.sampled_from(["F32", "U8", "F4", "?"]) | JSON, "shape": JSON, "data_offsets": JSON}
)


@given(st.dictionaries(st.text(max_size=5), ENTRIES | JSON, max_size=4) | JSON)
def test_arbitrary_json_as_a_header_gets_an_answer(document: Any) -> None:
    try:
        header = parse(json.dumps(document).encode())
    except HeaderError:
        return
    assert isinstance(header, Header)
    assert all(isinstance(problem, str) for problem in (*offset_problems(header), *span_problems(header)))


@given(st.binary(max_size=100) | st.text(max_size=100).map(str.encode))
def test_arbitrary_text_as_json_gets_an_answer(text: bytes) -> None:
    with suppress(HeaderError):
        parse_json(text)


def test_a_huge_length_costs_no_memory() -> None:
    """A length of 2^62 in a file that claims to be larger: nothing of that size is allocated."""
    source = in_memory({"model.safetensors": (1 << 62).to_bytes(8, "little") + bytes(100)})
    source.sizes["model.safetensors"] = 1 << 63
    tracemalloc.start()
    try:
        with pytest.raises(HeaderError, match="over the limit"):
            header_length((1 << 62).to_bytes(8, "little"), 1 << 63)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
