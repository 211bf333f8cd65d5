"""The page of a rebase report: all of the report is on it, in sound HTML, and hostile text stays text."""

import re
from html.parser import HTMLParser

import pytest

from pipeline import rebase_page
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

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror='x'>\"&{{ 7*7 }}"
VOID = {"meta", "br", "link", "img"}


def hunk(status: HunkStatus = HunkStatus.EXACT, **more: object) -> HunkVerdict:
    values: dict[str, object] = {"file": "sglang/a.py", "header": "@@ -1,3 +1,4 @@ def f", "status": status}
    return HunkVerdict.model_validate(values | more)


def patch(name: str = "a.patch", *hunks: HunkVerdict, **more: object) -> PatchVerdict:
    found = hunks or (hunk(),)
    worst = max((each.status for each in found), key=lambda status: status.rank)
    values: dict[str, object] = {"name": name, "summary": "What it does", "status": worst, "hunks": found}
    return PatchVerdict.model_validate(values | more)


def report(*patches: PatchVerdict, **more: object) -> RebaseReport:
    values: dict[str, object] = {"series": "a-line", "onto": "sglang==9", "old": "sglang==8", "patches": patches}
    return RebaseReport.model_validate(values | more)


def full(text: str) -> RebaseReport:
    """A report with ``text`` in every free field."""
    nearest = Nearest(file=text, line=7, of="old text", similarity=0.75, diff=f" {text}\n-{text}\n+{text}\n")
    conflict = hunk(HunkStatus.CONFLICT, file=text, header=text, note=text, nearest=nearest, cascading=True)
    oracle = OracleVerdict(status=OracleStatus.DROPPABLE, detail=text)
    overlay = OverlayVerdict(name=text, status=OverlayStatus.IMPORTS, problems=(text,))
    change = NameChange(name=text, what="default", old=text, new=text, used_by=(text,))
    changed = NameChanges(before=2, after=3, new=1, changes=(change,), not_compared=(text,))
    changes = UpstreamChanges(
        files=(FileChange(path=text, status="moved", why=text, added=1, removed=2, to=text),),
        variables=changed,
        flags=changed,
    )
    made = patch(text, conflict, summary=text, origin=text, oracle=oracle)
    return report(
        made, series=text, onto=text, old=text, onto_sha256=text, overlays=(overlay,), imports=(text,), changes=changes
    )


class Page(HTMLParser):
    """Tags, text and attributes of a page, whose elements must be closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.text += " " if tag in ("td", "th", "br") else ""
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def words(page: str) -> str:
    return " ".join(Page(page).text.split())


def test_hostile_text_stays_text_wherever_it_stands() -> None:
    page = rebase_page.render(full(HOSTILE))
    harmless, found = Page(rebase_page.render(full("plain"))), Page(page)
    assert found.tags == harmless.tags
    assert found.attributes == harmless.attributes
    assert "<script" not in page
    assert "<img" not in page
    assert found.text.count(HOSTILE) == harmless.text.count("plain") > 20


def test_page_needs_nothing_from_elsewhere() -> None:
    page = rebase_page.render(full("plain"))
    assert Page(page).attributes <= {"lang", "charset", "name", "content", "http-equiv", "scope", "class", "href", "id"}
    assert set(re.findall(r'href="([^"]*)"', page)) == {"#patch-1"}
    assert "url(" not in page
    assert "@import" not in page


def test_every_link_leads_to_a_patch() -> None:
    page = rebase_page.render(report(patch("a.patch"), patch("b.patch")))
    assert re.findall(r'href="#([^"]*)"', page) == re.findall(r' id="([^"]*)"', page) == ["patch-1", "patch-2"]


def test_page_says_what_the_report_says() -> None:
    moved = hunk(HunkStatus.MOVED, line=12, offset=-3, places=(40, 50))
    fuzz = hunk(HunkStatus.FUZZ, line=5, fuzz=2, pristine=HunkStatus.EXACT, note="one line of context changed")
    made = report(patch("a.patch", moved, fuzz, hunk()), patch("b.patch"), onto_sha256="0" * 64)
    text = words(rebase_page.render(made))
    assert "a-line onto sglang==9 Made for sglang==8. 2 patches, 4 hunks: 2 exact, 1 moved, 1 fuzz." in text
    assert "It does not fit as it is." in text
    assert "line 12 (-3); also at 40, 50" in text
    assert "line 5; fuzz 2; exact on the release without the patches before it; one line of context changed" in text
    assert f"sha256 of the wheel: {'0' * 64}" in text


def test_exact_report_says_so() -> None:
    assert "1 patch, 1 hunk: 1 exact. All is exact." in words(rebase_page.render(report(patch())))


def test_nearest_lines_are_shown_as_a_coloured_diff() -> None:
    page = rebase_page.render(full("plain"))
    (shown,) = re.findall(r"<pre>(.*)</pre>", page, re.DOTALL)
    assert shown == '<span> plain</span><span class="went">-plain</span><span class="came">+plain</span>'
    assert "Most like the old text of plain: plain:7, similarity 0.75" in words(page)


def test_changes_show_who_is_concerned() -> None:
    page = rebase_page.render(full("plain"))
    assert 'class="ours"' in page
    text = words(page)
    assert "2 before, 3 now; 1 new. 1 vanished or changed, of which 1 are named by us. Not compared: plain." in text
    assert "plain now plain moved 1 2 plain" in text


def test_foreign_series_has_no_changes_and_no_overlays() -> None:
    text = words(rebase_page.render(report(patch(), old="")))
    assert "Made for" not in text
    absent = ("Launch flags", "Environment variables", "DFlash2", "Overlays", "without it", "Without it")
    assert not any(heading in text for heading in absent)


@pytest.mark.parametrize("status", list(HunkStatus))
def test_every_status_is_explained(status: HunkStatus) -> None:
    assert list(rebase_page.MEANINGS) == list(HunkStatus)
    assert rebase_page.MEANINGS[status] in words(rebase_page.render(report(patch("a.patch", hunk(status)))))
