"""What the checkpoint gate reads, measured: ``python -m benchmarks.checkpoint``. Prints figures; asserts nothing.

Checkpoints of the real shapes, made on the spot as sparse files: a DFlash2 draft of five layers, and a target of 64
layers, packed to four bits, in many shards with its MTP head and its vision tower in BF16. Each is judged in its folder
and through a Hub on loopback, where the server counts what it sends; beside it stand the size of a download and the
time to read all of it once from this disk, which no download can beat.
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
from pipeline.checkpoint.naming import MTP_EXCLUSIONS, MTP_FC, MTP_LAYER, MTP_PARTS, MTP_PLAIN, DFlash2Shape
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


Shapes = dict[str, tuple[int, int]]


def mlp() -> Shapes:
    """Linear modules of a layer's MLP."""
    return {"mlp.gate_proj": (WIDE, HIDDEN), "mlp.up_proj": (WIDE, HIDDEN), "mlp.down_proj": (HIDDEN, WIDE)}


def attention(query: int, keys: int, output: int) -> Shapes:
    """Those of full attention, by the widths of the query with its gate, of keys and of what is projected back."""
    rows = {"q_proj": query, "k_proj": keys, "v_proj": keys}
    return {
        **{f"self_attn.{name}": (row, HIDDEN) for name, row in rows.items()},
        "self_attn.o_proj": (HIDDEN, output),
    }


TARGET_ATTENTION = attention(query=2 * 24 * 256, keys=4 * 256, output=24 * 256)
KEYS, VALUES, HEADS, TAPS = 16 * 128, 48 * 128, 48, 4
DELTA_NET = {
    "linear_attn.in_proj_qkv": (2 * KEYS + VALUES, HIDDEN),
    "linear_attn.in_proj_z": (VALUES, HIDDEN),
    "linear_attn.in_proj_b": (HEADS, HIDDEN),
    "linear_attn.in_proj_a": (HEADS, HIDDEN),
    "linear_attn.out_proj": (HIDDEN, VALUES),
}
VISION_LAYERS, VISION, VISION_WIDE = 27, 1152, 4304


def draft_tensors() -> Tensors:
    found: Tensors = {name: ("BF16", shape) for name, shape in SHAPE.tensors().items()}
    found["fc.weight"] = ("BF16", (HIDDEN, 5 * HIDDEN))
    for layer in range(SHAPE.layers):
        for name, shape in {**attention(40 * 128, 8 * 128, 40 * 128), **mlp()}.items():
            found[f"layers.{layer}.{name}.weight"] = ("BF16", shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"layers.{layer}.{name}.weight"] = ("BF16", (HIDDEN,))
    return found


def packed(prefix: str, shapes: Shapes) -> Tensors:
    """Modules in four bits."""
    found: Tensors = {}
    for name, (rows, columns) in shapes.items():
        found[f"{prefix}.{name}.weight_packed"] = ("I32", (rows, columns // 8))
        found[f"{prefix}.{name}.weight_scale"] = ("BF16", (rows, columns // GROUP))
        found[f"{prefix}.{name}.weight_shape"] = ("I64", (2,))
    return found


def layer(number: int) -> Tensors:
    """A layer of the target; every fourth has full attention."""
    prefix = f"model.language_model.layers.{number}"
    norms = {"input_layernorm": HIDDEN, "post_attention_layernorm": HIDDEN}
    if number % 4 == 3:
        norms |= {"self_attn.q_norm": 256, "self_attn.k_norm": 256}
        modules = TARGET_ATTENTION
    else:
        norms |= {"linear_attn.norm": 128}
        modules = DELTA_NET
    found = packed(prefix, {**modules, **mlp()})
    found |= {f"{prefix}.{name}.weight": ("BF16", (width,)) for name, width in norms.items()}
    if modules is DELTA_NET:
        found[f"{prefix}.linear_attn.conv1d.weight"] = ("BF16", (2 * KEYS + VALUES, 1, TAPS))
        found |= {f"{prefix}.linear_attn.{name}": ("BF16", (HEADS,)) for name in ("A_log", "dt_bias")}
    return found


def mtp_head() -> Tensors:
    linear = {f"{MTP_LAYER}.{name}": shape for name, shape in {**TARGET_ATTENTION, **mlp()}.items()}
    assert set(linear) == set(MTP_PARTS)
    found: Tensors = {f"{module}.weight": ("BF16", (HIDDEN,)) for module in MTP_PLAIN}
    found |= {f"{MTP_LAYER}.self_attn.{name}.weight": ("BF16", (256,)) for name in ("q_norm", "k_norm")}
    found[f"{MTP_FC}.weight"] = ("BF16", (HIDDEN, 2 * HIDDEN))
    return found | {f"{module}.weight": ("BF16", shape) for module, shape in linear.items()}


def vision_tower() -> Tensors:
    """Its matrices; what is as small as a bias is left out."""
    block = {"qkv": (3 * VISION, VISION), "proj": (VISION, VISION)}
    wide = {"linear_fc1": (VISION_WIDE, VISION), "linear_fc2": (VISION, VISION_WIDE)}
    shapes = {f"attn.{name}": shape for name, shape in block.items()} | {f"mlp.{n}": shape for n, shape in wide.items()}
    found: Tensors = {
        f"model.visual.blocks.{number}.{name}.weight": ("BF16", shape)
        for number in range(VISION_LAYERS)
        for name, shape in shapes.items()
    }
    merged = {"linear_fc1": (4 * VISION, 4 * VISION), "linear_fc2": (HIDDEN, 4 * VISION)}
    return found | {f"model.visual.merger.{name}.weight": ("BF16", shape) for name, shape in merged.items()}


def target_shards(layers_per_shard: int = 4) -> Iterator[tuple[str, Tensors]]:
    """Shards of the target: embeddings and vision tower, packed layers, and the MTP head in the last one."""
    count = LAYERS // layers_per_shard + 1
    for number in range(count):
        tensors: Tensors = {}
        if number == 0:
            tensors["model.language_model.embed_tokens.weight"] = ("BF16", (VOCABULARY, HIDDEN))
            tensors |= vision_tower()
        for each in range(number * layers_per_shard, min((number + 1) * layers_per_shard, LAYERS)):
            tensors |= layer(each)
        if number == count - 1:
            tensors["lm_head.weight"] = ("BF16", (VOCABULARY, HIDDEN))
            tensors |= mtp_head()
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
