"""Integrity: config, index and headers are sound and say the same."""

from collections.abc import Iterator

from pipeline.checkpoint.checkpoint import INDEX
from pipeline.checkpoint.rule import Case, Rules, Severity, Skip
from pipeline.checkpoint.safetensors_header import offset_problems, span_problems

RULES = Rules()
READABLE = ("INT-01", "INT-02")
"""Without these some tensors are unknown."""


def _noted(rule: str, case: Case) -> Iterator[str]:
    """Problems that were met while the checkpoint was read."""
    yield from case.checkpoint.problems.get(rule, ())


@RULES.add(
    "CFG-01",
    Severity.ERROR,
    "config.json is a JSON object without doubled keys",
    "restore config.json from the revision it came from",
)
def config_is_sane(case: Case) -> Iterator[str]:
    return _noted("CFG-01", case)


@RULES.add(
    "INT-01",
    Severity.ERROR,
    "the header's length is one that a file of this size can have",
    "fetch the shard again; its start is zeroed, cut or not safetensors",
)
def header_length_is_sane(case: Case) -> Iterator[str]:
    if not case.checkpoint.shards:
        yield "there is no .safetensors file"
    yield from _noted("INT-01", case)


@RULES.add(
    "INT-02",
    Severity.ERROR,
    "the header is a JSON object of tensors, each named once",
    "fetch the shard again, or have its producer write it anew",
)
def header_is_sane(case: Case) -> Iterator[str]:
    return _noted("INT-02", case)


@RULES.add(
    "INT-03",
    Severity.ERROR,
    "tensors follow each other without gap or overlap",
    "have the producer write the shard anew; its offsets are wrong",
)
def offsets_are_contiguous(case: Case) -> Iterator[str]:
    for shard, header in case.checkpoint.headers.items():
        yield from (f"{shard}: {problem}" for problem in offset_problems(header))


@RULES.add(
    "INT-04",
    Severity.ERROR,
    "dtype and shape of each tensor fill exactly its bytes",
    "have the producer write the shard anew; shape, dtype or offsets are wrong",
)
def shapes_fill_their_bytes(case: Case) -> Iterator[str]:
    for shard, header in case.checkpoint.headers.items():
        yield from (f"{shard}: {problem}" for problem in span_problems(header))


@RULES.add(
    "INT-05",
    Severity.ERROR,
    "a shard ends where its last tensor ends",
    "fetch the shard again; it was cut, or something was appended",
)
def size_is_what_the_header_says(case: Case) -> Iterator[str]:
    for shard, header in case.checkpoint.headers.items():
        size = case.checkpoint.source.sizes[shard]
        if size < header.file_size:
            yield f"{shard}: truncated: {size} of {header.file_size} bytes, {header.file_size - size} are missing"
        elif size > header.file_size:
            yield f"{shard}: {size - header.file_size} trailing bytes: {size}, expected {header.file_size}"


@RULES.add(
    "INT-06",
    Severity.ERROR,
    "several shards have a readable index",
    f"write {INDEX}, or take it from the revision that the shards came from",
)
def index_is_there(case: Case) -> Iterator[str]:
    yield from _noted("INT-06", case)
    shards = len(case.checkpoint.shards)
    if shards > 1 and INDEX not in case.checkpoint.source.sizes:
        yield f"{shards} shards and no {INDEX}"


@RULES.add(
    "INT-07",
    Severity.ERROR,
    "every name of the index is in the shard that it names",
    "fetch the shard of the same revision as the index, or write the index anew",
    needs=(*READABLE, "INT-06"),
)
def index_is_kept(case: Case) -> Iterator[str]:
    headers = case.checkpoint.headers
    for name, shard in _index(case).items():
        if shard not in headers:
            yield f"{name}: the index names {shard[:100]}, which is not there"
        elif name not in headers[shard].tensors:
            other, _ = case.checkpoint.tensors.get(name, (None, None))
            yield f"{name}: not in {shard}, which the index names" + (f", but in {other}" if other else "")


@RULES.add(
    "INT-08",
    Severity.ERROR,
    "every tensor of every shard is in the index",
    "write the index anew, or remove the shard that does not belong here",
    needs=(*READABLE, "INT-06"),
)
def index_is_complete(case: Case) -> Iterator[str]:
    index = _index(case)
    for shard, header in case.checkpoint.headers.items():
        missing = [name for name in header.tensors if name not in index]
        if missing and len(missing) == len(header.tensors):
            yield f"{shard}: no tensor of it is in the index ({len(missing)} tensors)"
        else:
            yield from (f"{shard}: {name} is not in the index" for name in missing)


@RULES.add(
    "INT-09",
    Severity.ERROR,
    "no tensor is in two shards",
    "remove one of the two; which of them is served depends on the loader",
    needs=READABLE,
)
def tensors_are_there_once(case: Case) -> Iterator[str]:
    for shard, header in case.checkpoint.headers.items():
        for name in header.tensors:
            first, _ = case.checkpoint.tensors[name]
            if first != shard:
                yield f"{name}: in {first} and in {shard}"


def _index(case: Case) -> dict[str, str]:
    if case.checkpoint.weight_map is None:
        raise Skip("no index, which one shard does not need")
    return dict(case.checkpoint.weight_map)
