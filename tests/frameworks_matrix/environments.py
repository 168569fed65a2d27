"""Makes one virtual environment a framework in `.venv-frameworks/NAME`, on top of the project's own `.venv`.

    python tests/frameworks_matrix/environments.py deepspeed megatron torchtitan

Torch and this project stay where they are: the new environment looks into `.venv` for what it does not have itself, so
an installation is the framework and what it alone needs. Prints the environment's interpreter, one line a name.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".venv-frameworks"


@dataclass(frozen=True)
class Recipe:
    """What pip is told, and its environment."""

    requirements: tuple[str, ...]
    environ: dict[str, str] = field(default_factory=dict)
    prepare: str = ""
    """Code to run once in the finished environment."""


RECIPES = {
    # The first run compiles a helper; two ranks that do so at once get in each other's way.
    "deepspeed": Recipe(
        ("deepspeed==0.19.8",),
        {"DS_BUILD_OPS": "0", "TORCH_EXTENSIONS_DIR": str(FOLDER / "deepspeed" / "extensions")},
        "from deepspeed.accelerator import get_accelerator as on\non().create_op_builder('ShareMemCommBuilder').load()",
    ),
    "megatron": Recipe(("megatron-core==0.16.1", "psutil")),
    # TorchTitan imports triton without declaring it; triton alone is one gigabyte.
    "torchtitan": Recipe(("torchtitan==0.2.2", "triton")),
    "lightning": Recipe(("lightning==2.6.6",)),
    "huggingface": Recipe(("transformers==5.24.0", "accelerate==1.15.0")),
}

TORCHRUN = """#!{python}
import sys
from torch.distributed.run import main
sys.exit(main())
"""


def interpreter(name: str) -> Path:
    """Where the environment's Python is, made or not."""
    return FOLDER / name / "bin" / "python"


def make(name: str) -> Path:
    """Make an environment unless it is there and complete; returns its interpreter."""
    recipe, python = RECIPES[name], interpreter(name)
    stamp, content = FOLDER / name / ".installed", f"{recipe}\non {sysconfig.get_path('purelib')}\n"
    if stamp.exists() and stamp.read_text() == content:
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(FOLDER / name)], check=True)
    lib = FOLDER / name / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    # The last one by name, so that what is installed here comes first.
    (lib / "zz_project.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    torchrun = python.with_name("torchrun")
    torchrun.write_text(TORCHRUN.format(python=python))
    torchrun.chmod(0o755)
    subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", "--constraint", "constraints.txt", *recipe.requirements],
        check=True,
        cwd=ROOT,
        env={**os.environ, **recipe.environ},
        stdout=sys.stderr,
    )
    if recipe.prepare:
        subprocess.run(
            [str(python), "-c", recipe.prepare], check=True, env={**os.environ, **recipe.environ}, stdout=sys.stderr
        )
    stamp.write_text(content)
    return python


if __name__ == "__main__":
    for wanted in sys.argv[1:] or RECIPES:
        print(make(wanted), flush=True)
