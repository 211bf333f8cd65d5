"""What the bytes of a tensor say: zero or not, finite or not; without numpy, at the speed of ``bytes``' own methods."""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from pipeline.checkpoint.safetensors_header import BITS, Tensor

FIRST_BLOCK = 64 << 10
"""Bytes of the first look at a tensor."""
MAX_BLOCK = 4 << 20
"""Bytes of one read, however far it goes on."""


@dataclass(frozen=True)
class _Float:
    """How to see a special value in the bytes of one element, little endian."""

    size: int
    exponent_mask: int
    """Exponent bits within the last byte."""
    second_mask: int
    """Exponent bits within the byte before it; with all of both set, the value is NaN or infinite."""


_FLOATS = {
    "F16": _Float(2, 0x7C, 0),
    "BF16": _Float(2, 0x7F, 0x80),
    "F32": _Float(4, 0x7F, 0x80),
    "F64": _Float(8, 0x7F, 0xF0),
}
_UNPACK = {"F16": "e", "F32": "f", "F64": "d"}
_SIGNLESS = bytes(value & 0x7F for value in range(256))


def element_bytes(dtype: str) -> int:
    """Bytes of one element; 1 for those that share bytes."""
    return max(1, BITS[dtype] // 8)


def all_zero(data: bytes, dtype: str) -> bool:
    """Whether every element is zero; minus zero is."""
    if data.count(0) == len(data):
        return True
    return dtype in _FLOATS and zeros(data, dtype) * _FLOATS[dtype].size == len(data)


def zeros(data: bytes, dtype: str) -> int:
    """How many elements are zero, of a floating-point dtype.

    The bytes of all elements at one offset are one long whole number, so that one ``|`` joins them all.
    """
    size = _FLOATS[dtype].size
    joined = int.from_bytes(data[size - 1 :: size].translate(_SIGNLESS))
    for offset in range(size - 1):
        joined |= int.from_bytes(data[offset::size])
    return joined.to_bytes(len(data) // size).count(0)


def not_finite(data: bytes, dtype: str) -> int:
    """How many elements are NaN or infinite; 0 for a dtype without such values."""
    kind = _FLOATS.get(dtype)
    if kind is None:
        return 0
    last = data[kind.size - 1 :: kind.size].translate(_marks(kind.exponent_mask))
    second = data[kind.size - 2 :: kind.size].translate(_marks(kind.second_mask))
    return (int.from_bytes(last) & int.from_bytes(second)).bit_count()


@cache
def _marks(mask: int) -> bytes:
    """A table that turns a byte into 1 when all bits of ``mask`` are set in it, else into 0."""
    return bytes((value & mask) == mask for value in range(256))


def values(data: bytes, dtype: str) -> list[float]:
    """Elements of a small tensor as numbers (F16, BF16, F32, F64)."""
    if dtype == "BF16":
        data = b"".join(b"\0\0" + data[at : at + 2] for at in range(0, len(data), 2))
        dtype = "F32"
    return [value for (value,) in struct.iter_unpack("<" + _UNPACK[dtype], data)]


Read = Callable[[int, int], bytes]
"""From a position within a tensor, so many bytes."""


def blocks(tensor: Tensor, read: Read, first: int = FIRST_BLOCK) -> Iterator[bytes]:
    """The tensor's bytes in blocks that double up to :data:`MAX_BLOCK`; whole elements each."""
    position, size = 0, first
    while position < tensor.span:
        data = read(position, min(size, tensor.span - position))
        yield data
        position += len(data)
        size = min(size * 2, MAX_BLOCK)


@dataclass(frozen=True)
class Look:
    """What was seen of one tensor."""

    zero: bool
    """All that was read is zero."""
    special: int
    """NaN and infinite elements in what was read."""
    zero_rows: int = 0
    """Of a full look; rows are those of the first dimension."""


def sample(tensor: Tensor, read: Read) -> Look:
    """Read until the first block that is not all zero."""
    special = 0
    for data in blocks(tensor, read):
        special += not_finite(data, tensor.dtype)
        if not all_zero(data, tensor.dtype):
            return Look(False, special)
    return Look(True, special)


def scan(tensor: Tensor, read: Read) -> Look:
    """Read all of it."""
    rows = tensor.shape[0] if tensor.shape else 1
    row_bytes = tensor.span // rows if rows else 0
    zero, special, zero_rows = True, 0, 0
    step = max(1, MAX_BLOCK // row_bytes) * row_bytes if row_bytes else MAX_BLOCK
    for position in range(0, tensor.span, step):
        data = read(position, min(step, tensor.span - position))
        special += not_finite(data, tensor.dtype)
        zero &= all_zero(data, tensor.dtype)
        if row_bytes:
            zero_rows += sum(all_zero(data[at : at + row_bytes], tensor.dtype) for at in range(0, len(data), row_bytes))
    return Look(zero, special, zero_rows)
