"""Users' files, packages and modules: how they are found, and ops of libraries that are not installed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opreplay.initializers import extensions
from opreplay.initializers.user_code import loaded_files
from opreplay.replay import plugins
from opreplay.replay.ascend.custom import estimators
from opreplay.replay.ascend.custom.estimators import ESTIMATORS, CustomOpError
from opreplay.replay.ascend.custom.op_invoke import OpInvokeInfo
from opreplay.replay.plugins import load_plugins, plugin_files
from opreplay.replay.resolve.user.executors import EXECUTORS
from opreplay.traces.errors import UsageError


@pytest.fixture(autouse=True)
def nothing_registered() -> Iterator[None]:
    """Whatever a test of another file left registered goes as well."""
    modules = set(sys.modules)
    forget_registrations()
    yield
    forget_registrations()
    for name in set(sys.modules) - modules:
        if name.startswith(("user_pkg", "user_module")):
            del sys.modules[name]


def forget_registrations() -> None:
    plugins.clear_registrations()
    estimators.clear_registrations()
    extensions.clear_registrations()


def executor(op: str) -> str:
    return (
        "from opreplay import register_executor\n"
        f"@register_executor('{op}', schema='(Tensor x) -> Tensor')\ndef run(x):\n    return factor(x)\n"
    )


def write_package(folder: Path, init: str = "from . import gate\n") -> Path:
    """A package of three files: the second is imported by the first, the third by none."""
    folder.mkdir()
    (folder / "__init__.py").write_text(init)
    (folder / "common.py").write_text("def factor(x):\n    return x * 3\n")
    (folder / "gate.py").write_text("from .common import factor\n" + executor("userlib::gate"))
    (folder / "pool.py").write_text(f"from {folder.name}.common import factor\n" + executor("userlib::pool"))
    (folder / "__main__.py").write_text("raise SystemExit('a plugin is not run as a program')\n")
    return folder


def executors() -> set[str]:
    return {op for entry in EXECUTORS for op in entry.ops}


@pytest.mark.parametrize("form", ["user_pkg", "./user_pkg", "user_pkg/", "whole"])
@pytest.mark.parametrize("init", ["from . import gate\n", "", "import user_pkg.pool\n"])
def test_a_folder_with_an_init_is_a_package_by_every_name(
    form: str, init: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_package(tmp_path / "user_pkg", init)
    monkeypatch.chdir(tmp_path)
    name = str(folder) if form == "whole" else form
    load_plugins([name], installed=False)
    assert executors() == {"userlib::gate", "userlib::pool"}
    assert plugin_files([name]) == (str(folder),)
    files = {Path(file).name for file in loaded_files()}
    assert files == {"__init__.py", "common.py", "gate.py", "pool.py"}
    load_plugins(plugin_files([name]), installed=False)  # as a worker does: nothing is registered twice
    assert len(list(EXECUTORS)) == 2


def test_a_package_may_be_loaded_again_once_registrations_are_cleared(tmp_path: Path) -> None:
    folder = write_package(tmp_path / "user_pkg")
    for _ in range(2):
        load_plugins([str(folder)], installed=False)
        assert executors() == {"userlib::gate", "userlib::pool"}
        plugins.clear_registrations()
        estimators.clear_registrations()


def test_a_package_that_has_the_name_of_a_module_of_pythons_does_not_replace_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_package(tmp_path / "json")
    (folder / "pool.py").unlink()
    monkeypatch.chdir(tmp_path)
    json_module = sys.modules["json"]
    load_plugins(["json"], installed=False)
    assert executors() == set(), "Python has a module of this name"
    load_plugins(["./json"], installed=False)
    assert executors() == {"userlib::gate"}
    assert sys.modules["json"] is json_module


@pytest.mark.parametrize("name", ["user_module", "user_pkg.pool"])
def test_modules_of_the_present_folder_are_found_after_all_others(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(tmp_path / "user_pkg", "")
    (tmp_path / "user_module.py").write_text("factor = abs\n" + executor("userlib::pool"))
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    load_plugins([name], installed=False)
    assert executors() == {"userlib::pool"}
    assert sys.path == path


def test_a_module_that_is_nowhere_is_refused_with_what_may_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="No module named 'user_module'") as caught:
        load_plugins(["user_module"], installed=False)
    assert caught.value.hint
    assert "folder" in caught.value.hint


def test_one_bad_file_of_a_package_is_named_and_the_command_ends(tmp_path: Path) -> None:
    folder = write_package(tmp_path / "user_pkg", "")
    (folder / "bad.py").write_text("x = 1\n1 / 0\n")
    (folder / "worse.py").write_text("from .nothing import x\n")
    with pytest.raises(CustomOpError, match=r"2 files of .* failed") as caught:
        load_plugins([str(folder)], installed=False)
    assert "bad.py:2: ZeroDivisionError" in str(caught.value)
    assert "worse.py:1: ModuleNotFoundError" in str(caught.value)
    assert caught.value.hint
    assert "were loaded" not in caught.value.hint
    broken = write_package(tmp_path / "user_pkg_broken", "import nosuchmodule_here\n")
    with pytest.raises(CustomOpError, match=r"1 file of .*__init__.py:1: ModuleNotFoundError"):
        load_plugins([str(broken)], installed=False)


RFC = """
import torch
from opreplay.replay.ascend.custom import OpInvokeInfo, PerformanceModel, register_op_estimator

@register_op_estimator(torch.ops.absent_lib.First, None, True)
def first(op_invoke_info, device_profile) -> object:
    return PerformanceModel.Result(0.001)

@register_op_estimator(torch.ops.absent_lib.second.default, None, True)
def second(op_invoke_info, device_profile) -> object:
    return PerformanceModel.Result(0.002)

@OpInvokeInfo.register_op_properties(torch.ops.other_absent.third)
def _(op_invoke_info):
    return op_invoke_info.get_memory_access_properties()
"""


@pytest.mark.parametrize("form", ["file", "module", "package"])
def test_ops_of_absent_libraries_are_names_to_register_for(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.chdir(tmp_path)
    (tmp_path / "user_module.py").write_text(RFC)
    (tmp_path / "user_pkg").mkdir()
    (tmp_path / "user_pkg" / "__init__.py").write_text("")
    (tmp_path / "user_pkg" / "costs.py").write_text(RFC)
    load_plugins([{"file": "user_module.py", "module": "user_module", "package": "user_pkg"}[form]], installed=False)
    assert [entry.ops for entry in ESTIMATORS] == [("absent_lib::First",), ("absent_lib::second",)]
    assert [entry.ops for entry in OpInvokeInfo.properties] == [("other_absent::third",)]
    assert not hasattr(torch.ops.absent_lib, "First"), "only while the file is loaded"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("torch.ops.aten.mmm", "'_OpNamespace' 'aten' object has no attribute 'mmm'"),
        ("torch.ops.absent_lib.First(3)", "'_OpNamespace' 'absent_lib' object has no attribute 'First'"),
        ("torch.ops.absent_lib.First\nraise KeyError('x')", "KeyError: 'x'"),
        ("torch.nosuch", "no attribute 'nosuch'"),
    ],
)
def test_what_else_fails_is_still_said(code: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "user_module.py").write_text(f"import torch\n{code}\n")
    with pytest.raises(UsageError) as caught:
        load_plugins([str(tmp_path / "user_module.py")], installed=False)
    assert expected in str(caught.value)


def test_a_file_that_looks_whether_an_op_is_there_is_told_that_it_is_not(tmp_path: Path) -> None:
    (tmp_path / "user_module.py").write_text(
        "import torch\n"
        "found = hasattr(torch.ops.absent_lib, 'looked_for')\n"
        "assert not found\n"
        "from opreplay import register_op_estimator\n"
        "register_op_estimator(torch.ops.absent_lib.First)(lambda info, device: 1.0)\n"
    )
    load_plugins([str(tmp_path / "user_module.py")], installed=False)
    assert [entry.ops for entry in ESTIMATORS] == [("absent_lib::First",)]


def test_a_file_that_the_program_imports_as_well_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "user_module_twice.py").write_text(
        "from opreplay import CustomInit, register_initializer\n"
        "@register_initializer\nclass Twice(CustomInit):\n    name, op_patterns = 'twice', ('mylib::twice',)\n"
        "    def initialize(self, context):\n        return None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("user_module_twice")
    with pytest.raises(UsageError) as caught:
        load_plugins([str(tmp_path / "user_module_twice.py")])
    assert "already imported this file as user_module_twice" in caught.value.hint


@pytest.mark.parametrize("package", [False, True])
def test_a_file_that_changed_since_it_ran_is_refused(package: bool, tmp_path: Path) -> None:
    folder = tmp_path / "changing_plugins"
    folder.mkdir()
    file = folder / ("__init__.py" if package else "mine.py")
    file.write_text("x = 1\n")
    names = [str(folder if package else file)]
    for _ in range(2):
        load_plugins(names)
    file.touch()
    load_plugins(names)
    file.write_text("x = 2\n")
    with pytest.raises(UsageError, match="has changed"):
        load_plugins(names)
