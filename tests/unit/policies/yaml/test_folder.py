from policies.yaml.folder import mark_of, marks_of, visible_files


def test_another_content_has_another_mark(tmp_path):
    file = tmp_path / "a"
    file.write_text("one")
    first = mark_of(file)
    assert mark_of(file) == first
    file.write_text("three")
    assert mark_of(file) != first
    other = tmp_path / "b"
    other.write_text("three")
    assert mark_of(other) != mark_of(file)  # put in its place by a rename
    assert mark_of(tmp_path / "none") == (0, 0, 0)
    assert marks_of([file, tmp_path / "none", file / "below"]) == (mark_of(file), (0, 0, 0), (0, 0, 0))


def test_hidden_names_are_left_out(tmp_path):
    for name in ("b", "a", ".a.swp"):
        (tmp_path / name).write_text("")
    assert [file.name for file in visible_files(tmp_path)] == ["a", "b"]
