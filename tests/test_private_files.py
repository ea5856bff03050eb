from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from millstream.errors import UntrustedFolder
from millstream.private_files import open_private, private_folder


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_private_folder_is_created_for_this_user_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = private_folder(tmp_path / "state" / "inner")
    finally:
        os.umask(before)
    assert mode_of(folder) == 0o700
    assert mode_of(folder.parent) == 0o700
    assert private_folder(folder) == folder


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    planted.mkdir()
    planted.chmod(0o777)
    with pytest.raises(UntrustedFolder, match=r"mode 777"):
        private_folder(planted)


def test_a_folder_that_others_could_only_read_is_closed_to_them(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o755)
    assert mode_of(private_folder(folder)) == 0o700


def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        return  # only root can hand a folder to another user
    planted = tmp_path / "planted"
    planted.mkdir(mode=0o700)
    os.chown(planted, 65534, 65534)
    with pytest.raises(UntrustedFolder, match="belongs to user 65534"):
        private_folder(planted)


def test_a_link_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "planted").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UntrustedFolder, match="not a folder"):
        private_folder(tmp_path / "planted")


def test_a_planted_link_is_not_followed_and_its_target_stays_as_it_was(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "planted").symlink_to(target)
    with pytest.raises(OSError, match="symbolic link"):
        open_private(tmp_path / "planted", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    assert target.read_text() == "precious"


def test_a_private_file_is_created_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        os.close(open_private(tmp_path / "file", os.O_WRONLY | os.O_CREAT))
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "file") == 0o600
