"""The example CI workflow: linted by zizmor, and its commands are ones that exist."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline import cli
from pipeline.files import PROJECT

WORKFLOW = PROJECT / "docs" / "examples" / "release.yml"
STEPS: list[dict[str, Any]] = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]["release"]["steps"]


def lint(file: Path) -> subprocess.CompletedProcess[str]:
    """Run the linter of the development environment; it asks nothing of the network."""
    linter = Path(sys.executable).with_name("zizmor")
    command = [str(linter), "--offline", "--no-config", "--pedantic", "--strict-collection", "--color=never", str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_linter_has_nothing_to_say() -> None:
    done = lint(WORKFLOW)
    assert (done.returncode, "No findings" in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("runs-on:", "runs-onn:", "'runs-onn' was unexpected"),
        ("timeout-minutes: 120", "timeout-minutes: soon", "does not match"),
        ("actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683", "actions/checkout@v4", "unpinned-uses"),
        ("        with:\n          persist-credentials: false\n", "", "artipacked"),
        ('make image LINE="$LINE"', "make image LINE=${{ inputs.line }}", "template-injection"),
        ("permissions: {}", "permissions: write-all", "excessive-permissions"),
    ],
)
def test_a_planted_fault_is_found(tmp_path: Path, before: str, after: str, problem: str) -> None:
    text = WORKFLOW.read_text(encoding="utf-8")
    assert before in text
    folder = tmp_path / ".github" / "workflows"
    folder.mkdir(parents=True)
    (folder / "release.yml").write_text(text.replace(before, after))
    done = lint(folder / "release.yml")
    assert done.returncode != 0
    assert problem in done.stdout + done.stderr


def test_its_commands_and_targets_exist() -> None:
    lines = [step["run"] for step in STEPS if "run" in step]
    for line in lines:
        words = shlex.split(line)
        if words[0] == "./build.py":
            assert cli.run([*words[1:], "--help"]) == 0  # an option that does not exist is told before the help is
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    targets = [shlex.split(line)[1] for line in lines if line.startswith("make ")]
    assert targets
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_the_dry_run_comes_before_the_release_and_secrets_go_to_the_login_alone() -> None:
    runs = [step.get("run", "") for step in STEPS]
    releases = [number for number, line in enumerate(runs) if "build.py release" in line]
    assert ["--dry-run" in runs[number] for number in releases] == [True, False]
    assert [step["name"] for step in STEPS if "secrets." in str(step)] == ["Log in"]
