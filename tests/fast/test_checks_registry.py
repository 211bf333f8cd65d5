"""The registry check on a fake SGLang whose registry swallows import errors as the real one does."""

from pathlib import Path

import pytest

from tests.fast.fake_image import DRAFT, REGISTRY, FakeImage

PATH = "sglang/srt/models/draft.py"


@pytest.fixture
def image(tmp_path: Path) -> FakeImage:
    return FakeImage(tmp_path)


def fails(image: FakeImage, *reason: str) -> None:
    """Run; the registry check alone fails, and its reason holds these words."""
    report = image.run()
    assert report.statuses == {"registry": "failed"}, report.stderr
    for words in reason:
        assert words in report.reason("registry")


def test_proof_counts_the_models(image: FakeImage) -> None:
    assert image.run().reason("registry") == "2 models registered, among them NewDraft as recorded"


def test_missing_class(image: FakeImage) -> None:
    image.put_in_tree(PATH, DRAFT.replace("[OldDraft, NewDraft]", "[OldDraft]"))
    fails(image, "NewDraft: not registered (1 models are); the import gave no warning")


def test_model_module_that_cannot_be_imported(image: FakeImage) -> None:
    image.put_in_tree(PATH, "import package_that_is_missing\n" + DRAFT)
    fails(
        image,
        "NewDraft: not registered (0 models are); first warning: Ignore import error when loading",
        "sglang.srt.models.draft: No module named 'package_that_is_missing'",
    )


def test_the_warning_of_the_class_s_own_module_is_quoted(image: FakeImage) -> None:
    image.put_in_tree("sglang/srt/models/a.py", "raise ImportError('of another')\n")
    image.put_in_tree(PATH, "raise ImportError('of this one')\n")
    fails(image, "sglang.srt.models.draft: of this one")


def test_registry_that_cannot_be_imported(image: FakeImage) -> None:
    image.put_in_tree("sglang/srt/models/registry.py", "raise RuntimeError('first line\\nsecond')\n" + REGISTRY)
    report = image.run()
    assert report.statuses == {"registry": "failed"}
    assert report.reason("registry") == "sglang.srt.models.registry cannot be imported: RuntimeError: first line"


def test_registry_that_ends_the_process_politely(image: FakeImage) -> None:
    image.put_in_tree("sglang/srt/models/registry.py", "raise SystemExit(3)\n" + REGISTRY)
    fails(image, "cannot be imported: SystemExit: 3")


def test_alias_under_the_new_name(image: FakeImage) -> None:
    text = REGISTRY.replace("{cls.__name__: cls for cls in entry}", '{"NewDraft": cls for cls in entry}')
    image.put_in_tree("sglang/srt/models/registry.py", text)
    image.put_in_tree(PATH, DRAFT.replace("[OldDraft, NewDraft]", "[OldDraft]"))
    fails(image, "NewDraft: expected a class of that name, found an alias of OldDraft")


def test_class_that_adds_nothing_to_the_old_one(image: FakeImage) -> None:
    start = DRAFT.index("class NewDraft")
    body = 'class NewDraft(OldDraft):\n    """Only a name."""\n\n\nEntryClass = [OldDraft, NewDraft]\n'
    image.put_in_tree(PATH, DRAFT[:start] + body)
    fails(image, "NewDraft: expected a class of its own, found one that adds nothing to OldDraft")


def test_class_from_another_file(image: FakeImage) -> None:
    image.put_in_tree("sglang/srt/models/other.py", DRAFT)
    image.put_in_tree(PATH, DRAFT.replace("EntryClass", "Unused"))
    fails(image, "NewDraft: expected it to be loaded from", "models/draft.py, found", "models/other.py")


def test_names_that_tell_it_from_an_older_class(image: FakeImage) -> None:
    image.put_in_tree(PATH, DRAFT.replace("Selector", "Chooser"))
    fails(image, "to define Selector, found no such definition")


def test_loaded_file_differs_from_the_record(image: FakeImage) -> None:
    image.write(PATH, DRAFT + "\n")
    report = image.run()
    assert report.statuses == {"registry": "failed", "tree": "failed"}
    assert "expected the recorded sha256" in report.reason("registry")


def test_file_that_the_record_does_not_have(image: FakeImage) -> None:
    del image.given["record"]["files"][PATH]
    report = image.run()
    assert report.statuses == {"registry": "failed", "tree": "failed"}
    assert "no such file in the record" in report.reason("registry")


def test_module_that_registers_something_else_than_a_class(image: FakeImage) -> None:
    image.put_in_tree("sglang/srt/models/registry.py", REGISTRY.replace(": cls for", ": cls.__name__ for"))
    fails(image, "NewDraft: expected a class, found 'NewDraft'")


def test_no_architectures_prove_nothing(image: FakeImage) -> None:
    image.given["architectures"] = {}
    fails(image, "expected model classes to look for")
