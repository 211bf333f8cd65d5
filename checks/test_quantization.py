"""On an XPU the target's INT4 weights become what the line says, others are refused, and the MTP head stays plain."""

from collections.abc import Iterator

from checks.given import Given, Quantization
from checks.verdict import Verdict
from checks.xpu import Answer, Layer, layers


def test_quantization(given: Given, on_xpu: Answer, verdict: Verdict) -> None:
    """Each layer of ``quantization.yaml``, built by the image's own classes where torch sees an XPU."""
    expected = given.quantization
    for problem in problems(expected, on_xpu):
        verdict.problem(problem)
    target = f"{expected.outcome} for {len(expected.quantised)} layers of the target"
    if expected.is_served:
        target += f"; {len(expected.refused)} other kinds of weights are refused"
    else:
        target += ", whose weights this line does not serve"
    verdict.conclude(
        f"{target}; {len(expected.mtp_modules)} MTP modules stay plain with the {len(expected.ignore)} "
        f"published ignore entries, and do not with {len(expected.faulty)} faulty lists"
    )


def problems(expected: Quantization, on_xpu: Answer) -> Iterator[str]:
    """Layers that SGLang builds otherwise."""
    if on_xpu.problem:
        yield on_xpu.problem
        return
    for layer, found in zip(layers(expected), on_xpu.layers, strict=True):
        if not holds(layer, found):
            wanted = f"an error that says {layer.expected!r}" if layer.refused else layer.expected
            yield f"{layer.module}: {layer.why}: expected {wanted}, found {found}"


def holds(layer: Layer, found: str) -> bool:
    """Whether SGLang does what is expected; an error of another kind is no refusal."""
    if layer.refused:
        return found.startswith("NotImplementedError: ") and layer.expected in found
    return found == layer.expected
