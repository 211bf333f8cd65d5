"""Zero, NaN and infinite elements, counted in bytes: the same as counting numbers one by one."""

import math
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.checkpoint import payload
from pipeline.checkpoint.safetensors_header import Tensor

SIZES = {"F16": 2, "BF16": 2, "F32": 4, "F64": 8}
FLOATS = sorted(SIZES)


def decode(data: bytes, dtype: str) -> list[float]:
    """Elements by an independent way: BF16 is the upper half of a single."""
    size = SIZES[dtype]
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    if dtype == "BF16":
        return [struct.unpack("<f", bytes(2) + part)[0] for part in parts]
    return [struct.unpack({"F16": "<e", "F32": "<f", "F64": "<d"}[dtype], part)[0] for part in parts]


def elements(dtype: str) -> st.SearchStrategy[bytes]:
    """Bytes of whole elements, with special ones among them."""
    size = SIZES[dtype]
    special = [bytes(size), bytes(size - 1) + b"\x80", b"\xff" * size, bytes(size - 2) + b"\x80\x7f"]
    one = st.binary(min_size=size, max_size=size) | st.sampled_from(special)
    return st.lists(one, max_size=12).map(b"".join)


@pytest.mark.parametrize("dtype", FLOATS)
def test_counts_equal_those_of_numbers(dtype: str) -> None:
    @given(elements(dtype))
    def check(data: bytes) -> None:
        numbers = decode(data, dtype)
        assert payload.zeros(data, dtype) == sum(number == 0 for number in numbers)
        assert payload.not_finite(data, dtype) == sum(not math.isfinite(number) for number in numbers)
        assert payload.all_zero(data, dtype) == all(number == 0 for number in numbers)
        values = payload.values(data, dtype)
        assert all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(values, numbers, strict=True))

    check()


def test_whole_numbers_have_no_nan() -> None:
    assert payload.not_finite(b"\xff" * 8, "I32") == 0
    assert payload.all_zero(bytes(8), "I32")
    assert not payload.all_zero(b"\0\0\0\x80", "I32")


class Reads:
    """Payload that counts what is read of it."""

    def __init__(self, at: Callable[[int], int]) -> None:
        self.at = at
        self.bytes = 0

    def __call__(self, start: int, length: int) -> bytes:
        self.bytes += length
        return bytes(length) if self.at(start) == 0 else bytes([self.at(start)]) * length


def test_sample_stops_at_the_first_block_that_is_not_zero() -> None:
    read = Reads(lambda _: 1)
    look = payload.sample(Tensor("BF16", (1 << 20, 64), 0, 1 << 27), read)
    assert look == payload.Look(zero=False, special=0)
    assert read.bytes == payload.FIRST_BLOCK


def test_sample_goes_on_while_all_is_zero() -> None:
    read = Reads(lambda start: 0 if start < 1 << 20 else 1)
    assert not payload.sample(Tensor("BF16", (1 << 20, 64), 0, 1 << 27), read).zero
    assert 1 << 20 < read.bytes < 1 << 22


def test_sample_of_a_zero_tensor_reads_all_of_it_in_bounded_blocks() -> None:
    sizes: list[int] = []

    def read(start: int, length: int) -> bytes:
        assert start == sum(sizes)
        sizes.append(length)
        return bytes(length)

    assert payload.sample(Tensor("BF16", (1 << 20, 8), 0, 1 << 24), read) == payload.Look(zero=True, special=0)
    assert sum(sizes) == 1 << 24
    assert max(sizes) <= payload.MAX_BLOCK


def test_scan_counts_zero_rows_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "MAX_BLOCK", 32)
    rows = [bytes(8), b"\0\x3f" * 4, bytes(8), b"\0\xc0" * 4, b"\xff\x7f" * 4]
    data = b"".join(rows)
    tensor = Tensor("BF16", (5, 4), 0, len(data))
    look = payload.scan(tensor, lambda start, length: data[start : start + length])
    assert look == payload.Look(zero=False, special=4, zero_rows=2)


@pytest.mark.parametrize("shape", [(), (0,), (0, 4), (3, 0)])
def test_scan_of_odd_shapes_ends(shape: tuple[int, ...]) -> None:
    size = 2 if shape == () else 0
    assert payload.scan(Tensor("BF16", shape, 0, size), lambda _, length: bytes(length)).zero
