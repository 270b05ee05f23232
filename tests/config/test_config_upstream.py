"""The contract with SGLang: complete, true for the pinned version, and sensitive to changes."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from jetspec_sglang import upstream
from jetspec_sglang.upstream import CONTRACT, reader
from jetspec_sglang.upstream.symbol import Symbol

REPOSITORY = Path(__file__).parents[2]


def test_installed_sglang_keeps_the_contract():
    assert [str(mismatch) for mismatch in upstream.check_upstream()] == []
    upstream.require()


def test_each_symbol_is_listed_once():
    paths = [symbol.path for symbol in CONTRACT]
    assert len(paths) == len(set(paths))


def sources():
    """What is installed: benchmarks are not."""
    for folder in ("jetspec_sglang", "drafters", "kernels/ops", "tree"):
        yield from (REPOSITORY / folder).rglob("*.py")


def imported_symbols(file: Path):
    """`module.name` of each `from sglang… import name`."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.ImportFrom)
            and not node.level
            and (node.module or "").split(".")[0] == "sglang"
        ):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def hook_targets(file: Path):
    """Dotted names in strings, as hook targets are given."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.startswith("sglang.srt.")
        ):
            path = node.value.rstrip(".")
            if "{" not in path and path.replace(".", "").isidentifier():
                yield path


def is_listed(path: str) -> bool:
    """Whether the contract has a row for it, or for something in it: a class may be listed by its methods."""
    return any(symbol.path == path or symbol.path.startswith(path + ".") for symbol in CONTRACT)


def test_every_import_from_sglang_is_in_the_contract():
    missing = {
        f"{path} ({file.relative_to(REPOSITORY)})"
        for file in sources()
        for path in imported_symbols(file)
        if not is_listed(path)
    }
    assert missing == set()


def test_every_hook_target_is_in_the_contract():
    entry_point_groups = {"sglang.srt.plugins", "sglang.srt.platforms"}
    missing = {
        f"{path} ({file.relative_to(REPOSITORY)})"
        for file in sources()
        for path in hook_targets(file)
        if path not in entry_point_groups and not is_listed(path)
    }
    assert missing == set()


@pytest.fixture
def fake_package(tmp_path, monkeypatch):
    """A package `fakelib` to change at will; returns a writer of its module `mod`."""
    (tmp_path / "fakelib").mkdir()
    (tmp_path / "fakelib" / "__init__.py").write_text("raise ImportError('must not be imported')")
    (tmp_path / "fakelib" / "alias.py").write_text("from fakelib.mod import f as g")
    monkeypatch.syspath_prepend(tmp_path)

    def write(source):
        reader._module.cache_clear()
        (tmp_path / "fakelib" / "mod.py").write_text(source)

    yield write
    reader._module.cache_clear()


GOOD = """
if True:
    def f(a, b=1, *, c, **d): ...
class K:
    x: int = 0
    def __init__(self): self.y = 1
    def m(self, z): ...
"""
ROWS = (
    Symbol("fakelib.mod.f", params=("a", "b", "c", "**d")),
    Symbol("fakelib.alias.g", params=("a", "b", "c", "**d")),
    Symbol("fakelib.mod.K", members=("x", "y", "m")),
    Symbol("fakelib.mod.K.m", params=("self", "z")),
    Symbol("fakelib.mod"),
)


def test_unchanged_symbols_pass_without_an_import(fake_package):
    fake_package(GOOD)
    assert upstream.check_upstream(ROWS) == []
    assert "fakelib" not in sys.modules


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("b=1, ", "", ["fakelib.mod.f takes (a, c, **d), expected (a, b, c, **d)", "fakelib.alias.g takes"]),
        ("def f(", "def renamed(", ["fakelib.mod.f does not exist", "fakelib.alias.g does not exist"]),
        (
            "def m(self, z)",
            "def m(self, z, new)",
            ["fakelib.mod.K.m takes (self, z, new), expected (self, z)"],
        ),
        ("    x: int = 0\n", "", ["fakelib.mod.K lacks x"]),
        ("self.y = 1", "pass", ["fakelib.mod.K lacks y"]),
        ("def m(self, z): ...", "m = 3", ["fakelib.mod.K.m is not a function"]),
    ],
)
def test_a_change_is_named(fake_package, before, after, said):
    assert before in GOOD
    fake_package(GOOD.replace(before, after))
    found = [str(mismatch) for mismatch in upstream.check_upstream(ROWS)]
    assert len(found) == len(said)
    assert all(found_line.startswith(line) for found_line, line in zip(found, said, strict=True))


def test_mismatches_refuse_the_start_and_say_what_to_do(monkeypatch):
    monkeypatch.setattr(
        upstream, "check_upstream", lambda: [upstream.Mismatch("sglang.srt.x.f", "does not exist")]
    )
    with pytest.raises(upstream.UpstreamError) as error:
        upstream.require()
    assert "sglang.srt.x.f does not exist" in str(error.value)
    assert "reinstall" in str(error.value)


@pytest.mark.parametrize(
    ("found", "said"), [("0.5.24", "SGLang 0.5.24 is installed"), (None, "not installed")]
)
def test_another_version_is_refused_by_name(monkeypatch, found, said):
    monkeypatch.setattr(upstream, "installed_version", lambda: found)
    with pytest.raises(upstream.UpstreamError) as error:
        upstream.require()
    assert said in str(error.value)
    assert "pip install sglang==0.5.23" in str(error.value)


def test_checking_imports_nothing_of_sglang():
    code = (
        "import sys; from jetspec_sglang.upstream import require; require(); print('sglang' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "False"
