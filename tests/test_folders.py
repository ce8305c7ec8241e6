import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that share what is loaded")
def test_no_file_of_somebodys_is_another_one_afterwards():
    command = [sys.executable, "-m", "tests.folders", "25", "7"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("25 folders in ")
