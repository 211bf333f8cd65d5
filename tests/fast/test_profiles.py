"""profiles.yaml: what is shared comes first, names lead somewhere, and a profile does not contradict itself."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline import check_data, pages
from pipeline.errors import ManifestError
from pipeline.files import PROJECT
from pipeline.manifest import DEFAULT_LINE, Profile, Profiles, lines, load_line, read_yaml, words_of
from tests.fast.builders import says, write_files

COMMIT = "a" * 40


def profile(**changes: Any) -> dict[str, Any]:
    """A profile as YAML gives it."""
    sizes = {"context_length": 1, "max_total_tokens": 2, "max_mamba_cache_size": 3}
    return {"why": "x", "target": "a/b", "target_revision": "main", **sizes, "arguments": {}, **changes}


def read(folder: Path, **document: Any) -> Profiles:
    file = write_files(folder, {"profiles.yaml": yaml.safe_dump(document, sort_keys=False)}) / "profiles.yaml"
    return read_yaml(file, Profiles)


def test_common_entries_come_first_and_own_ones_win(tmp_path: Path) -> None:
    common = {"arguments": {"device": "xpu", "tp-size": 4}, "resolved": {"a": 1, "b": 1}}
    own = profile(arguments={"tp-size": 2, "speculative-x": True}, resolved={"b": 2})
    found = read(tmp_path, common=common, profiles={"p": own}).profiles["p"]
    assert list(found.flags) == [
        *("device", "tp-size", "context-length", "max-total-tokens", "max-mamba-cache-size"),
        "speculative-x",
    ]
    assert found.argv[:4] == ["--device", "xpu", "--tp-size", "2"]
    assert found.argv[-1] == "--speculative-x"
    assert found.resolved == {"a": 1, "b": 2}


def test_image_of_somebody_else_gets_nothing_of_ours(tmp_path: Path) -> None:
    image = {"repository": "r/x", "tag": "t", "digest": "sha256:" + "0" * 64, "python": "python"}
    common = {"arguments": {"device": "xpu"}}
    found = read(tmp_path, common=common, profiles={"p": profile(image=image, arguments={"a": 1})}).profiles["p"]
    assert found.arguments == {"a": 1}


def test_flag_with_true_has_no_value() -> None:
    assert words_of({"a": True, "b": 1, "c": "x y", "d": 0.5}) == ["--a", "--b", "1", "--c", "x y", "--d", "0.5"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"arguments": {"a": False}}, "a: false is no flag"),
        ({"arguments": {"model-path": "/model"}, "mounts": {"/other": "x"}}, "mounts are"),
        ({"draft": "a/c"}, "draft and draft_revision go together"),
        ({"mounts": {"/model": "../x"}}, "mounts"),
        ({"arguments": {"--a": 1}}, "arguments"),
        ({"environment": {"A B": "1"}}, "environment"),
        ({"graphs": {"target_verify": "on", "draft": "graph", "selector": "graph"}}, "graphs.target_verify"),
        ({"argumets": {}}, "unknown key 'profiles.p.argumets'; did you mean 'arguments'"),
    ],
)
def test_profile_that_contradicts_itself_is_refused(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ManifestError, check=says(problem)):
        read(tmp_path, profiles={"p": profile(**changes)})


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"default": "q"}, "default names the profile 'q'"),
        ({"choices": [{"workload": "w", "profile": "q", "why": "y"}]}, "choices.0 names the profile 'q'"),
        ({"common": {"argumens": {}}}, "unknown key 'common.argumens'"),
        ({"common": []}, "common"),
    ],
)
def test_name_that_leads_nowhere_is_refused(tmp_path: Path, entry: dict[str, Any], problem: str) -> None:
    with pytest.raises(ManifestError, check=says(problem)):
        read(tmp_path, profiles={"p": profile()}, **entry)


def test_derived_draft_has_to_be_made_from_the_one_that_its_profile_names(tmp_path: Path) -> None:
    source = {"repository": "a/draft", "revision": COMMIT}
    made = {"source": source, "target": {"repository": "a/b", "revision": "1m"}, "profile": "p"}
    good = profile(draft="a/draft", draft_revision=COMMIT)
    assert read(tmp_path, profiles={"p": good}, draft_1m=made).is_derived("p")
    with pytest.raises(ManifestError, check=says("draft_1m.source is not the draft of the profile 'p'")):
        read(tmp_path, profiles={"p": profile(draft="a/draft", draft_revision="b" * 40)}, draft_1m=made)


def test_profile_that_is_not_there_is_named_with_the_others() -> None:
    profiles = load_line(DEFAULT_LINE).profiles
    with pytest.raises(ManifestError, check=says("no profile 'x': found native-256k-mtp, ")):
        profiles.named("x")


@pytest.mark.parametrize("name", lines())
def test_profiles_of_the_project_say_what_was_measured_and_what_not(name: str) -> None:
    profiles = load_line(name).profiles
    if not profiles.profiles:
        pytest.skip(f"{name} has no profiles")
    assert profiles.default in profiles.profiles
    assert {choice.profile for choice in profiles.choices} <= profiles.profiles.keys()
    for row in profiles.profiles.values():
        assert row.measured
        assert row.unmeasured
        assert row.graphs


@pytest.mark.parametrize("name", lines())
def test_profile_of_a_line_whose_flush_takes_memory_from_graphs_says_so(name: str) -> None:
    line = load_line(name)
    absent = {row.origin for row in check_data.features(line).not_carried}
    if "patch xpu-flush-keeps-graphs.patch" in absent:
        operate = (PROJECT / "docs/operate.md").read_text(encoding="utf-8")
        assert f"**On an image of {pages.sglang(line)} do not\ncall it" in operate
    for row in line.profiles.profiles.values():
        warned = [limit for limit in row.limits if limit.startswith("Do not call /flush_cache")]
        assert len(warned) == ("patch xpu-flush-keeps-graphs.patch" in absent and bool(row.graph_batches))


@pytest.mark.parametrize("name", lines())
def test_what_was_measured_with_other_weights_says_which(name: str) -> None:
    """Every figure of cards is of the INT4 target."""
    for row in load_line(name).profiles.profiles.values():
        if "INT4" not in row.target:
            assert all("with INT4 weights" in sentence for sentence in row.measured)
            assert any(sentence.startswith("BF16 weights") for sentence in row.unmeasured)


def test_what_is_known_of_the_image_of_somebody_else_is_no_more_than_was_reported() -> None:
    row = load_line(DEFAULT_LINE).profiles.profiles["1m-20260819"]
    unmeasured = " ".join(row.unmeasured)
    assert all(words in unmeasured for words in ("Sampling", "prefix cache", "quality of answers over a million"))
    assert not any("slots" in sentence for sentence in row.measured)  # a bound of its state pool, which nobody measured


@pytest.mark.parametrize("name", lines())
def test_profiles_of_the_project_serve_no_backend_that_bypasses_a_patch(name: str) -> None:
    """``intel_xpu`` for linear attention would leave out the kernel that gdn-beta-fp32.patch mends."""
    for row in load_line(name).profiles.profiles.values():
        assert not [flag for flag in row.flags if flag.startswith("linear-attn")]
        assert row.resolved.get("linear_attn_backend", "triton") == "triton"


def test_small_profile_is_valid() -> None:
    assert Profile.model_validate(profile()).graph_batches == ()
