"""Everything that we added or changed can be imported, on the branches that an XPU takes."""

from collections.abc import Iterator

from checks.given import Given
from checks.verdict import Verdict
from checks.xpu import STUBS, Answer, changed_modules


def test_imports(given: Given, on_xpu: Answer, verdict: Verdict) -> None:
    """Each Python file of ours, where torch sees an XPU and a stand-in takes the place of Intel's kernels."""
    for problem in problems(given, on_xpu):
        verdict.problem(problem)
    stands_in = ", ".join(sorted(path.name for path in STUBS.iterdir()))
    count = len(changed_modules(given))
    verdict.conclude(f"{count} files of ours import as on an XPU, with a stand-in for {stands_in}")


def problems(given: Given, on_xpu: Answer) -> Iterator[str]:
    """What keeps them from being imported."""
    modules = changed_modules(given)
    if not modules:
        yield "expected Python files of ours in the record, found none"
    if on_xpu.problem:
        yield on_xpu.problem
        return
    for module, file in modules.items():
        error = on_xpu.modules[module]
        if error is not None:
            yield f"{file}: cannot be imported as on an XPU: {error}"
