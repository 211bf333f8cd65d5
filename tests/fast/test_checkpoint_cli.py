"""``build.py checkpoint``: exit codes, the table, JSON, and what is written."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import cli
from pipeline.checkpoint import page
from pipeline.checkpoint.naming import MTP_EXCLUSIONS
from pipeline.errors import CheckpointError
from pipeline.files import PROJECT
from tests.fast.builders import write_files
from tests.fast.checkpoints import draft, target
from tests.fast.hub_server import TOKEN, hub_server


def run(*arguments: str) -> int:
    return cli.run(["checkpoint", *arguments])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path / "model", target().files())


def test_good_target_exits_0_with_table_bytes_and_seconds(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(str(folder), "--role", "target") == 0
    shown = capfd.readouterr()
    assert "MTP-08" in shown.out
    assert re.search(r"0\.0\d MiB read in \d+ requests, \d+\.\d s", shown.err)


def test_refusal_exits_13_and_names_rules(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = write_files(tmp_path / "model", target().exclude("lm_head").files())
    assert run(str(folder), "--role", "target") == CheckpointError.exit_code == 13
    shown = capfd.readouterr()
    assert "refused by MTP-08" in shown.err
    assert "qkv_proj" in shown.out


def test_json_is_the_only_thing_on_stdout(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(str(folder), "--role", "target", "--json") == 0
    report = json.loads(capfd.readouterr().out)
    assert report["publishable_and_servable"] is True
    assert {row["status"] for row in report["results"]} <= {"passed", "skipped"}
    assert report["bytes_read"] > 0
    assert report["pin"] == "sglang==0.5.23"


def test_another_release_may_be_asked_about(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(str(folder), "--role", "target", "--pin", "sglang==0.5.20") == 13
    assert "refused by TGT-02" in capfd.readouterr().err
    assert run(str(folder), "--role", "target", "--pin", "sglang==0.4.0") == 13
    assert "one of 0.5.17" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--write"], 2, "--write goes with --fix-ignore"),
        (["--role", "tokenizer"], 2, "is not one of"),
        (["--for", "eagle"], 2, "is not one of"),
        (["--profile", "nothing"], 4, "no profile 'nothing'"),
        (["--line", "nothing"], 4, "no release line"),
    ],
)
def test_wrong_use_is_one_line(
    folder: Path, arguments: list[str], code: int, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(str(folder), *(["--role", "target"] if "--role" not in arguments else []), *arguments) == code
    assert says in capfd.readouterr().err


def test_a_draft_has_no_exclusions_to_fix(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = write_files(tmp_path / "draft", draft().files())
    assert run(str(folder), "--role", "draft", "--fix-ignore") == 2
    assert "a draft has no MTP head" in capfd.readouterr().err
    assert run(str(folder), "--role", "draft") == 0


def test_draft_is_compared_with_the_named_target(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = target()
    made.text["vocab_size"] = 100
    other = write_files(tmp_path / "target", made.files())
    folder = write_files(tmp_path / "draft", draft().files())
    assert run(str(folder), "--role", "draft", "--target", str(other)) == 13
    assert "refused by DFL-11" in capfd.readouterr().err


def test_fix_ignore_prints_a_diff_and_writes_only_when_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = target().exclude("lm_head", "mtp.*")
    made.card = target().exclude("lm_head").exclude(*MTP_EXCLUSIONS).card
    made.quantisation["ignore"] = ["lm_head", "mtp.*"]
    folder = write_files(tmp_path / "model", made.files())
    before = (folder / "config.json").read_bytes()
    assert run(str(folder), "--role", "target", "--fix-ignore") == 0
    shown = capfd.readouterr().out
    assert '-      "mtp.*"' in shown
    assert '+      "mtp.layers.0.self_attn.qkv_proj"' in shown
    assert (folder / "config.json").read_bytes() == before
    assert run(str(folder), "--role", "target", "--fix-ignore", "--write") == 0
    assert "mtp.layers.0.self_attn.qkv_proj" in (folder / "config.json").read_text()
    assert run(str(folder), "--role", "target", "--fix-ignore") == 0
    assert "the exclusions are right" in capfd.readouterr().err


def test_names_in_a_checkpoint_cannot_write_to_the_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = target()
    made.tensors["mtp.\x1b[31m\nred.weight"] = ("BF16", (2, 2))
    made.config["architectures"] = ["[bold]x[/bold]\x1b]0;title\x07"]
    folder = write_files(tmp_path / "model", made.files())
    assert run(str(folder), "--role", "target") == 13
    shown = capfd.readouterr()
    assert "\x1b]0" not in shown.out + shown.err
    assert "[bold]x[/bold]" in shown.out


def test_rules_page_is_the_one_of_the_rules(capfd: pytest.CaptureFixture[str]) -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.render(), "run ./build.py checkpoint-rules --write"
    assert cli.run(["checkpoint-rules"]) == 0
    assert capfd.readouterr().out == page.render()


def test_hub_of_the_environment_is_asked_by_a_process_of_its_own(tmp_path: Path) -> None:
    """``HF_ENDPOINT`` and ``HF_TOKEN`` as a user sets them, ``huggingface_hub`` as it is."""
    with hub_server() as hub:
        commit = hub.add("somebody/model", dict(target().files()), private=True)
        code = "import sys; from pipeline.cli import run; sys.exit(run(sys.argv[1:]))"
        done = subprocess.run(
            [sys.executable, "-c", code, "checkpoint", "somebody/model", "--role", "target", "--json"],
            cwd=PROJECT,
            env={**hub.environment(), "PATH": os.environ["PATH"], "HF_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["revision"] == commit
    assert TOKEN not in done.stdout + done.stderr
