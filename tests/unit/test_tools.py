import pytest

from tests.support import tools
from tests.support.paths import ROOT

# What every Debian has.
ESSENTIAL = {"bash", "tar"}


@pytest.fixture(params=tools.PACKAGES)
def hidden(request, monkeypatch):
    """The name of a program that is not to be found."""
    monkeypatch.setattr(tools.shutil, "which", lambda *_, **__: None)
    return request.param


def test_a_test_without_its_program_is_skipped(hidden, monkeypatch):
    """It says which one is missing, and what to install."""
    for value in (None, "", "0", "false"):
        monkeypatch.delenv("CI", raising=False) if value is None else monkeypatch.setenv("CI", value)
        with pytest.raises(pytest.skip.Exception) as caught:
            tools.program(hidden)
        assert hidden in str(caught.value)
        assert f"apt-get install {tools.PACKAGES[hidden][0]}" in str(caught.value)


def test_in_ci_it_fails(hidden, monkeypatch):
    """There a skip would not be seen; .ci/run says that it is CI."""
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="is not installed"):
        tools.program(hidden)
    assert "\nexport CI=true " in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_programs_are_found(tmp_path, monkeypatch):
    """In $PATH, and in the directories that only root has there; GNU tar also where ``tar`` is another one."""
    for name, says in (("nginx", ""), ("tar", "bsdtar 3.5.3"), ("gtar", "tar (GNU tar) 1.35")):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\necho '{says}'\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tools.program("nginx") == str(tmp_path / "nginx")
    assert tools.program("tar") == str(tmp_path / "gtar")


def test_the_set_up_installs_them():
    """The README's command for the tests has the package of each program."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    [line] = [line for line in text.splitlines() if line.startswith("apt-get") and "pytest" in line]
    packages = {debian for name, (debian, _) in tools.PACKAGES.items() if name not in ESSENTIAL}
    assert packages <= set(line.split())
