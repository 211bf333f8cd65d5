"""What the SGLang releases 0.5.17 to 0.5.23 do differently, as far as a checkpoint is concerned.

Read from each release's wheel. The composed tree's release is compared with the tree itself in
``tests/tree/test_ignore_matcher.py``.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.version import Version

from pipeline.checkpoint.ignore import QWEN3_5_FUSED, Fused
from pipeline.errors import CheckpointError

KNOWN = ("0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")
DFLASH2 = "DFlash2DraftModel"
DFLASH2_ALIASES = ("DFlash2BeamDraftModel", "MiniMaxDFlash2DraftModel")
GROUP_SIZES = (32, 64, 128, 256)
"""Of the 4-bit matrix product that torch has for XPU."""
FP8_BLOCKS = ((1, 128), (128, 128))


@dataclass(frozen=True)
class Release:
    """One SGLang release."""

    version: str

    def _from(self, first: str) -> bool:
        return Version(self.version) >= Version(first)

    @property
    def mtp_fused(self) -> Fused:
        """The table of fused modules of the MTP class, which has one from 0.5.21 on."""
        return QWEN3_5_FUSED if self._from("0.5.21") else {}

    @property
    def xpu_packed_int4(self) -> bool:
        """compressed-tensors ``pack-quantized`` on XPU."""
        return self._from("0.5.21")

    @property
    def xpu_awq(self) -> bool:
        """AWQ and GPTQ through torch's own 4-bit product; 0.5.17 and 0.5.18 dequantise AWQ first."""
        return self._from("0.5.19")

    @property
    def xpu_block_fp8(self) -> bool:
        return self._from("0.5.21")

    @property
    def architectures(self) -> frozenset[str]:
        return frozenset(name for name, first in _architectures().items() if self._from(first))

    @property
    def dflash2_aliases(self) -> tuple[str, ...]:
        return tuple(name for name in DFLASH2_ALIASES if name in self.architectures)

    def __str__(self) -> str:
        return f"sglang=={self.version}"


@cache
def _architectures() -> dict[str, str]:
    text = Path(__file__).with_name("architectures.txt").read_text(encoding="utf-8")
    return dict(line.split() for line in text.splitlines() if line and not line.startswith("#"))


def release(pin: str) -> Release:
    """The release of ``sglang==VERSION`` or of a bare version.

    Raises:
        CheckpointError: the rules of that release are not known.
    """
    version = pin.removeprefix("sglang==").strip()
    if version not in KNOWN:
        raise CheckpointError(f"--pin {pin}", expected=f"sglang== and one of {', '.join(KNOWN)}")
    return Release(version)
