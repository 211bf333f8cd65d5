"""The report for a terminal says everything that is not exact, in plain lines."""

import io

from rich.console import Console

from pipeline import rebase_text
from pipeline.rebase_report import (
    HunkStatus,
    HunkVerdict,
    Nearest,
    OracleStatus,
    OracleVerdict,
    OverlayStatus,
    OverlayVerdict,
    PatchVerdict,
    RebaseReport,
)
from pipeline.upstream_changes import FileChange, NameChange, NameChanges, UpstreamChanges

NEAR = Nearest(file="b.py", line=7, of="old text", similarity=0.5, diff=" x\n-y\n+z")
HUNKS = (
    HunkVerdict(file="a.py", header="@@ -1,3 +1,3 @@", status=HunkStatus.EXACT, line=1),
    HunkVerdict(file="a.py", header="@@ -9,3 +9,3 @@ def f(x: [int]):", status=HunkStatus.MOVED, line=12, offset=3),
    HunkVerdict(
        file="b.py",
        header="@@ -5,2 +5,3 @@",
        status=HunkStatus.CONFLICT,
        cascading=True,
        pristine=HunkStatus.EXACT,
        nearest=NEAR,
        note="may follow from 1.patch hunk 1",
    ),
)
CHANGES = UpstreamChanges(
    files=(
        FileChange(path="c.py", status="vanished", why="source dflash2"),
        FileChange(path="d.py", status="changed", why="imported by c.py", added=3, removed=4),
        FileChange(path="e.py", status="same", why="source dflash2"),
    ),
    variables=NameChanges(before=5, after=4, new=0, changes=(NameChange(name="A_B", what="vanished", old="1"),)),
    flags=NameChanges(
        before=3,
        after=3,
        new=0,
        changes=(NameChange(name="--x", what="default", old="1", new="2", used_by=("profile p",)),),
        not_compared=("choices of --y: made when the server starts",),
    ),
)
REPORT = RebaseReport(
    series="small",
    onto="sglang==9",
    onto_sha256="0" * 64,
    old="sglang==8",
    patches=(
        PatchVerdict(name="0.patch", summary="", status=HunkStatus.EXACT, hunks=HUNKS[:1]),
        PatchVerdict(
            name="2.patch",
            summary="",
            status=HunkStatus.CONFLICT,
            hunks=HUNKS,
            oracle=OracleVerdict(status=OracleStatus.NOT_RUN, detail="no engine"),
        ),
    ),
    overlays=(
        OverlayVerdict(name="ours", status=OverlayStatus.FITS),
        OverlayVerdict(name="theirs", status=OverlayStatus.EXISTS, problems=("n.py: the same file is upstream",)),
    ),
    imports=("a.py:1 imports x",),
    changes=CHANGES,
)


def test_details_are_exactly_this() -> None:
    assert list(rebase_text.details(REPORT)) == [
        "2.patch: conflict",
        "  a.py",
        "    moved, line 12 (+3): @@ -9,3 +9,3 @@ def f(x: [int]):",
        "  b.py",
        "    conflict, may be cascading, exact on the release without the patches before it: @@ -5,2 +5,3 @@",
        "      may follow from 1.patch hunk 1",
        "      nearest: line 7, 50% like its old text:",
        "         x",
        "        -y",
        "        +z",
        "overlay theirs: exists upstream",
        "  n.py: the same file is upstream",
        "imports of the tree with what was applied:",
        "  a.py:1 imports x",
        "files of the second source, and what they import:",
        "  vanished: c.py (source dflash2)",
        "  changed: d.py, +3 -4 (imported by c.py)",
        "environment variables: 5 before, 4 now; 1 changed that this line does not use",
        "launch flags: 3 before, 3 now; 0 changed that this line does not use",
        "  --x: default 1 -> 2 (used by profile p)",
        "  not compared: choices of --y: made when the server starts",
        "2 patches, 4 hunks: 2 exact, 1 moved, 1 conflict. It does not fit as it is.",
    ]


def test_what_a_terminal_would_obey_is_shown() -> None:
    hostile, shown = "\x1b]0;own\x07\r\x9b2J\u202e", r"\x1b]0;own\x07\r\x9b2J\u202e"
    near = NEAR.model_copy(update={"diff": f"-\t{hostile}\n+\x0cx"})
    hunk = HUNKS[2].model_copy(update={"file": hostile, "header": hostile, "note": hostile, "nearest": near})
    patch = PatchVerdict(name=hostile, summary="", status=HunkStatus.CONFLICT, hunks=(hunk,))
    report = RebaseReport(series=hostile, onto=hostile, old=hostile, patches=(patch,))
    console = Console(width=160, file=io.StringIO())
    with console.capture() as captured:
        console.print(rebase_text.table(report))
    text = "\n".join([rebase_text.title(report), captured.get(), *rebase_text.details(report)])
    assert text.count(shown) == text.count("own") > 8
    assert [char for char in text if not char.isprintable() and char not in "\n\t"] == []
    assert r"+\x0cx" in text


def test_an_answer_comes_with_its_reason_and_not_run_is_in_the_table_alone() -> None:
    answered = OracleVerdict(status=OracleStatus.NO_ANSWER, detail="why")
    silent = OracleVerdict(status=OracleStatus.NOT_RUN, detail="no engine")
    exact = REPORT.patches[0]
    patches = tuple(exact.model_copy(update={"oracle": oracle}) for oracle in (answered, silent))
    report = RebaseReport(series="small", onto="sglang==9", old="", patches=patches)
    assert list(rebase_text.details(report))[:-1] == ["0.patch: exact; without it: no answer (why)"]


def test_table_has_a_row_a_patch_and_a_column_for_oracles_where_any_was_asked() -> None:
    assert rebase_text.title(REPORT) == "small (made for sglang==8) onto sglang==9, sha256 " + "0" * 64
    console = Console(width=160, file=io.StringIO())
    with console.capture() as captured:
        console.print(rebase_text.table(REPORT))
    text = captured.get()
    assert "without it" in text
    assert "2.patch" in text
    assert "1 exact, 1 moved, 1 conflict" in text
    assert "not run" in text
    foreign = REPORT.model_copy(update={"patches": REPORT.patches[:1]})
    assert len(rebase_text.table(foreign).columns) == 3
