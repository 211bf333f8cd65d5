"""The 1M draft: weights untouched, the target's YaRN settings, and no source but the pinned one."""

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pipeline import draft_1m
from pipeline.checkpoint.checkpoint import load
from pipeline.checkpoint.source import open_folder
from pipeline.draft_1m import Derived, derive, with_rope_of
from pipeline.errors import CheckpointError
from pipeline.manifest import HubRevision, Profiles, lines, load_line
from tests.fast.builders import says, write_files
from tests.fast.hub_server import CDN_HOST, TOKEN, Fault, HubServer, connect, hub_server
from tests.fast.small_checkpoints import (
    FRONT_MATTER,
    NATIVE,
    YARN,
    draft_config,
    draft_tensors,
    target_config,
    target_tensors,
    write_checkpoint,
)

DRAFT, TARGET = "incoai/draft", "somebody/target"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    with hub_server() as server:
        connect(server, monkeypatch, tmp_path / "home")
        write_files(write_checkpoint(tmp_path / "draft", draft_config(), draft_tensors()), {"LICENSE": "text\n"})
        server.add(DRAFT, {path.name: path.read_bytes() for path in (tmp_path / "draft").iterdir()})
        server.add(TARGET, write_checkpoint(tmp_path / "target", target_config(), target_tensors()))
        yield server


def pinned(hub: HubServer) -> HubRevision:
    return HubRevision(repository=DRAFT, revision=hub.repos[DRAFT].refs["main"])


def run(
    hub: HubServer, source: str | Path, out: Path, *, target: str | Path = TARGET, any_revision: bool = False
) -> Derived:
    return derive(
        str(source), out, pinned=pinned(hub), target=str(target), any_revision=any_revision, check=lambda _folder: None
    )


def refused(hub: HubServer, source: str | Path, out: Path, *patterns: str, **options: Any) -> None:
    with pytest.raises(CheckpointError, check=says(*patterns)):
        run(hub, source, out, **options)
    assert not out.exists()
    assert [path.name for path in out.parent.iterdir() if path.name.startswith(f".{out.name}")] == []


def test_folder_is_derived_without_fetching_a_weight(hub: HubServer, tmp_path: Path) -> None:
    out = tmp_path / "out"
    derived = run(hub, tmp_path / "draft", out)
    assert sorted(path.name for path in out.iterdir()) == [
        *("LICENSE", "README.md", "config.json", "derived.json", "model.safetensors")
    ]
    assert (out / "model.safetensors").samefile(tmp_path / "draft" / "model.safetensors")
    assert derived.source == pinned(hub)
    assert derived.target == HubRevision(repository=TARGET, revision=hub.repos[TARGET].refs["main"])
    weights = hashlib.sha256((tmp_path / "draft" / "model.safetensors").read_bytes()).hexdigest()
    assert derived.files["model.safetensors"] == weights
    assert Derived.model_validate_json((out / "derived.json").read_bytes()) == derived
    assert not any(".safetensors" in row.path for row in hub.log)
    assert hub.cdn_headers == []


def test_config_has_the_targets_yarn_and_nothing_else_changes(hub: HubServer, tmp_path: Path) -> None:
    run(hub, tmp_path / "draft", tmp_path / "out")
    text = (tmp_path / "out" / "config.json").read_text()
    config = json.loads(text)
    assert config["rope_parameters"] == YARN
    assert config["max_position_embeddings"] == 1048576
    assert list(config) == list(draft_config())
    changed = {"rope_parameters", "max_position_embeddings"}
    assert {key: value for key, value in config.items() if key not in changed} == {
        key: value for key, value in draft_config().items() if key not in changed
    }
    assert text.startswith('{\n  "architectures"')


def test_hub_id_is_fetched_at_the_pinned_commit(hub: HubServer, tmp_path: Path) -> None:
    derived = run(hub, DRAFT, tmp_path / "out")
    assert derived.source == pinned(hub)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == hub.files(DRAFT)["model.safetensors"]
    assert not (tmp_path / "out" / "model.safetensors").is_symlink()
    assert all("authorization" not in headers for headers in hub.cdn_headers)


def test_card_names_both_revisions_and_keeps_the_licence(hub: HubServer, tmp_path: Path) -> None:
    derived = run(hub, tmp_path / "draft", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith(f"---\nlicense: apache-2.0\nbase_model: {DRAFT}\n---\n")
    assert derived.source
    assert derived.target
    for part in (derived.source.revision, derived.target.revision, derived.files["model.safetensors"], '"factor": 4.0'):
        assert part in card


def test_older_spelling_of_rope_stays_the_drafts(hub: HubServer, tmp_path: Path) -> None:
    old = draft_config(rope_theta=1000000, rope_scaling=None)
    del old["rope_parameters"]
    write_checkpoint(tmp_path / "old", old, draft_tensors())
    run(hub, tmp_path / "old", tmp_path / "out", any_revision=True)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["rope_scaling"] == {key: value for key, value in YARN.items() if key != "rope_theta"}
    assert config["rope_theta"] == 1000000
    assert "rope_parameters" not in config


def test_trained_rope_width_stays_the_drafts(tmp_path: Path) -> None:
    own = {**NATIVE, "rope_dim": 64, "rope_theta": 5}
    draft = write_checkpoint(tmp_path / "draft", draft_config(rope_parameters=own), {})
    target = write_checkpoint(tmp_path / "target", target_config(), {})
    config = with_rope_of(*(load(open_folder(folder), config_only=True) for folder in (draft, target)))
    assert config["rope_parameters"] == {**YARN, "rope_dim": 64, "rope_theta": 5}


def test_another_revision_of_the_hub_is_refused_before_it_is_fetched(hub: HubServer, tmp_path: Path) -> None:
    pin = pinned(hub)
    hub.change(DRAFT, "LICENSE", b"another text\n")
    with pytest.raises(CheckpointError, check=says("not the pinned draft", pin.revision, "--any-revision")):
        derive(DRAFT, tmp_path / "out", pinned=pin, target=TARGET, any_revision=False, check=lambda _folder: None)
    assert not any("resolve" in row.path and "safetensors" in row.path for row in hub.log)
    taken = derive(DRAFT, tmp_path / "out", pinned=pin, target=TARGET, any_revision=True, check=lambda _folder: None)
    assert taken.source
    assert taken.source.revision == hub.repos[DRAFT].refs["main"] != pin.revision


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "LICENSE", "README.md"])
def test_one_changed_byte_in_a_folder_is_refused(hub: HubServer, tmp_path: Path, file: str) -> None:
    path = tmp_path / "draft" / file
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")
    refused(hub, tmp_path / "draft", tmp_path / "out", "not the pinned draft", f"another {file}")


def test_a_missing_weight_is_refused_and_a_missing_licence_is_not(hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "draft" / "LICENSE").unlink()
    assert "LICENSE" not in run(hub, tmp_path / "draft", tmp_path / "out").files
    (tmp_path / "draft" / "model.safetensors").unlink()
    refused(hub, tmp_path / "draft", tmp_path / "out2", "not the pinned draft", "no model.safetensors")


def test_a_file_that_the_revision_lacks_is_not_taken_over(hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "draft" / "extra.safetensors").write_bytes(b"x")
    assert "extra.safetensors" not in run(hub, tmp_path / "draft", tmp_path / "out").files


def test_any_revision_notes_that_it_is_unknown(hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "draft" / "LICENSE").write_text("another text\n")
    derived = run(hub, tmp_path / "draft", tmp_path / "out", target=tmp_path / "target", any_revision=True)
    assert derived.source is None
    assert derived.target is None
    assert "which revision it was is not known" in (tmp_path / "out" / "README.md").read_text()
    assert hub.log == []


def test_a_target_without_yarn_is_refused(hub: HubServer, tmp_path: Path) -> None:
    text = {**target_config()["text_config"], "rope_parameters": NATIVE, "max_position_embeddings": 262144}
    write_checkpoint(tmp_path / "native", target_config(text_config=text), {})
    refused(
        hub, tmp_path / "draft", tmp_path / "out", "expected YaRN", "native RoPE of 262144", target=tmp_path / "native"
    )


def test_a_draft_that_is_stretched_already_is_refused(hub: HubServer, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "done", draft_config(rope_parameters=YARN), draft_tensors())
    refused(hub, tmp_path / "done", tmp_path / "out", "expected native RoPE", "yarn with factor 4", any_revision=True)


def test_settings_per_kind_of_layer_are_refused(hub: HubServer, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "odd", draft_config(rope_parameters={"sliding_attention": NATIVE}), draft_tensors())
    refused(hub, tmp_path / "odd", tmp_path / "out", "expected one set of settings", any_revision=True)


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1, "a": 2}'])
def test_a_broken_config_is_refused(hub: HubServer, tmp_path: Path, text: str) -> None:
    (tmp_path / "draft" / "config.json").write_text(text)
    refused(hub, tmp_path / "draft", tmp_path / "out", "config.json", any_revision=True)


def test_an_existing_folder_is_left_alone(hub: HubServer, tmp_path: Path) -> None:
    mine = write_files(tmp_path / "out", {"mine.txt": "mine"})
    with pytest.raises(CheckpointError, check=says("out exists", "remove it")):
        run(hub, tmp_path / "draft", mine)
    assert (mine / "mine.txt").read_text() == "mine"


def test_what_the_gate_refuses_does_not_appear(hub: HubServer, tmp_path: Path) -> None:
    def check(folder: Path) -> None:
        assert (folder / "config.json").is_file()
        raise CheckpointError("refused by the gate")

    with pytest.raises(CheckpointError, match="refused by the gate"):
        derive(DRAFT, tmp_path / "out", pinned=pinned(hub), target=TARGET, any_revision=False, check=check)
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "draft" / "model.safetensors").is_file()


def test_weights_are_copied_where_links_cannot_be(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(*_arguments: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", no_link)
    run(hub, tmp_path / "draft", tmp_path / "out")
    ours, theirs = (tmp_path / name / "model.safetensors" for name in ("out", "draft"))
    assert not ours.samefile(theirs)
    assert ours.read_bytes() == theirs.read_bytes()


def test_a_weight_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"changed")
    with pytest.raises(CheckpointError, check=says("changed while it was read")):
        draft_1m.take_over(tmp_path / "a", tmp_path / "b", hashlib.sha256(b"as it was").hexdigest())


@pytest.mark.parametrize("status", [401, 404, 500])
def test_a_hub_that_does_not_list_is_one_line_without_the_token(
    hub: HubServer, tmp_path: Path, status: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    hub.faults.append(Fault("GET", f"{DRAFT}/tree", status, times=9, body=TOKEN.encode()))
    with pytest.raises(CheckpointError, check=says(DRAFT)) as caught:
        run(hub, tmp_path / "draft", tmp_path / "out")
    out, err = capfd.readouterr()
    assert TOKEN not in caught.value.line() + out + err
    assert not (tmp_path / "out").exists()


TRANSIENT = {
    "slow": [Fault("GET", CDN_HOST, delay=0.05)],
    "truncated": [Fault("GET", CDN_HOST, truncate=5)],
    "429": [Fault("GET", CDN_HOST, 429, headers={"Retry-After": "0"})],
}


@pytest.mark.parametrize("faults", TRANSIENT.values(), ids=TRANSIENT)
def test_fault_that_passes_while_the_draft_is_fetched(hub: HubServer, tmp_path: Path, faults: list[Fault]) -> None:
    hub.faults += [replace(fault) for fault in faults]
    run(hub, DRAFT, tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == hub.files(DRAFT)["model.safetensors"]
    assert not any(fault.times for fault in hub.faults)


def test_answer_500_while_the_draft_is_fetched_is_one_line_and_the_same_command_goes_on(
    hub: HubServer, tmp_path: Path
) -> None:
    hub.faults.append(Fault("GET", CDN_HOST, 500, body=TOKEN.encode()))
    refused(hub, DRAFT, tmp_path / "out", "the Hub answered 500")
    assert run(hub, DRAFT, tmp_path / "out").source == pinned(hub)


def test_other_bytes_under_the_pinned_name_are_refused(hub: HubServer, tmp_path: Path) -> None:
    """Of the right size, so that only the hash tells."""
    wrong = b"x" * len(hub.files(DRAFT)["model.safetensors"])
    hub.faults.append(Fault("GET", CDN_HOST, 200, times=9, body=wrong))
    refused(hub, DRAFT, tmp_path / "out", "not the pinned draft", "another model.safetensors")


def test_file_that_the_hub_lost_is_one_line(hub: HubServer, tmp_path: Path) -> None:
    hub.faults.append(Fault("GET", CDN_HOST, 404, times=9, body=TOKEN.encode()))
    refused(hub, DRAFT, tmp_path / "out", f"{DRAFT}@[0-9a-f]{{40}}")


def test_neither_folder_nor_hub_id_is_refused(hub: HubServer, tmp_path: Path) -> None:
    refused(hub, "./nowhere", tmp_path / "out", "expected a folder, or a Hub id")


def test_broken_front_matter_of_the_source_is_said_and_not_taken_over(
    hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = FRONT_MATTER.replace("apache-2.0", "[")
    write_checkpoint(tmp_path / "odd", draft_config(), draft_tensors(), card=broken)
    run(hub, tmp_path / "odd", tmp_path / "out", any_revision=True)
    assert "no licence is taken over" in capsys.readouterr().err
    assert (tmp_path / "out" / "README.md").read_text().startswith("---\n{}\n---\n")


def test_source_of_the_manifest_must_be_a_commit_and_its_profile_must_exist() -> None:
    revisions = {
        "source": {"repository": DRAFT, "revision": "main"},
        "target": {"repository": TARGET, "revision": "1m"},
    }
    with pytest.raises(ValidationError, match="revision must be a commit of 40 hex digits"):
        Profiles.model_validate({"profiles": {}, "draft_1m": revisions})
    revisions["source"]["revision"] = "0" * 40
    assert Profiles.model_validate({"profiles": {}, "draft_1m": revisions}).draft_1m
    with pytest.raises(ValidationError, match="names the profile '1m', which profiles does not define"):
        Profiles.model_validate({"profiles": {}, "draft_1m": {**revisions, "profile": "1m"}})


@pytest.mark.parametrize("name", lines())
def test_every_line_that_derives_a_draft_pins_its_source(name: str) -> None:
    line = load_line(name)
    made_from = line.profiles.draft_1m
    assert made_from or not line.is_main
    assert not made_from or made_from.source.repository != made_from.target.repository
