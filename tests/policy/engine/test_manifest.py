"""Whatever is wrong with an engine folder, or with the machine for it, is said by name when it is opened."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.policy.engine.conftest import Export, write_engine

from wayfix.errors import (
    EngineCorrupt,
    EngineError,
    EngineMismatch,
    EngineNotFound,
    EngineOutOfMemory,
    EngineTooNew,
    EngineUnsupported,
)
from wayfix.policy.engine import engine as engine_module
from wayfix.policy.engine.engine import Engine, EngineConfig
from wayfix.policy.engine.manifest import FORMAT, MANIFEST, TEMPLATE, TOKENIZER, read_manifest, sha256_of

GRAPHS = ("vision.onnx", "embedding.onnx", "decoder.onnx")
LOADED = ("vision.onnx", "decoder.onnx")
"""The third is a table, which is read without its graph."""
WEIGHTS = tuple(f"{graph}.data" for graph in GRAPHS)

Edit = Callable[[dict[str, Any]], object]


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """An engine to damage."""
    return Path(shutil.copytree(folder, tmp_path / "engine"))


@pytest.fixture(scope="module")
def large(write_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine of 60 MB, far more than all that is needed to load it besides."""
    return write_engine(write_model("14m"), tmp_path_factory.mktemp("engines") / "large", "fp32")


def edit(folder: Path, change: Edit) -> Path:
    """Change what engine.json says."""
    path = folder / MANIFEST
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")
    return folder


def sign(folder: Path, name: str) -> Path:
    """Let engine.json say that a file is as it should be."""
    entry = {"bytes": (folder / name).stat().st_size, "sha256": sha256_of(folder / name)}
    return edit(folder, lambda content: content["files"].update({name: entry}))


def flip(path: Path) -> None:
    """One bit of a byte in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def refused(folder: Path, kind: type[EngineError], **config: Any) -> str:
    """What the error says with which an engine refuses to open."""
    with pytest.raises(EngineError) as caught:
        Engine(folder, EngineConfig(**config))
    assert type(caught.value) is kind, caught.value
    return str(caught.value)


def test_an_engine_as_it_was_written_opens_and_knows_its_checkpoint(folder: Path, checkpoint: Path) -> None:
    manifest = Engine(folder).manifest
    assert manifest == read_manifest(folder)
    assert (manifest.source.name, manifest.source.weights_licence) == (checkpoint.name, "apache-2.0")
    assert set(manifest.files) == {path.name for path in folder.iterdir()} - {MANIFEST}


def test_progress_names_every_file_as_it_is_compared(folder: Path) -> None:
    named: list[str] = []
    manifest = read_manifest(folder, progress=named.append)
    assert sorted(named) == sorted(manifest.files)


class TestManifest:
    def test_without_a_folder_or_its_manifest_there_is_no_engine(self, copy: Path, tmp_path: Path) -> None:
        assert "wayfix export" in refused(tmp_path / "nowhere", EngineNotFound)
        (copy / MANIFEST).unlink()
        assert "wayfix export" in refused(copy, EngineNotFound)

    @pytest.mark.parametrize("content", [b"", b"{", b"weights", b"\xff\xfe{}"])
    def test_what_is_no_json_is_damaged(self, copy: Path, content: bytes) -> None:
        (copy / MANIFEST).write_bytes(content)
        assert MANIFEST in refused(copy, EngineCorrupt)

    @pytest.mark.parametrize("content", ["[]", "{}", '{"kind": "wayfix-scene", "format": 1}', '"wayfix-engine"'])
    def test_json_of_another_kind_is_no_manifest(self, copy: Path, content: str) -> None:
        (copy / MANIFEST).write_text(content, encoding="utf-8")
        assert "not the manifest of an engine" in refused(copy, EngineCorrupt)

    def test_a_newer_format_is_told_from_a_damaged_one(self, copy: Path) -> None:
        # A newer format may look like nothing this version knows.
        newer = {"kind": "wayfix-engine", "format": FORMAT + 1, "parts": {}}
        (copy / MANIFEST).write_text(json.dumps(newer), encoding="utf-8")
        assert "update Wayfix" in refused(copy, EngineTooNew)

    @pytest.mark.parametrize(
        ("where", "change"),
        [
            ("text", lambda content: content.pop("text")),
            ("text.layers", lambda content: content["text"].update(layers="many")),
            ("text.heads", lambda content: content["text"].update(heads=0)),
            ("fit one another", lambda content: content["text"].update(mrope_section=[1, 2, 3])),
            ("fit one another", lambda content: content["text"].update(kv_heads=3)),
            ("vision.taps", lambda content: content["vision"].update(taps=-1)),
            ("tokens.image", lambda content: content["tokens"].update(image=-1)),
            ("image", lambda content: content["image"].update(std=[0.5, 0.0, 0.5])),
            ("flavour", lambda content: content.update(flavour="paper")),
            ("format", lambda content: content.update(format="first")),
            ("colour", lambda content: content.update(colour="red")),
        ],
    )
    def test_a_missing_or_impossible_entry_is_named(self, copy: Path, where: str, change: Edit) -> None:
        assert where in refused(edit(copy, change), EngineCorrupt)


class TestFiles:
    @pytest.mark.parametrize("name", [*GRAPHS, *WEIGHTS, TOKENIZER, TEMPLATE])
    def test_a_missing_file_is_named(self, copy: Path, name: str) -> None:
        (copy / name).unlink()
        assert name in refused(copy, EngineCorrupt)
        assert name in refused(copy, EngineCorrupt, verify=False)

    @pytest.mark.parametrize("name", [*LOADED, *WEIGHTS, TOKENIZER, TEMPLATE])
    def test_a_file_that_the_manifest_forgot_is_missed_all_the_same(self, copy: Path, name: str) -> None:
        (copy / name).unlink()
        forgotten = edit(copy, lambda content: content["files"].pop(name))
        assert name.removesuffix(".data") in refused(forgotten, EngineCorrupt)

    @pytest.mark.parametrize("name", [*GRAPHS, *WEIGHTS])
    def test_a_truncated_file_is_noticed_even_unverified(self, copy: Path, name: str) -> None:
        content = (copy / name).read_bytes()
        (copy / name).write_bytes(content[: len(content) // 2])
        assert name in refused(copy, EngineCorrupt, verify=False)

    @pytest.mark.parametrize("name", [*GRAPHS, *WEIGHTS])
    def test_a_single_flipped_bit_is_noticed(self, copy: Path, name: str) -> None:
        flip(copy / name)
        assert name in refused(copy, EngineCorrupt)

    def test_unverified_only_sizes_are_compared(self, copy: Path) -> None:
        flip(copy / "decoder.onnx.data")
        Engine(copy, EngineConfig(verify=False))

    @pytest.mark.parametrize("name", [TOKENIZER, TEMPLATE])
    def test_another_checkpoints_words_do_not_belong_to_this_engine(self, copy: Path, name: str) -> None:
        with (copy / name).open("a", encoding="utf-8") as file:
            file.write("\n")
        assert name in refused(copy, EngineMismatch)

    @pytest.mark.parametrize("name", LOADED)
    def test_a_graph_that_is_none_is_named_though_its_checksum_fits(self, copy: Path, name: str) -> None:
        (copy / name).write_bytes(b"no graph at all")
        assert name in refused(sign(copy, name), EngineCorrupt)

    @pytest.mark.parametrize("content", [b"", b"short"])
    def test_embeddings_too_few_for_the_vocabulary_are_noticed_though_their_checksum_fits(
        self, copy: Path, content: bytes
    ) -> None:
        (copy / "embedding.onnx.data").write_bytes(content)
        assert "2048 embeddings" in refused(sign(copy, "embedding.onnx.data"), EngineCorrupt)

    @pytest.mark.parametrize(
        ("name", "content"),
        [(TOKENIZER, b"{}"), (TOKENIZER, b"\xff\xfe"), (TEMPLATE, b"{% if %}"), (TEMPLATE, b"\xff\xfe")],
    )
    def test_words_that_cannot_be_read_are_named_though_their_checksum_fits(
        self, copy: Path, name: str, content: bytes
    ) -> None:
        (copy / name).write_bytes(content)
        assert refused(sign(copy, name), EngineMismatch)

    def test_an_image_token_that_the_tokenizer_lacks_is_another_checkpoints(self, copy: Path) -> None:
        unknown = edit(copy, lambda content: content["tokens"].update(image=99_999))
        assert "99999" in refused(unknown, EngineMismatch)


class TestMachine:
    def test_graphs_for_tensorrt_do_not_run_on_onnxruntime(self, export: Export) -> None:
        assert "--target cpu" in refused(export("trt"), EngineUnsupported)

    @pytest.mark.parametrize("providers", [("Quantum",), ("Quantum", "CPU"), ("",), ()])
    def test_a_provider_that_onnxruntime_lacks_is_refused_with_those_it_has(
        self, folder: Path, providers: tuple[str, ...]
    ) -> None:
        assert "CPU" in refused(folder, EngineUnsupported, providers=providers)

    @pytest.mark.parametrize("name", ["CPU", "CPUExecutionProvider"])
    def test_a_provider_goes_by_its_short_or_its_whole_name(self, folder: Path, name: str) -> None:
        Engine(folder, EngineConfig(providers=(name,)))

    def test_an_engine_built_on_another_architecture_is_refused(self, copy: Path) -> None:
        other = "aarch64" if platform.machine() != "aarch64" else "x86_64"
        built = edit(copy, lambda content: content.update(hardware={"architecture": other}))
        message = refused(built, EngineMismatch)
        assert other in message
        assert platform.machine() in message

    def test_an_engine_built_on_this_architecture_opens(self, copy: Path) -> None:
        built = edit(copy, lambda content: content.update(hardware={"architecture": platform.machine()}))
        Engine(built)


class TestMemory:
    def test_an_engine_larger_than_what_is_available_is_refused_before_it_is_loaded(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        size = sum(path.stat().st_size for path in folder.iterdir() if path.name != MANIFEST)
        monkeypatch.setattr(engine_module, "available_bytes", lambda: size)
        Engine(folder)
        monkeypatch.setattr(engine_module, "available_bytes", lambda: size - 1)
        monkeypatch.setattr(engine_module, "load_graph", lambda *_: pytest.fail("a graph was loaded"))
        assert "--precision" in refused(folder, EngineOutOfMemory)

    def test_where_the_system_does_not_tell_its_memory_the_engine_is_tried(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(engine_module, "available_bytes", lambda: None)
        Engine(folder)

    @pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS and /proc are Linux's")
    @pytest.mark.parametrize(
        ("left_mb", "fails"),
        [(1, "python"), (28, "onnxruntime"), (2000, "nothing")],
        ids=["too little to compare checksums", "too little for the graphs", "enough"],
    )
    def test_running_out_of_memory_is_said_whoever_asks_for_it(self, large: Path, left_mb: int, fails: str) -> None:
        """The process may have so much more than it has before it opens the engine."""
        code = f"""
import resource
from pathlib import Path
from wayfix.errors import EngineOutOfMemory
from wayfix.policy.engine.engine import Engine, EngineConfig
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + {left_mb}_000_000
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    # One thread: stacks of threads are memory too, and glibc ends the process where it has none for them.
    Engine(Path({str(large)!r}), EngineConfig(threads=1))
except EngineOutOfMemory as error:
    print(error.code, "python" if isinstance(error.__cause__, MemoryError) else "onnxruntime")
else:
    print("opened")
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == ("opened" if fails == "nothing" else f"engine_out_of_memory {fails}")


def test_neither_opening_nor_running_an_engine_needs_torch(folder: Path) -> None:
    code = f"""
import sys
for name in ("torch", "transformers", "onnx", "wayfix_export"):
    sys.modules[name] = None
from pathlib import Path
from wayfix.agent.deadline import Deadline
from wayfix.agent.messages import Message, Prompt
from wayfix.policy.engine.policy import EnginePolicy
policy = EnginePolicy(Path({str(folder)!r}))
prompt = Prompt((), (Message("user", ("Find it.",)),), "it", must_answer=True)
print("".join(chunk.text for chunk in policy.respond("e", prompt, Deadline(60)))[-9:])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "</answer>"), done.stderr
