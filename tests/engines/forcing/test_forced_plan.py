import os
import subprocess
import sys
import time
from pathlib import Path

from engines.forcing.plan import Plan


def test_concurrent_runs_have_plans_of_their_own_and_closing_removes_them(tmp_path: Path) -> None:
    first, second = Plan(64, tmp_path), Plan(64, tmp_path)
    assert first.path != second.path
    first.close()
    assert not first.folder.exists()
    assert second.path.is_file()
    second.close()
    second.close()
    assert not second.folder.exists()


def test_arming_forgets_what_was_observed(tmp_path: Path) -> None:
    plan = Plan(33, tmp_path)
    plan.arm(30, (5, 6, 7))
    assert plan.pid is None
    assert plan.fed(0, 33) == [-1] * 33
    assert plan.chosen(30, 33) == [-1] * 3
    assert plan.chosen_ns(30, 33) == [0] * 3
    assert plan.forced == 0
    plan.close()


def test_the_plan_of_a_run_that_was_killed_is_removed_by_a_later_one(tmp_path: Path) -> None:
    script = "import os, sys; from pathlib import Path; from engines.forcing.plan import Plan\n"
    script += "print(Plan(8, Path(sys.argv[1])).folder, flush=True); os.kill(os.getpid(), 9)"
    killed = subprocess.run(
        [sys.executable, "-c", script, tmp_path], capture_output=True, text=True, cwd=Path(__file__).parents[3]
    )
    left = Path(killed.stdout.strip())
    assert left.is_dir()
    living = Plan(8, tmp_path)
    long_ago = time.time() - 3600
    for folder in left, living.folder:
        os.utime(folder, (long_ago, long_ago))
    Plan(8, tmp_path).close()
    assert not left.exists()
    assert living.path.is_file()
    living.close()
