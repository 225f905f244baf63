"""Names of models: built-in, local and on the hub."""

from __future__ import annotations

import sys
from unittest.mock import MagicMock

import huggingface_hub
import pytest
import torch
from gpt2_checkpoints import logits_of, make_reference, save_reference
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

from engine.errors import ModelError
from engine.models.families import read_config
from engine.models.registry import RANDOM_CONFIGS, default_dtype, load_model, load_tokenizer
from engine.models.weights import parameter_shapes
from engine.text.loading import TOKENIZER_FILES
from tests.fresh_python import forked_python

CPU = torch.device("cpu")


def _refusal(name):
    with pytest.raises(ModelError) as caught:
        load_model(str(name), device=CPU)
    return str(caught.value)


@pytest.fixture
def no_hub(monkeypatch):
    """The hub must not be asked."""

    def fail(*args, **options):
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.1-8b", 8_030_261_248),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-8b", 8_190_735_360),
        ("gemma-3-1b", 999_885_952),
    ],
)
def test_built_in_shapes_are_the_published_ones(name, parameters):
    config = RANDOM_CONFIGS[name]
    shapes = parameter_shapes(config).values()
    assert sum(torch.Size(shape).numel() for shape in shapes) == parameters
    is_small = name.startswith("gpt2") or name == "llama-3.2-1b"
    assert config.head_dim == (256 if name.startswith("gemma") else 64 if is_small else 128)
    if config.family == "gpt2":
        assert config.eos_token_ids == (50256,)
    else:
        assert default_dtype(config, torch.device("cuda")) == torch.bfloat16


def test_a_built_in_model_needs_no_files(no_hub):
    loaded = load_model("random:gpt2-tiny", device=CPU)
    config = loaded.config
    assert loaded.tokenizer is None
    assert loaded.model.dtype == torch.float32
    assert (config.vocab_size, config.max_positions, config.eos_token_ids) == (1024, 1024, (1023,))
    assert (config.num_layers, config.num_heads, config.head_dim) == (2, 4, 32)


def test_the_seed_reaches_the_weights(no_hub):
    token_ids = torch.arange(5)
    first, again, other = (
        logits_of(load_model("random:gpt2-tiny", device=CPU, seed=seed).model, token_ids)
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_an_unknown_built_in_model_lists_the_known_ones(no_hub):
    for name in ("random:gpt3", "random:"):
        sentence = _refusal(name)
        assert name in sentence
        assert all(f"random:{known}" in sentence for known in RANDOM_CONFIGS)


@pytest.mark.parametrize("asked", [None, torch.float32, torch.float16])
def test_dtype_on_the_cpu_is_float32_unless_asked(asked, no_hub, tmp_path):
    save_reference(tmp_path, dtype="bfloat16")
    for name in ("random:gpt2-tiny", str(tmp_path)):
        assert load_model(name, device=CPU, dtype=asked).model.dtype == (asked or torch.float32)


@pytest.mark.parametrize(
    ("written_in", "expected"),
    [("float32", torch.float16), ("float16", torch.float16), ("bfloat16", torch.bfloat16)],
)
def test_dtype_on_other_devices_is_half_precision(written_in, expected, tmp_path):
    reference = make_reference().to(getattr(torch, written_in))
    reference.save_pretrained(tmp_path)
    assert default_dtype(read_config(tmp_path), torch.device("cuda")) == expected
    assert default_dtype(RANDOM_CONFIGS["gpt2-tiny"], torch.device("cuda")) == torch.float16


def test_a_local_directory_comes_with_its_tokenizer(no_hub, tmp_path, monkeypatch):
    save_reference(tmp_path)
    assert load_model(str(tmp_path), device=CPU).tokenizer is None
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    assert load_model(str(tmp_path), device=CPU).tokenizer.encode("ab") == [0, 1]
    monkeypatch.chdir(tmp_path.parent)
    for name in (f"./{tmp_path.name}", tmp_path.name, f"{tmp_path.name}/"):
        assert load_model(name, device=CPU).config.num_layers == 3


def test_a_home_directory_is_expanded(no_hub, tmp_path, monkeypatch):
    save_reference(tmp_path / "model")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_model("~/model", device=CPU).config.num_layers == 3


@pytest.mark.parametrize(
    "name", ["/no/such/place", "./nothing", "../nothing", "~/nothing", "a/b/c"]
)
def test_a_path_that_is_not_there(name, no_hub):
    assert _refusal(name) == f"The directory {name} does not exist."


@pytest.mark.parametrize("name", ["~nobody-here/model", "./" + "a" * 300, "/" + "b" * 5000])
def test_what_cannot_be_the_name_of_a_directory(name, no_hub):
    sentence = _refusal(name)
    assert "is no directory that can be read" in sentence
    assert len(sentence) < 300


def test_a_file_is_no_directory(no_hub, tmp_path):
    path = tmp_path / "model.safetensors"
    path.touch()
    assert "is a file; give the directory that holds it" in _refusal(path)


def test_an_empty_name(no_hub):
    assert "The model name is empty" in _refusal("")


def test_a_directory_without_config_or_weights(no_hub, tmp_path):
    assert f"{tmp_path} has no config.json" in _refusal(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert f"{tmp_path} has no weights" in _refusal(tmp_path)


def _write_hub_cache(cache, repo_id, revision="0" * 40):
    """A snapshot in the layout of huggingface_hub's cache."""
    repo = cache / f"models--{repo_id.replace('/', '--')}"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(revision)
    snapshot = repo / "snapshots" / revision
    snapshot.mkdir(parents=True)
    return save_reference(snapshot)


LOAD_OFFLINE = """
import torch
from engine.errors import ModelError
from engine.models.registry import load_model
print(load_model("somebody/tiny", device=torch.device("cpu")).model.config.hidden_size)
try:
    load_model("somebody/else", device=torch.device("cpu"))
except ModelError as error:
    print(error)
"""


def test_hub_ids_come_from_the_cache_when_offline(tmp_path, monkeypatch):
    """In a process of its own: huggingface_hub reads its variables when it is imported."""
    reference = _write_hub_cache(tmp_path, "somebody/tiny")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = forked_python(LOAD_OFFLINE)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert printed[0] == str(reference.config.n_embd)
    assert printed[1].startswith("There is no local directory somebody/else")
    assert "HF_HUB_OFFLINE" in printed[1]


def test_only_config_weights_and_tokenizer_are_fetched(tmp_path, monkeypatch):
    save_reference(tmp_path, shard="60KB")
    seen = {}

    def download(repo_id, *, allow_patterns):
        from huggingface_hub.utils import filter_repo_objects

        on_the_hub = [path.name for path in tmp_path.iterdir()] + [
            "pytorch_model.bin",
            "modeling_gpt2.py",
            "onnx/model.safetensors",
            "tf_model.h5",
            *TOKENIZER_FILES,
        ]
        seen[repo_id] = set(filter_repo_objects(on_the_hub, allow_patterns=allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    load_model("gpt2", device=CPU)
    expected = {path.name for path in tmp_path.iterdir()} | set(TOKENIZER_FILES)
    assert seen == {"gpt2": expected}


def test_of_a_tokenizer_no_weights_are_fetched(tmp_path, monkeypatch):
    fetched = []

    def download(repo_id, *, allow_patterns):
        fetched.extend(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert load_tokenizer("somebody/tiny") is None
    assert {"config.json", "added_tokens.json", *TOKENIZER_FILES} <= set(fetched)
    assert not any("safetensors" in pattern for pattern in fetched)


def test_a_tokenizer_comes_by_the_name_of_its_model(no_hub, tmp_path, monkeypatch):
    assert load_tokenizer("random:gpt2-tiny") is None
    assert load_tokenizer(tmp_path) is None
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    assert load_tokenizer(tmp_path).encode("ab") == [0, 1]
    content = '{"model": {"type": "WordLevel", "vocab": {"fox": 7}, "unk_token": "fox"}}'
    (tmp_path / "mine.json").write_text(content)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (str(tmp_path / "mine.json"), "~/mine.json"):
        assert load_tokenizer(name).encode("fox") == [7]
    for name in ("random:gpt3", str(tmp_path / "nowhere")):
        with pytest.raises(ModelError, match=name):
            load_tokenizer(name)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            lambda: RepositoryNotFoundError("401", response=MagicMock()),
            "nobody/none is neither a local directory nor a model on the hub",
        ),
        (
            lambda: GatedRepoError("403", response=MagicMock()),
            "The hub model nobody/none is gated",
        ),
        (lambda: LocalEntryNotFoundError("offline"), "There is no local directory nobody/none"),
        (
            lambda: ConnectionError("no route"),
            "The hub model nobody/none cannot be fetched: no rou",
        ),
    ],
)
def test_what_the_hub_does_not_give_is_refused_in_a_sentence(error, sentence, monkeypatch):
    def download(*args, **options):
        raise error()

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert sentence in _refusal("nobody/none")


@pytest.mark.parametrize("name", ["no such model", "gpt2..x", "-a/b", "gpt2?"])
def test_what_cannot_be_a_hub_id(name):
    assert f"{name!r} is neither a local directory nor a hub id" in _refusal(name)


def test_without_huggingface_hub(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "needs the package huggingface_hub, which is not installed" in _refusal("gpt2")


def test_importing_is_light():
    heavy = ("transformers", "tokenizers", "huggingface_hub", "safetensors")
    code = (
        "import sys, engine.models.registry; "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    assert forked_python(code).stdout.strip() == "[]"
