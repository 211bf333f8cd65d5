"""MTP: the head is stored as the release would build it. What it is stored as is read from the headers."""

from collections.abc import Iterator

from pipeline.checkpoint import ignore, mtp_head
from pipeline.checkpoint.mtp_head import Head
from pipeline.checkpoint.naming import MTP_BUILT, MTP_LAYER, MTP_PARTS, MTP_PLAIN, Built, lacks, module_of, on_disk
from pipeline.checkpoint.rule import Case, Rules, Severity, Skip, Undecided
from pipeline.checkpoint.rules.integrity import READABLE

RULES = Rules()
NEEDS = ("CFG-01", *READABLE)


def _head(case: Case) -> Head:
    return Head(case.checkpoint.dtypes, case.quantisation, case.release.mtp_fused)


def _stored_head(case: Case) -> Head:
    head = _head(case)
    if not head.tensors:
        raise Skip("no MTP tensor")
    if head.has_experts:
        raise Undecided(f"not decided: {mtp_head.NOT_EXPERTS}")
    return head


def _quantised_head(case: Case) -> Head:
    head = _stored_head(case)
    if head.quantisation is None:
        raise Skip("no quantization_config")
    return head


def _declared(case: Case) -> int:
    """MTP layers that the config declares."""
    for config in (case.checkpoint.text_config, case.checkpoint.config):
        for key in ("mtp_num_hidden_layers", "num_nextn_predict_layers"):
            if type(found := config.get(key)) is int:
                return found
    return 0


@RULES.add(
    "MTP-01",
    Severity.ERROR,
    "there is an MTP head to serve",
    "add the mtp.* tensors of the base model, or serve without MTP",
    roles=("target",),
    modes=("mtp",),
    needs=NEEDS,
)
def head_is_there(case: Case) -> Iterator[str]:
    if not _head(case).tensors:
        yield f"the config declares {_declared(case)} MTP layers, and no tensor is named mtp.*"


@RULES.add(
    "MTP-02",
    Severity.NOTE,
    "a declared MTP head is there",
    "nothing to do unless MTP shall be served",
    roles=("target",),
    modes=("dflash2", "plain"),
    needs=NEEDS,
)
def declared_head_is_there(case: Case) -> Iterator[str]:
    if _declared(case) and not _head(case).tensors:
        yield f"the config declares {_declared(case)} MTP layers, and no tensor is named mtp.*"


@RULES.add(
    "MTP-03",
    Severity.ERROR,
    "the MTP head has all of its tensors",
    "add the missing tensors of the base model; what no tensor fills stays random",
    roles=("target",),
    modes=("mtp",),
    needs=NEEDS,
)
def head_is_complete(case: Case) -> Iterator[str]:
    head = _stored_head(case)
    for module in (*MTP_PLAIN, *MTP_PARTS):
        if missing := lacks(module, head.dtypes):
            yield f"{module}: no {missing}"


@RULES.add(
    "MTP-04",
    Severity.ERROR,
    "the exclusions are written as the release reads them",
    "make them a list of texts whose re: entries are regular expressions",
    roles=("target",),
    modes=("mtp",),
    needs=NEEDS,
    matches=True,
)
def exclusions_are_readable(case: Case) -> Iterator[str]:
    head = _quantised_head(case)
    assert head.quantisation is not None
    problems = list(mtp_head.malformed(head.quantisation))
    yield from problems
    if not problems:
        try:
            for built in MTP_BUILT:
                for name in {built.name, *built.parts}:
                    head.excluded(name, alone=True)
        except ignore.Refused as error:
            yield str(error)


READ = (*NEEDS, "MTP-04")


@RULES.add(
    "MTP-05",
    Severity.ERROR,
    "an exclusion of the MTP head matches a module",
    "use a form that works, or run with --fix-ignore",
    roles=("target",),
    modes=("mtp",),
    needs=READ,
    matches=True,
)
def exclusions_match(case: Case) -> Iterator[str]:
    head = _quantised_head(case)
    assert head.quantisation is not None
    for entry in mtp_head.entries(head.quantisation):
        if mtp_head.speaks_of_mtp(entry) and not head.matches(entry):
            forms = mtp_head.working_forms(mtp_head.method(head.quantisation))
            yield f"{entry!r} matches no module; what works: {forms}"


@RULES.add(
    "MTP-06",
    Severity.ERROR,
    "the parts of a fused module are excluded together, by their own names",
    "list all of its parts, or none; --fix-ignore does",
    roles=("target",),
    modes=("mtp",),
    needs=READ,
    matches=True,
)
def parts_are_excluded_together(case: Case) -> Iterator[str]:
    for built, named, others in _quantised_head(case).partly_named():
        yield f"{built.name}: {_last(named)} excluded without {_last(others)}"


@RULES.add(
    "MTP-07",
    Severity.ERROR,
    "the parts of a fused module are stored in one form",
    "store all of its parts plain, or all packed",
    roles=("target",),
    modes=("mtp",),
    needs=NEEDS,
)
def parts_are_stored_alike(case: Case) -> Iterator[str]:
    head = _stored_head(case)
    for built in MTP_BUILT:
        if head.disk(built) == "mixed":
            forms = ", ".join(f"{part.rpartition('.')[2]} {on_disk(part, head.dtypes)}" for part in built.parts)
            yield f"{built.name}: {forms}"


@RULES.add(
    "MTP-08",
    Severity.ERROR,
    "what is plain on disk is built plain",
    "exclude the module from quantisation; --fix-ignore does",
    roles=("target",),
    modes=("mtp",),
    needs=READ,
    matches=True,
)
def plain_is_built_plain(case: Case) -> Iterator[str]:
    for built, problem in _built_otherwise(case, "plain"):
        yield problem or f"{built.name}: {_last(built.parts)} plain on disk, and {case.release} builds it quantised"


@RULES.add(
    "MTP-09",
    Severity.ERROR,
    "what is packed on disk is built quantised",
    "take the module off the exclusions, or store it plain; --fix-ignore does the former",
    roles=("target",),
    modes=("mtp",),
    needs=READ,
    matches=True,
)
def packed_is_built_quantised(case: Case) -> Iterator[str]:
    dtypes = _stored_head(case).dtypes
    for module in MTP_PLAIN:
        if on_disk(module, dtypes) == "packed":
            yield f"{module}: packed on disk, and {case.release} always builds it plain"
    for built, problem in _built_otherwise(case, "packed"):
        yield problem or f"{built.name}: {_last(built.parts)} packed on disk, and {case.release} builds it plain"


def _built_otherwise(case: Case, form: str) -> Iterator[tuple[Built, str]]:
    """Modules of this form on disk that would be built in the other one, or not at all; with the reason of the latter.

    Modules whose parts are excluded in part are MTP-06's.
    """
    head = _stored_head(case)
    stored = [built for built in MTP_BUILT if head.disk(built) == form]
    partly = {built.name for built, _, _ in head.partly_named()} if head.quantisation else set()
    for built in stored:
        if built.name in partly:
            continue
        try:
            if head.built_plain(built) != (form == "plain"):
                yield built, ""
        except ignore.Refused as error:
            yield built, f"{case.release} would stop: {error}"


@RULES.add(
    "MTP-10",
    Severity.WARNING,
    "every MTP tensor has a place in the class",
    "remove the tensors; the class builds one MTP layer, and drops others silently",
    roles=("target",),
    modes=("mtp",),
    needs=NEEDS,
)
def nothing_is_left_over(case: Case) -> Iterator[str]:
    known = {*MTP_PLAIN, *MTP_PARTS}
    extra = sorted({module_of(name) for name in _stored_head(case).tensors} - known)
    if extra:
        yield f"{len(extra)} modules beside {MTP_LAYER}: {', '.join(extra[:4])}{' …' if len(extra) > 4 else ''}"


def _last(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(name.rpartition(".")[2] for name in names)
