"""The base's kernel package has every name that SGLang imports from it when it starts on an XPU."""

from pathlib import Path

from checks.given import Given
from checks.kernel_names import KERNELS, defined, imported
from checks.verdict import Verdict

START = ("sglang/launch_server.py", "sglang/srt/layers/attention/xpu_backend.py")
XPU = "sglang/srt/hardware_backend/xpu"


def test_kernels(given: Given, verdict: Verdict) -> None:
    """Names from source, on both sides; one that is missing takes the module that imports it with it."""
    package = given.package_root / KERNELS
    if given.base_kind == "cpu" and not package.exists():
        verdict.not_applicable(f"the cpu base has no {KERNELS}; judged on a base with kernels")
        return
    wanted = imported(given.package_root, _start(given, verdict))
    found = defined(package) if package.is_dir() else {}
    if not found:
        verdict.problem(f"{package}: expected the kernel package, found none; build the base with it")
    for name, file in sorted(wanted.items()) if found else ():
        module, _, last = name.rpartition(".")
        if name not in found and last not in found.get(module, ()):
            verdict.problem(f"{file}: imports {name}, which {package} does not have; pair kernels and SGLang anew")
    verdict.conclude(f"names that the start on an XPU imports: {len(wanted)}, all in {KERNELS}")


def _start(given: Given, verdict: Verdict) -> list[str]:
    """Modules with which a start on an XPU begins; one that is not there is a problem."""
    named = [*START, *(wanted.file for wanted in given.architectures.values())]
    for path in named:
        if not (given.package_root / path).is_file():
            verdict.problem(f"{path}: expected the module with which a start begins, found none")
    folder: Path = given.package_root / XPU
    backend = [path.relative_to(given.package_root).as_posix() for path in sorted(folder.rglob("*.py"))]
    return [path for path in dict.fromkeys([*named, *backend]) if (given.package_root / path).is_file()]
