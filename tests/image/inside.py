"""What the tiers of the real image share: the tree before patches, runs, and the verdict on a module."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline import check_data, container, tree_tests
from pipeline.errors import EngineError
from pipeline.manifest import lines, load_line
from pipeline.oci import LayerEntry
from pipeline.store import Engine
from pipeline.tree_tests import Case, Outcome

if TYPE_CHECKING:
    from tests.image.conftest import Real


def named(line: str, tier: str) -> set[str]:
    """Modules of a tier that rows of a line's features name."""
    rows = check_data.features(load_line(line)).carried
    return {Path(path).stem for row in rows for path in row.run if path.startswith(f"tests/{tier}/")}


def tree_modules(line: str) -> list[str]:
    """Modules of tests/tree to run in a line's image: those that its rows name, and the one that holds the rows.

    The main line also runs what no line's rows name: tests of tools and of facts.
    """
    chosen = {"test_feature_rows", *named(line, "tree")}
    if load_line(line).is_main:
        chosen |= set(tree_tests.modules()).difference(*(named(each, "tree") for each in lines()))
    return sorted(chosen)


def unpatched(real: "Real") -> Mapping[str, bytes]:
    """What the line's sources brought, before overlays and patches."""
    composed = real.composed
    from_sources = [path for path, entry in composed.record.files.items() if entry.origin.startswith("source:")]
    return {path: composed.upstream.get(path, composed.files[path]) for path in from_sources}


def run(
    engine: Engine, tag: str, entries: Sequence[LayerEntry], limits: container.Limits, log: Path
) -> tuple[Case, ...]:
    """Run the tests in a container of the image ``tag``; their output is shown when there is no result at all."""
    try:
        return tree_tests.run(engine, tag, entries, limits, log)
    except EngineError as error:
        raise AssertionError(f"{error}\n{log.read_text()[-5000:]}") from error


def assert_sound(cases: Sequence[Case], module: str) -> None:
    """No test of the module failed; what the line's tree has nothing to show for is skipped, with its reason shown.

    Whether each of those runs on another line is asked in test_other_lines_tier.py.
    """
    ran = [case for case in cases if case.module == module]
    assert ran, f"no test of {module} ran"
    failed = [f"{case.name}: {case.message}\n{case.text}" for case in ran if case.outcome is Outcome.FAILED]
    assert failed == []
    skipped = [case for case in ran if case.outcome is Outcome.SKIPPED]
    print(f"{module}: {len(ran) - len(skipped)} tests passed in the image, {len(skipped)} skipped")
    for case in skipped:
        print(f"  {case.name}: {case.message}")


def assert_passed(cases: Sequence[Case], module: str) -> None:
    """Every test of the module ran and passed; what was skipped is shown with its reason, and is a failure."""
    ran = [case for case in cases if case.module == module]
    assert ran, f"no test of {module} ran"
    unsound = [case for case in ran if case.outcome is not Outcome.PASSED]
    bad = [f"{case.name}: {case.outcome}: {case.message}\n{case.text}" for case in unsound]
    assert bad == []
    print(f"{module}: {len(ran)} tests passed in the image")
