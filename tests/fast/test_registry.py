"""The registry client against an in-process registry that can misbehave."""

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests

from pipeline.errors import ReleaseError
from pipeline.oci import MANIFEST_TYPE, Descriptor, digest_bytes
from pipeline.registry import RETRIES, Registry, Repository, parse_pinned
from tests.fast.fake_registry import BASIC, PASSWORD, TOKEN, USER, FakeRegistry, Fault, fake_registry

DATA = b"layer" * 1000
DIGEST = digest_bytes(DATA)
BLOB = Descriptor("application/vnd.oci.image.layer.v1.tar", DIGEST, len(DATA))


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with fake_registry() as state:
        yield state


@pytest.fixture
def registry(fake: FakeRegistry) -> Iterator[Registry]:
    with Registry(Repository.parse(f"{fake.address}/team/image")) as client:
        yield client


@pytest.fixture
def blob(tmp_path: Path) -> Path:
    path = tmp_path / "blob"
    path.write_bytes(DATA)
    return path


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses that the client asked for, in seconds; none is taken."""
    taken: list[float] = []
    monkeypatch.setattr("pipeline.registry.sleep", taken.append)
    return taken


@pytest.fixture(autouse=True)
def docker_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty Docker configuration in place of the user's; its file."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    return tmp_path / "config.json"


def log_in(docker_config: Path, fake: FakeRegistry, password: str = PASSWORD) -> None:
    """Put credentials where ``docker login`` puts them."""
    auth = base64.b64encode(f"{USER}:{password}".encode()).decode()
    docker_config.write_text(json.dumps({"auths": {fake.address: {"auth": auth}}}))


def refusal(action: Callable[[], object]) -> str:
    """The one line that ``action`` is refused with; it never holds a secret."""
    with pytest.raises(ReleaseError) as caught:
        action()
    line = caught.value.line()
    for secret in (PASSWORD, TOKEN, BASIC, BASIC.removeprefix("Basic ")):
        assert secret not in line
    return line


# -- references ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "host", "path"),
    [
        ("127.0.0.1:5000/sglang-xpu", "127.0.0.1:5000", "sglang-xpu"),
        ("registry.example.com/a/b__c/d-e.f", "registry.example.com", "a/b__c/d-e.f"),
        ("localhost/x", "localhost", "x"),
        ("[::1]:5000/x", "[::1]:5000", "x"),
        ("debian", "registry-1.docker.io", "library/debian"),
        ("lmsysorg/sglang", "registry-1.docker.io", "lmsysorg/sglang"),
        ("docker.io/debian", "registry-1.docker.io", "library/debian"),
        ("index.docker.io/lmsysorg/sglang", "registry-1.docker.io", "lmsysorg/sglang"),
    ],
)
def test_a_repository_is_read(text: str, host: str, path: str) -> None:
    assert Repository.parse(text) == Repository(host, path)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("127.0.0.1:5000/image:tag", "leave out ':tag'"),
        ("127.0.0.1:5000/image:tag@sha256:00", "leave out '@sha256:00'"),
        ("image:tag", "leave out ':tag'"),
        ("127.0.0.1:5000", "add a path: 127.0.0.1:5000/name"),
        ("registry.example.com/Team/Image", "did you mean 'registry.example.com/team/image'?"),
        ("Team/image", "did you mean 'team/image'?"),
        ("https://registry.example.com/image", "correct the name"),
        ("registry.example.com//image", "correct the name"),
        ("registry.example.com/", "correct the name"),
        ("", "correct the name"),
        ("registry.example.com/im age", "correct the name"),
        ("user@registry.example.com/image", "leave out '@registry.example.com/image'"),
    ],
)
def test_what_is_no_repository_is_refused(text: str, advice: str) -> None:
    line = refusal(lambda: Repository.parse(text))
    assert line == f"repository {text!r}: expected host[:port]/path in lowercase, without tag or digest; {advice}"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("127.9.9.9", "http://127.9.9.9"),
        ("[::1]:5000", "http://[::1]:5000"),
        ("localhost:5000", "http://localhost:5000"),
        ("localhost.example.com", "https://localhost.example.com"),
        ("127.0.0.1.example.com", "https://127.0.0.1.example.com"),
        ("10.0.0.1:5000", "https://10.0.0.1:5000"),
        ("registry-1.docker.io", "https://registry-1.docker.io"),
    ],
)
def test_only_loopback_goes_without_tls(host: str, url: str) -> None:
    assert Repository(host, "x").url == url


def test_a_pinned_reference_is_read() -> None:
    assert parse_pinned(f"localhost/x@{DIGEST}") == (Repository("localhost", "x"), DIGEST)


@pytest.mark.parametrize("text", ["localhost/x", "localhost/x:tag", "localhost/x@sha256:12", "localhost/x@md5:00"])
def test_a_reference_without_digest_is_refused(text: str) -> None:
    assert "expected repository@sha256:<64 hex digits>" in refusal(lambda: parse_pinned(text))


# -- blobs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("absolute", [False, True])
def test_a_blob_is_pushed_where_the_location_says(
    fake: FakeRegistry, registry: Registry, blob: Path, absolute: bool
) -> None:
    fake.absolute_locations = absolute
    assert registry.push_blob(blob, BLOB) == len(DATA)
    assert fake.blobs["team/image", DIGEST] == DATA
    assert fake.headers[-1]["Content-Length"] == str(len(DATA))
    assert registry.bytes_sent == len(DATA)


def test_a_blob_that_is_there_is_not_sent(fake: FakeRegistry, registry: Registry, blob: Path) -> None:
    fake.blobs["team/image", DIGEST] = DATA
    assert registry.push_blob(blob, BLOB) == 0
    assert fake.writes == []


def test_a_blob_of_another_size_is_not_sent(fake: FakeRegistry, registry: Registry, blob: Path) -> None:
    blob.write_bytes(DATA[1:])
    assert "expected 5000 bytes, found 4999 bytes" in refusal(lambda: registry.push_blob(blob, BLOB))
    assert fake.writes == []


def test_a_blob_of_other_bytes_is_refused_by_the_registry(registry: Registry, blob: Path) -> None:
    blob.write_bytes(DATA[::-1])
    assert "expected status 201, found 400" in refusal(lambda: registry.push_blob(blob, BLOB))


@pytest.mark.parametrize("fault", [500, 503, 429, 0])
@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT"])
def test_a_push_survives_one_failure_in_each_step(
    fake: FakeRegistry, registry: Registry, blob: Path, method: str, fault: int
) -> None:
    fake.faults = [Fault(method, "/blobs/", fault)]
    registry.push_blob(blob, BLOB)
    assert fake.blobs["team/image", DIGEST] == DATA


def test_a_broken_upload_starts_a_new_session(fake: FakeRegistry, registry: Registry, blob: Path) -> None:
    fake.faults = [Fault("PUT", "/blobs/uploads/", 0)]
    registry.push_blob(blob, BLOB)
    assert [row.split()[0] for row in fake.writes] == ["POST", "PUT", "POST", "PUT"]


def test_an_upload_without_location_is_refused(fake: FakeRegistry, registry: Registry, blob: Path) -> None:
    fake.faults = [Fault("POST", "/blobs/uploads/", 202)]
    assert "expected a Location header, found none" in refusal(lambda: registry.push_blob(blob, BLOB))


def test_an_upload_at_another_host_without_tls_is_refused(fake: FakeRegistry, registry: Registry, blob: Path) -> None:
    location = {"Location": "http://registry.example.com/upload?state=secret"}
    fake.faults = [Fault("POST", "/blobs/uploads/", 202, headers=location)]
    line = refusal(lambda: registry.push_blob(blob, BLOB))
    assert "found one at http://registry.example.com;" in line


def test_a_registry_that_states_another_digest_is_refused(fake: FakeRegistry, registry: Registry, blob: Path) -> None:
    other = digest_bytes(b"other")
    fake.faults = [Fault("PUT", "/blobs/uploads/", 201, headers={"Docker-Content-Digest": other})]
    assert f"expected {DIGEST}, found {other}" in refusal(lambda: registry.push_blob(blob, BLOB))


def test_a_mount_takes_the_blob_without_sending_it(fake: FakeRegistry, registry: Registry) -> None:
    fake.blobs["team/base", DIGEST] = DATA
    assert registry.mount_blob(DIGEST, "team/base")
    assert fake.queries[-1] == {"mount": [DIGEST], "from": ["team/base"]}
    assert registry.bytes_sent == 0


def test_a_mount_that_opens_an_upload_is_cancelled(fake: FakeRegistry, registry: Registry) -> None:
    fake.mounts = False
    assert not registry.mount_blob(DIGEST, "team/base")
    assert fake.log[-1] == "DELETE /v2/team/image/blobs/uploads/1"
    assert fake.queries[-1] == {"_state": ["a+b"]}


def test_a_blob_is_read_and_verified(fake: FakeRegistry, registry: Registry, tmp_path: Path) -> None:
    fake.blobs["team/image", DIGEST] = DATA
    assert registry.get_blob(DIGEST, limit=len(DATA)) == DATA
    registry.fetch_blob(BLOB, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == DATA


def test_a_blob_over_the_limit_is_refused(fake: FakeRegistry, registry: Registry) -> None:
    fake.blobs["team/image", DIGEST] = DATA
    assert "expected at most 4999 bytes" in refusal(lambda: registry.get_blob(DIGEST, limit=4999))


def test_a_blob_of_another_digest_is_refused(fake: FakeRegistry, registry: Registry, tmp_path: Path) -> None:
    fake.blobs["team/image", DIGEST] = DATA
    fake.served[f"/v2/team/image/blobs/{DIGEST}"] = DATA[::-1]
    found = digest_bytes(DATA[::-1])
    assert f"expected {DIGEST}, found {found}" in refusal(lambda: registry.get_blob(DIGEST, limit=len(DATA)))
    assert f"expected {DIGEST}, found {found}" in refusal(lambda: registry.fetch_blob(BLOB, tmp_path / "copy"))
    assert list(tmp_path.iterdir()) == []


def test_a_blob_cut_short_is_read_again(fake: FakeRegistry, registry: Registry, tmp_path: Path) -> None:
    fake.blobs["team/image", DIGEST] = DATA
    fake.faults = [Fault("GET", "/blobs/", 200, headers={"Content-Length": str(len(DATA))}, body=DATA[:99])]
    registry.fetch_blob(BLOB, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == DATA
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


# -- manifests -------------------------------------------------------------------------------------------------


def test_a_manifest_keeps_its_bytes(registry: Registry) -> None:
    content = b'{ "spaces":  "kept" }'
    registry.put_manifest("tag", content, MANIFEST_TYPE)
    assert registry.head_manifest("tag") == digest_bytes(content)
    assert registry.get_manifest("tag") == (content, MANIFEST_TYPE, digest_bytes(content))


def test_an_absent_manifest(fake: FakeRegistry, registry: Registry) -> None:
    assert registry.head_manifest("tag") is None
    line = refusal(lambda: registry.get_manifest("tag"))
    assert line.startswith(f"{fake.address}/team/image: get manifest tag: expected status 200, found 404 NOT_FOUND;")


def test_a_registry_that_states_no_digest(fake: FakeRegistry, registry: Registry) -> None:
    fake.states_digests = False
    registry.put_manifest("tag", b"{}", MANIFEST_TYPE)
    assert registry.head_manifest("tag") == digest_bytes(b"{}")


@pytest.mark.parametrize("reference", ["tag", digest_bytes(b"{}")])
def test_a_manifest_of_another_digest_is_refused(fake: FakeRegistry, registry: Registry, reference: str) -> None:
    registry.put_manifest("tag", b"{}", MANIFEST_TYPE)
    fake.served[f"/v2/team/image/manifests/{reference}"] = b"[]"
    line = refusal(lambda: registry.get_manifest(reference))
    assert f"expected {digest_bytes(b'{}')}, found {digest_bytes(b'[]')}" in line


# -- retries ---------------------------------------------------------------------------------------------------


def test_failures_are_retried_with_growing_pauses(fake: FakeRegistry, registry: Registry, pauses: list[float]) -> None:
    fake.faults = [Fault("HEAD", "/blobs/", 500, times=RETRIES)]
    assert not registry.has_blob(DIGEST)
    assert pauses == [0.5, 1.0, 2.0]


def test_a_registry_that_stays_ill_is_given_up(fake: FakeRegistry, registry: Registry) -> None:
    body = json.dumps({"errors": [{"code": "UNAVAILABLE", "message": TOKEN}]}).encode()
    fake.faults = [Fault("GET", "/manifests/", 503, times=99, body=body)]
    line = refusal(lambda: registry.get_manifest("tag"))
    assert f"{fake.address}/team/image: get manifest tag: expected an answer, found 503 UNAVAILABLE;" in line
    assert len(fake.log) == RETRIES + 1


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_honoured(fake: FakeRegistry, registry: Registry, pauses: list[float], status: int) -> None:
    fake.faults = [Fault("HEAD", "/blobs/", status, headers={"Retry-After": "7"})]
    registry.has_blob(DIGEST)
    assert pauses == [7.0]


def test_a_registry_that_asks_for_too_long_a_pause_is_given_up(
    fake: FakeRegistry, registry: Registry, pauses: list[float]
) -> None:
    fake.faults = [Fault("HEAD", "/blobs/", 429, headers={"Retry-After": "3600"})]
    assert "found 429, to be asked again in 3600 s;" in refusal(lambda: registry.has_blob(DIGEST))
    assert pauses == []


def test_what_cannot_succeed_later_is_not_retried(fake: FakeRegistry, registry: Registry) -> None:
    fake.faults = [Fault("HEAD", "/blobs/", 403)]
    assert "found 403; use an account that may write to" in refusal(lambda: registry.has_blob(DIGEST))
    assert len(fake.log) == 1


def test_nobody_listening_is_one_line(pauses: list[float]) -> None:
    with fake_registry() as gone:
        pass
    with Registry(Repository.parse(f"{gone.address}/x")) as registry:
        assert "expected an answer, found connection refused;" in refusal(lambda: registry.has_blob(DIGEST))
    assert len(pauses) == RETRIES


# -- credentials -----------------------------------------------------------------------------------------------


def test_basic_credentials_come_from_dockers_configuration(
    fake: FakeRegistry, registry: Registry, blob: Path, docker_config: Path
) -> None:
    fake.auth = "basic"
    log_in(docker_config, fake)
    registry.push_blob(blob, BLOB)
    assert fake.blobs["team/image", DIGEST] == DATA
    assert [headers.get("Authorization") for headers in fake.headers] == [None, BASIC, BASIC, BASIC]


def test_basic_without_credentials_says_how_to_log_in(fake: FakeRegistry, registry: Registry) -> None:
    fake.auth = "basic"
    line = refusal(lambda: registry.get_manifest("tag"))
    assert line.endswith(f"expected status 200, found 401 UNAUTHORIZED; docker login {fake.address}")


def test_wrong_credentials_are_refused_without_being_shown(
    fake: FakeRegistry, registry: Registry, docker_config: Path
) -> None:
    fake.auth = "basic"
    log_in(docker_config, fake, "wr0ng-password")
    line = refusal(lambda: registry.get_manifest("tag"))
    assert "found 401 UNAUTHORIZED; docker login" in line
    assert "wr0ng" not in line
    assert len(fake.log) == 2


@pytest.mark.parametrize("logged_in", [False, True])
def test_a_bearer_token_is_fetched_for_the_scopes_asked_for(
    fake: FakeRegistry, registry: Registry, blob: Path, docker_config: Path, logged_in: bool
) -> None:
    fake.auth = "bearer"
    if logged_in:
        log_in(docker_config, fake)
    registry.push_blob(blob, BLOB)
    assert fake.blobs["team/image", DIGEST] == DATA
    assert fake.log[1] == "GET /token"
    assert fake.log.count("GET /token") == 1
    assert fake.headers[1].get("Authorization") == (BASIC if logged_in else None)
    scopes = ["repository:team/image:pull,push", "repository:team/base:pull"]
    assert fake.queries[1] == {"service": ["fake"], "scope": scopes}


def test_wrong_credentials_at_the_token_service(fake: FakeRegistry, registry: Registry, docker_config: Path) -> None:
    fake.auth = "bearer"
    log_in(docker_config, fake, "wr0ng-password")
    line = refusal(lambda: registry.has_blob(DIGEST))
    assert "get a token: expected status 200, found 401; docker login" in line
    assert "wr0ng" not in line


def test_an_identity_token_is_exchanged(fake: FakeRegistry, registry: Registry, docker_config: Path) -> None:
    fake.auth = "bearer"
    docker_config.write_text(json.dumps({"auths": {fake.address: {"identitytoken": "s3cret-identity"}}}))
    assert not registry.has_blob(DIGEST)
    assert fake.log[1] == "POST /token"
    assert fake.forms == [
        {
            "grant_type": ["refresh_token"],
            "refresh_token": ["s3cret-identity"],
            "client_id": ["sglang-xpu-images"],
            "service": ["fake"],
            "scope": ["repository:team/image:pull,push repository:team/base:pull"],
        }
    ]


def test_a_token_service_without_tls_gets_no_credentials(
    fake: FakeRegistry, registry: Registry, docker_config: Path
) -> None:
    log_in(docker_config, fake)
    challenge = {"WWW-Authenticate": 'Bearer realm="http://token.example.com/",service="x"'}
    fake.faults = [Fault("HEAD", "/blobs/", 401, headers=challenge)]
    assert "expected a token service over https" in refusal(lambda: registry.has_blob(DIGEST))


def test_a_token_service_without_token(fake: FakeRegistry, registry: Registry) -> None:
    fake.auth = "bearer"
    fake.faults = [Fault("GET", "/token", 200, body=b"[]")]
    assert "get a token: expected a token, found none;" in refusal(lambda: registry.has_blob(DIGEST))


@pytest.mark.parametrize(("auth", "tokens"), [("basic", 0), ("bearer", 1)])
def test_another_host_never_sees_the_credentials_nor_gets_to_ask(
    fake: FakeRegistry, registry: Registry, docker_config: Path, auth: str, tokens: int
) -> None:
    fake.auth, fake.redirect_blobs = auth, True
    log_in(docker_config, fake)
    fake.blobs["team/image", DIGEST] = DATA
    # The fake wants credentials at its other name as well.
    assert "expected status 200, found 401 UNAUTHORIZED" in refusal(lambda: registry.get_blob(DIGEST, limit=len(DATA)))
    assert fake.queries[-1] == {"signature": ["1"]}
    assert "Authorization" not in fake.headers[-1]
    assert fake.log.count("GET /token") == tokens


def test_a_netrc_is_not_sent(fake: FakeRegistry, registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text(f"machine 127.0.0.1 login {USER} password {PASSWORD}\n")
    assert not registry.has_blob(DIGEST)
    assert "Authorization" not in fake.headers[0]


@pytest.mark.parametrize("text", ['{"credsStore": "not-installed"}', '{"auths": {"x": {"auth": "%%%"}}}'])
def test_a_configuration_that_cannot_be_read_is_one_line(
    fake: FakeRegistry, registry: Registry, docker_config: Path, text: str
) -> None:
    fake.auth = "basic"
    docker_config.write_text(text)
    assert "read Docker's configuration" in refusal(lambda: registry.has_blob(DIGEST))


def test_a_credential_helper_is_asked(
    fake: FakeRegistry,
    registry: Registry,
    docker_config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake.auth = "basic"
    helper = tmp_path / "docker-credential-planted"
    helper.write_text(f'#!/bin/sh\necho \'{{"Username": "{USER}", "Secret": "{PASSWORD}"}}\'\n')
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    docker_config.write_text('{"credsStore": "planted"}')
    assert not registry.has_blob(DIGEST)
    assert fake.headers[-1]["Authorization"] == BASIC


# -- failures below HTTP ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "found", "requests_made"),
    [
        (requests.exceptions.SSLError(TOKEN), "expected a certificate that can be verified, found another;", 1),
        (requests.exceptions.ReadTimeout(TOKEN), "expected an answer, found no answer in 60 s;", RETRIES + 1),
        (requests.exceptions.ConnectionError(TOKEN), "expected an answer, found a broken connection;", RETRIES + 1),
    ],
)
def test_what_requests_says_is_not_quoted(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, error: Exception, found: str, requests_made: int
) -> None:
    made: list[object] = []

    def fail(*_: object, **named: object) -> None:
        made.append(named["timeout"])
        raise error

    monkeypatch.setattr("requests.Session.request", fail)
    assert found in refusal(lambda: registry.has_blob(DIGEST))
    assert made == [(10, 60)] * requests_made


# -- referrers -------------------------------------------------------------------------------------------------

TYPE = "application/vnd.example.note.v1+json"
SUBJECT = Descriptor(MANIFEST_TYPE, digest_bytes(b"image"), 5)


@pytest.mark.parametrize("has_api", [True, False])
def test_referrers_are_listed_by_type_and_read_back(fake: FakeRegistry, registry: Registry, has_api: bool) -> None:
    fake.referrers = has_api
    assert registry.list_referrers(SUBJECT.digest, TYPE) == []
    first, second = (registry.push_referrer(SUBJECT, TYPE, data) for data in (b"one", b"two"))
    other = registry.push_referrer(SUBJECT, "application/vnd.example.other", b"one")
    assert registry.list_referrers(SUBJECT.digest, TYPE) == [first, second]
    assert registry.list_referrers(SUBJECT.digest, "application/vnd.example.other") == [other]
    assert registry.list_referrers(DIGEST, TYPE) == []
    assert registry.get_referrer(second, limit=3) == b"two"
    assert (("team/image", SUBJECT.digest.replace(":", "-")) in fake.manifests) is not has_api
    manifest = json.loads(registry.get_manifest(first).content)
    assert manifest["subject"] == SUBJECT.as_json()
    assert (manifest["artifactType"], manifest["layers"][0]["mediaType"]) == (TYPE, TYPE)
    assert registry.get_blob(manifest["config"]["digest"], limit=2) == b"{}"


def test_a_referrer_pushed_again_is_listed_once(fake: FakeRegistry, registry: Registry) -> None:
    fake.referrers = False
    first = registry.push_referrer(SUBJECT, TYPE, b"one")
    before = len(fake.writes)
    assert registry.push_referrer(SUBJECT, TYPE, b"one") == first
    assert registry.list_referrers(SUBJECT.digest, TYPE) == [first]
    assert fake.writes[before:] == [f"PUT /v2/team/image/manifests/{first}"]


@pytest.mark.parametrize("content", [b"[]", b"{", b'{"manifests": [{}]}', b'{"manifests": 1}'])
def test_a_referrers_tag_that_is_no_index_is_refused(fake: FakeRegistry, registry: Registry, content: bytes) -> None:
    fake.referrers = False
    fake.manifests["team/image", SUBJECT.digest.replace(":", "-")] = (content, MANIFEST_TYPE)
    assert "expected an OCI index, found another document" in refusal(
        lambda: registry.list_referrers(SUBJECT.digest, TYPE)
    )


def test_a_page_of_referrers_elsewhere_is_not_fetched(fake: FakeRegistry, registry: Registry) -> None:
    link = {"Link": '<https://other.example.com/v2/x>; rel="next"'}
    fake.faults = [Fault("GET", "/referrers/", 200, headers=link, body=b'{"manifests": []}')]
    line = refusal(lambda: registry.list_referrers(SUBJECT.digest, TYPE))
    assert "expected its next page at the registry, found one at https://other.example.com" in line


def test_an_artifact_of_several_documents_is_refused(registry: Registry) -> None:
    content = b'{"layers": []}'
    registry.put_manifest("tag", content, MANIFEST_TYPE)
    assert "expected an artifact of one document" in refusal(lambda: registry.get_referrer("tag", 10))


def test_a_blob_at_which_the_registry_keeps_failing_is_sent_again(
    fake: FakeRegistry, registry: Registry, blob: Path
) -> None:
    fake.faults = [Fault("HEAD", "/blobs/", 500, times=RETRIES + 1)]
    assert registry.push_blob(blob, BLOB) == len(DATA)
    assert fake.blobs["team/image", DIGEST] == DATA


def test_a_registry_that_cannot_be_reached_is_no_missing_blob(fake: FakeRegistry, registry: Registry) -> None:
    fake.faults = [Fault("HEAD", "/blobs/", 0, times=RETRIES + 1)]
    assert "look for blob" in refusal(lambda: registry.has_blob(DIGEST))
