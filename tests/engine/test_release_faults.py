"""Faults of every kind at every step of a release, against a real registry behind a proxy that does the harm.

All cases release into one repository, one day after the other. After each fault the pinned tag is absent or right and
the moving tag is the old one or right; a rerun completes the release; at the end every image is there, whole.
"""

import errno
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL
from types import SimpleNamespace

import pytest

from pipeline import release_record, stages
from pipeline.errors import PipelineError, ReleaseError
from pipeline.gate import Candidate
from pipeline.oci import Image
from pipeline.registry import Registry, Repository
from pipeline.release import tags
from tests.engine import fault_proxy as proxies
from tests.engine import releasing
from tests.engine.fault_proxy import Act, Answer, Fault, FaultProxy, Request, Upstream
from tests.engine.registry_server import RegistryServer, registry_server

NAME, BASE = "team/image", "team/base"
BACKOFF = 0.001
Run = Callable[[Candidate], BaseException | None]


@dataclass
class Tally:
    """Fault cases so far, and what went wrong in them."""

    cases: int = 0
    bad: list[str] = field(default_factory=list)


@dataclass
class History:
    """One repository through all of its cases."""

    folder: Path
    server: RegistryServer
    proxy: FaultProxy
    tally: Tally
    steps: list[str] = field(default_factory=list)
    """Requests of a release that meets no fault."""
    released: list[Candidate] = field(default_factory=list)
    days: int = 0

    @property
    def direct(self) -> Repository:
        """The repository without the proxy."""
        return Repository(self.server.address, NAME)

    def next(self, published: str | None = None) -> Candidate:
        """The candidate of the next day."""
        self.days += 1
        return releasing.make_candidate(self.folder, self.days, published)

    def held(self, candidate: Candidate) -> tuple[str | None, str | None]:
        """What pinned and moving tag of a candidate stand for."""
        pinned, moving = tags(candidate.line, candidate.base_kind)
        with Registry(self.direct) as registry:
            return registry.head_manifest(pinned), registry.head_manifest(moving)

    def run(self, candidate: Candidate) -> PipelineError | None:
        """Release through the proxy; the error that it ended with."""
        try:
            releasing.run(candidate, f"{self.proxy.address}/{NAME}")
        except PipelineError as error:
            return error
        return None

    def case(
        self,
        name: str,
        fault: Fault,
        fails: bool | None = True,
        run: Run | None = None,
        candidate: Candidate | None = None,
    ) -> None:
        """One case: release with the fault, look, release again without it, look.

        Args:
            name: for the list of bad outcomes.
            fault: what happens.
            fails: whether the first run has to fail, or (False) to succeed in spite of the fault; None: either.
            run: the first run, by default in this process.
            candidate: what is released, by default the next day's.
        """
        candidate = candidate or self.next()
        new, (_, old) = candidate.image.digest, self.held(candidate)
        self.proxy.arm(fault)
        error = (run or self.run)(candidate)
        self.proxy.arm(None)
        pinned, moving = self.held(candidate)
        wrong = [f"pinned tag is {pinned}"] if pinned not in (None, new) else []
        wrong += [f"moving tag is {moving}"] if moving not in (old, new) else []
        wrong += ["moving tag before the pinned one"] if moving == new != pinned else []
        wrong += ["success without both tags"] if error is None and (pinned, moving) != (new, new) else []
        wrong += [f"ended with {error!r}"] if fails not in (None, error is not None) else []
        wrong += [] if fault.hits else ["the fault was never met"]
        again = self.run(candidate)
        wrong += [f"rerun: {again}"] if again else []
        wrong += ["rerun: not both tags"] if self.held(candidate) != (new, new) else []
        self.released.append(candidate)
        self.tally.cases += 1
        self.tally.bad += [f"{name}: {text}" for text in wrong]

    def writes(self, start: str = "") -> list[int]:
        """Steps that change something at the registry, and whose text begins so."""
        kept = [number for number, text in enumerate(self.steps) if text.split()[0] not in ("GET", "HEAD")]
        return [number for number in kept if self.steps[number].startswith(start)]

    def lost(self) -> list[str]:
        """What is not there, whole, of everything that was ever released."""
        missing = []
        with Registry(self.direct) as registry:
            for candidate in self.released:
                pinned, image = tags(candidate.line, candidate.base_kind).pinned, candidate.image
                if registry.get_manifest(pinned).content != image.manifest_bytes:
                    missing.append(pinned)
                registry.get_blob(image.config_digest, 1 << 20)  # each verified against its digest
                for layer in image.layers:
                    registry.get_blob(layer.digest, layer.size)
                if [record.image.digest for record in release_record.fetch(registry, image.digest)] != [image.digest]:
                    missing.append(f"the one record of {pinned}")
        return missing


@pytest.fixture(scope="module")
def tally(request: pytest.FixtureRequest) -> Iterator[Tally]:
    """Counts the cases of all tests, and prints the count at the end."""
    made = Tally()
    yield made
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        print(f"\n{made.cases} fault cases, {len(made.bad)} bad outcomes")


@pytest.fixture(scope="module", autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Nobody's credentials and locks; no pauses between retries."""
    folder = tmp_path_factory.mktemp("environment")
    made = {"DOCKER_CONFIG": str(folder), "XDG_CACHE_HOME": str(folder)}
    with pytest.MonkeyPatch.context() as patched:
        for name, value in made.items():
            patched.setenv(name, value)
        patched.setattr("pipeline.registry.BACKOFF_SECONDS", BACKOFF)
        yield made


@contextmanager
def begin(folder: Path, server: RegistryServer, tally: Tally) -> Iterator[History]:
    """A history of two releases, the second of which shows the steps."""
    with proxies.fault_proxy(server.address) as proxy:
        made = History(folder, server, proxy, tally)
        for _ in range(2):
            candidate = made.next()
            proxy.arm(None)
            assert made.run(candidate) is None
            made.released.append(candidate)
        made.steps = proxy.log
        yield made


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory, tally: Tally) -> Iterator[History]:
    folder = tmp_path_factory.mktemp("faults")
    with registry_server(folder / "registry", "inmemory") as server, begin(folder, server, tally) as made:
        yield made


@pytest.fixture(autouse=True)
def no_bad_outcome(tally: Tally) -> Iterator[None]:
    """Fail the test whose cases ended badly."""
    before = len(tally.bad)
    yield
    assert tally.bad[before:] == []


def from_step(number: int) -> Callable[[Request], bool]:
    """This request of a release and all after it."""
    return lambda request: request.number >= number


def at_step(number: int) -> Callable[[Request], bool]:
    """This request of a release alone."""
    return lambda request: request.number == number


def name_of(act: Act) -> str:
    return getattr(act, "__name__", "act")


def test_connection_is_cut_at_each_step(history: History) -> None:
    for number, text in enumerate(history.steps):
        history.case(f"cut before {text}", Fault(from_step(number), proxies.cut_before))


@pytest.mark.parametrize("act", [proxies.cut_within, proxies.cut_after], ids=name_of)
def test_connection_is_cut_within_or_after_each_write(history: History, act: Act) -> None:
    for number in history.writes():
        history.case(f"{name_of(act)} {history.steps[number]}", Fault(from_step(number), act))


def test_answer_that_is_lost_once_is_asked_for_again(history: History) -> None:
    for number in history.writes():
        fault = Fault(at_step(number), proxies.cut_after)
        history.case(f"cut once after {history.steps[number]}", fault, fails=False)


def test_answer_that_is_cut_short_is_asked_for_again(history: History) -> None:
    for number in [number for number, text in enumerate(history.steps) if text.startswith("GET")]:
        fault = Fault(at_step(number), proxies.cut_within)
        history.case(f"cut once within {history.steps[number]}", fault, fails=False)


@pytest.mark.parametrize("status", [500, 507])
def test_blob_manifest_or_tag_is_answered_with_a_failure(history: History, status: int) -> None:
    for number in history.writes("PUT"):
        history.case(f"{status} instead of {history.steps[number]}", Fault(from_step(number), proxies.status(status)))


def test_blob_manifest_or_tag_is_taken_and_answered_with_500(history: History) -> None:
    for number in history.writes("PUT"):
        history.case(f"500 after {history.steps[number]}", Fault(from_step(number), proxies.status_after(500)))


def test_login_ends_half_way(history: History) -> None:
    for number in history.writes():
        history.case(f"401 from {history.steps[number]} on", Fault(from_step(number), proxies.status(401)))


def test_another_digest_is_stated(history: History) -> None:
    looks = [number for number, text in enumerate(history.steps) if text.startswith("HEAD") and text.endswith("-cpu")]
    answered = [number for number in looks if history.steps[number].endswith("/model-cpu") or number > looks[-3]]
    for number in [*history.writes("PUT"), *answered]:  # the pinned tag is not there before it is set
        history.case(f"other digest for {history.steps[number]}", Fault(at_step(number), proxies.wrong_digest))


def mounting(request: Request) -> bool:
    return "mount=" in request.target


@pytest.mark.parametrize(
    ("act", "fails"),
    [
        (proxies.open_an_upload, True),
        (proxies.wrong_digest, True),
        (proxies.cut_before, True),
        (proxies.cut_after, True),
        (proxies.status(500), True),
        (proxies.status(401), True),
    ],
    ids=["answered-202", "other-digest", "cut-before", "cut-after", "500", "401"],
)
def test_base_layer_is_not_mounted(history: History, act: Act, fails: bool) -> None:
    candidate = history.next(published=f"{history.proxy.address}/{BASE}")
    layer = candidate.image.layers[0]
    with Registry(Repository(history.server.address, BASE)) as registry:
        registry.push_blob(releasing.base_blob(history.folder, history.days, layer), layer)
    history.case("mount", Fault(mounting, act), fails, candidate=candidate)


@dataclass
class Victim:
    """A release in a process of its own, which SIGKILL ends at a chosen request."""

    history: History
    environment: dict[str, str]
    after: bool
    """Whether the registry still does what that request asks for."""
    pid: int = 0
    started: threading.Event = field(default_factory=threading.Event)

    def act(self, request: Request, upstream: Upstream) -> Answer | None:
        """Kill it."""
        if self.after:
            upstream.forward(request)
        assert self.started.wait(30)
        os.kill(self.pid, SIGKILL)
        return None

    def run(self, candidate: Candidate) -> BaseException | None:
        """Release in the process; how it ended."""
        context = multiprocessing.get_context("forkserver")
        arguments = (candidate, f"{self.history.proxy.address}/{NAME}", self.environment, BACKOFF)
        process = context.Process(target=releasing.run_in_a_process, args=arguments)
        process.start()
        assert process.pid is not None
        self.pid = process.pid
        self.started.set()
        process.join()
        return ChildProcessError(process.exitcode) if process.exitcode == -SIGKILL else None


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_process_is_killed_at_each_write(history: History, environment: dict[str, str], after: bool) -> None:
    multiprocessing.get_context("forkserver").set_forkserver_preload([releasing.__name__])
    for number in history.writes():
        victim = Victim(history, environment, after)
        name = f"killed {'after' if after else 'before'} {history.steps[number]}"
        history.case(name, Fault(at_step(number), victim.act), run=victim.run)


@pytest.mark.parametrize("which", ["pinned", "moving"])
def test_somebody_else_sets_a_tag_between_the_look_and_the_push(history: History, which: str) -> None:
    """What they set stays, and the release fails; but between the last look and the push no registry can tell."""
    pushed = history.writes("PUT")[-2 if which == "pinned" else -1]
    first = history.writes()[0]  # all is looked at before the first write
    for number in [number for number in range(first, len(history.steps), 2) if number != pushed]:
        candidate, before = history.next(), history.released[-1].image
        tag = getattr(tags(candidate.line, "cpu"), which)
        theirs = releasing.foreign(before)

        def interfere(tag: str = tag, theirs: Image = theirs) -> None:
            with Registry(history.direct) as registry:
                registry.put_manifest(tag, theirs.manifest_bytes, theirs.media_type)

        # Only where the tag is still looked at after it: the last request looks at the moving tag.
        history.proxy.arm(Fault(at_step(number), proxies.first(interfere)))
        error = history.run(candidate)
        history.proxy.arm(None)
        pinned, moving = history.held(candidate)
        mine, other = (moving, pinned) if which == "moving" else (pinned, moving)
        wrong = [] if isinstance(error, ReleaseError) else [f"ended with {error!r}"]
        wrong += [] if mine == theirs.digest else [f"their tag is {mine}"]
        wrong += [] if other in (None, before.digest, candidate.image.digest) else [f"the other tag is {other}"]
        history.tally.cases += 1
        history.tally.bad += [f"{which} tag set before {history.steps[number]}: {text}" for text in wrong]
        with Registry(history.direct) as registry:  # the operator puts things right
            registry.put_manifest("model-cpu", before.manifest_bytes, before.media_type)


def test_disk_of_the_registry_is_full(tmp_path: Path, tally: Tally) -> None:
    """A real full disk, at all steps; with enough room at the end, so that the last writes are among them."""
    failed = []
    with registry_server(tmp_path / "registry", disk=64 << 20) as server, begin(tmp_path, server, tally) as small:
        for left in range(0, 216, 24):
            server.leave_free(left << 10)

            def run(candidate: Candidate) -> PipelineError | None:
                error = small.run(candidate)
                server.leave_free(16 << 20)
                failed.append(error)
                return error

            watched = Fault(from_step(0), proxies.first(lambda: None))  # the disk does the harm
            small.case(f"{left} KiB left on the registry's disk", watched, fails=None, run=run)
        assert small.lost() == []
    assert failed[0] is not None
    assert failed[-1] is None


def test_own_disk_is_full_when_the_record_is_written(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate, repository = history.next(), f"{history.proxy.address}/{NAME}"
    engine = SimpleNamespace(client=SimpleNamespace(close=lambda: None), host="x", compare_pulled=lambda *_: None)
    monkeypatch.setattr(stages, "candidate", lambda *_: candidate)
    monkeypatch.setattr("pipeline.engine.find_or_start", lambda _build: engine)

    def full(_path: Path, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(release_record, "write_atomic", full)
        with pytest.raises(OSError, match="No space left"):
            stages.release_image(candidate.line, repository, allow_dirty=False, dry_run=False, build=tmp_path)
    history.tally.cases += 1
    assert history.held(candidate) == (candidate.image.digest, candidate.image.digest)
    result, file = stages.release_image(candidate.line, repository, allow_dirty=False, dry_run=False, build=tmp_path)
    assert result.bytes_sent == 0
    assert file is not None
    assert result.record == release_record.read(file)
    history.released.append(candidate)


def test_nothing_that_was_ever_released_is_lost(history: History) -> None:
    assert history.lost() == []
