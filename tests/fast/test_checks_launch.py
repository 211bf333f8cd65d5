"""What the launch check makes of the resolver's answers; the resolver itself runs in the image (tests/image)."""

import dataclasses
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from checks import resolver
from checks.given import Profile
from checks.test_launch import captured, problems, rows
from pipeline.image import launches
from pipeline.manifest import lines, load_line
from pipeline.recipe import LAUNCH, make

DECODE = {"backend": "full", "bs": [1, 2], "max_bs": 2}


@pytest.fixture
def profile() -> Profile:
    """A profile with a draft, and one expectation that no flag states."""
    return Profile(
        argv=("--model-path", "/model", "--page-size", "64"),
        environment={"SGLANG_RING": "1"},
        mounts={"/model": "target"},
        resolved={"sampling_backend": "intel_xpu"},
        graphs={"target_verify": "graph", "draft": "graph", "selector": "graph"},
        draft_ring={"stride": 48, "rows": 96},
    )


@pytest.fixture
def answer() -> dict[str, Any]:
    """A sound answer to it."""
    return {
        "flags": {
            "--page-size": ["page_size", 64, 64],
            "--cuda-graph-config": ["cuda_graph_config", {"decode": {"bs": [1, 2]}}, {"decode": DECODE}],
        },
        "attributes": {
            "page_size": 64,
            "sampling_backend": "intel_xpu",
            "speculative_algorithm": "DFLASH",
            "cuda_graph_config": {"decode": DECODE},
        },
        "draft_ring": {"stride": 48, "rows": 96},
        "variables": {"SGLANG_RING": True, "SGLANG_DFLASH_EAGER_DRAFT_SAMPLER": False},
    }


def test_sound(profile: Profile, answer: dict[str, Any]) -> None:
    assert list(problems(profile, answer)) == []
    table = rows("p", profile, {"ONEAPI_DEVICE_SELECTOR": "level_zero:gpu", **profile.environment}, answer)
    assert table[0] == {"profile": "p", "name": "--page-size", "given": "64", "resolved": "64"}
    assert [row["name"] for row in table][2:5] == ["sampling_backend", "ONEAPI_DEVICE_SELECTOR", "SGLANG_RING"]
    assert (table[3]["given"], table[3]["resolved"]) == ("level_zero:gpu", "as given: not SGLang's own")
    assert [row["resolved"] for row in table][-3:] == ["graph"] * 3
    assert [(row["name"], row["resolved"]) for row in table][-5:-3] == [
        ("stride of the draft's rings", "48"),
        ("rows of the draft's rings", "96"),
    ]


@pytest.mark.parametrize("name", lines())
def test_the_words_that_are_judged_are_those_that_recipes_show(name: str) -> None:
    """Host and port are flags like any other: an image whose parser knows neither serves nobody."""
    line = load_line(name)
    judged = {profile: row["argv"] for profile, row in launches(line)["profiles"].items()}
    assert judged == {profile: make(line, profile).launch[len(LAUNCH) + 1 :] for profile in judged}
    assert all(argv[-4:-1] == ["--host", "0.0.0.0", "--port"] for argv in judged.values())


def test_unknown_flag(profile: Profile) -> None:
    [problem] = problems(profile, {"unknown": ["--speculative-dflash-draft-window-size"]})
    assert problem == ("--speculative-dflash-draft-window-size: expected flags of this image, found none of that name")


@pytest.mark.parametrize(
    ("cures", "said"), [(["--page-size", "--x"], "starts without --page-size, --x)"), ([], "without no single flag)")]
)
def test_refused(profile: Profile, cures: list[str], said: str) -> None:
    [problem] = problems(profile, {"error": "AssertionError: no_buffer only supports page_size=1.", "cures": cures})
    assert "found: AssertionError: no_buffer only supports page_size=1." in problem
    assert problem.endswith(said)


def test_overridden(profile: Profile, answer: dict[str, Any]) -> None:
    answer["flags"]["--page-size"][2] = 128
    assert list(problems(profile, answer)) == ["--page-size: start-up accepts 64 and then uses 128"]


def test_a_key_of_a_nested_setting_is_overridden(profile: Profile, answer: dict[str, Any]) -> None:
    answer["flags"]["--cuda-graph-config"][2] = {"decode": {"bs": [1]}}
    [problem] = problems(profile, answer)
    assert problem.startswith("--cuda-graph-config: start-up accepts {'decode': {'bs': [1, 2]}} and then uses")


def test_an_override_that_the_profile_states_is_none(profile: Profile, answer: dict[str, Any]) -> None:
    answer["flags"]["--page-size"][2] = 128
    profile.resolved["page_size"] = 128
    assert list(problems(profile, answer)) == []


@pytest.mark.parametrize(("found", "said"), [("pytorch", "'pytorch'"), (None, "no such attribute")])
def test_another_choice(profile: Profile, answer: dict[str, Any], found: str | None, said: str) -> None:
    answer["attributes"]["sampling_backend"] = found
    if found is None:
        del answer["attributes"]["sampling_backend"]
    assert list(problems(profile, answer)) == [
        f"sampling_backend: expected start-up to choose 'intel_xpu', found {said}"
    ]


def test_a_variable_that_nothing_declares(profile: Profile, answer: dict[str, Any]) -> None:
    del answer["variables"]["SGLANG_RING"]
    [problem] = problems(profile, answer)
    assert problem == "SGLANG_RING=1: expected a variable that SGLang declares, found none of that name"


@pytest.mark.parametrize(
    ("change", "graphs"),
    [
        ({}, ("graph", "graph", "graph")),
        ({"SGLANG_DFLASH_DISABLE_DRAFT_GRAPH": True}, ("graph", "eager", "eager")),
        ({"SGLANG_DFLASH_EAGER_DRAFT_SAMPLER": True}, ("graph", "graph", "eager")),
        ({"decode": "disabled"}, ("eager", "eager", "eager")),
        ({"algorithm": "EAGLE"}, ("graph", "graph", "none")),
        ({"algorithm": None}, ("graph", "none", "none")),
    ],
)
def test_graph_decisions(answer: dict[str, Any], change: dict[str, Any], graphs: tuple[str, str, str]) -> None:
    attributes = answer["attributes"]
    attributes["cuda_graph_config"] = {"decode": {**DECODE, "backend": change.pop("decode", "full")}}
    attributes["speculative_algorithm"] = change.pop("algorithm", "DFLASH")
    answer["variables"] |= change
    assert tuple(captured(answer).values()) == graphs


def test_another_graph_decision(profile: Profile, answer: dict[str, Any]) -> None:
    answer["variables"]["SGLANG_DFLASH_EAGER_DRAFT_SAMPLER"] = True
    assert list(problems(profile, answer)) == ["graph of selector: expected graph, start-up resolves to eager"]


@pytest.mark.parametrize(
    ("wanted", "found", "said"),
    [
        (
            {"stride": 48, "rows": 96},
            {"stride": 48, "rows": 144},
            "96 rows with a stride of 48, this image makes 144 rows",
        ),
        ({"stride": 48, "rows": 96}, {}, "expected 96 rows with a stride of 48, this image makes none"),
        ({}, {"stride": 48, "rows": 96}, "expected none, this image makes 96 rows with a stride of 48"),
    ],
    ids=["of another size", "not made", "not asked for"],
)
def test_other_rings(
    profile: Profile, answer: dict[str, Any], wanted: dict[str, int], found: dict[str, int], said: str
) -> None:
    answer["draft_ring"] = found
    [problem] = problems(dataclasses.replace(profile, draft_ring=wanted), answer)
    assert problem.startswith("private rings of draft KV: expected ")
    assert said in problem


def test_the_words_of_a_flag_go_with_it() -> None:
    argv = ["--a", "1", "--bs", "1", "2", "--flag", "--c=3"]
    assert resolver._flags(argv) == ["--a", "--bs", "--flag", "--c"]
    assert resolver._without(argv, "--bs") == ["--a", "1", "--flag", "--c=3"]
    assert resolver._without(argv, "--flag") == ["--a", "1", "--bs", "1", "2", "--c=3"]
    assert resolver._without(argv, "--c") == argv[:-1]


class Arguments:
    """What a release's parser returns; ``done`` says what was asked of it, in order."""

    device = "xpu"

    def __init__(self, *, by_itself: bool) -> None:
        self.done: list[str] = []
        self.page_size = 64 if by_itself else 1
        if not by_itself:
            self.resolve_once = lambda: self.done.append("resolve")

    def check_server_args(self) -> None:
        """Refuse nothing."""
        self.done.append("check")


@pytest.mark.parametrize(("by_itself", "done"), [(False, ["resolve", "check"]), (True, ["check"])])
def test_releases_that_resolve_when_they_parse_and_later_ones(
    monkeypatch: pytest.MonkeyPatch, by_itself: bool, done: list[str]
) -> None:
    arguments = Arguments(by_itself=by_itself)
    view = {} if by_itself else {"resolving_view": lambda _arguments: SimpleNamespace(page_size=64)}
    modules: dict[str, dict[str, Any]] = {
        "torch": {"device": str},
        "sglang.srt.server_args": {"prepare_server_args": lambda _argv: arguments},
        "sglang.srt.arg_groups": {"overrides": SimpleNamespace(**view)},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    assert resolver._resolve([]) is arguments
    assert arguments.done == done
    assert resolver._settings(arguments).page_size == 64


def test_the_resolver_imports_without_sglang() -> None:
    """Its process starts by importing it; SGLang and the fake come after the search path is set."""
    assert "sglang" not in sys.modules
    assert Path(resolver.__file__).name == "resolver.py"
