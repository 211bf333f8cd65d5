"""What the checkpoint gate reads, measured: ``python -m benchmarks.checkpoint``. Prints figures; asserts nothing.

Checkpoints of the real shapes, made on the spot as sparse files: a DFlash2 draft of five layers, and a target of 64
layers, packed to four bits, in many shards with its MTP head in BF16. Each is judged in its folder and through a Hub on
loopback, where the server counts what it sends; beside it stand the size of a download and the time to read all of it
once from this disk, which no download can beat.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from rich.table import Table

from pipeline import console
from pipeline.checkpoint.naming import MTP_EXCLUSIONS, MTP_PARTS, MTP_PLAIN, DFlash2Shape
from pipeline.checkpoint.releases import Release
from pipeline.checkpoint.report import Report
from pipeline.checkpoint.rule import Role
from tests.fast import small_checkpoints as small
from tests.fast.checkpoints import card, write_sparse
from tests.fast.hub_server import HubServer, hub_server

HIDDEN, WIDE, VOCABULARY, LAYERS = 5120, 17408, 248320, 64
SHAPE = DFlash2Shape(layers=5, hidden=HIDDEN, vocabulary=VOCABULARY, rank=256, taps=2, group=16)
GROUP = 128
PIN = Release("0.5.23")
MIB = 1 << 20
Tensors = dict[str, tuple[str, tuple[int, ...]]]


def projections(wide: int = WIDE) -> dict[str, tuple[int, int]]:
    """Linear modules of an attention layer and their shapes."""
    attention = {
        "q_proj": (HIDDEN, HIDDEN),
        "k_proj": (1024, HIDDEN),
        "v_proj": (1024, HIDDEN),
        "o_proj": (HIDDEN, HIDDEN),
    }
    mlp = {"gate_proj": (wide, HIDDEN), "up_proj": (wide, HIDDEN), "down_proj": (HIDDEN, wide)}
    return {
        **{f"self_attn.{name}": at for name, at in attention.items()},
        **{f"mlp.{name}": at for name, at in mlp.items()},
    }


def draft_tensors() -> Tensors:
    found: Tensors = {name: ("BF16", shape) for name, shape in SHAPE.tensors().items()}
    found["fc.weight"] = ("BF16", (HIDDEN, 5 * HIDDEN))
    for layer in range(SHAPE.layers):
        for name, shape in projections().items():
            found[f"layers.{layer}.{name}.weight"] = ("BF16", shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"layers.{layer}.{name}.weight"] = ("BF16", (HIDDEN,))
    return found


def target_shards(layers_per_shard: int = 4) -> Iterator[tuple[str, Tensors]]:
    """Shards of the target: embeddings, packed layers, and the MTP head in the last one."""
    count = LAYERS // layers_per_shard + 1
    for number in range(count):
        tensors: Tensors = {}
        if number == 0:
            tensors["model.language_model.embed_tokens.weight"] = ("BF16", (VOCABULARY, HIDDEN))
        for layer in range(number * layers_per_shard, min((number + 1) * layers_per_shard, LAYERS)):
            for name, (rows, columns) in projections().items():
                module = f"model.language_model.layers.{layer}.{name}"
                tensors[f"{module}.weight_packed"] = ("I32", (rows, columns // 8))
                tensors[f"{module}.weight_scale"] = ("BF16", (rows, columns // GROUP))
                tensors[f"{module}.weight_shape"] = ("I64", (2,))
        if number == count - 1:
            tensors["lm_head.weight"] = ("BF16", (VOCABULARY, HIDDEN))
            tensors |= {f"{module}.weight": ("BF16", (HIDDEN,)) for module in MTP_PLAIN}
            tensors |= {f"{module}.weight": ("BF16", (HIDDEN, HIDDEN)) for module in MTP_PARTS}
        yield f"model-{number + 1:05}-of-{count:05}.safetensors", tensors


def write_draft(folder: Path) -> None:
    settings = {"selector_rank": 256, "selector_top_k": 16, "conv_kernel_size": 2, "conv_group_size": 16}
    config = small.draft_config(
        num_hidden_layers=5,
        hidden_size=HIDDEN,
        vocab_size=VOCABULARY,
        dflash_config={**settings, "target_layer_ids": [5, 19, 33, 47, 61]},
    )
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "README.md").write_text(card(()))
    write_sparse(folder / "model.safetensors", draft_tensors())


def write_target(folder: Path) -> None:
    config = small.target_config()
    config["text_config"] |= {"hidden_size": HIDDEN, "vocab_size": VOCABULARY}
    config["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] = GROUP
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "README.md").write_text(card(MTP_EXCLUSIONS))
    index: dict[str, str] = {}
    for name, tensors in target_shards():
        write_sparse(folder / name, tensors)
        index |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def read_all(folder: Path) -> float:
    """Seconds to read every byte of a folder once."""
    started = time.monotonic()
    buffer = bytearray(4 * MIB)
    for path in folder.iterdir():
        with path.open("rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass
    return time.monotonic() - started


def judge(source: str, role: Role) -> tuple[Report, float]:
    from pipeline.checkpoint import gate

    started = time.monotonic()
    report = gate.check(source, role, PIN)
    return report, time.monotonic() - started


def rows(server: HubServer, role: Role, write: Callable[[Path], None]) -> Iterator[tuple[str, str, str, str]]:
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        write(folder)
        size = sum(path.stat().st_size for path in folder.iterdir())
        report, seconds = judge(str(folder), role)
        yield role, "folder", f"{report.bytes_read / MIB:.2f} MiB", _verdict(report, seconds)
        repository = f"bench/{role}"
        server.add(repository, folder)
        before = server.bytes_sent
        report, seconds = judge(repository, role)
        sent = f"{(server.bytes_sent - before) / MIB:.2f} MiB sent"
        yield role, "Hub on loopback", sent, _verdict(report, seconds)
        at_line_rate = size * 8 / 1e9
        yield (
            role,
            "all of it",
            f"{size / MIB:,.0f} MiB",
            (f"{read_all(folder):.1f} s to read from this disk (sparse); {at_line_rate:.0f} s at 1 Gbit/s, calculated"),
        )


def _verdict(report: Report, seconds: float) -> str:
    good = "passed" if report.publishable_and_servable else f"refused by {', '.join(report.refused_by)}"
    return f"{seconds:.2f} s, {report.requests} reads, {good}"


@click.command()
def main() -> None:
    table = Table("checkpoint", "where", "bytes", "time")
    with hub_server() as server, tempfile.TemporaryDirectory(prefix="bench-") as home:
        # Before huggingface_hub is imported, which reads them then.
        os.environ.update({**server.environment(token=None), "HF_HOME": home})
        for row in (*rows(server, "draft", write_draft), *rows(server, "target", write_target)):
            table.add_row(*row)
    console.out.print(table)


if __name__ == "__main__":
    main()
