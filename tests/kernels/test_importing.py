"""Importing the package, alone and beside Hugging Face's package of the same name.

Importing is what is tested, so that it happens in fresh interpreters.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import kernels
from asv_bench import __version__
from tests.fresh_python import ROOT, forked_python


def _run(code: str, *extra_paths: Path) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *map(str, extra_paths)])
    environment.pop("TRITON_INTERPRET", None)
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        timeout=240,
        check=False,
    )


def _assert_runs(code: str, *extra_paths: Path) -> subprocess.CompletedProcess[str]:
    done = _run(code, *extra_paths)
    assert done.returncode == 0, done.stderr
    return done


def _install(folder: Path, name: str, version: str, provides: str) -> Path:
    """What an installed distribution leaves behind for importlib.metadata."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(f"{provides}/__init__.py,,\n")
    (info / "top_level.txt").write_text(f"{provides}\n")
    return folder


def test_importing_kernels_imports_nothing_heavy() -> None:
    _assert_runs(
        "import sys, kernels\n"
        "kernels.KernelArgumentError\n"
        "heavy = {'torch', 'triton', 'numpy', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )


def test_a_cpu_call_does_not_import_triton_or_transformers() -> None:
    """It costs a second that every measured process would pay."""
    _assert_runs(
        "import sys, torch, kernels\n"
        "before = set(sys.modules)\n"
        "cache = torch.zeros(2, 1, 16, 16)\n"
        "rows = torch.ones(1, 1, 16)\n"
        "one = torch.tensor([1], dtype=torch.int32)\n"
        "kernels.kv_append(cache, cache.clone(), rows, rows, one, 0)\n"
        "kernels.paged_attention_decode(rows, cache, cache, one[:, None], one)\n"
        "new = set(sys.modules) - before\n"
        "assert not {'triton', 'transformers'} & new, new\n"
    )


def test_the_public_names() -> None:
    assert sorted(kernels.__all__) == [
        "KernelArgumentError",
        "kv_append",
        "paged_attention_decode",
        "paged_attention_prefill",
    ]
    assert set(kernels.__all__) <= set(dir(kernels))
    assert all(callable(getattr(kernels, name)) for name in kernels.__all__)
    with pytest.raises(AttributeError, match="get_kernel"):
        kernels.get_kernel  # noqa: B018


TRANSFORMERS_WORKS = (
    "import transformers, torch, kernels\n"
    "from transformers.utils.import_utils import is_kernels_available\n"
    "assert not is_kernels_available()\n"
    "sizes = dict(vocab_size=50, n_positions=16, n_embd=8, n_layer=1, n_head=2)\n"
    "config = transformers.GPT2Config(**sizes)\n"
    "model = transformers.GPT2LMHeadModel(config)\n"
    "logits = model(torch.tensor([[1, 2, 3]])).logits\n"
    "assert logits.shape == (1, 3, 50), logits.shape\n"
    f"assert kernels.__file__.startswith({str(ROOT)!r}), kernels.__file__\n"
)


def test_transformers_works_beside_our_installed_wheel(tmp_path: Path) -> None:
    """It then takes kvtrail's version for that of the package `kernels`."""
    try:
        metadata.version("transformers")
    except metadata.PackageNotFoundError:
        pytest.skip("transformers is not installed")
    installed = _install(tmp_path, "kvtrail", __version__, "kernels")
    done = forked_python(TRANSFORMERS_WORKS, search=(ROOT, installed))
    assert done.returncode == 0, done.stderr


def test_without_the_namesake_nothing_is_said() -> None:
    done = _assert_runs(
        "import warnings; warnings.simplefilter('error')\n"
        "from importlib import metadata\n"
        "from kernels.namesake import namesake_version, warn_of_namesake\n"
        "here = {d.metadata['Name'] for d in metadata.distributions()}\n"
        "assert 'kernels' not in here\n"
        "assert namesake_version() is None\n"
        "warn_of_namesake()\n"
    )
    assert done.stderr == ""


def test_the_namesake_is_warned_of_in_one_sentence(tmp_path: Path) -> None:
    done = _assert_runs(
        "import sys, warnings\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    from kernels.namesake import namesake_version, warn_of_namesake\n"
        "    assert namesake_version() == '0.18.2'\n"
        "    warn_of_namesake()\n"
        "assert 'torch' not in sys.modules\n"
        "(warning,) = caught\n"
        "assert warning.category is RuntimeWarning\n"
        "print(warning.message)\n",
        _install(tmp_path, "kernels", "0.18.2", "kernels"),
    )
    (sentence,) = done.stdout.splitlines()
    assert "Hugging Face package 'kernels' 0.18.2" in sentence
    assert "pip uninstall kernels" in sentence
    assert ". " not in sentence


def test_the_namesake_does_not_stop_our_own_calls(tmp_path: Path) -> None:
    done = forked_python(
        "import torch, kernels\n"
        "cache = torch.zeros(2, 1, 16, 16)\n"
        "one = torch.tensor([1], dtype=torch.int32)\n"
        "kernels.paged_attention_decode(torch.ones(1, 1, 16), cache, cache, one[:, None], one)\n",
        search=(ROOT, _install(tmp_path, "kernels", "0.18.2", "kernels")),
    )
    assert done.returncode == 0, done.stderr
