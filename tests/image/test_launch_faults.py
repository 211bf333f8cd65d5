"""The launch check sees each way in which a command line can be wrong: one run in the real image, a profile a fault."""

import dataclasses
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipeline.documents import CheckResult, CheckStatus
from pipeline.manifest import Flag, Profile
from tests.image.conftest import Real, only

MTP, DFLASH, RING = "native-256k-mtp", "native-256k-dflash2", "1m-dflash2"
PRIVATE_RING = {"SGLANG_DFLASH_PRIVATE_RING": "1"}


@dataclass(frozen=True)
class Fault:
    """A profile of the line with other flags or variables, and the parts of the one problem that it must give."""

    profile: str
    says: tuple[str, ...]
    flags: dict[str, Flag] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    without: str = ""
    """A flag that is left out."""

    def plant(self, profile: Profile) -> Profile:
        arguments = {**profile.arguments, **self.flags}
        arguments.pop(self.without, None)
        return profile.model_copy(update={"arguments": arguments, "environment": self.environment})


FAULTS = {
    "removed-alias": Fault(
        DFLASH,
        ("--speculative-dflash-draft-window-size: expected flags of this image",),
        {"speculative-dflash-draft-window-size": 2048},
    ),
    "abbreviation": Fault(MTP, ("--mem-fraction: expected flags of this image",), {"mem-fraction": 0.85}),
    "bad-choice": Fault(
        MTP, ("argument --attention-backend: invalid choice: 'xpu_intel'",), {"attention-backend": "xpu_intel"}
    ),
    "algorithm-typo": Fault(
        MTP,
        ("Unknown speculative algorithm name: EAGEL", "--speculative-algorithm"),
        {"speculative-algorithm": "EAGEL"},
    ),
    "device-typo": Fault(MTP, ("--device xpuu: expected a device that torch knows",), {"device": "xpuu"}),
    "state-strategy": Fault(
        DFLASH,
        ("no_buffer only supports page_size=1", "it starts without --mamba-radix-cache-strategy"),
        {"mamba-radix-cache-strategy": "no_buffer"},
    ),
    "overridden": Fault(
        MTP,
        ("--speculative-num-draft-tokens: start-up accepts 5 and then uses 8",),
        {"speculative-num-draft-tokens": 5},
    ),
    "unread-variable": Fault(
        MTP, ("SGLANG_RING_OF_NOBODY=1: expected a variable",), environment={"SGLANG_RING_OF_NOBODY": "1"}
    ),
    "ring-not-on": Fault(RING, ("rings of draft KV: expected 2176 rows with a stride of 2176, this image makes none",)),
    "ring-for-more-requests": Fault(
        RING,
        ("rings of draft KV: expected 2176 rows", "this image makes 4352 rows with a stride of 2176"),
        {"mamba-radix-cache-strategy": "extra_buffer_lazy"},
        PRIVATE_RING,
    ),
    "ring-without-a-window": Fault(
        RING,
        ("SGLANG_DFLASH_PRIVATE_RING=1 requires --speculative-draft-window-size",),
        environment=PRIVATE_RING,
        without="speculative-draft-window-size",
    ),
    "eager-draft": Fault(
        DFLASH,
        ("graph of selector: expected graph, start-up resolves to eager",),
        environment={"SGLANG_DFLASH_EAGER_DRAFT_SAMPLER": "1"},
    ),
}


@pytest.fixture(scope="module")
def verdict(real: Real, tmp_path_factory: pytest.TempPathFactory) -> tuple[CheckResult, list[str]]:
    """The check's row and all of its problems, for one profile per fault."""
    known = real.line.profiles.profiles
    planted = {name: fault.plant(known[fault.profile]) for name, fault in FAULTS.items()}
    profiles = real.line.profiles.model_copy(update={"profiles": planted})
    other = dataclasses.replace(real, line=real.line.model_copy(update={"profiles": profiles}))
    folder: Path = tmp_path_factory.mktemp("launch")
    outcome = other.outcome(real.image, folder / "log", only({"launch"}, folder))
    [failure] = ET.fromstring(outcome.junit).iter("failure")
    return outcome.report.checks[0], (failure.text or "").strip().splitlines()


def test_the_check_fails(verdict: tuple[CheckResult, list[str]]) -> None:
    row, problems = verdict
    assert (row.name, row.status) == ("launch", CheckStatus.FAILED)
    assert len(problems) == len(FAULTS), problems


@pytest.mark.parametrize("name", FAULTS)
def test_one_problem_for_each_fault(verdict: tuple[CheckResult, list[str]], name: str) -> None:
    [problem] = [line for line in verdict[1] if line.startswith(f"profile {name}: ")]
    for words in FAULTS[name].says:
        assert words in problem


def test_the_report_keeps_what_was_resolved(verdict: tuple[CheckResult, list[str]]) -> None:
    """Also of a profile with a fault, as that is when somebody looks."""
    row = verdict[0]
    found = {entry["name"]: entry for entry in row.table if entry["profile"] == "overridden"}
    assert found["--speculative-num-draft-tokens"] | {"profile": ""} == {
        "profile": "",
        "name": "--speculative-num-draft-tokens",
        "given": "5",
        "resolved": "8",
    }
    assert found["graph of target_verify"]["resolved"] == "graph"
