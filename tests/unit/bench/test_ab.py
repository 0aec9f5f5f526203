"""`bench/ab.py` as a whole: two checkouts in, a verdict for each workload out; and how it resolves checkouts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
AB = ROOT / "bench" / "ab.py"
WORKTREE = """
import sys
sys.path.insert(0, {bench!r})
import checkouts
checkouts.ROOT = checkouts.Path({root!r})
with checkouts.checked_out(["HEAD", {root!r}]) as (old, new):
    print(old.folder, (old.folder / "built").exists(), new.folder, old.commit == new.commit)
print(old.folder.exists())
"""


def ab(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(AB), *map(str, words)], capture_output=True, text=True, cwd=ROOT, check=False
    )


@pytest.mark.slow
def test_a_version_is_compared_with_itself(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    brief = ("--pairs", 1, "--max-pairs", 1, "--scale", 0.05, "--no-build")
    done = ab(ROOT, ROOT, "--only", "core,acks", *brief, "--json", figures)
    assert done.returncode == 0, done.stderr
    for name, result in json.loads(figures.read_text())["workloads"].items():
        assert result["verdict"] == "no difference"
        assert not result["conclusive"], "one pair decides nothing"
        assert len(result["pairs"]) == 1
        assert all(side["cpu_s"] > 0 and side["operations"] > 0 for side in result["pairs"][0])
        assert f"\n{name} " in done.stdout


def test_help_states_the_rule() -> None:
    done = ab("--help")
    assert done.returncode == 0
    assert "the whole interval lies above 1.03" in done.stdout


def test_an_unknown_version_is_refused() -> None:
    done = ab("no-such-revision", ROOT)
    assert done.returncode == 2
    assert "'no-such-revision' is neither a checkout of Headrace nor a git revision" in done.stderr


def test_an_unknown_workload_is_refused() -> None:
    done = ab(ROOT, ROOT, "--only", "core,nothing")
    assert done.returncode == 2
    assert "unknown workload: nothing" in done.stderr


def test_a_revision_is_built_in_a_worktree_that_goes_away(tmp_path: Path) -> None:
    package = tmp_path / "src" / "headrace"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (tmp_path / "setup.py").write_text("open('built', 'w').close()\n")
    who = ("-c", "user.name=x", "-c", "user.email=x@example.com")
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    code = WORKTREE.format(bench=str(AB.parent), root=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found, left = done.stdout.splitlines()
    folder, built, other, same = found.split()
    assert folder != other == str(tmp_path)
    assert (built, same, left) == ("True", "True", "False")
    listed = subprocess.run(
        ["git", "-C", str(tmp_path), "worktree", "list"], capture_output=True, text=True, check=True
    )
    assert len(listed.stdout.splitlines()) == 1
