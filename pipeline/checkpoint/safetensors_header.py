"""The header of a safetensors file, read as strictly as the format is written.

A file is eight bytes (length of the header, little endian), the header (a JSON object of tensor names), and the
tensors' bytes, which follow each other without gap or overlap up to the end of the file.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MAX_HEADER = 16 << 20
"""Bytes. The format's own limit is 100 MB; the header of a thousand tensors has about 0.1 MB."""
PREFIX = 8
MAX_RANK = 16
BITS: Mapping[str, int] = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
}
"""Bits per element of every dtype of the format."""
FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
"""What an unquantised weight is stored in."""
METADATA = "__metadata__"


class HeaderError(Exception):
    """The header cannot be read at all; the text says why."""


@dataclass(frozen=True)
class Tensor:
    """One entry; offsets in bytes from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def span(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class Header:
    """All entries, and where their bytes start."""

    tensors: Mapping[str, Tensor]
    length: int
    """Of the JSON, in bytes."""

    @property
    def data_start(self) -> int:
        return PREFIX + self.length

    @property
    def file_size(self) -> int:
        """Where the last tensor ends, from the start of the file."""
        return self.data_start + max((tensor.end for tensor in self.tensors.values()), default=0)


def header_length(prefix: bytes, file_size: int) -> int:
    """Length of the JSON, checked before anything of that size is read.

    Raises:
        HeaderError: too short a file, or a length that no file of this size can have.
    """
    if len(prefix) < PREFIX:
        raise HeaderError(f"the file has {file_size} bytes; a header starts with {PREFIX}")
    length = int.from_bytes(prefix[:PREFIX], "little")
    if length < 2:
        raise HeaderError(f"the header's length is {length}; the start of the file is zeroed or cut")
    if length > file_size - PREFIX:
        raise HeaderError(f"the header's length is {length}, but only {file_size - PREFIX} bytes follow it")
    if length > MAX_HEADER:
        raise HeaderError(f"the header's length is {length}, over the limit of {MAX_HEADER}")
    return length


def parse(text: bytes) -> Header:
    """The header from its JSON.

    Raises:
        HeaderError: no JSON object of tensors, a name that occurs twice, or an entry of the wrong shape.
    """
    document = parse_json(text)
    if not isinstance(document, dict):
        raise HeaderError("the header is no JSON object")
    return Header({name: _tensor(name, entry) for name, entry in document.items() if name != METADATA}, len(text))


def parse_json(text: bytes) -> Any:
    """JSON without doubled keys.

    Raises:
        HeaderError: it is not.
    """
    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=_once)
    except UnicodeDecodeError:
        raise HeaderError("not UTF-8") from None
    except RecursionError:
        raise HeaderError("JSON nested too deeply") from None
    except ValueError as error:
        raise HeaderError(f"no JSON: {error}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise HeaderError(f"{key[:100]!r} occurs twice")
        found[key] = value
    return found


def _tensor(name: str, entry: Any) -> Tensor:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise HeaderError(f"{name[:100]!r} has not exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str):
        raise HeaderError(f"{name[:100]!r}: dtype is no text")
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        raise HeaderError(f"{name[:100]!r}: shape and data_offsets must be lists of whole numbers, two of the latter")
    if len(shape) > MAX_RANK:
        raise HeaderError(f"{name[:100]!r}: {len(shape)} dimensions, over the limit of {MAX_RANK}")
    return Tensor(dtype, tuple(shape), *offsets)


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(number) is int and 0 <= number < 1 << 63 for number in value)


def offset_problems(header: Header) -> Iterator[str]:
    """Gaps, overlaps and offsets that run backwards."""
    position = 0
    for name, tensor in sorted(header.tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.end < tensor.begin:
            yield f"{name}: ends at {tensor.end}, before it begins at {tensor.begin}"
        elif tensor.begin != position:
            kind = "overlaps the one before" if tensor.begin < position else "leaves a gap"
            yield f"{name}: begins at {tensor.begin}, expected {position}: it {kind}"
        position = max(position, tensor.end)


def span_problems(header: Header) -> Iterator[str]:
    """Tensors whose dtype and shape do not fill exactly their bytes."""
    for name, tensor in header.tensors.items():
        bits = BITS.get(tensor.dtype)
        if bits is None:
            yield f"{name}: unknown dtype {tensor.dtype[:40]!r}"
        elif tensor.end >= tensor.begin and math.prod(tensor.shape) * bits != tensor.span * 8:
            expected = -(-math.prod(tensor.shape) * bits // 8)
            yield f"{name}: {tensor.dtype} {list(tensor.shape)} takes {expected} bytes, found {tensor.span}"
