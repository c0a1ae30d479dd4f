"""References to weights: each form is read, and what is none is named."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.launch.weights import WeightsPlace, weights_place

SHA = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("/models/tide", WeightsPlace("path", "", "/models/tide")),
        ("pvc://models/tide/v1", WeightsPlace("pvc", "models", "/tide/v1")),
        ("s3://bucket/a/b", WeightsPlace("object_store", "bucket", "/a/b")),
        ("gs://bucket/a", WeightsPlace("object_store", "bucket", "/a")),
        ("az://box/a", WeightsPlace("object_store", "box", "/a")),
        ("https://h.example:8443/a.gguf", WeightsPlace("https", "h.example:8443", "/a.gguf")),
        ("oci://registry.example:5000/models/tide:8b", WeightsPlace("oci", "registry.example:5000", "models/tide:8b")),
        (f"oci://registry.example/tide@{SHA}", WeightsPlace("oci", "registry.example", f"tide@{SHA}")),
    ],
)
def test_each_form_is_read(text: str, place: WeightsPlace) -> None:
    assert weights_place(text) == place


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no reference to weights"),
        ("models/tide", "write /folder, pvc://claim/folder"),
        ("/", "is no path"),
        ("/models/../etc", "has `.`, `..`"),
        ("/models//x", "doubled slashes"),
        ("/mo dels", "blanks"),
        ("pvc://Claim/x", "no volume claim"),
        ("pvc://claim", "is no folder of the claim"),
        ("s3:///x", "names no bucket"),
        ("http://host/x", "no place that weights are read from"),
        ("https:///x", "names no host"),
        ("https://[/x", "names no host"),
        ("https://host/x?token=1", "a query"),
        ("oci://registry/tide", "has no tag"),
        ("oci://registry/tide@sha256:12", "is no digest of an artefact"),
        ("oci://registry/Tide:1", "is no name of an artefact"),
        ("oci://registry", "names no artefact"),
        ("/" + "x" * 5000, "more than 4096"),
    ],
)
def test_what_is_none_is_named_with_what_to_write(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(").replace(".", r"\.")):
        weights_place(text)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_in_one_sentence(text: str) -> None:
    for start in ("", "/", "s3://", "oci://", "https://", "pvc://"):
        with contextlib.suppress(ValueError):
            assert weights_place(start + text).path
