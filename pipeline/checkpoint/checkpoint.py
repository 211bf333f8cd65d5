"""One checkpoint as the rules see it: config, index, headers, card. Read once; no payload."""

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pipeline.checkpoint.safetensors_header import PREFIX, Header, HeaderError, Tensor, header_length, parse, parse_json
from pipeline.checkpoint.source import Source
from pipeline.errors import CheckpointError

CONFIG, INDEX, CARD = "config.json", "model.safetensors.index.json", "README.md"
MAX_DOCUMENT = 16 << 20
"""Bytes of a config or an index that are read at most."""
MAX_CARD = 1 << 20
"""Bytes of a card that are looked at; what follows is not."""
FIRST_READ = 32 << 10
"""Bytes that are read of a shard at first; most headers end within."""
READERS = 8
"""Shards whose headers are read at a time."""


@dataclass
class Checkpoint:
    """What was read; ``problems`` holds what could not be, by the rule that says so."""

    source: Source
    config: Mapping[str, Any] = field(default_factory=dict)
    weight_map: Mapping[str, str] | None = None
    """Tensor to shard, from the index; None without an index."""
    headers: dict[str, Header] = field(default_factory=dict)
    """By shard, in order of name; shards whose header cannot be read are missing."""
    card: str | None = None
    problems: dict[str, list[str]] = field(default_factory=dict)

    @property
    def shards(self) -> list[str]:
        """Names of every safetensors file, in order."""
        return [name for name in sorted(self.source.sizes) if name.endswith(".safetensors")]

    @cached_property
    def tensors(self) -> dict[str, tuple[str, Tensor]]:
        """Every tensor of every readable shard; of one that is there twice, the first."""
        found: dict[str, tuple[str, Tensor]] = {}
        for shard, header in self.headers.items():
            for name, tensor in header.tensors.items():
                found.setdefault(name, (shard, tensor))
        return found

    @cached_property
    def names(self) -> frozenset[str]:
        """Tensors that are there or that the index promises; what is promised and absent has a rule of its own."""
        return frozenset(self.dtypes)

    @cached_property
    def dtypes(self) -> dict[str, str]:
        """By tensor; empty for one that the index only promises."""
        return {
            **dict.fromkeys(self.weight_map or (), ""),
            **{name: row.dtype for name, (_, row) in self.tensors.items()},
        }

    @property
    def text_config(self) -> Mapping[str, Any]:
        """The language model's part of the config."""
        nested = self.config.get("text_config")
        return nested if isinstance(nested, dict) else self.config

    @property
    def architectures(self) -> list[str]:
        found = self.config.get("architectures")
        return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []

    def read(self, name: str, start: int, length: int) -> bytes:
        """Payload of a tensor, from a position within it.

        Raises:
            CheckpointError: the bytes cannot be read.
        """
        shard, tensor = self.tensors[name]
        return self.source.read(shard, self.headers[shard].data_start + tensor.begin + start, length)

    def add_problem(self, rule: str, text: str) -> None:
        self.problems.setdefault(rule, []).append(text)


def load(source: Source, *, config_only: bool = False) -> Checkpoint:
    """Read what every rule needs; what is damaged becomes a problem of its rule.

    Raises:
        CheckpointError: the source itself cannot be read.
    """
    found = Checkpoint(source)
    config = _document(found, CONFIG, "CFG-01")
    if isinstance(config, dict):
        found.config = config
    elif config is not None:
        found.add_problem("CFG-01", f"{CONFIG} is no JSON object")
    if config_only:
        return found
    found.card = _card(found)
    if INDEX in source.sizes:
        _read_index(found)
    _read_headers(found)
    return found


def _document(found: Checkpoint, file: str, rule: str) -> Any:
    """A JSON file of the checkpoint, or None with the problem noted."""
    size = found.source.sizes.get(file)
    if size is None:
        found.add_problem(rule, f"there is no {file}")
    elif size > MAX_DOCUMENT:
        found.add_problem(rule, f"{file} has {size} bytes, over the limit of {MAX_DOCUMENT}")
    else:
        try:
            return parse_json(found.source.read(file))
        except HeaderError as error:
            found.add_problem(rule, f"{file}: {error}")
    return None


def _card(found: Checkpoint) -> str | None:
    size = found.source.sizes.get(CARD)
    if size is None:
        return None
    try:
        return found.source.read(CARD, 0, MAX_CARD).decode("utf-8")
    except UnicodeDecodeError:
        found.add_problem("CARD-01", f"{CARD} is not UTF-8")
        return None


def _read_index(found: Checkpoint) -> None:
    index = _document(found, INDEX, "INT-06")
    if index is None:
        return
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        found.add_problem("INT-06", f"{INDEX} has no weight_map of tensor names to file names")
        return
    found.weight_map = weight_map


def _read_headers(found: Checkpoint) -> None:
    with ThreadPoolExecutor(READERS) as pool:
        results = list(pool.map(lambda shard: _header(found.source, shard), found.shards))
    for shard, result in zip(found.shards, results, strict=True):
        if isinstance(result, Header):
            found.headers[shard] = result
        else:
            found.add_problem(result[0], f"{shard}: {result[1]}")


def _header(source: Source, shard: str) -> Header | tuple[str, str]:
    """The header of a shard, or the rule that it breaks with the reason."""
    size = source.sizes[shard]
    start = source.read(shard, 0, FIRST_READ)
    try:
        length = header_length(start, size)
    except HeaderError as error:
        return "INT-01", str(error)
    if len(start) < PREFIX + length:
        start += source.read(shard, len(start), PREFIX + length - len(start))
    try:
        return parse(start[PREFIX : PREFIX + length])
    except HeaderError as error:
        return "INT-02", str(error)


def config_text(source: Source) -> str:
    """The config as it is written.

    Raises:
        CheckpointError: it cannot be read as text.
    """
    try:
        return source.read(CONFIG, 0, MAX_DOCUMENT).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{source}/{CONFIG}: not UTF-8", do="restore it") from error


def dump(document: Mapping[str, Any], *, like: str) -> str:
    """JSON with the indentation and the end of ``like``."""
    second = like.split("\n")[1] if like.count("\n") else ""
    indent = len(second) - len(second.lstrip(" "))
    return json.dumps(document, indent=indent or 2, ensure_ascii=False) + ("\n" if like.endswith("\n") else "")
