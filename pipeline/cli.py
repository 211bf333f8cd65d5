"""The command line: one command per stage, each a short chain of the stages' own functions."""

import errno
import json
import sys
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import click
from click.core import ParameterSource
from rich.table import Table

from pipeline import console
from pipeline.errors import CheckError, CheckpointError, EngineError, ManifestError, PipelineError
from pipeline.files import BUILD, build_lock
from pipeline.manifest import DEFAULT_LINE, Line, load_line

# Stages are imported where they are used: the Docker SDK alone takes longer than `plan` does.

NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
"""Met while writing, when the system does not name the file."""

FORMS = ("docker-run", "registry-page", "compose", "model-card", "json")

line_option = click.option("--line", "line_name", default=DEFAULT_LINE, show_default=True, help="Release line.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")


def run(arguments: list[str]) -> int:
    """Run one command; the exit code is the stage's (``docs/exit-codes.md``)."""
    try:
        main.main(arguments, prog_name="build.py", standalone_mode=False)
    except PipelineError as error:
        console.fail(error.line())
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        console.fail(" ".join(error.format_message().split()))
        return 2
    except (KeyboardInterrupt, click.Abort):
        console.fail("interrupted; nothing half-made is left, the same command goes on from here")
        return 130
    except OSError as error:
        where = error.filename or (f"{BUILD} or {gettempdir()}" if error.errno in NO_SPACE else "operating system")
        console.fail(f"{where}: {error.strerror or error}; free space or rights, then again")
        return 3
    return 0


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Build, check and release model-scoped SGLang images for Intel XPU.

    Exit codes: 0 done, 2 usage, 3 set-up, 4 manifest, 5 pins, 6 compose, 7 base, 8 image, 9 engine, 10 checks,
    11 release, 12 another run is at work, 13 checkpoint, 14 verify, 15 rebase, 130 interrupted.
    """


def emit(document: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


@main.command()
@click.option("--dev", is_flag=True, help="With the test tools and servers, as `make test` needs them.")
def setup(dev: bool) -> None:
    """Install what is missing and make the virtual environment; every command does so by itself."""
    from pipeline import bootstrap

    bootstrap.prepare(bootstrap.debian_packages("setup", dev), dev)


@main.command()
@line_option
@json_option
def plan(line_name: str, as_json: bool) -> None:
    """Show what would be done, and what is cached; nothing is fetched or written."""
    from pipeline import stages

    rows = stages.plan(load_line(line_name), BUILD)
    if as_json:
        emit([{"stage": stage, "what": what, "state": state} for stage, what, state in rows])
        return
    table = Table("stage", "what", "state")
    for row in rows:
        table.add_row(*row)
    console.out.print(table)


@main.command()
@line_option
@json_option
@click.option("--write-lock", is_flag=True, help="Accept the composed tree as the new locked one.")
def compose(line_name: str, as_json: bool, write_lock: bool) -> None:
    """Compose the tree into .build/<line>/tree, with its record."""
    from pipeline import stages

    with build_lock():
        record = stages.compose_tree(load_line(line_name), write_lock=write_lock).record
    if as_json:
        emit(record.model_dump(mode="json", exclude={"files"}))
    else:
        console.out.print(record.digest)


@main.group()
def base() -> None:
    """The base image of a line."""


@base.command("build")
@click.argument("kind", type=click.Choice(["line", "xpu"]), default="line")
@line_option
@json_option
@click.option("--write-lock", is_flag=True, help="Accept this base as the locked one.")
@click.option("--repository", help="Of xpu: where to push it (host/name).")
def base_build(kind: str, line_name: str, as_json: bool, write_lock: bool, repository: str | None) -> None:
    """Build the base that the line is on, or read the published one; nothing is done when it is cached.

    `base build xpu --repository R` builds the xpu base with your Docker (BuildKit), pushes it, and writes its digest
    into the lock.
    """
    from pipeline import base_xpu, stages

    line = load_line(line_name)
    if (kind == "xpu") != (repository is not None):
        raise click.UsageError("xpu and --repository go together")
    with build_lock():
        if repository is not None:
            reference = base_xpu.build(line, repository, BUILD)
            console.note(f"name it in {line.folder / 'release.yaml'}: base: {{kind: published, reference: …}}")
            found = {"kind": kind, "name": reference, "digest": reference.rpartition("@")[2]}
        else:
            built = stages.get_base(line, write_lock=write_lock)
            found = {"kind": built.kind, "name": built.name, "digest": built.image.digest}
    if as_json:
        emit(found)
    else:
        console.out.print(found["name"] if repository else found["digest"])


@base.command("inventory")
@line_option
@json_option
def base_inventory(line_name: str, as_json: bool) -> None:
    """Show what the base holds; a published base is read once, layer by layer, from its registry."""
    from pipeline import stages

    with build_lock():
        taken = stages.take_inventory(load_line(line_name))
    if as_json:
        emit(taken.model_dump(mode="json"))
        return
    table = Table("package", "version", "kind", title=f"{taken.base}: {len(taken.files)} files in {taken.package_root}")
    for kind, packages in (("debian", taken.debian), ("python", taken.python)):
        for name, version in packages.items():
            table.add_row(name, version, kind)
    console.out.print(table)


@base.command("mirror")
@click.argument("repository")
@line_option
@json_option
def base_mirror(repository: str, line_name: str, as_json: bool) -> None:
    """Copy the line's published base into REPOSITORY (host:port/name), digest unchanged and compared."""
    from pipeline import base as bases

    with build_lock():
        reference = bases.mirror(load_line(line_name), repository, BUILD)
    if as_json:
        emit({"reference": reference})
    else:
        console.out.print(reference)


@main.command()
@line_option
@json_option
def image(line_name: str, as_json: bool) -> None:
    """Compose, get the base, write the image, check it: the whole line up to a release."""
    from pipeline import stages

    line = load_line(line_name)
    with build_lock():
        report = stages.unchanged(line)
        if report is not None:
            console.note("nothing changed since the last run, whose verdict stands; build.py check checks again")
        else:
            stages.require_space(line)
            composed = stages.compose_tree(line)
            base = stages.get_base(line)
            report = stages.check_image(line, composed, base, stages.build_image(line, composed, base))
            stages.remember(line, report)
    _show_report(report, as_json)


@main.command()
@line_option
@json_option
def check(line_name: str, as_json: bool) -> None:
    """Check the image of .build/<line>/image again."""
    from pipeline import stages
    from pipeline.oci import Image

    line = load_line(line_name)
    with build_lock():
        composed = stages.compose_tree(line)
        base = stages.get_base(line)
        report = stages.check_image(line, composed, base, Image.load(BUILD / line.name / "image"))
    _show_report(report, as_json)


def _show_report(report: Any, as_json: bool) -> None:
    from pipeline.check import table

    if as_json:
        emit(report.model_dump(mode="json"))
    else:
        console.out.print(table(report))
        console.out.print(report.image)
    if report.passed:
        return
    bad = [row for row in report.checks if not row.status.is_sound]
    if all(row.status == "not_run" for row in bad):
        raise EngineError(
            f"{report.image}: checks were not run", found=bad[0].reason, do="see docs/read-a-failed-check.md"
        )
    names = ", ".join(f"{row.name} {row.status}" for row in bad)
    raise CheckError(
        f"{report.image}", expected="every check passed", found=names, do="see docs/read-a-failed-check.md"
    )


class _Releases(click.Group):
    """``release REPOSITORY`` is ``release push REPOSITORY``: what people do with a release is push it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["push", *args]
        return super().parse_args(ctx, args)


@main.group(cls=_Releases)
def release() -> None:
    """Push the checked image, or list the records of releases; `release REPOSITORY` pushes."""


@release.command("push")
@click.argument("repository")
@line_option
@json_option
@click.option("--dry-run", is_flag=True, help="Examine every condition and tag; send nothing.")
@click.option("--allow-dirty", is_flag=True, help="Take a working tree with changes, for a registry on loopback.")
def release_push(repository: str, line_name: str, as_json: bool, dry_run: bool, allow_dirty: bool) -> None:
    """Push the checked image to REPOSITORY (host:port/name): by digest, then the pinned tag, then the moving one."""
    from pipeline import gate, stages

    try:
        with build_lock():
            result, file = stages.release_image(
                load_line(line_name), repository, allow_dirty=allow_dirty, dry_run=dry_run
            )
    except gate.GateError as error:
        if as_json:
            emit({"released": False, "conditions": [row.model_dump(mode="json") for row in error.conditions]})
        else:
            console.out.print(gate.table(error.conditions))
        raise
    if as_json:
        emit({"released": not dry_run, **result.model_dump(mode="json")})
        return
    console.out.print(gate.table(result.conditions))
    if file is not None:
        console.note(f"record: {file}")
    console.out.print(f"{result.repository}@{result.digest}")


@release.command("list")
@line_option
@json_option
def release_list(line_name: str, as_json: bool) -> None:
    """List the records of the line's releases; a + marks a working tree that differed from its commit."""
    from pipeline import release_record

    records = release_record.known(load_line(line_name).name, BUILD)
    if as_json:
        emit(release_record.as_json(records))
    else:
        console.out.print(release_record.table(records))


@main.command()
@click.argument("target")
@json_option
@click.option("--remote", is_flag=True, help="Read back what the registry serves for a reference; rebuild nothing.")
def verify(target: str, as_json: bool, remote: bool) -> None:
    """Rebuild what TARGET names and compare: a release record's file, repository:tag or repository@sha256:..."""
    from pipeline import verify as verifying

    if remote:
        found = verifying.verify_remote(target)
    else:
        with build_lock():
            found = verifying.verify(target, BUILD)
    if as_json:
        emit({"verified": found.verified, **found.model_dump(mode="json")})
    else:
        console.out.print(verifying.table(found))
        for file in found.files:
            console.out.print(file, markup=False)
        console.out.print(found.image)
    found.require()


@main.command()
@click.argument("source")
@click.option("--role", type=click.Choice(["target", "draft"]), required=True, help="What the checkpoint is.")
@click.option("--for", "mode", type=click.Choice(["mtp", "dflash2", "plain"]), help="How it shall be served.")
@click.option("--pin", help="Another SGLang release than the line's: sglang==VERSION, 0.5.17 to 0.5.23.")
@click.option("--profile", "profile_name", help="Profile of the line that it shall be served with.")
@click.option("--target", help="Of a draft: the target to compare with, if not the profile's.")
@click.option("--full", is_flag=True, help="Read whole tensors where else samples are read.")
@click.option("--fix-ignore", is_flag=True, help="Print the corrected quantization_config as a diff.")
@click.option("--write", is_flag=True, help="With --fix-ignore: write config.json, and check again.")
@line_option
@json_option
def checkpoint(
    source: str,
    role: Any,
    mode: Any,
    pin: str | None,
    profile_name: str | None,
    target: str | None,
    full: bool,
    fix_ignore: bool,
    write: bool,
    line_name: str,
    as_json: bool,
) -> None:
    """Judge the checkpoint SOURCE (a folder, or owner/name[@revision] on the Hub) from its headers."""
    from pipeline.checkpoint import gate

    if write and not fix_ignore:
        raise click.UsageError("--write goes with --fix-ignore")
    if fix_ignore and role != "target":
        raise click.UsageError("--fix-ignore is for a target; a draft has no MTP head")
    line = load_line(line_name)
    release = gate.pinned_release(line, pin)
    profile = gate.named_profile(line, profile_name)
    if fix_ignore:
        _fix_ignore(source, release, write)
        if not write:
            return
    with console.step(f"Checkpoint {source}"):
        report = gate.check(source, role, release, mode=mode, profile=profile, target=target, full=full)
    _show_verdict(report, as_json)


def _fix_ignore(source: str, release: Any, write: bool) -> None:
    from pipeline.checkpoint import fix
    from pipeline.checkpoint.source import open_source

    opened = open_source(source)
    before, after = fix.correction(opened, release)
    if before == after:
        console.note(f"{opened}: the exclusions are right for {release}")
        return
    sys.stdout.write(fix.diff(before, after, opened.name))
    if write:
        console.note(f"{fix.write(opened, after)}: written")


def _show_verdict(report: Any, as_json: bool) -> None:
    from pipeline.checkpoint import report as reports

    if as_json:
        emit(reports.as_json(report))
    else:
        console.out.print(reports.table(report))
    console.note(reports.summary(report))
    if report.refused_by:
        raise CheckpointError(
            f"{report.source}",
            expected=f"a {report.role} that {report.pin} can serve for {report.mode}",
            found=f"refused by {', '.join(report.refused_by)}",
            do="see docs/checkpoint-rules.md",
        )


@main.command("checkpoint-rules")
@click.option("--write", is_flag=True, help="Write the page into docs/.")
def checkpoint_rules(write: bool) -> None:
    """Print the rules of the checkpoint gate as a page."""
    from pipeline.checkpoint import page
    from pipeline.files import write_atomic

    if write:
        write_atomic(page.PAGE, page.render().encode())
    else:
        sys.stdout.write(page.render())


@main.command("draft-1m")
@click.argument("source")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--target", help="Folder or Hub id with the YaRN settings, if not the line's.")
@click.option("--any-revision", is_flag=True, help="Take a SOURCE that is not the pinned revision.")
@line_option
@json_option
def draft_for_1m(source: str, out: Path, target: str | None, any_revision: bool, line_name: str, as_json: bool) -> None:
    """Derive the draft of the 1M profile from SOURCE (a folder or Hub id) into the new folder OUT."""
    from pipeline import draft_1m
    from pipeline.checkpoint import gate
    from pipeline.checkpoint import source as sources
    from pipeline.verdict import Question

    line = load_line(line_name)
    made_from = line.profiles.draft_1m
    if made_from is None:
        raise ManifestError(f"{line.folder}/profiles.yaml: no draft_1m", do="name source and target of the 1M draft")
    target = target or f"{made_from.target.repository}@{made_from.target.revision}"
    profile = gate.named_profile(line, made_from.profile)
    question = Question("draft", gate.pinned_release(line), profile=profile, target=target)
    derived = draft_1m.derive(
        source,
        out,
        pinned=made_from.source,
        target=target,
        any_revision=any_revision,
        check=lambda folder: question.require(sources.open_folder(folder), full=True),
    )
    if as_json:
        emit(derived.model_dump(mode="json"))
    else:
        console.out.print(str(out))


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("repository")
@click.option("--role", type=click.Choice(["target", "draft"]), default="target", show_default=True)
@click.option("--for", "mode", type=click.Choice(["mtp", "dflash2", "plain"]), help="How it shall be served.")
@click.option("--pin", help="Another SGLang release than the line's: sglang==VERSION.")
@click.option("--profile", "profile_name", help="Profile of the line that it shall be served with.")
@click.option("--target", help="Of a draft: the target to compare with, if not the profile's.")
@click.option("--revision", default="main", show_default=True, help="Branch to commit to.")
@click.option("--card-only", is_flag=True, help="README.md and config.json, judged by the published weights.")
@click.option("--render-card", is_flag=True, help="Write the rendered section into FOLDER/README.md first.")
@click.option("--push", is_flag=True, help="Upload; without it nothing is sent.")
@line_option
@json_option
def publish(
    folder: Path,
    repository: str,
    role: Any,
    mode: Any,
    pin: str | None,
    profile_name: str | None,
    target: str | None,
    revision: str,
    card_only: bool,
    render_card: bool,
    push: bool,
    line_name: str,
    as_json: bool,
) -> None:
    """Gate FOLDER and say what would go to REPOSITORY (owner/name) on the Hub; --push sends it in one commit."""
    from pipeline import publish as publishing
    from pipeline.checkpoint import gate
    from pipeline.verdict import Question

    line = load_line(line_name)
    profile = gate.named_profile(line, profile_name)
    question = Question(role, gate.pinned_release(line, pin), mode, profile, target)
    result = publishing.publish(
        folder,
        repository,
        line,
        question,
        revision=revision,
        card_only=card_only,
        render_card=render_card,
        push=push,
    )
    if as_json:
        emit(result.model_dump(mode="json"))
        return
    console.out.print(publishing.table(result))
    console.out.print(f"{result.repository}@{result.commit or result.parent}")


@main.group()
def patch() -> None:
    """The ordered patches of a line."""


@patch.command("list")
@line_option
@json_option
def patch_list(line_name: str, as_json: bool) -> None:
    """List the series with each patch's first line and files."""
    from pipeline import patches
    from pipeline.compose import PATCHES

    series = patches.read_series(PATCHES / load_line(line_name).name)
    if as_json:
        emit([{"name": p.name, "header": dict(p.header), "files": [f.path for f in p.files]} for p in series])
        return
    table = Table("patch", "forwarded", "what", "files")
    for entry in series:
        files = "\n".join(file.path for file in entry.files)
        table.add_row(entry.name, entry.header["Forwarded"], entry.summary, files)
    console.out.print(table)


@patch.command("edit")
@click.argument("name")
@line_option
def patch_edit(name: str, line_name: str) -> None:
    """Make a git work tree of all layers and patches up to NAME; prints its path."""
    from pipeline.worktree import Worktree

    with build_lock():
        tree = Worktree(load_line(line_name))
        tree.edit(name)
    _show_worktree(tree.folder)


@patch.command("new")
@click.argument("name")
@line_option
@click.option("--description", required=True, help="One line: what changes, and for whom.")
def patch_new(name: str, line_name: str, description: str) -> None:
    """Make a git work tree of the whole series for a new patch NAME at its end; prints its path."""
    from pipeline.worktree import Worktree

    with build_lock():
        tree = Worktree(load_line(line_name))
        tree.new(name, description)
    _show_worktree(tree.folder)


def _show_worktree(folder: Any) -> None:
    console.out.print(str(folder))
    console.note("edit there, `git commit --all --amend`, then build.py patch export")


@patch.command("export")
@line_option
@json_option
def patch_export(line_name: str, as_json: bool) -> None:
    """Write the series back from the work tree; prints the files that changed."""
    from pipeline.worktree import Worktree

    with build_lock():
        changed = Worktree(load_line(line_name)).export()
    _show_changed(line_name, changed, as_json)


@patch.command("refresh")
@line_option
def patch_refresh(line_name: str) -> None:
    """Move hunks to where their text stands in the current tree; prints the difference, drops nothing."""
    from pipeline.worktree import Worktree

    with build_lock():
        difference = Worktree(load_line(line_name)).refresh()
    sys.stdout.write(difference)
    _say_lock(line_name, bool(difference))


@patch.command("drop")
@click.argument("names", nargs=-1, required=True)
@line_option
@json_option
@click.option("--why", required=True, help="The reason, for CHANGELOG.md beside the series.")
def patch_drop(names: tuple[str, ...], line_name: str, as_json: bool, why: str) -> None:
    """Remove NAMES from the series and write the reason down; prints the files that changed."""
    from pipeline.worktree import Worktree

    with build_lock():
        changed = Worktree(load_line(line_name)).drop(names, why)
    _show_changed(line_name, changed, as_json)


def _show_changed(line_name: str, changed: Any, as_json: bool) -> None:
    if as_json:
        emit([str(path) for path in changed])
    else:
        for path in changed:
            console.out.print(str(path))
    _say_lock(line_name, bool(changed))


def _say_lock(line_name: str, changed: bool) -> None:
    console.note(
        f"now build.py compose --line {line_name} --write-lock" if changed else "no patch file needed a change"
    )


@main.command()
@click.option(
    "--onto", "release", required=True, metavar="sglang==VERSION|PATH", help="The release, or a folder of it."
)
@click.option(
    "--series",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder of patches instead of the line's.",
)
@click.option(
    "--html", "page", type=click.Path(dir_okay=False, path_type=Path), help="Write the report as a page, too."
)
@click.option(
    "--oracles/--no-oracles", "ask", default=True, help="Run the patches' own tests on the release (minutes; default)."
)
@line_option
@json_option
def rebase(release: str, series: Path | None, page: Path | None, ask: bool, line_name: str, as_json: bool) -> None:
    """Say what another SGLang release does to the patches, hunk by hunk; no patch is changed or dropped."""
    from pipeline import rebase as rebasing
    from pipeline import rebase_page, rebase_text
    from pipeline.files import write_atomic
    from pipeline.rebase_report import RebaseReport

    of_line = click.get_current_context().get_parameter_source("line_name")
    if series is not None and of_line is not ParameterSource.DEFAULT:
        raise click.UsageError("--series and --line: give one of them, a folder of patches has no line")

    def show(report: RebaseReport) -> None:
        if as_json:
            emit({"exact": report.exact, **report.model_dump(mode="json")})
        else:
            console.out.print(rebase_text.title(report), markup=False)
            console.out.print(rebase_text.table(report))
            for line in rebase_text.details(report):
                console.out.print(line, markup=False)
        if page is not None:
            write_atomic(page, rebase_page.render(report).encode())
            console.note(f"page: {page}")

    try:
        with build_lock():
            if series is not None:
                report = rebasing.report_of_folder(series, release, BUILD)
            else:
                report = rebasing.report_of_line(load_line(line_name), release, BUILD, ask=ask)
    except rebasing.Interrupted as stopped:
        show(stopped.report)
        raise
    show(report)
    rebasing.require_exact(report)


@main.group()
def engine() -> None:
    """The container engine: the given one, else a private one below .build/."""


@engine.command("start")
@json_option
def engine_start(as_json: bool) -> None:
    """Start the private engine, unless one answers already."""
    from pipeline import engine as engines

    with console.step("Container engine"):
        engines.find_or_start(BUILD)
    _show_engine(as_json)


@engine.command("stop")
def engine_stop() -> None:
    """Stop the private engine by its pid; a given engine is left alone."""
    from pipeline import engine as engines

    console.note("private engine stopped" if engines.stop(BUILD) else "no private engine was running")


@engine.command("status")
@json_option
def engine_status(as_json: bool) -> None:
    """Say which engine would be used, and whether it runs."""
    _show_engine(as_json)


def _show_engine(as_json: bool) -> None:
    import dataclasses

    from pipeline import engine as engines

    status = engines.status(BUILD)
    if as_json:
        emit(dataclasses.asdict(status))
        return
    state = f"running, version {status.version}" if status.running else "not running"
    console.out.print(f"{status.kind} engine at {status.host}: {state}{f', pid {status.pid}' if status.pid else ''}")


@main.command("recipe")
@click.option("--profile", "profile_name", help="Which profile; --list shows them.")
@click.option("--format", "form", type=click.Choice(FORMS), default=FORMS[0], show_default=True)
@click.option("--list", "show", is_flag=True, help="List the profiles.")
@click.option("--write", is_flag=True, help="Write docs/recipes/ and the block in README.md.")
@click.option("--repository", help="Where an image without a release record will be.")
@click.option("--models", help="Folder that holds the model folders.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the server, inside and outside.")
@click.option("--render-group", help="Group of the render nodes, if it shall not be asked of the machine.")
@click.option("--device", "devices", multiple=True, help="Device folder instead of /dev/dri; may be repeated.")
@click.option("--shm-size", help="Shared memory of the container.")
@click.option("--ulimit", "ulimits", multiple=True, metavar="NAME=N", help="Instead of the profile's; may be repeated.")
@line_option
@json_option
def show_recipe(
    profile_name: str | None,
    form: str,
    show: bool,
    write: bool,
    repository: str | None,
    models: str | None,
    port: int | None,
    render_group: str | None,
    devices: tuple[str, ...],
    shm_size: str | None,
    ulimits: tuple[str, ...],
    line_name: str,
    as_json: bool,
) -> None:
    """Print how a profile is served, in one of its forms."""
    from pipeline import pages
    from pipeline import recipe as recipes

    line = load_line(line_name)
    if write:
        for path in pages.write(line):
            console.out.print(str(path))
        return
    if show:
        _list_recipes(line, as_json)
        return
    if profile_name is None:
        raise click.UsageError("--profile NAME, --list or --write")
    machine: dict[str, Any] = {"models": models, "port": port, "devices": devices or None, "shm_size": shm_size}
    machine["ulimits"] = _limits(ulimits) if ulimits else None
    made = recipes.make(
        line,
        profile_name,
        repository=repository or recipes.PLACEHOLDER,
        render_group=render_group,
        machine=machine,
    )
    if made.image.warning:
        console.warn(made.image.warning)
    sys.stdout.write(recipes.FORMATS["json" if as_json else form](made))


def _list_recipes(line: Line, as_json: bool) -> None:
    from pipeline import recipe as recipes

    if as_json:
        emit([recipes.make(line, name).as_json() for name in line.profiles.profiles])
    else:
        console.out.print(recipes.table(line))


def _limits(given: tuple[str, ...]) -> dict[str, int]:
    pairs = [text.partition("=") for text in given]
    if bad := [name for name, _, value in pairs if not value.lstrip("-").isdigit()]:
        raise click.UsageError(f"--ulimit {bad[0]}: expected NAME=NUMBER")
    return {name: int(value) for name, _, value in pairs}


@main.command("capacity")
@click.option("--profile", "profile_name", required=True, help="Which profile.")
@click.option("--tp", type=click.IntRange(1), help="Cards, if not the profile's.")
@click.option("--memory-gib", type=click.FloatRange(1), help="Memory of one card, if not the manifest's.")
@line_option
@json_option
def show_capacity(profile_name: str, tp: int | None, memory_gib: float | None, line_name: str, as_json: bool) -> None:
    """Show what a profile takes of each card's memory, and what would fit."""
    from pipeline import capacity

    found = capacity.plan(load_line(line_name), profile_name, tp=tp, memory_gib=memory_gib)
    if as_json:
        emit(capacity.as_json(found))
        return
    console.out.print(capacity.table(found))
    console.out.print(capacity.verdict(found))


@main.command()
@line_option
@click.option("--write", is_flag=True, help="Write the table into the line's page.")
def features(line_name: str, write: bool) -> None:
    """Print the line's table of features: where each lives and which check proves it.

    The page is README.md for the main line, and manifests/<line>/README.md for another.
    """
    from pipeline import check_data
    from pipeline.files import PROJECT, write_atomic

    line = load_line(line_name)
    if write:
        write_atomic(PROJECT / line.page, check_data.updated_page(line).encode())
    else:
        sys.stdout.write(check_data.feature_table(check_data.features(line)))
