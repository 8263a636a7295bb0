"""The engine: graphs loaded, images encoded once, prompts read with what is known of them reused."""

from __future__ import annotations

import contextlib
import errno
import platform
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from tokenizers import Tokenizer

from wayfix.errors import (
    DeadlineExceeded,
    EngineCorrupt,
    EngineMismatch,
    EngineOutOfMemory,
    EngineUnsupported,
    PromptTooLong,
)
from wayfix.policy.engine.chat import Chat, PromptImage, TokenPrompt
from wayfix.policy.engine.graphs import Watch, load_graph
from wayfix.policy.engine.images import make_patches
from wayfix.policy.engine.manifest import TEMPLATE, TOKENIZER, EngineManifest, read_manifest
from wayfix.policy.engine.memory import available_bytes, cores
from wayfix.policy.engine.positions import Rotary, token_positions, vision_positions, vision_rotary
from wayfix.policy.engine.sequence import NewTokens, TokenSequence, bind

_CHUNK_S = 0.1
"""A prefill chunk should take about this long: long enough for fast products, short enough to stop in."""
_SMALL_DECODER_BYTES = 64 << 20
_SURELY = 0.6
"""Of what reading is expected to take: costs vary, and no answer should be given up that could have come."""
_LEAST_CHUNK, _FIRST_CHUNK, _LARGEST_CHUNK = 16, 64, 512


class EngineConfig(BaseModel):
    """How an engine runs on this machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    providers: tuple[str, ...] = ("CPU",)
    """onnxruntime's execution providers in order of preference, such as CUDA, CPU."""
    threads: int | None = Field(default=None, ge=1)
    """None: one a core, but one for a decoder of less than 64 MB, whose steps are too short to share out."""
    spin: bool = False
    """Whether idle threads of onnxruntime spin: faster on a machine that does nothing else, slower on any other."""
    max_tokens: int = Field(default=8192, ge=64)
    """Most tokens of one episode."""
    cache_bytes: int = Field(default=2 << 30, gt=0)
    """For keys and values of all episodes and shared prefixes."""
    image_bytes: int = Field(default=256 << 20, gt=0)
    """For features of images that were encoded."""
    verify: bool = True
    """Whether to compare every file with its checksum when the engine is opened."""

    def decoder_threads(self, manifest: EngineManifest) -> int:
        """Threads the decoder runs on."""
        small = _decoder_bytes(manifest) < _SMALL_DECODER_BYTES
        return self.threads or (1 if small else cores())

    @property
    def vision_threads(self) -> int:
        """Threads the vision encoder runs on, whose products are large however small the model."""
        return self.threads or cores()


@dataclass(frozen=True, eq=False)
class ImageFeatures:
    """What the language model reads in place of an image: float32 (M, hidden) and (taps, 1, M, hidden)."""

    features: NDArray[np.float32]
    deepstack: NDArray[np.float32]
    grid: tuple[int, int]
    """Rows and columns of patches."""

    @property
    def bytes(self) -> int:
        """What they occupy."""
        return self.features.nbytes + self.deepstack.nbytes


@dataclass
class Costs:
    """Seconds of each part, as measured lately; None before the first. What the policy plans with."""

    prefill_token: float | None = None
    decode: float | None = None
    image_patch: float | None = None

    def saw(self, part: str, seconds: float) -> None:
        """Take a measurement, of which the latest count most."""
        old = getattr(self, part)
        setattr(self, part, seconds if old is None else 0.7 * old + 0.3 * seconds)

    def relax(self) -> None:
        """Halve what reading is thought to cost: a plan that always says no never learns."""
        for part in ("prefill_token", "image_patch"):
            if (cost := getattr(self, part)) is not None:
                setattr(self, part, cost / 2)


class Engine:
    """One engine folder, ready to read tokens. Steps of several threads take turns."""

    def __init__(
        self, folder: Path, config: EngineConfig | None = None, progress: Callable[[str], None] | None = None
    ) -> None:
        """Raises an EngineError that says what is wrong with the folder or this machine."""
        self.folder, self.config = folder, config or EngineConfig()
        with _enough_memory(folder):
            self._load(progress)

    def _load(self, progress: Callable[[str], None] | None) -> None:
        folder = self.folder
        self.manifest = read_manifest(folder, verify=self.config.verify, progress=progress)
        _check_runs_here(self.manifest, folder)
        _check_memory(self.manifest, folder)
        self.tokenizer, self.tokenizer_json = _load_tokenizer(folder)
        template = _read_text(folder / TEMPLATE)
        text, vision = self.manifest.text, self.manifest.vision
        self.chat = Chat(template, self.tokenizer, self.manifest.tokens.image, self.manifest.image)
        threads = {"vision": self.config.vision_threads, "decoder": self.config.decoder_threads(self.manifest)}
        self._vision, self._decoder = (
            load_graph(folder / f"{part}.onnx", self.config.providers, count, self.config.spin)
            for part, count in threads.items()
        )
        _check_graphs(self.manifest, self._vision, self._decoder, folder)
        self._rotary = Rotary(text.head_dim, text.rope_theta, text.mrope_section)
        self._images: OrderedDict[int, ImageFeatures] = OrderedDict()
        self._lock = threading.Lock()
        self.costs = Costs()
        self.capacity = min(self.config.max_tokens, text.max_tokens)
        self._no_deepstack = np.zeros((vision.taps, 1, 1, text.hidden), np.float32)
        self._table = _load_table(self.manifest, folder)

    @property
    def decoder_bytes(self) -> int:
        """Weights that are read for every token."""
        return _decoder_bytes(self.manifest)

    def new_sequence(self) -> TokenSequence:
        """An empty sequence. Raises EngineOutOfMemory."""
        try:
            return TokenSequence(self._decoder, self.manifest.text, self.manifest.vision.taps, self.capacity)
        except MemoryError as error:
            raise EngineOutOfMemory(f"no memory for an episode of {self.capacity} tokens; lower max_tokens") from error

    def encode(self, image: PromptImage, watch: Watch) -> ImageFeatures:
        """An image's features, from the cache where its pixels were seen before."""
        with self._lock:
            if image.key in self._images:
                self._images.move_to_end(image.key)
                return self._images[image.key]
            started = time.monotonic()
            patches = make_patches(image.image, self.manifest.image)
            made = self._run_vision(patches.pixels, (patches.rows, patches.columns), watch)
            self.costs.saw("image_patch", (time.monotonic() - started) / len(patches.pixels))
            self._images[image.key] = made
            while sum(kept.bytes for kept in self._images.values()) > self.config.image_bytes and len(self._images) > 1:
                self._images.popitem(last=False)
            return made

    def forget_images(self) -> None:
        """Empty the cache of image features."""
        with self._lock:
            self._images.clear()

    def read(self, sequence: TokenSequence, prompt: TokenPrompt, watch: Watch) -> NDArray[np.float32]:
        """Bring a sequence to the state after `prompt`, reading only what it does not hold yet.

        Returns the logits (vocabulary,) of what comes next, in memory that the next step may overwrite. Raises
        PromptTooLong, and what the watch raises.
        """
        if len(prompt.ids) > sequence.capacity:
            # Told before any of it is read, and before images are encoded.
            raise PromptTooLong(f"the prompt has {len(prompt.ids)} tokens, the engine is set to {sequence.capacity}")
        # 1. Keep what is the same; the last token is always read, its logits are not kept.
        kept = min(sequence.common(prompt.identity), len(prompt.ids) - 1)
        # An image's positions follow from its whole: a reading that was broken off inside one starts it again.
        kept = min([kept, *(image.start for image in prompt.images if image.start < kept < image.start + image.tokens)])
        sequence.truncate(kept)
        # 2. Encode new images, and work out every new token's position.
        images = [image for image in prompt.images if image.start >= kept]
        self._check_time(images, len(prompt.ids) - kept, watch)
        made = [self.encode(image, watch) for image in images]
        positions, following = self._positions(sequence, prompt, images, made)
        cos, sin = self._rotary.rows(positions)
        # 3. Read in chunks.
        logits = np.zeros((1, 0), np.float32)
        while sequence.length < len(prompt.ids):
            start = sequence.length
            end = start + self._chunk(len(prompt.ids) - start)
            now = slice(start - kept, end - kept)
            embeds, deepstack = self._inputs(prompt, start, end, images, made)
            new = NewTokens(prompt.identity[start:end], embeds, deepstack, cos[now], sin[now], following[now])
            with self._lock:
                began = time.monotonic()
                logits = sequence.extend(new, watch, [end - start - 1])
                if end - start >= _LEAST_CHUNK:
                    self.costs.saw("prefill_token", (time.monotonic() - began) / (end - start))
        return logits[0]

    def step(self, sequence: TokenSequence, token: int, watch: Watch) -> NDArray[np.float32]:
        """Add one text token; returns the logits (vocabulary,) of what comes next, as `read` does."""
        with self._lock:
            began = time.monotonic()
            ids = np.array([token])
            position = sequence.next_position
            cos, sin = self._rotary.rows(np.full((3, 1), position, np.int64))
            following = np.array([position + 1])
            new = NewTokens(ids, self._embeddings(ids), self._no_deepstack, cos, sin, following)
            logits = sequence.extend(new, watch, [0])
            self.costs.saw("decode", time.monotonic() - began)
            return logits[0]

    def steps(self, sequence: TokenSequence, tokens: Sequence[int], watch: Watch) -> NDArray[np.float32]:
        """Add several text tokens at once; returns the logits (vocabulary,) after the last, as `read` does."""
        ids = np.array(tokens, np.int64)
        positions = sequence.next_position + np.tile(np.arange(len(ids)), (3, 1))
        cos, sin = self._rotary.rows(positions)
        deepstack = np.zeros((self.manifest.vision.taps, 1, len(ids), self.manifest.text.hidden), np.float32)
        with self._lock:
            new = NewTokens(ids, self._embeddings(ids), deepstack, cos, sin, positions[0] + 1)
            return sequence.extend(new, watch, [len(ids) - 1])[0]

    def _check_time(self, images: Sequence[PromptImage], tokens: int, watch: Watch) -> None:
        """Give up now where reading would surely end too late: the best answer so far is then given in time."""
        patch, token = self.costs.image_patch, self.costs.prefill_token
        if patch is None or token is None:
            return
        new = [image for image in images if image.key not in self._images]
        patches = sum(image.tokens for image in new) * self.manifest.image.merge_size**2
        expected, left = patches * patch + tokens * token, watch.deadline.remaining()
        if left < _SURELY * expected:
            self.costs.relax()
            raise DeadlineExceeded(
                f"to read {tokens} tokens and {len(new)} images takes about {expected:.2f} s, {max(left, 0):.2f} s are "
                "left; allow more time, or accept a partial answer"
            )

    def _chunk(self, left: int) -> int:
        """Tokens of the next chunk."""
        known = self.costs.prefill_token
        size = _FIRST_CHUNK if known is None else int(_CHUNK_S / max(known, 1e-9))
        return min(left, max(_LEAST_CHUNK, min(size, _LARGEST_CHUNK)))

    def _positions(
        self,
        sequence: TokenSequence,
        prompt: TokenPrompt,
        images: Sequence[PromptImage],
        made: Sequence[ImageFeatures],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """M-RoPE positions (3, S) of the tokens that the sequence lacks, and what would follow each."""
        start, merge = sequence.length, self.manifest.image.merge_size
        pad, grids = self.manifest.tokens.image, [known.grid for known in made]
        positions, _ = token_positions(prompt.ids[start:], grids, pad, sequence.next_position, merge)
        following = positions[0] + 1
        for image, (rows, columns) in zip(images, grids, strict=True):
            last = image.start + image.tokens - 1 - start
            following[last] = positions[0, last] + max(rows, columns) // merge
        return positions, following

    def _inputs(
        self, prompt: TokenPrompt, start: int, end: int, images: Sequence[PromptImage], made: Sequence[ImageFeatures]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """What the decoder reads for tokens start..end of a prompt: embeddings and DeepStack features."""
        embeds = self._embeddings(prompt.ids[start:end])
        shape = (self.manifest.vision.taps, 1, end - start, self.manifest.text.hidden)
        deepstack = np.zeros(shape, np.float32)
        for image, known in zip(images, made, strict=True):
            first, last = max(start, image.start), min(end, image.start + image.tokens)
            if first < last:
                there, here = slice(first - start, last - start), slice(first - image.start, last - image.start)
                embeds[0, there], deepstack[:, :, there] = known.features[here], known.deepstack[:, :, here]
        return embeds, deepstack

    def _embeddings(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Rows of the table for tokens (S,), float32 (1, S, hidden)."""
        return self._table[ids][None].astype(np.float32)

    def _run_vision(self, pixels: NDArray[np.float32], grid: tuple[int, int], watch: Watch) -> ImageFeatures:
        shape, text = self.manifest.vision, self.manifest.text
        merge = self.manifest.image.merge_size
        where = vision_positions(*grid, shape.table_side, merge)
        cos, sin = vision_rotary(*grid, merge, shape.head_dim, shape.rope_theta)
        tokens = len(pixels) // merge**2
        made = ImageFeatures(
            np.empty((tokens, text.hidden), np.float32),
            np.empty((shape.taps, 1, tokens, text.hidden), np.float32),
            grid,
        )
        binding = self._vision.io_binding()
        inputs: dict[str, NDArray[Any]] = {
            "pixels": pixels, "table_indices": where.indices, "table_weights": where.weights, "cos": cos, "sin": sin,
        }  # fmt: skip
        for name, array in inputs.items():
            bind(binding.bind_input, name, array)
        bind(binding.bind_output, "features", made.features)
        bind(binding.bind_output, "deepstack", made.deepstack)
        watch.run(self._vision, binding)
        return made


def _decoder_bytes(manifest: EngineManifest) -> int:
    return sum(entry.bytes for name, entry in manifest.files.items() if name.startswith("decoder.onnx"))


def _check_graphs(manifest: EngineManifest, vision: Any, decoder: Any, folder: Path) -> None:
    """Compare the graphs with what the manifest says of them. Raises EngineMismatch."""
    text = manifest.text
    shapes = {value.name: value.shape for graph in (vision, decoder) for value in graph.get_inputs()}
    shapes |= {value.name: value.shape for value in (*vision.get_outputs(), *decoder.get_outputs())}
    cache: list[int | str] = [1, text.kv_heads, "capacity", text.head_dim]
    wanted: dict[str, list[int | str]] = {
        "inputs_embeds": [1, "new", text.hidden],
        "deepstack": [manifest.vision.taps, 1, "tokens", text.hidden],
        "features": ["tokens", text.hidden],
        "logits": [1, "logits", text.vocabulary],
        **{f"past.{layer}.{part}": cache for layer in range(text.layers) for part in ("key", "value")},
    }
    beyond = f"past.{text.layers}.key"
    wrong = [name for name, shape in wanted.items() if name not in shapes or not _agree(shapes[name], shape)]
    if wrong or beyond in shapes:
        raise EngineMismatch(
            f"the graphs of {folder} are not those its manifest describes ({', '.join(wrong[:3]) or beyond}); export "
            "the checkpoint again"
        )


def _agree(shape: Sequence[int | str | None], wanted: Sequence[int | str]) -> bool:
    """Whether a graph's shape is the one that is wanted, whatever its free dimensions are called."""
    fixed = [dim if isinstance(dim, int) else None for dim in shape]
    return fixed == [dim if isinstance(dim, int) else None for dim in wanted]


def _load_tokenizer(folder: Path) -> tuple[Tokenizer, str]:
    content = _read_text(folder / TOKENIZER)
    try:
        return Tokenizer.from_str(content), content
    except Exception as error:  # the library raises a plain Exception
        raise EngineMismatch(f"{folder / TOKENIZER} is not a tokenizer that this machine reads: {error}") from error


def _load_table(manifest: EngineManifest, folder: Path) -> NDArray[Any]:
    """The embeddings of all tokens (vocabulary, hidden), on disk until they are used.

    One is a row of this table: to read it from the graph's weights takes no run of the graph.
    """
    path, text = folder / "embedding.onnx.data", manifest.text
    kind = np.float32 if manifest.precision.embedding == "fp32" else np.float16
    try:
        return np.memmap(path, kind, mode="r", shape=(text.vocabulary, text.hidden))
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            raise MemoryError from error
        raise EngineCorrupt(f"{path} is no table of {text.vocabulary} embeddings: {error}; export again") from error


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except ValueError as error:
        raise EngineMismatch(f"{path} is not text: {error}; export the checkpoint again") from error


@contextlib.contextmanager
def _enough_memory(folder: Path) -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        raise EngineOutOfMemory(
            f"no memory was left to load {folder}; free some, or use a smaller precision"
        ) from error


def _check_runs_here(manifest: EngineManifest, folder: Path) -> None:
    if manifest.flavour != "cpu":
        raise EngineUnsupported(
            f"{folder} holds graphs for TensorRT (target {manifest.target}); onnxruntime here runs those exported with "
            "--target cpu"
        )
    made_for = manifest.hardware.architecture if manifest.hardware else None
    if made_for not in (None, platform.machine()):
        raise EngineMismatch(
            f"{folder} was built on {made_for} and runs only there, this machine is {platform.machine()}; export the "
            "checkpoint here"
        )


def _check_memory(manifest: EngineManifest, folder: Path) -> None:
    """Refuse early what cannot fit: a machine that starts to swap helps nobody."""
    needed = sum(entry.bytes for entry in manifest.files.values())
    available = available_bytes()
    if available is not None and needed > available:
        raise EngineOutOfMemory(
            f"{folder} needs {needed / 1e9:.1f} GB of memory, {available / 1e9:.1f} GB are available; export with a "
            "smaller --precision, or free some memory"
        )
