"""A script and what it imports from another one as one file."""

from __future__ import annotations

from pathlib import Path

import pytest

from opreplay.replay.export.one_file import one_file

LIBRARY = '''"""A library."""
import math
import json
from collections.abc import Callable, Sequence

LIMIT = 4
"""Of what is halved."""
UNUSED = json.dumps({})


def half(x: float) -> float:
    # a comment stays
    return min(x, LIMIT) / 2


class Root:
    @staticmethod
    def of(x: float, then: Callable[[float], float] = half) -> float:
        return math.sqrt(then(x))
'''
SCRIPT = '''"""What the script does."""

from __future__ import annotations

import sys

from opreplay.replay.export.library import Root

NAMES: list[str] = []
"""Given when it is written."""
print(Root.of(8.0), NAMES, sys.argv[1:])
'''


def written(tmp_path: Path, script: str = SCRIPT) -> tuple[Path, Path]:
    (tmp_path / "library.py").write_text(LIBRARY)
    (tmp_path / "script.py").write_text(script)
    return tmp_path / "script.py", tmp_path / "library.py"


def test_the_file_holds_what_the_script_uses_and_runs_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, library = written(tmp_path, SCRIPT.replace("print(", "def main():\n    print("))
    text = one_file(script, library, {"NAMES": "['a', 'b']"})
    assert text.startswith('"""What the script does."""')
    assert "UNUSED" not in text
    assert "import json" not in text
    assert "Sequence" not in text
    assert "# a comment stays" in text
    assert '"""Of what is halved."""' in text
    names: dict[str, object] = {}
    exec(compile(text + "\nmain()\n", "one.py", "exec"), names)  # noqa: S102
    assert capsys.readouterr().out.startswith("1.4142135623730951 ['a', 'b']")


def test_what_cannot_be_found_is_an_error(tmp_path: Path) -> None:
    script, library = written(tmp_path)
    with pytest.raises(ValueError, match="no constant OTHER"):
        one_file(script, library, {"OTHER": "1"})
    script, library = written(tmp_path, SCRIPT.replace("import Root", "import Other"))
    with pytest.raises(ValueError, match="nothing defines Other"):
        one_file(script, library, {})
    script, library = written(tmp_path, SCRIPT.replace("export.library", "export.elsewhere"))
    with pytest.raises(ValueError, match="elsewhere"):
        one_file(script, library, {})
