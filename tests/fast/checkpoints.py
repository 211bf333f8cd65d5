"""Checkpoints in memory, to plant one fault in each; built on :mod:`tests.fast.small_checkpoints`."""

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.checkpoint import gate
from pipeline.checkpoint.checkpoint import CARD, CONFIG, INDEX
from pipeline.checkpoint.naming import MTP_EXCLUSIONS
from pipeline.checkpoint.releases import Release
from pipeline.checkpoint.report import Report, Status
from pipeline.checkpoint.rule import Role
from pipeline.checkpoint.source import Source
from pipeline.manifest import Profile
from tests.fast import small_checkpoints as small
from tests.fast.small_checkpoints import header_of, shard, with_header

ONE = b"\x80\x3f"
"""1.0 in BF16."""


@dataclass
class MemorySource(Source):
    """Files in memory."""

    files: Mapping[str, bytes] = field(default_factory=dict)

    def _read(self, file: str, start: int, stop: int) -> bytes:
        return self.files[file][start:stop]


def in_memory(files: Mapping[str, bytes]) -> MemorySource:
    return MemorySource("memory", sizes={name: len(data) for name, data in files.items()}, files=files)


@dataclass
class Made:
    """A checkpoint before it is written; a test changes what it wants wrong."""

    role: Role
    config: dict[str, Any]
    shards: dict[str, dict[str, tuple[str, tuple[int, ...]]]]
    card: str | None
    payload: dict[str, bytes] = field(default_factory=dict)
    """Bytes of a tensor that shall not be all 1.0; repeated to its size."""
    index: dict[str, str] | None = None
    """Instead of the right one, which several shards get; an empty one is left out."""
    raw: dict[str, Callable[[bytes], bytes]] = field(default_factory=dict)
    """Changes of a written file's bytes."""

    @property
    def tensors(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Those of the first shard."""
        return next(iter(self.shards.values()))

    @property
    def quantisation(self) -> dict[str, Any]:
        found: dict[str, Any] = self.config["quantization_config"]
        return found

    @property
    def text(self) -> dict[str, Any]:
        found: dict[str, Any] = self.config.get("text_config", self.config)
        return found

    def exclude(self, *entries: str) -> "Made":
        """Use these exclusions, in the config and in the card."""
        self.quantisation["ignore"] = list(entries)
        self.card = card(entries)
        return self

    def files(self) -> dict[str, bytes]:
        found = {CONFIG: (json.dumps(self.config, indent=2) + "\n").encode()}
        if self.card is not None:
            found[CARD] = self.card.encode()
        for name, tensors in self.shards.items():
            found[name] = shard(tensors, ONE, self.payload)
        index = self.index
        if index is None and len(self.shards) > 1:
            index = {tensor: name for name, tensors in self.shards.items() for tensor in tensors}
        if index:
            found[INDEX] = json.dumps({"metadata": {}, "weight_map": index}).encode()
        return {name: self.raw.get(name, bytes)(data) for name, data in found.items()}

    def source(self) -> MemorySource:
        return in_memory(self.files())

    def check(self, pin: str = "0.5.23", **options: Any) -> Report:
        return gate.check(self.source(), self.role, Release(pin), **options)


def write_sparse(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
    """A shard of any size that takes little room: each tensor begins with a few values, the rest is a hole."""
    header = header_of(tensors)
    text = json.dumps(header).encode()
    with path.open("wb") as stream:
        stream.write(with_header(text))
        for row in header.values():
            stream.seek(8 + len(text) + row["data_offsets"][0])
            stream.write(b"\x00\x3f")
        stream.truncate(8 + len(text) + max(row["data_offsets"][1] for row in header.values()))


def edit_header(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    """A change of a written shard: of its header only; its payload stays."""

    def edit(data: bytes) -> bytes:
        stop = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:stop])
        change(header)
        return with_header(json.dumps(header).encode(), data[stop:])

    return edit


def card(entries: tuple[str, ...] | list[str] = MTP_EXCLUSIONS) -> str:
    """A card that lists these exclusions."""
    listed = "\n".join(f"* `{entry}`" for entry in entries)
    front = f"---\nbase_model: somebody/base\nbase_model_revision: {'0' * 40}\n---\n"
    return f"{front}# A model\n\n## Quantization\n\nLeft as they are:\n\n{listed}\n\n## Use\n\nWith `--mtp.rs`.\n"


def target() -> Made:
    """A good target: packed layers, the MTP head in BF16 and excluded by all ten names."""
    made = Made("target", deepcopy(small.target_config()), {"model.safetensors": small.target_tensors()}, card())
    made.text["max_position_embeddings"] = 262144
    made.text["rope_parameters"] = dict(small.NATIVE)
    return made


def packed_head(made: Made) -> Made:
    """The same with its MTP head really quantised, scales on disk, and not excluded."""
    for name in [name for name in made.tensors if "_proj." in name and name.startswith("mtp.")]:
        del made.tensors[name]
        module = name.removesuffix("weight")
        made.tensors.update({module + "weight_packed": ("I32", (4, 4)), module + "weight_scale": ("BF16", (4, 1))})
    return made.exclude("lm_head")


def draft() -> Made:
    """A good native DFlash2 draft."""
    made = Made("draft", deepcopy(small.draft_config()), {"model.safetensors": dict(small.draft_tensors())}, card(()))
    made.payload |= {name: b"\x00\x3f" for name in made.tensors if name.endswith("base_kernel")}
    return made


def profile(**changes: Any) -> tuple[str, Profile]:
    """A native DFlash2 profile."""
    arguments = {"speculative-num-draft-tokens": 8, "speculative-draft-window-size": 2048}
    document = {
        "why": "test",
        "target": "somebody/target",
        "target_revision": "main",
        "context_length": 262144,
        "max_total_tokens": 262144,
        "max_mamba_cache_size": 8,
        "arguments": arguments,
        **changes,
    }
    return "native", Profile.model_validate(document)


def failed(report: Report, *, severity: str | None = None) -> dict[str, tuple[str, ...]]:
    """Rules that failed, with what they found."""
    rows = (row for row in report.results if row.status is Status.FAILED)
    return {row.id: row.findings for row in rows if severity in (None, row.severity)}


def statuses(report: Report) -> dict[str, str]:
    return {row.id: str(row.status) for row in report.results}
