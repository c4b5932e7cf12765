"""Names, addresses and paths that come from users and agents."""

import pytest

from moorage.workspace.errors import BadRef, BadUrl, PathRefused
from moorage.workspace.paths import resolve
from moorage.workspace.refs import MirrorKey, check_branch, check_run, check_url, is_sha


@pytest.mark.parametrize("name", ["main", "moorage/fix-1", "a.b", "ü/ñ", "x" * 244])
def test_good_branches(name):
    assert check_branch(name) == name


BAD_BRANCHES = [
    "-x",
    "a..b",
    "a~1",
    "a^",
    "a:b",
    "a?b",
    "a*",
    "a[",
    "a\\b",
    "@",
    "a@{1}",
    ".a",
    "a/.b",
    "a.lock",
    "a.lock/b",
    "a//b",
    "/a",
    "a/",
    "a.",
    "HEAD",
    "refs/heads/x",
]


@pytest.mark.parametrize("name", [*BAD_BRANCHES, "", "a b", "a\nb", "a\0b", "a\x7f", "x" * 245, "é" * 123])
def test_bad_branches(name):
    with pytest.raises(BadRef, match="check-ref-format"):
        check_branch(name)


@pytest.mark.parametrize("run", ["", "a/b", "..", "a..b", "-a", ".a", "a.lock", "a.", "x" * 254, "a b", "ü"])
def test_bad_runs(run):
    with pytest.raises(BadRef):
        check_run(run)


BAD_URLS = [
    "a",
    "/a",
    "file:///a",
    "ssh://h/a",
    "git@h:a",
    "ext::sh",
    "http://",
    "http:///a",
    "http://h:x/",
    "http://h:0/",
    "http://h:99999/",
    "http://u@h/",
    "http://u:p@h/",
    "-x",
    "http://[::1/",
]


@pytest.mark.parametrize("url", [*BAD_URLS, "", "http://h/a b", "http://h/a\n"])
def test_bad_addresses(url):
    with pytest.raises(BadUrl, match="http"):
        check_url(url)


@pytest.mark.rule("T2")
def test_a_password_in_an_address_is_not_repeated():
    with pytest.raises(BadUrl) as error:
        check_url("https://ada:hunter2@example.com/x")
    assert "hunter2" not in str(error.value)
    assert "credentials" in str(error.value)


def test_mirror_folders_are_bounded_and_never_meet():
    keys = [MirrorKey(t, w) for t in ("a", "A", "a/b", "../x", "é" * 300, "") for w in ("w", "W", "../../etc", "\0")]
    folders = [key.folder() for key in keys]
    assert len(set(folders)) == len(keys)
    for folder in folders:
        tenant, name = folder.split("/")
        assert len(tenant) <= 63
        assert len(name) <= 63
        assert ".." not in folder


def test_object_ids():
    assert is_sha("a" * 40)
    assert is_sha("0" * 64)
    assert not any(map(is_sha, ["a" * 39, "a" * 41, "A" * 40, "g" * 40, "main", "a" * 40 + "\n"]))


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "root"
    (root / "dir/.git").mkdir(parents=True)
    (root / "dir/file").write_text("x")
    (root / "in").symlink_to("dir")
    (root / "out").symlink_to("/etc")
    (root / "dir/up").symlink_to("../..")
    (root / "loop").symlink_to("loop")
    (root / "gitlink").symlink_to("dir/.git")
    return root


@pytest.mark.rule("W1")
def test_paths_stay_inside(root):
    assert resolve(root, "dir/file") == root / "dir/file"
    assert resolve(root, "in/file") == root / "dir/file"
    assert resolve(root, "new/deep/file", write=True) == root / "new/deep/file"
    assert resolve(root, ".gitignore", write=True) == root / ".gitignore"
    assert resolve(root, ".") == root
    assert resolve(root, "dir/.git/config") == root / "dir/.git/config"


@pytest.mark.rule("W1")
@pytest.mark.parametrize("path", ["/etc/passwd", "..", "dir/../..", "a\0b", "out", "out/passwd", "dir/up/x", "loop"])
def test_paths_that_leave_are_refused(root, path):
    with pytest.raises(PathRefused, match="inside the workspace"):
        resolve(root, path)


@pytest.mark.rule("W1")
@pytest.mark.parametrize("path", ["dir/.git/config", ".git", ".GIT/hooks/x", "gitlink/config", "git~1/x", ".git./x"])
def test_what_is_gits_is_not_written(root, path):
    with pytest.raises(PathRefused, match="belongs to git"):
        resolve(root, path, write=True)


def test_a_root_that_is_a_link_itself_is_followed_once(root, tmp_path):
    (tmp_path / "alias").symlink_to(root)
    assert resolve(tmp_path / "alias", "dir/file") == root / "dir/file"
