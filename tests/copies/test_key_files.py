"""Every key has a file of its own, whatever the key is."""

from millstream.copies.key_files import file_name


def test_names_of_files() -> None:
    keys = ["a", "A/b", "..", ".x", "", "ü" * 200, "ü" * 201, '["1", "here"]']
    names = [file_name(key) for key in keys]
    assert len(set(names)) == len(keys)
    assert all("/" not in name and len(name) < 250 and not name.startswith(".") for name in names if name != ".json")
