"""Publication: one gate before both paths, one commit on the examined parent, read back; no token in any output."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import card, cli, templates
from pipeline.checkpoint.naming import MTP_EXCLUSIONS
from pipeline.checkpoint.releases import release
from pipeline.checkpoint.source import open_folder
from pipeline.errors import CheckpointError
from pipeline.files import PROJECT
from pipeline.manifest import DEFAULT_LINE, Draft1M, HubRevision, Line, Profiles, load_line
from pipeline.publish import Publication, publish
from pipeline.verdict import Question
from tests.fast.builders import make_line, says, write_files
from tests.fast.hub_server import CDN_HOST, TOKEN, Fault, HubServer, connect, hub_server
from tests.fast.small_checkpoints import (
    FRONT_MATTER,
    draft_config,
    draft_tensors,
    shard,
    target_config,
    target_tensors,
    write_checkpoint,
)

# huggingface_hub's own basic LFS upload passes `data=`, of which its HTTP client warns.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"),
    pytest.mark.usefixtures("hub"),
]

REPO = "somebody/target"
QUESTION = Question("target", release("0.5.23"))
PROFILES = load_line(DEFAULT_LINE).profiles
PROFILE = PROFILES.profiles["1m-mtp"].model_copy(
    update={
        "target": REPO,
        "environment": {"A_VARIABLE": "a value"},
        "limits": ("Never measured above concurrency one.",),
    }
)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    with hub_server() as server:
        connect(server, monkeypatch, tmp_path / "home")
        monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        server.add(REPO, {".gitattributes": b"*.safetensors filter=lfs\n"})
        yield server


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return make_line(tmp_path / "line")


@pytest.fixture
def folder(tmp_path: Path, line: Line) -> Path:
    """A target that may be published: rendered card included."""
    made = write_checkpoint(tmp_path / "model", target_config(), target_tensors())
    case = QUESTION.case(open_folder(made))
    (made / "README.md").write_text(card.with_section(FRONT_MATTER, card.section(line, case, REPO)))
    return made


@pytest.fixture(autouse=True)
def no_token_anywhere(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> Iterator[Callable[[], str]]:
    """Everything that a test printed or logged, searched for the planted token when the test ends."""
    caplog.set_level(logging.DEBUG)
    taken: list[str] = []

    def printed() -> str:
        out, err = capfd.readouterr()
        taken.append(out + err)
        return "".join(taken)

    yield printed
    assert TOKEN not in printed()
    assert TOKEN not in caplog.text


def refused(*patterns: str) -> Any:
    return pytest.raises(CheckpointError, check=lambda error: says(*patterns)(error) and TOKEN not in error.line())


def change_config(folder: Path, **quantisation: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= quantisation
    (folder / "config.json").write_text(json.dumps(config))


def published(hub: HubServer, folder: Path) -> str:
    """Put the folder on the Hub as it is; the commit."""
    return hub.add(REPO, {path.name: path.read_bytes() for path in folder.iterdir()})


def test_dry_run_says_what_would_go_and_sends_nothing(hub: HubServer, folder: Path, line: Line) -> None:
    parent = hub.change(REPO, "config.json", b"{}")
    result = publish(folder, REPO, line, QUESTION)
    assert result.commit is None
    assert result.parent == parent
    assert {file.path: file.state for file in result.files} == {
        "README.md": "new",
        "config.json": "replaced",
        "model.safetensors": "new",
    }
    assert result.size == sum(path.stat().st_size for path in folder.iterdir())
    assert hub.writes == []


def test_push_is_one_commit_that_is_read_back(hub: HubServer, folder: Path, line: Line) -> None:
    parent = hub.repos[REPO].refs["main"]
    result = publish(folder, REPO, line, QUESTION, push=True)
    assert result.commit == hub.repos[REPO].refs["main"] != parent
    assert hub.repos[REPO].commits[result.commit].parent == parent
    files = hub.files(REPO)
    assert {path.name: path.read_bytes() for path in folder.iterdir()}.items() <= files.items()
    assert ".gitattributes" in files
    assert sum("/commit/" in row.path for row in hub.log) == 1
    after = [row for row in hub.log if f"/resolve/{result.commit}/" in row.path]
    assert {row.path.rsplit("/", 1)[-1] for row in after} >= {"README.md", "config.json", "model.safetensors"}


def test_token_goes_to_the_hub_only(hub: HubServer, folder: Path, line: Line) -> None:
    publish(folder, REPO, line, QUESTION, push=True)
    assert {row.method for row in hub.log if row.host == CDN_HOST} == {"PUT", "GET"}
    assert all("authorization" not in headers for headers in hub.cdn_headers)
    assert not any(TOKEN in row.path or TOKEN in str(hub.cdn_headers) for row in hub.log)


def test_pushing_the_same_again_makes_no_commit(folder: Path, line: Line) -> None:
    first = publish(folder, REPO, line, QUESTION, push=True)
    again = publish(folder, REPO, line, QUESTION, push=True)
    assert again.commit == again.parent == first.commit


def test_another_branch(hub: HubServer, folder: Path, line: Line) -> None:
    hub.repos[REPO].refs["1m"] = head = hub.repos[REPO].refs["main"]
    result = publish(folder, REPO, line, QUESTION, revision="1m", push=True)
    assert hub.repos[REPO].refs == {"main": head, "1m": result.commit}


def test_card_only_is_judged_by_the_published_weights(hub: HubServer, folder: Path, line: Line, tmp_path: Path) -> None:
    """A published defect (only the vision tower is ignored), mended by two files."""
    weights = shard(target_tensors())
    hub.add(REPO, {"config.json": b"{}", "README.md": b"old", "model.safetensors": weights})
    two = write_files(tmp_path / "two", {name: (folder / name).read_bytes() for name in ("README.md", "config.json")})
    result = publish(two, REPO, line, QUESTION, card_only=True, push=True)
    assert [file.path for file in result.files] == ["config.json", "README.md"]
    files = hub.files(REPO)
    assert files["model.safetensors"] == weights
    assert files["config.json"] == (folder / "config.json").read_bytes()
    assert not any(row.method == "PUT" for row in hub.log)


def test_card_only_leaves_the_folders_weights_out(hub: HubServer, folder: Path, line: Line) -> None:
    """Weights that are not uploaded must not be what the config is judged by."""
    hub.add(REPO, {"config.json": b"{}", "README.md": b"old", "model.safetensors": b"not the folder's"})
    with refused("refused by INT-0"):
        publish(folder, REPO, line, QUESTION, card_only=True)


VISION_ONLY = ["lm_head", "re:.*visual.*"]
DEFECTS = {
    "vision only": (VISION_ONLY, "MTP-08"),
    "without k and v": ([*VISION_ONLY, *(name for name in MTP_EXCLUSIONS if "k_proj" not in name)], "MTP-06|MTP-08"),
    "matches nothing": ([*VISION_ONLY, *MTP_EXCLUSIONS, "mtp.*"], "MTP-05"),
    "not texts": ([1], "MTP-04"),
}


@pytest.mark.parametrize("card_only", [False, True], ids=["whole", "card only"])
@pytest.mark.parametrize(("ignore", "rule"), DEFECTS.values(), ids=DEFECTS)
def test_wrong_exclusions_go_out_by_neither_path(
    hub: HubServer, folder: Path, line: Line, ignore: list[Any], rule: str, card_only: bool
) -> None:
    published(hub, folder)
    change_config(folder, ignore=ignore)
    with refused(rule):
        publish(folder, REPO, line, QUESTION, card_only=card_only, push=True)
    assert hub.writes == []


@pytest.mark.parametrize("mode", ["plain", "dflash2"])
def test_exclusions_are_asked_about_whatever_the_target_is_for(folder: Path, line: Line, mode: Any) -> None:
    change_config(folder, ignore=VISION_ONLY)
    with refused("MTP-08"):
        publish(folder, REPO, line, replace(QUESTION, mode=mode))


def test_packed_head_that_is_listed_as_plain_is_refused(folder: Path, line: Line) -> None:
    tensors = {
        name.replace("mlp.down_proj.weight", "mlp.down_proj.weight_packed"): kind
        for name, kind in target_tensors().items()
    }
    (folder / "model.safetensors").write_bytes(shard(tensors))
    with refused("MTP-09"):
        publish(folder, REPO, line, QUESTION, render_card=True)


def test_truncated_shard_is_refused(hub: HubServer, folder: Path, line: Line) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with refused("refused by INT-"):
        publish(folder, REPO, line, QUESTION, push=True)
    assert hub.writes == []


def test_whole_tensors_are_read_before_they_are_published(folder: Path, line: Line) -> None:
    (folder / "model.safetensors").write_bytes(shard(target_tensors(), fill=b"\0\0"))
    with refused("TGT-05"):
        publish(folder, REPO, line, QUESTION, push=True)


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("# No front matter\n", "CARD-01"),
        (FRONT_MATTER.replace("base_model: somebody/base\n", ""), "CARD-02"),
        (FRONT_MATTER, "CARD-04"),
    ],
)
def test_card_is_refused(folder: Path, line: Line, text: str, pattern: str) -> None:
    (folder / "README.md").write_text(text)
    with refused(pattern):
        publish(folder, REPO, line, QUESTION)


@pytest.mark.parametrize("card_only", [False, True], ids=["whole", "card only"])
def test_edited_section_is_refused_and_rendered_anew_on_request(
    hub: HubServer, folder: Path, line: Line, card_only: bool
) -> None:
    published(hub, folder)
    good = (folder / "README.md").read_text()
    (folder / "README.md").write_text(good.replace("Examined for SGLang 0.5.23", "Examined for SGLang 0.5.99"))
    with refused("expected the section that is rendered now, found another", "--render-card"):
        publish(folder, REPO, line, QUESTION, card_only=card_only)
    publish(folder, REPO, line, QUESTION, card_only=card_only, render_card=True)
    assert (folder / "README.md").read_text() == good


def test_missing_section_is_written_at_the_end(folder: Path, line: Line) -> None:
    good = (folder / "README.md").read_text()
    (folder / "README.md").write_text(FRONT_MATTER)
    result = publish(folder, REPO, line, QUESTION, render_card=True)
    assert (folder / "README.md").read_text() == good
    assert {file.path: file.size for file in result.files}["README.md"] == len(good.encode())


@pytest.mark.parametrize("text", ["{begin}a", "a{end}", "{begin}{begin}{end}", "{end}{begin}"])
def test_broken_markers_are_refused(text: str) -> None:
    with refused("markers of the rendered section", "once each"):
        card.with_section(text.format(begin=card.BEGIN, end=card.END), "x")


def test_card_that_is_not_utf8_is_refused(folder: Path, line: Line) -> None:
    (folder / "README.md").write_bytes(b"---\nlicense: \xff\n---\n")
    for render_card in (True, False):
        with refused("README.md.* UTF-8"):
            publish(folder, REPO, line, QUESTION, render_card=render_card)


def test_card_says_what_is_stored_and_how_it_is_served(folder: Path, line: Line) -> None:
    profiles = PROFILES.model_copy(update={"profiles": {"1m-mtp": PROFILE}})
    served = line.model_copy(update={"profiles": profiles})
    text = card.section(served, QUESTION.case(open_folder(folder)), REPO)
    assert "The MTP head (15 tensors, BF16) is stored without quantisation." in text
    assert "| group_0: num_bits | `4` |" in text
    assert all(f'"{name}"' in text for name in MTP_EXCLUSIONS)
    assert "* Never measured above concurrency one." in text
    assert f"hf download {REPO} --revision 1m --local-dir models/Qwen3.8-27B-AWQ-INT4-1m" in text
    assert " -e 'A_VARIABLE=a value' " in text
    assert " --model-path /model " in text
    assert "no profile" not in text
    assert "no profile" in card.section(line, QUESTION.case(open_folder(folder)), REPO)


def test_card_of_an_unquantised_target_and_of_a_draft(tmp_path: Path, line: Line) -> None:
    config = target_config()
    del config["quantization_config"]
    plain = write_checkpoint(tmp_path / "plain", config, {"lm_head.weight": ("BF16", (4, 4))})
    text = card.section(line, QUESTION.case(open_folder(plain)), REPO)
    assert "\nNone.\n" in text
    assert "There is no MTP head" in text
    draft = write_checkpoint(tmp_path / "draft", draft_config(), draft_tensors())
    text = card.section(line, replace(QUESTION, role="draft").case(open_folder(draft)), REPO)
    assert "MTP" not in text


def test_template_with_a_name_that_has_no_value_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path, {"x.j2": "{{ missing }}"})
    monkeypatch.setattr(templates, "TEMPLATES", tmp_path)
    with pytest.raises(Exception, match="'missing' is undefined"):
        templates.render("x.j2")


def test_config_of_an_unknown_format_is_refused_by_name(folder: Path, line: Line) -> None:
    change_config(folder, quant_method="something-new")
    for render_card in (True, False):
        with refused("something-new"):
            publish(folder, REPO, line, QUESTION, render_card=render_card)


def test_draft_is_published_too(tmp_path: Path, line: Line) -> None:
    draft = write_checkpoint(tmp_path / "draft", draft_config(), draft_tensors())
    question = Question("draft", release("0.5.23"))
    assert publish(draft, REPO, line, question, render_card=True, push=True).commit


def test_weights_that_would_stay_beside_the_new_ones_are_refused(hub: HubServer, folder: Path, line: Line) -> None:
    hub.change(REPO, "old-00001.safetensors", b"old")
    hub.change(REPO, "old-00002.safetensors", b"old")
    with refused("expected no weights but those of the folder", "old-00001.safetensors and 1 more"):
        publish(folder, REPO, line, QUESTION, push=True)
    assert hub.writes == []


def test_folder_within_the_folder_is_refused_and_hidden_files_stay(folder: Path, line: Line) -> None:
    write_files(folder, {".secret": "x", ".cache/huggingface/x": "x"})
    assert not [file.path for file in publish(folder, REPO, line, QUESTION).files if file.path.startswith(".")]
    write_files(folder, {"more/x.safetensors": "x"})
    with refused("expected files in the top folder only", "found folder more"):
        publish(folder, REPO, line, QUESTION)


def test_folder_that_is_none_and_folder_without_a_card(folder: Path, line: Line) -> None:
    with refused("expected a folder"):
        publish(folder / "nowhere", REPO, line, QUESTION)
    (folder / "README.md").unlink()
    for card_only in (True, False):
        with refused("no README.md", "front matter"):
            publish(folder, REPO, line, QUESTION, card_only=card_only)


def test_somebody_elses_commit_in_between_is_not_overwritten(hub: HubServer, folder: Path, line: Line) -> None:
    parent = hub.repos[REPO].refs["main"]
    theirs: list[str] = []
    change = lambda: theirs.append(hub.change(REPO, "config.json", b'{"theirs": 1}'))  # noqa: E731
    hub.faults.append(Fault("POST", "/preupload/", meanwhile=change))
    with refused("somebody else has committed", f"expected {parent} as head", "nothing was overwritten"):
        publish(folder, REPO, line, QUESTION, push=True)
    assert hub.repos[REPO].refs["main"] == theirs[0]
    assert hub.files(REPO)["config.json"] == b'{"theirs": 1}'


@pytest.mark.parametrize("status", [409, 412])
def test_refusal_by_conflict_is_told_whatever_its_status(hub: HubServer, folder: Path, line: Line, status: int) -> None:
    hub.faults.append(Fault("POST", "/commit/", status))
    with refused("somebody else has committed"):
        publish(folder, REPO, line, QUESTION, push=True)


FAULTS = {
    "commit 500": (Fault("POST", "/commit/", 500, body=TOKEN.encode()), "answered 500 to the commit.*new commit"),
    "commit 403": (Fault("POST", "/commit/", 403, body=TOKEN.encode()), "no right to write"),
    "preupload 401": (Fault("POST", "/preupload/", 401, body=TOKEN.encode()), "no right to write|no access"),
    "preupload 404": (Fault("POST", "/preupload/", 404, body=TOKEN.encode()), "404|no such repository"),
    "commit 429": (Fault("POST", "/commit/", 429, headers={"Retry-After": "0"}), "answered 429"),
    "commit cut": (Fault("POST", "/commit/", truncate=3), "the connection broke; look whether"),
    "upload 403": (Fault("PUT", CDN_HOST, 403, times=9, body=TOKEN.encode()), "upload of a weight file stopped"),
    "upload 500": (Fault("PUT", CDN_HOST, 500, times=99), "upload of a weight file stopped"),
    "verify 422": (Fault("POST", "objects/verify", 422, body=TOKEN.encode()), "upload of a weight file stopped"),
    "revision 404": (
        Fault("GET", "/api/models/", 404, headers={"X-Error-Code": "RevisionNotFound"}),
        "no such revision",
    ),
    "revision 500": (Fault("GET", "/api/models/", 500, body=TOKEN.encode()), "answered 500"),
}


@pytest.mark.parametrize(("fault", "pattern"), FAULTS.values(), ids=FAULTS)
def test_fault_of_the_hub_is_one_line(
    hub: HubServer, folder: Path, line: Line, fault: Fault, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    hub.faults.append(replace(fault))
    with refused(pattern):
        publish(folder, REPO, line, QUESTION, push=True)


RETRIED = {
    "preupload 500": Fault("POST", "/preupload/", 500),
    "preupload 429": Fault("POST", "/preupload/", 429, headers={"Retry-After": "0"}),
    "batch 500": Fault("POST", "objects/batch", 500),
    "upload 500": Fault("PUT", CDN_HOST, 500),
}


@pytest.mark.parametrize("fault", RETRIED.values(), ids=RETRIED)
def test_fault_that_passes_is_waited_for(
    hub: HubServer, folder: Path, line: Line, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    planted = replace(fault)
    hub.faults.append(planted)
    assert publish(folder, REPO, line, QUESTION, push=True).commit == hub.repos[REPO].refs["main"]
    assert planted.times == 0


def test_front_matter_that_the_hub_refuses_is_one_line(hub: HubServer, folder: Path, line: Line) -> None:
    errors = json.dumps({"errors": [{"message": TOKEN}], "warnings": []}).encode()
    hub.faults.append(Fault("POST", "/validate-yaml", 400, body=errors))
    with refused("the Hub refuses its front matter"):
        publish(folder, REPO, line, QUESTION, push=True)
    assert hub.writes == []


def test_published_revision_that_reads_back_wrong_names_the_commit(hub: HubServer, folder: Path, line: Line) -> None:
    bad = b"{" + b" " * ((folder / "config.json").stat().st_size - 1)
    hub.faults.append(Fault("GET", r"/resolve/[0-9a-f]{40}/config\.json", 200, times=9, body=bad))
    with refused("published as [0-9a-f]{40}, which the gate refuses", "revert it"):
        publish(folder, REPO, line, QUESTION, push=True)


def test_published_file_of_another_size_names_the_commit(hub: HubServer, folder: Path, line: Line) -> None:
    size = (folder / "config.json").stat().st_size

    def shorten() -> None:
        repo = hub.repos[REPO]
        for file in (commit.files.get("config.json") for commit in repo.commits.values()):
            if file:
                file.size -= 1

    hub.faults += [Fault("GET", r"/tree/", times=1), Fault("GET", r"/tree/", meanwhile=shorten)]
    with refused(f"config.json: expected {size} bytes, found {size - 1}", "revert the commit [0-9a-f]{40}"):
        publish(folder, REPO, line, QUESTION, push=True)


@pytest.mark.parametrize("repository", ["somebody/nothing", "no name", "a/b/c"])
def test_repository_that_is_not_there(hub: HubServer, folder: Path, line: Line, repository: str) -> None:
    with refused(repository):
        publish(folder, repository, line, QUESTION)
    assert hub.writes == []


def test_no_token_is_no_right_to_write(folder: Path, line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    assert isinstance(publish(folder, REPO, line, QUESTION), Publication)
    with refused("no right to write", "hf auth login"):
        publish(folder, REPO, line, QUESTION, push=True)


def use(line: Line, monkeypatch: pytest.MonkeyPatch, **profiles: Any) -> None:
    """Make the command line read this line, pinned to a release that the gate knows."""
    pin = line.release.pins["sglang"].model_copy(update={"version": "0.5.23"})
    release = line.release.model_copy(update={"pins": {**line.release.pins, "sglang": pin}})
    used = line.model_copy(update={"release": release, "profiles": Profiles(profiles={}, **profiles)})
    monkeypatch.setattr(cli, "load_line", lambda _name: used)


def test_command_prints_files_and_commit(
    hub: HubServer,
    folder: Path,
    line: Line,
    monkeypatch: pytest.MonkeyPatch,
    no_token_anywhere: Callable[[], str],
) -> None:
    use(line, monkeypatch)
    assert cli.run(["publish", str(folder), REPO]) == 0
    assert "dry run: --push sends this" in no_token_anywhere()
    assert cli.run(["publish", str(folder), REPO, "--push"]) == 0
    assert f"{REPO}@{hub.repos[REPO].refs['main']}" in no_token_anywhere()


def test_command_refuses_with_exit_code_13_and_one_line(
    hub: HubServer,
    folder: Path,
    line: Line,
    monkeypatch: pytest.MonkeyPatch,
    no_token_anywhere: Callable[[], str],
) -> None:
    use(line, monkeypatch)
    change_config(folder, ignore=VISION_ONLY)
    assert cli.run(["publish", str(folder), REPO, "--push", "--json"]) == 13
    printed = no_token_anywhere()
    assert sum(text.startswith("error: ") for text in printed.splitlines()) == 1
    assert "Traceback" not in printed
    assert hub.writes == []


def test_command_derives_the_1m_draft_and_gates_it(
    hub: HubServer, tmp_path: Path, line: Line, monkeypatch: pytest.MonkeyPatch, no_token_anywhere: Callable[[], str]
) -> None:
    native = write_checkpoint(tmp_path / "draft", draft_config(), draft_tensors())
    source = HubRevision(repository="incoai/draft", revision=hub.add("incoai/draft", native))
    hub.add(REPO, write_checkpoint(tmp_path / "target", target_config(), target_tensors()))
    target = HubRevision(repository=REPO, revision="main")
    use(line, monkeypatch, draft_1m=Draft1M(source=source, target=target))
    assert cli.run(["draft-1m", "incoai/draft", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads((tmp_path / "out" / "derived.json").read_text())["source"] == source.model_dump()
    zero = write_checkpoint(tmp_path / "zero", draft_config(), draft_tensors())
    (zero / "model.safetensors").write_bytes(shard(draft_tensors(), fill=b"\0\0"))
    assert cli.run(["draft-1m", str(zero), str(tmp_path / "out2"), "--any-revision"]) == 13
    assert "DFL-05" in no_token_anywhere()
    assert not (tmp_path / "out2").exists()


def test_command_without_a_1m_draft_in_the_manifest(
    tmp_path: Path, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(line, monkeypatch)
    assert cli.run(["draft-1m", "a/b", str(tmp_path / "out")]) == 4


def test_process_of_its_own_with_a_token_in_its_environment(hub: HubServer, folder: Path, tmp_path: Path) -> None:
    """As people run it: HF_ENDPOINT, HF_TOKEN, the project's own line, all logging on."""
    code = (
        f"import sys; sys.path.insert(0, {str(PROJECT)!r}); from pipeline import cli; sys.exit(cli.run(sys.argv[1:]))"
    )
    environment = {"PATH": os.environ["PATH"], "HF_HOME": str(tmp_path / "home2"), "HF_HUB_VERBOSITY": "debug"}
    arguments = ["publish", str(folder), REPO, "--render-card", "--push", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=PROJECT,
        env={**environment, "HF_DEBUG": "1", **hub.environment()},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["commit"] == hub.repos[REPO].refs["main"]
    assert TOKEN not in done.stdout + done.stderr
