"""Oracle of xpu-mamba-extra-buffer.patch: the published command lines end in settings, not in an assertion.

A line whose release takes the extra-buffer cache on XPU by itself carries no such patch; its command lines have to
end in the same settings. SGLang resolves whole command lines against config folders of the real models and a faked
torch.xpu. No server starts. What the rule says on other platforms, and how many state slots a request takes, is asked
beside that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from conftest import LINE, MAIN  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from tests.tree.conftest import Tree

oracle = pytest.mark.patch("xpu-mamba-extra-buffer.patch")
patched = pytest.mark.skipif(not MAIN, reason=f"{LINE}'s release takes the extra-buffer cache on XPU by itself")
unpatched = pytest.mark.skipif(MAIN, reason=f"{LINE} carries xpu-mamba-extra-buffer.patch")
SAMPLING = "intel_xpu" if MAIN else "pytorch"  # 0.5.18 has no sampling kernels for XPU

NATIVE, EXTENDED = 262_144, 1_048_576
GRAPHS = '{"decode":{"backend":"full","bs":[1,2,4,8]},"prefill":{"backend":"disabled"}}'
COMMON = f"""
--served-model-name Qwen3.8-27B --device xpu --tp-size 4 --trust-remote-code --language-only
--max-running-requests 64 --chunked-prefill-size 4096 --mem-fraction-static 0.85 --page-size 64
--attention-backend intel_xpu --disable-custom-all-reduce
--reasoning-parser qwen3-thinking --tool-call-parser qwen3_coder --strip-thinking-cache --enable-strict-thinking
--watchdog-timeout 1800 --skip-server-warmup --enable-cache-report --cuda-graph-config {GRAPHS}
""".split()
NONE: list[str] = []
MTP = [
    *("--speculative-algorithm", "EAGLE"),
    *("--speculative-num-steps", "7"),
    *("--speculative-eagle-topk", "1"),
    *("--speculative-num-draft-tokens", "8"),
]


def dflash(draft: str) -> list[str]:
    return f"""
    --speculative-algorithm DFLASH --speculative-draft-model-path {draft} --speculative-num-draft-tokens 8
    --speculative-dflash-block-size 8 --speculative-draft-window-size 2048
    """.split()


@dataclass(frozen=True)
class Profile:
    """One way to serve; paths in braces are config folders that the driver makes."""

    target: str
    tokens: int
    state_slots: int
    mode: list[str]

    def arguments(self, *more: str) -> list[str]:
        sizes = ["--context-length", str(self.tokens), "--max-total-tokens", str(self.tokens)]
        slots = ["--max-mamba-cache-size", str(self.state_slots)]
        return ["--model-path", self.target, *sizes, *slots, *COMMON, *self.mode, *more]


PROFILES = {
    "native-256k-none": Profile("{target}", NATIVE, 48, NONE),
    "native-256k-mtp": Profile("{target}", NATIVE, 48, MTP),
    "native-256k-dflash2": Profile("{target}", NATIVE, 48, dflash("{draft}")),
    "1m-none": Profile("{target-1m}", EXTENDED, 8, NONE),
    "1m-mtp": Profile("{target-1m}", EXTENDED, 8, MTP),
    "1m-dflash2": Profile("{target-1m}", EXTENDED, 8, dflash("{draft-1m}")),
    "1m-20260819 mtp": Profile("{target-1m}", EXTENDED, 40, MTP),
    "1m-20260819 dflash2": Profile("{target-1m}", EXTENDED, 40, dflash("{draft-1m}")),
}
MODES = ("native-256k-none", "native-256k-mtp", "native-256k-dflash2")
STRATEGIES = ("extra_buffer", "extra_buffer_lazy")
FUSED = ("--linear-attn-backend", "intel_xpu")
STRATEGY = "--mamba-radix-cache-strategy"
HYBRID_WITHOUT_GDN = ["--model-path", "{mamba2}", "--context-length", "8192", "--max-mamba-cache-size", "48", *COMMON]

NO_BUFFER = "AssertionError: no_buffer only supports page_size=1."
NO_EXTRA_BUFFER = "AssertionError: extra_buffer is not supported for {}; use no_buffer."
REASON = (
    " --linear-attn-backend intel_xpu updates conv and SSM state inside one fused kernel, which cannot snapshot "
    "them at a prefix-cache checkpoint: extra_buffer needs --linear-attn-backend triton."
)
NO_DFLASH = "ValueError: DFLASH speculative decoding only supports CUDA and NPU devices."
QWEN, FALCON = "Qwen3_5ForConditionalGeneration", "FalconH1ForCausalLM"
OTHER_PLATFORMS = ("cuda", "musa", "npu", "hip", "cpu")


def launch(name: str, arguments: list[str]) -> dict[str, Any]:
    return {"name": name, "ask": "launch", "arguments": arguments}


OF_THE_PATCH = [
    *(
        launch(f"{name} {strategy}", PROFILES[name].arguments(STRATEGY, strategy))
        for name in MODES
        for strategy in STRATEGIES
    ),
    *(launch(f"{name} fused", PROFILES[name].arguments(*FUSED)) for name in MODES),
    *(
        launch(f"{name} fused {strategy}", PROFILES[name].arguments(*FUSED, STRATEGY, strategy))
        for name in MODES
        for strategy in STRATEGIES
    ),
    *(launch(f"{name} no radix", PROFILES[name].arguments("--disable-radix-cache")) for name in MODES),
    launch("without GDN", HYBRID_WITHOUT_GDN),
    launch("without GDN extra_buffer", [*HYBRID_WITHOUT_GDN, STRATEGY, "extra_buffer"]),
    *(
        {"name": platform, "ask": "platform_rules", "platform": platform, "backends": ["triton", "intel_xpu"]}
        for platform in OTHER_PLATFORMS
    ),
    {"name": "commit", "ask": "commit_steps", "track": True},
    {"name": "commit untracked", "ask": "commit_steps", "track": False},
    {"name": "verified", "ask": "verified_states"},
]
CASES = [
    *(launch(name, profile.arguments()) for name, profile in PROFILES.items()),
    *({"name": f"slots {strategy}", "ask": "slots_per_request", "strategy": strategy} for strategy in STRATEGIES),
    {"name": "state", "ask": "state_bytes", "tp_size": 4},
    {"name": "late fake", "ask": "late_fake"},
    {"name": "tracked", "ask": "tracked_slots"},
    *(OF_THE_PATCH if MAIN else []),
]


@pytest.fixture(scope="module")
def ours(composed: Tree) -> dict[str, Any]:
    return composed.measure("launch_resolution", CASES)


@pytest.fixture(scope="module")
def theirs(upstream: Tree) -> dict[str, Any]:
    return upstream.measure("launch_resolution", CASES)


def graphs(settings: dict[str, Any]) -> tuple[str, list[int], str]:
    phases = settings["cuda_graph_config"]
    return phases["decode"]["backend"], phases["decode"]["bs"], phases["prefill"]["backend"]


@oracle
@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_resolves(ours: dict[str, Any], name: str) -> None:
    profile, answer = PROFILES[name], ours[name]
    assert "error" not in answer
    settings = answer["settings"]
    assert settings["mamba_radix_cache_strategy"] == "extra_buffer"
    assert settings["disable_radix_cache"] is False
    assert settings["disable_overlap_schedule"] is False
    assert settings["page_size"] == 64
    assert settings["context_length"] == profile.tokens
    assert settings["max_mamba_cache_size"] == profile.state_slots
    assert settings["chunked_prefill_size"] == 4096
    assert settings["attention_backend"] == "intel_xpu"
    assert (settings["prefill_attention_backend"], settings["decode_attention_backend"]) == (None, None)
    assert settings["linear_attn_backend"] == "triton"
    assert settings["sampling_backend"] == SAMPLING
    assert graphs(settings) == ("full", [1, 2, 4, 8], "disabled")
    # A checkpoint has to end a page.
    assert settings["mamba_track_interval"] % settings["page_size"] == 0


@oracle
@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_keeps_its_draft(ours: dict[str, Any], name: str) -> None:
    settings = ours[name]["settings"]
    draft = {key.removeprefix("speculative_"): value for key, value in settings.items() if "speculative" in key}
    steps = ("num_steps", "eagle_topk", "num_draft_tokens", "draft_window_size", "draft_attention_backend")
    expected: dict[str, list[Any]] = {
        "none": [None, None, None, None, None, None],
        "mtp": ["EAGLE", 7, 1, 8, None, None],
        "dflash2": ["DFLASH", 1, 1, 8, 2048, "intel_xpu"],
    }
    assert [draft[key] for key in ("algorithm", *steps)] == next(
        values for mode, values in expected.items() if name.endswith(mode)
    )


@patched
@oracle
@pytest.mark.parametrize("name", PROFILES)
def test_upstream_starts_none_of_them(theirs: dict[str, Any], name: str) -> None:
    assert theirs[name] == {"error": NO_BUFFER}


@unpatched
@pytest.mark.parametrize("name", [name for name in PROFILES if not name.endswith("dflash2")])
def test_upstream_resolves_it_alike(ours: dict[str, Any], theirs: dict[str, Any], name: str) -> None:
    assert ours[name] == theirs[name]


@unpatched
@pytest.mark.patch("xpu-dflash.patch")
@pytest.mark.parametrize("name", [name for name in PROFILES if name.endswith("dflash2")])
def test_upstream_refuses_dflash(theirs: dict[str, Any], name: str) -> None:
    assert theirs[name] == {"error": NO_DFLASH}


@patched
@oracle
@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_strategy_can_be_named(ours: dict[str, Any], name: str, strategy: str) -> None:
    assert ours[f"{name} {strategy}"]["settings"]["mamba_radix_cache_strategy"] == strategy


@patched
@oracle
@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_upstream_refuses_it(theirs: dict[str, Any], name: str, strategy: str) -> None:
    assert theirs[f"{name} {strategy}"] == {"error": NO_EXTRA_BUFFER.format(QWEN)}


@patched
@oracle
@pytest.mark.parametrize("name", MODES)
def test_the_fused_kernel_is_refused_with_the_reason(ours: dict[str, Any], name: str) -> None:
    assert ours[f"{name} fused"] == {"error": NO_BUFFER + REASON}
    for strategy in STRATEGIES:
        assert ours[f"{name} fused {strategy}"] == {"error": NO_EXTRA_BUFFER.format(QWEN) + REASON}


@patched
@oracle
@pytest.mark.parametrize("name", MODES)
def test_without_radix_cache_nothing_changes(ours: dict[str, Any], theirs: dict[str, Any], name: str) -> None:
    key = f"{name} no radix"
    assert "settings" in theirs[key]
    assert ours[key] == theirs[key]


@patched
@oracle
def test_other_hybrid_models_keep_no_buffer(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours["without GDN"] == theirs["without GDN"] == {"error": NO_BUFFER}
    key = "without GDN extra_buffer"
    assert ours[key] == theirs[key] == {"error": NO_EXTRA_BUFFER.format(FALCON)}


@patched
@oracle
@pytest.mark.parametrize("platform", OTHER_PLATFORMS)
def test_other_platforms_get_the_same_answers(ours: dict[str, Any], theirs: dict[str, Any], platform: str) -> None:
    supported, refusal, _ = ours[platform][f"{QWEN} triton"]
    assert supported is True
    assert (refusal is None) == (platform != "cpu")
    assert ours[platform] == theirs[platform]


@pytest.mark.parametrize(
    ("name", "eager", "lazy"),
    [
        ("native-256k-mtp", 9, 12),
        ("native-256k-dflash2", 9, 12),
        ("1m-mtp", 1, 2),
        ("1m-dflash2", 1, 2),
        ("1m-20260819 dflash2", 8, 10),
    ],
)
def test_requests_that_the_state_slots_carry(ours: dict[str, Any], name: str, eager: int, lazy: int) -> None:
    slots = PROFILES[name].state_slots
    assert slots // ours["slots extra_buffer"] == eager
    assert slots // ours["slots extra_buffer_lazy"] == lazy


def test_what_a_state_slot_takes(ours: dict[str, Any]) -> None:
    # 48 Gated DeltaNet layers; by rank 12 value heads and 4 key heads of width 128.
    recurrence = 12 * 128 * 128 * 4  # FP32
    convolution = (12 + 4 + 4) * 128 * 3 * 2  # values, keys and queries of three tokens, BF16
    assert ours["state"] == 48 * (recurrence + convolution)


@patched
def test_the_fallback_commits_the_steps_of_the_fused_kernel(ours: dict[str, Any]) -> None:
    measured = ours["commit"]
    last, tracked = measured["fallback"]
    assert measured["fused"] == [last, tracked]
    crossings = 0
    for length, before, step, track in zip(measured["accept_lens"], measured["seq_lens"], last, tracked, strict=True):
        assert step == length - 1
        # Step s of a verify writes position before + s; the state after it covers before + s + 1 tokens.
        ends = [s for s in range(length) if (before + s + 1) % 256 == 0]
        assert track == (ends[-1] if ends else -1)
        crossings += bool(ends)
    assert 0 < crossings < len(last)
    untracked = ours["commit untracked"]
    assert untracked["fallback"] == untracked["fused"] == [last, None]


def test_a_decode_checkpoint_copies_the_tracked_rows_in_every_layer(ours: dict[str, Any]) -> None:
    for pool in ours["tracked"].values():
        for layer in pool:
            # Track slot 5 now holds the state of slot 1, track slot 4 that of slot 3; the row between was not due.
            assert [set(slot) for slot in layer] == [{0}, {1}, {2}, {3}, {3}, {1}]


@patched
def test_the_states_that_a_verification_leaves_are_those_of_the_recurrence(ours: dict[str, Any]) -> None:
    measured = ours["verified"]
    assert measured["wrapper"].startswith("sglang.srt.hardware_backend.xpu.")
    # FP32 arithmetic on values of order one.
    assert measured["difference"] < 1e-5
    assert measured["pool_untouched"]


def test_the_fake_comes_before_sglang(ours: dict[str, Any]) -> None:
    assert ours["late fake"].startswith("sglang is imported already")
