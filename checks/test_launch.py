"""Every profile's command line, parsed, resolved and checked by this image's own SGLang, as for four idle cards."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from checks.given import Given, Profile
from checks.verdict import Verdict

HERE = Path(__file__).resolve().parent
TIMEOUT_SECONDS = 300
AT_ONCE = 2
"""Resolvers that run side by side: each imports a part of SGLang, 0.7 GiB."""
ABSENT = object()
LEFT = "as given: not SGLang's own"
"""What becomes of a variable that another program of the image reads."""
GRAPH_VARIABLES = ("SGLANG_DFLASH_DISABLE_DRAFT_GRAPH", "SGLANG_DFLASH_EAGER_DRAFT_SAMPLER")


def test_launch(given: Given, verdict: Verdict) -> None:
    """No flag is unknown, refused, or accepted and then overridden; graphs and rings are as the profile says."""
    with tempfile.TemporaryDirectory() as scratch:
        folders = _config_folders(given, Path(scratch))
        names = list(given.profiles)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = list(pool.map(lambda name: _ask(given, given.profiles[name], folders), names))
    flags = 0
    for name, answer in zip(names, answers, strict=True):
        for problem in problems(given.profiles[name], answer):
            verdict.problem(f"profile {name}: {problem}")
        verdict.table(rows(name, given.profiles[name], environment(given, given.profiles[name]), answer))
        flags += len(answer.get("flags", ()))
    if not names:
        verdict.problem("expected profiles to launch in the manifest, found none")
    verdict.conclude(
        f"{flags} flags of {len(names)} profiles parsed and resolved as written, with configs of the real models; "
        "torch.xpu is a stand-in, and so is sgl_kernel where the base has none: no card was asked and no weight loaded"
    )


def problems(profile: Profile, answer: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with one command line."""
    if unknown := answer.get("unknown"):
        yield f"{' '.join(unknown)}: expected flags of this image, found none of that name"
    elif error := answer.get("error"):
        cures = ", ".join(answer["cures"]) or "no single flag"
        yield f"expected start-up to accept its flags, found: {error} (it starts without {cures})"
    else:
        yield from _overridden(profile, answer)
        yield from _unread(profile, answer)
        yield from _graphs(profile, answer)
        yield from _draft_ring(profile, answer)


def rows(name: str, profile: Profile, variables: Mapping[str, str], answer: Mapping[str, Any]) -> list[dict[str, str]]:
    """Each flag, variable and graph decision, as given and as resolved, for people who look something up."""
    table = [(flag, given, found) for flag, (_, given, found) in answer.get("flags", {}).items()]
    attributes = answer.get("attributes", {})
    stated = {flag[0] for flag in answer.get("flags", {}).values()}
    table += [(key, "", attributes.get(key)) for key in profile.resolved if key not in stated]
    if (read := answer.get("variables")) is not None:
        names = dict.fromkeys([*variables, *read])
        table += [(key, variables.get(key, ""), read.get(key, LEFT)) for key in names]
    table += [(f"{what} of the draft's rings", "", value) for what, value in answer.get("draft_ring", {}).items()]
    if attributes:
        table += [(f"graph of {part}", "", how) for part, how in captured(answer).items()]
    return [{"profile": name, "name": key, "given": str(given), "resolved": str(found)} for key, given, found in table]


def environment(given: Given, profile: Profile) -> dict[str, str]:
    """The image's defaults, then the profile's own variables."""
    return {name: default.value for name, default in given.defaults.items()} | profile.environment


def captured(answer: Mapping[str, Any]) -> dict[str, str]:
    """The three graph decisions, by what the code that makes each of them reads from flags and variables.

    What the selector's also asks of the loaded model (an ``lm_head`` that can be captured) is not known here.
    """
    attributes, variables = answer["attributes"], answer["variables"]
    target = attributes["cuda_graph_config"]["decode"]["backend"] == "full"
    dflash = attributes["speculative_algorithm"] == "DFLASH"
    draft = target and not (dflash and variables.get("SGLANG_DFLASH_DISABLE_DRAFT_GRAPH"))
    selector = draft and not variables.get("SGLANG_DFLASH_EAGER_DRAFT_SAMPLER")
    speculative = attributes["speculative_algorithm"] is not None
    return {
        "target_verify": _how(target),
        "draft": _how(draft) if speculative else "none",
        "selector": _how(selector) if dflash else "none",
    }


def _how(graph: bool) -> str:
    return "graph" if graph else "eager"


def _overridden(profile: Profile, answer: Mapping[str, Any]) -> Iterator[str]:
    stated = {}
    for flag, (attribute, given, found) in answer["flags"].items():
        stated[attribute] = flag
        wanted = profile.resolved.get(attribute, given)
        if not _equal(wanted, found):
            yield f"{flag}: start-up accepts {given!r} and then uses {found!r}"
    for attribute, wanted in profile.resolved.items():
        found = answer["attributes"].get(attribute, ABSENT)
        if attribute not in stated and not _equal(wanted, found):
            said = "no such attribute" if found is ABSENT else repr(found)
            yield f"{attribute}: expected start-up to choose {wanted!r}, found {said}"


def _equal(wanted: Any, found: Any) -> bool:
    """Whether what was asked for holds; a mapping asks for its own keys only, as start-up fills in the others."""
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        return all(key in found and _equal(value, found[key]) for key, value in wanted.items())
    return bool(wanted == found)


def _unread(profile: Profile, answer: Mapping[str, Any]) -> Iterator[str]:
    for name, value in profile.environment.items():
        if name not in answer["variables"]:
            yield f"{name}={value}: expected a variable that SGLang declares, found none of that name"


def _graphs(profile: Profile, answer: Mapping[str, Any]) -> Iterator[str]:
    for part, how in captured(answer).items():
        if (wanted := profile.graphs.get(part, how)) != how:
            yield f"graph of {part}: expected {wanted}, start-up resolves to {how}"


def _draft_ring(profile: Profile, answer: Mapping[str, Any]) -> Iterator[str]:
    wanted, found = profile.draft_ring, answer["draft_ring"]
    if wanted != found:
        yield f"private rings of draft KV: expected {_sizes(wanted)}, this image makes {_sizes(found)}"


def _sizes(ring: Mapping[str, int]) -> str:
    return f"{ring['rows']} rows with a stride of {ring['stride']}" if ring else "none"


def _config_folders(given: Given, scratch: Path) -> dict[str, Path]:
    """A folder per model, with its ``config.json`` and nothing else."""
    folders = {name: scratch / name for name in given.configs}
    for name, folder in folders.items():
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(given.configs[name]), encoding="utf-8")
    return folders


def _ask(given: Given, profile: Profile, folders: Mapping[str, Path]) -> dict[str, Any]:
    """What the resolver says of one profile, in the environment that a container of it has."""
    places = {mount: str(folders[folder]) for mount, folder in profile.mounts.items()}
    question = {
        "argv": [places.get(word, word) for word in profile.argv],
        "attributes": [*profile.resolved, "cuda_graph_config", "speculative_algorithm"],
        "variables": [*environment(given, profile), *GRAPH_VARIABLES],
        "lib": [str(HERE), str(HERE / "stubs")],
    }
    ended = subprocess.run(
        [sys.executable, "-I", "-B", str(HERE / "resolver.py")],
        input=json.dumps(question),
        env={**os.environ, **environment(given, profile)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    if ended.returncode != 0:
        print(ended.stderr, file=sys.stderr)
        last = ended.stderr.strip().rpartition("\n")[2]
        return {"error": f"the resolver ended with status {ended.returncode}: {last}", "cures": []}
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer
