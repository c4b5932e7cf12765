"""Where a command writes: a regular file is replaced whole, and nothing else is ever replaced."""

import contextlib
import io
import os
import stat
import threading
from pathlib import Path

import pytest

from moorage.cli.exits import CliError
from moorage.cli.writing import is_file, writing


def write(path: Path, data: bytes = b"new") -> bytes:
    """Returns what went to standard output."""
    stdout = io.BytesIO()
    with writing(path, stdout) as file:
        file.write(data)
    return stdout.getvalue()


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_a_regular_file_is_there_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with contextlib.suppress(KeyboardInterrupt), writing(path, io.BytesIO()) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert (path.read_bytes(), names(tmp_path)) == (b"old", ["x"])
    write(path)
    assert (path.read_bytes(), names(tmp_path)) == (b"new", ["x"])


def test_a_dash_is_standard_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert write(Path("-")) == b"new"
    assert names(tmp_path) == []


def test_a_symlink_stays_and_means_its_target(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link = tmp_path / "link"
    link.symlink_to("there/file")
    write(link)
    assert link.is_symlink()
    assert (tmp_path / "there" / "file").read_bytes() == b"new"
    assert names(tmp_path / "there") == ["file"]


def test_a_loop_of_symlinks_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(CliError, match="Too many levels"):
        write(tmp_path / "a")


def test_a_fifo_is_written_to_and_stays(tmp_path: Path) -> None:
    fifo, read = tmp_path / "fifo", []
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: read.append(fifo.read_bytes()))
    reader.start()
    write(fifo)
    reader.join()
    assert read == [b"new"]
    assert stat.S_ISFIFO(fifo.lstat().st_mode)
    assert not is_file(fifo)


def test_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    master, slave = os.openpty()
    tty, link = Path(os.ttyname(slave)), tmp_path / "tty"
    link.symlink_to(tty)
    write(link)
    assert os.read(master, 16) == b"new"
    assert link.is_symlink()
    assert stat.S_ISCHR(tty.lstat().st_mode)
    os.close(slave)
    os.close(master)


@pytest.mark.parametrize("folder", ["/dev/fd", "/proc/self/fd"])
def test_a_descriptor_is_written_to_where_it_stands_whatever_it_leads_to(tmp_path: Path, folder: str) -> None:
    kept = tmp_path / "kept"
    with kept.open("wb", buffering=0) as file:
        file.write(b"old ")
        link = tmp_path / "stdout"
        link.symlink_to(f"{folder}/{file.fileno()}")
        assert not is_file(link)
        write(link)
        file.write(b" more")
    assert kept.read_bytes() == b"old new more"
    assert names(tmp_path) == ["kept", "stdout"]


def test_a_folder_cant_be_written(tmp_path: Path) -> None:
    with pytest.raises(CliError, match="Is a directory"):
        write(tmp_path)
