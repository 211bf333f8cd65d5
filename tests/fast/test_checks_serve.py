"""The serve check sees each way in which a server can serve badly; the server is a stand-in."""

import shutil
from pathlib import Path

import pytest

from checks import server, test_serve, tiny_model
from checks.verdict import Verdict
from tests.fast import fake_server


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, object]]:
    """Where the verdict goes, once ``python -m sglang.launch_server`` is the stand-in."""
    package = tmp_path / "site" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    shutil.copy(fake_server.__file__, package / "launch_server.py")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setattr(tiny_model, "write", lambda folder: folder.mkdir())
    return []


@pytest.mark.parametrize("end", ["", "SIGKILL"], ids=["returns", "kills itself"])
def test_a_sound_server_passes(
    said: list[tuple[str, object]], end: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stand-in refuses a flush that does not wait; releases end in one of two ways."""
    monkeypatch.setenv("FAULT", end)
    test_serve.test_serve(Verdict(said))
    assert [name for name, _ in said] == ["proof"]
    assert "repeated 5 greedy requests" in str(said[0][1])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("start", "expected it to start, it ended with status 3"),
        ("flag", "/server_info: expected dtype 'float32', found 'bfloat16'"),
        ("constant", "/generate: expected 24 tokens that differ"),
        ("no-end", "/v1/completions: expected a stream that ends in [DONE]"),
        ("whole", "/v1/completions: expected 24 tokens in pieces, found 1 pieces"),
        ("usage", "/v1/completions: expected 24 tokens in pieces, found 3 pieces and usage [23]"),
        (
            "dies-in-/v1/completions",
            "ServerError: /v1/completions: expected a whole answer, it broke off: IncompleteRead",
        ),
        ("dies-in-/generate", "ServerError: /generate: expected a whole answer, it broke off: IncompleteRead"),
        ("short", "/generate: expected a stream of up to 8000 tokens, it ended after ['{}']"),
        ("repeat", "each of 5 times, found"),
        ("flush-refused", "/flush_cache: expected status 200, found 400"),
        ("after-flush", "/generate after /flush_cache: expected"),
        ("cancel", "cancelled stream: expected its request to end early, it held 7000 of 8000 tokens"),
        ("after-cancel", "/generate after a cancelled stream: expected"),
        ("stop", "expected it to end within 0 s of SIGTERM, it did not"),
        ("crash-at-stop", "expected it to end in good order on SIGTERM, it ended with status 139"),
        ("SIGSEGV", "expected it to end in good order on SIGTERM, it ended with status -11"),
        ("SIGABRT", "expected it to end in good order on SIGTERM, it ended with status -6"),
        ("child", "expected its processes to end with it, found one still running"),
    ],
)
def test_fault(said: list[tuple[str, object]], fault: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One fault, one problem."""
    monkeypatch.setenv("FAULT", fault)
    if fault in ("stop", "child"):
        monkeypatch.setattr(server, "STOP_SECONDS", 0.5)  # a busy machine needs longer for a sound stop
    with pytest.raises(pytest.fail.Exception) as failure:
        test_serve.test_serve(Verdict(said))
    assert len(str(failure.value).splitlines()) == 1, failure.value
    assert reason in str(dict(said)["problem"])


@pytest.mark.parametrize(
    ("fault", "output"),
    [
        ("start", "ImportError: a kernel is missing"),
        ("dies-in-/v1/completions", "Segmentation fault"),
        ("constant", "the first line"),
        ("crash-at-stop", "the first line"),
    ],
)
def test_the_whole_output_of_a_server_that_failed_is_shown(
    said: list[tuple[str, object]],
    fault: str,
    output: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is all that tells why it did not start, why it died, or why it answers so."""
    monkeypatch.setenv("FAULT", fault)
    with pytest.raises(pytest.fail.Exception):
        test_serve.test_serve(Verdict(said))
    shown = capsys.readouterr().err
    assert shown.startswith("the first line\n")
    assert output in shown
