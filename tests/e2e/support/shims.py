"""What SGLang needs before its own code for XPU runs on a CPU: every change of the tests to the tree, and why.

None of it is in an image. :func:`install` is called before ``sglang`` is imported, in each of an engine's processes;
each change is made when its module is imported. A change that does not find what it expects raises, so that a
new SGLang release fails here, by name, and is not tested by accident in some other way.

Triton's interpreter (``TRITON_INTERPRET=1``) and FP32 are assumed: its own BF16 arithmetic is wrong.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any


@dataclass(frozen=True)
class Replace:
    """Source text of a module, replaced before it is compiled; ``old`` has to occur ``times``."""

    module: str
    old: str
    new: str
    why: str
    times: int = 1

    def apply(self, source: str) -> str:
        """Raises ImportError when ``old`` does not occur as often as expected."""
        found = source.count(self.old)
        if found != self.times:
            raise ImportError(
                f"shim for {self.module}: {self.old.strip()[:60]!r}: expected {self.times} times, found {found}; "
                "read that module again and change tests/e2e/support/shims.py"
            )
        return source.replace(self.old, self.new)


@dataclass(frozen=True)
class Set:
    """A name of a module that gets another value once the module is imported; it has to exist."""

    module: str
    name: str
    value: Any
    why: str

    def apply(self, module: ModuleType) -> None:
        """Raises ImportError when the module has no such name."""
        if not hasattr(module, self.name):
            raise ImportError(
                f"shim for {self.module}: expected the name {self.name}, found none; "
                "read that module again and change tests/e2e/support/shims.py"
            )
        setattr(module, self.name, self.value)


@dataclass(frozen=True)
class Call:
    """A function that changes a library's module once it is imported."""

    module: str
    change: Callable[[Any], None]
    why: str

    def apply(self, module: ModuleType) -> None:
        self.change(module)


Shim = Replace | Set | Call


class _Event:
    """A CUDA event without a device: work on a CPU is done when the call returns."""

    def __init__(self, *_args: object, **_options: object) -> None: ...

    def record(self, *_args: object) -> None: ...

    def wait(self, *_args: object) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


def _device_calls(torch: Any) -> None:
    properties = SimpleNamespace(name="none", major=8, minor=0, multi_processor_count=4, total_memory=8 << 30)
    torch.cuda.get_device_properties = lambda *_: properties
    torch.cuda.get_device_capability = lambda *_: (properties.major, properties.minor)
    torch.cuda.synchronize = torch.cuda.empty_cache = lambda *_: None
    torch.cuda.Event = _Event
    torch.cpu.device = lambda *_: contextlib.nullcontext()
    torch.cpu.empty_cache = lambda: None
    torch.Tensor.record_stream = lambda *_: None


def _first_configuration(triton: Any) -> None:
    autotune = triton.autotune
    triton.autotune = lambda configs, key, **options: autotune(configs[:1], key, **options)


def _boolean_masks(interpreter: Any) -> None:
    builder = interpreter.InterpreterBuilder

    def boolean(mask: Any) -> Any:
        return mask if mask.data.dtype == bool else interpreter.TensorHandle(mask.data.astype(bool), mask.dtype)

    load, store = builder.create_masked_load, builder.create_masked_store
    builder.create_masked_load = lambda self, pointers, mask, *rest: load(self, pointers, boolean(mask), *rest)
    builder.create_masked_store = lambda self, pointers, value, mask, *rest: store(
        self, pointers, value, boolean(mask), *rest
    )


_EXPONENTIALS = "    exp = tl.exp\n    exp2 = tl.math.exp2\n    log = tl.log\n    log2 = tl.log2\n"

EVERY_RELEASE: tuple[Shim, ...] = (
    Call("torch", _device_calls, "device properties, events and streams are asked of torch.cuda, and there is no GPU"),
    Call("triton", _first_configuration, "autotuning times every configuration of a kernel on a GPU"),
    Call(
        "triton.runtime.interpreter",
        _boolean_masks,
        "kernels load and store through masks of integers, which the interpreter hands to NumPy as indices",
    ),
    Replace(
        "sglang.kernels.ops.attention.fla.op",
        _EXPONENTIALS,
        "".join(
            f"    @triton.jit\n    def {name}(x):\n        return tl.{name}(x)\n"
            for name in ("exp", "exp2", "log", "log2")
        ),
        "the interpreter swaps a function of Triton's only where a kernel reaches it through `tl`, not by an alias",
    ),
    Replace(
        "sglang.srt.model_executor.model_runner",
        "forward_batch.input_embeds.bfloat16()",
        "forward_batch.input_embeds.to(self.dtype)",
        "DFLASH's input embeddings are cast to BF16, whatever the model's own type is",
    ),
    Replace(
        "sglang.srt.entrypoints.engine",
        'mp.set_start_method("spawn", force=True)',
        'mp.set_start_method("fork", force=True)',
        "an engine has three processes, and spawned ones would import SGLang once more each, for 7 s of CPU time",
    ),
    Set(
        "sglang.srt.layers.rotary_embedding.base",
        "_is_xpu",
        True,
        "without a known device the rotary embedding comes from vLLM, which is absent; torch computes it instead",
    ),
    Set("sglang.srt.speculative.eagle_utils", "_is_xpu", True, "MTP is verified the way XPU does it"),
    Set(
        "sglang.kernels.ops.speculative.cache_locs",
        "_is_xpu",
        True,
        "cache locations of a verification come from the Triton kernel that XPU runs",
    ),
    Replace(
        "sglang.srt.managers.schedule_batch",
        "track_mask_cpu.pin_memory().to(",
        "track_mask_cpu.to(",
        "the mask of a decode checkpoint is staged in pinned memory, which only a device can read",
    ),
    Set(
        "sglang.srt.arg_groups.speculative_hook",
        "_disable_overlap_schedule_for_cpu",
        lambda _server_args: None,
        "overlap scheduling is switched off for speculation on a CPU; its order of steps needs no device",
    ),
)

FP32 = "the kernel refuses FP32 for speed's sake, and FP32 is what makes token ids comparable"
SCATTER = "committing the recurrent state after a verification is refused for tensors in a CPU's memory"
DFLASH_ON_CPU = "DFLASH is refused on a CPU"
SNAPSHOTS = "snapshots of the recurrent state are offered on XPU, and refused where no device is known"
CHOICES = "the DFLASH worker takes its XPU choices: fused draft keys and values, Triton block, acceptance and window"

OF_RELEASE: dict[str, tuple[Shim, ...]] = {
    "0.5.18": (Replace("sglang.kernels.ops.attention.fla.chunk", "q.dtype != torch.float32\n", "True\n", FP32),),
    "0.5.23": (
        Replace("sglang.kernels.ops.attention.fla.chunk", "assert q.dtype != torch.float32, (", "assert True, (", FP32),
        Replace(
            "sglang.kernels.ops.mamba.mamba_state_scatter_triton",
            "not (dst.is_cuda or dst.is_xpu) or ",
            "",
            SCATTER,
            times=2,
        ),
        Replace(
            "sglang.srt.arg_groups.speculative_hook",
            'cfg.device == "npu" or cfg.device == "xpu"\n',
            'cfg.device in ("npu", "xpu", "cpu")\n',
            DFLASH_ON_CPU,
        ),
        Set(
            "sglang.kernels.ops.speculative.spec_tree",
            "_is_xpu",
            True,
            "the draft tree is built, and verified greedily, by the Triton kernels that XPU runs",
        ),
        Set("sglang.srt.speculative.dflash_worker_v2", "is_xpu", lambda: True, CHOICES),
        Set("sglang.srt.arg_groups.mamba_hook", "_platform_supports_mamba_cache_extra_buffer", lambda: True, SNAPSHOTS),
    ),
}
"""Beside ``EVERY_RELEASE``, by the release of the tree's SGLang."""

OURS: dict[str, tuple[Shim, ...]] = {
    "0.5.18": (
        Replace(
            "sglang.srt.arg_groups.speculative_hook",
            'server_args.device in ("npu", "xpu")\n',
            'server_args.device in ("npu", "xpu", "cpu")\n',
            DFLASH_ON_CPU,
        ),
        Set("sglang.srt.speculative.dflash_worker_v2", "is_xpu", lambda: True, CHOICES),
        Replace(
            "sglang.kernels.ops.mamba.mamba_state_scatter_triton",
            "not (dst.is_cuda or dst.is_xpu) or ",
            "",
            SCATTER,
            times=2,
        ),
    ),
    "0.5.23": (
        Replace(
            "sglang.srt.models.dflash",
            "if hidden_states.is_xpu:",
            "if True:",
            "the selector proposes in one Triton launch on XPU (dflash-selector-triton.patch)",
        ),
        Replace(
            "sglang.srt.mem_cache.memory_pool",
            "tiled_on_xpu = (\n            _is_xpu\n            and ",
            "tiled_on_xpu = (\n            ",
            "draft keys and values are committed by the tiled Triton kernel on XPU (xpu-draft-kv-commit.patch)",
        ),
    ),
}
"""In a patched tree as well: where one of our patches asks for the device."""


def release_of(tree: Path) -> str:
    """The release of a tree's SGLang, from the file that its build wrote."""
    source = (tree / "sglang" / "_version.py").read_text(encoding="utf-8")
    found = re.search(r"^__version__ = version = '([^']+)'$", source, re.MULTILINE)
    if found is None:
        raise ImportError(f"{tree}: expected a release in sglang/_version.py, found {source[-200:]!r}")
    return found[1]


def of(tree: Path, *, patched: bool) -> tuple[Shim, ...]:
    """The shims of a tree.

    Raises:
        ImportError: nobody has tried its release.
    """
    release = release_of(tree)
    if release not in OF_RELEASE:
        raise ImportError(f"shims: expected SGLang {' or '.join(OF_RELEASE)}, found {release}")
    return EVERY_RELEASE + OF_RELEASE[release] + (OURS[release] if patched else ())


class _Loader(importlib.abc.Loader):
    """Loads a module as its own loader would, with the shims applied."""

    def __init__(self, loader: Any, shims: Sequence[Shim], changed: Path) -> None:
        self._loader, self._shims, self._changed = loader, shims, changed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        found: ModuleType | None = self._loader.create_module(spec)
        return found

    def exec_module(self, module: ModuleType) -> None:
        replacements = [shim for shim in self._shims if isinstance(shim, Replace)]
        if replacements:
            self._exec_replaced(module, replacements)
        else:
            self._loader.exec_module(module)
        for shim in self._shims:
            if not isinstance(shim, Replace):
                shim.apply(module)

    def _exec_replaced(self, module: ModuleType, replacements: Sequence[Replace]) -> None:
        source = self._loader.get_source(module.__name__)
        for replacement in replacements:
            source = replacement.apply(source)
        # A file, because triton.jit reads a kernel's source from where its code object says it lies.
        path = self._changed / f"{module.__name__}.py"
        path.write_text(source, encoding="utf-8")
        exec(compile(source, str(path), "exec"), module.__dict__)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that have shims, and only those."""

    def __init__(self, shims: Sequence[Shim]) -> None:
        self._changed = Path(tempfile.mkdtemp(prefix="shims-"))
        self._shims: dict[str, list[Shim]] = {}
        for shim in shims:
            self._shims.setdefault(shim.module, []).append(shim)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        shims = self._shims.get(name)
        if shims is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None:
            spec.loader = _Loader(spec.loader, shims, self._changed)
        return spec


def install(shims: Sequence[Shim]) -> None:
    """Apply the shims to modules that are imported from now on.

    Raises:
        RuntimeError: a module with a shim is imported already.
    """
    early = sorted({shim.module for shim in shims} & set(sys.modules))
    if early:
        raise RuntimeError(f"shims: expected none of their modules imported yet, found {', '.join(early)}")
    sys.meta_path.insert(0, _Finder(shims))
