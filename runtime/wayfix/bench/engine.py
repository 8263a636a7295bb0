"""`wayfix bench engine`: what a model costs here, part by part, against transformers and against the memory's speed."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from wayfix.agent.deadline import Deadline
from wayfix.agent.messages import Message, Prompt
from wayfix.agent.protocol import MAX_TURNS, OVERVIEW_TEXT, QUERY_TEXT, SYSTEM_TEXT, format_call
from wayfix.bench.report import environment, summary
from wayfix.geo.boxes import WorldBox
from wayfix.geo.transforms import ViewTransform
from wayfix.policy.engine.chat import TokenPrompt
from wayfix.policy.engine.engine import Engine, EngineConfig
from wayfix.policy.engine.graphs import Watch, load_graph
from wayfix.policy.engine.sequence import TokenSequence
from wayfix.tools.arguments import TOOLS, tool_schema
from wayfix.views.view import View

ROUNDS = 3
PREFILL_TOKENS = (64, 256, 1024)
DECODE_AFTER = (200, 2000)
"""Tokens read before: a short prompt, where weights are what is read, and a search of some turns."""
SAID_TOKENS = 32
"""What a turn writes here: a short thought and a call."""

_BANDWIDTH_BYTES = 1 << 29


@dataclass(frozen=True)
class EngineBenchConfig:
    """What is measured."""

    repeats: int = 3
    """Times each case runs in each of the rounds."""
    turns: tuple[int, ...] = (1, 2, 4, MAX_TURNS)
    seed: int = 0


def bench_engine(
    folder: Path,
    checkpoint: Path | None = None,
    engine_config: EngineConfig | None = None,
    config: EngineBenchConfig | None = None,
    *,
    quiet: bool = False,
) -> dict[str, Any]:
    """Measure an engine and, where `checkpoint` is given, transformers on it in the same rounds.

    Returns the report that `--json` prints. Raises an EngineError, or ModuleNotFoundError where torch is missing.
    """
    config = config or EngineBenchConfig()
    resident = _resident_by_part(folder)
    engine = Engine(folder, engine_config)
    bench = _Bench(engine, config)
    cases = bench.cases()
    if checkpoint is not None:
        # The library must not import torch: what stands on it is loaded only here, where it is asked for.
        module = importlib.import_module("wayfix_export.reference")
        reference = module.Reference(checkpoint, threads=engine.config.decoder_threads(engine.manifest))
        cases |= bench.reference_cases(reference)
    for run in cases.values():
        run()
    rounds: dict[str, list[list[float]]] = {name: [] for name in cases}
    with tqdm(total=ROUNDS * len(cases), desc="measuring", disable=quiet or None, leave=False) as bar:
        for _ in range(ROUNDS):
            for name, run in cases.items():
                rounds[name].append([run() for _ in range(config.repeats)])
                bar.update()
    report: dict[str, Any] = {name: summary(times) for name, times in rounds.items()}
    # Last: the threads that this leaves behind would slow what comes after it.
    bandwidth = read_bandwidth(engine.config.decoder_threads(engine.manifest))
    report["figures"] = bench.figures(report, bandwidth)
    report["memory"] = {**bench.memory(), **resident}
    report["config"] = {
        "engine": engine.manifest.source.name,
        "precision": engine.manifest.precision.model_dump(),
        "threads": engine.config.decoder_threads(engine.manifest),
        "said_tokens": SAID_TOKENS,
        "rounds": ROUNDS,
        "repeats": config.repeats,
        "decode": f"mean of {SAID_TOKENS} tokens after a prompt of words",
        "turn": f"reading what is new and writing {SAID_TOKENS} tokens; fresh: nothing kept, no image encoded",
    }
    environment_of = environment()
    for name in ("onnxruntime", *(("torch", "transformers") if checkpoint else ())):
        environment_of["versions"][name] = importlib.import_module(name).__version__
    return {**report, **environment_of}


def read_bandwidth(threads: int) -> float:
    """Bytes a second that so many threads read of memory: the best of several passes over 512 MB."""
    data = np.ones(_BANDWIDTH_BYTES // 8)
    chosen = min(threads, numba.config.NUMBA_NUM_THREADS)
    numba.set_num_threads(chosen)
    _sum(data[:1024])
    best = math.inf
    for _ in range(7):
        began = time.perf_counter()
        _sum(data)
        best = min(best, time.perf_counter() - began)
    return data.nbytes / best


@numba.njit(parallel=True, fastmath=True, cache=True)
def _sum(data: NDArray[np.float64]) -> float:
    total = 0.0
    for at in numba.prange(len(data)):
        total += data[at]
    return total


class _Bench:
    def __init__(self, engine: Engine, config: EngineBenchConfig) -> None:
        self.engine, self.config = engine, config
        self.watch = Watch(Deadline(math.inf))
        self.rng = np.random.default_rng(config.seed)
        conversation = _Conversation(engine, self.rng)
        self.prompts = {turn: engine.chat.tokens(conversation.prompt(turn)) for turn in range(1, MAX_TURNS + 1)}
        self.kept: dict[int, TokenSequence] = {}
        self.read: dict[int, TokenSequence] = {}

    def cases(self) -> dict[str, Callable[[], float]]:
        """Each gives the milliseconds of one run."""
        cases: dict[str, Callable[[], float]] = {}
        sizes = self.engine.manifest.sizes
        for name, number in (("overview", 0), ("zoom", 1)):
            cases[f"image {getattr(sizes, name)} px"] = partial(self._encode, number)
        for count in PREFILL_TOKENS:
            if count < self.engine.capacity:
                cases[f"prefill {count}"] = partial(self._prefill, count)
        for count in self._contexts():
            cases[f"decode after {count}"] = partial(self._decode, count)
        cases["first token"] = self._first_token
        for turn in self.config.turns:
            cases[f"turn {turn} kept"] = partial(self._turn, turn, kept=True)
            cases[f"turn {turn} fresh"] = partial(self._turn, turn, kept=False)
        return cases

    def reference_cases(self, reference: Any) -> dict[str, Callable[[], float]]:
        """The same through transformers."""

        def generate(turn: int, count: int) -> float:
            prompt = self.prompts[turn]
            began = time.perf_counter()
            images = [reference.patches(image.image) for image in prompt.images]
            reference.greedy(prompt.ids.tolist(), images, count)
            return (time.perf_counter() - began) * 1000

        def decode(count: int) -> float:
            times = reference.token_seconds(self._words(count).ids.tolist(), [], 1 + SAID_TOKENS)
            return float(np.mean(times[1:])) * 1000

        cases: dict[str, Callable[[], float]] = {
            f"generate() decode after {count}": partial(decode, count) for count in self._contexts()
        }
        for turn in self.config.turns:
            cases[f"generate() turn {turn}"] = partial(generate, turn, SAID_TOKENS)
        return cases

    def figures(self, report: dict[str, Any], bandwidth: float) -> dict[str, Any]:
        """Ratios and shares, from medians."""
        median = {name: entry["p50_ms"] for name, entry in report.items()}
        figures: dict[str, Any] = {"memory_gb_per_s": round(bandwidth / 1e9, 2)}
        for count in self._contexts():
            spent = median[f"decode after {count}"]
            read = self.engine.decoder_bytes + count * TokenSequence.bytes_per_token(self.engine.manifest.text)
            rate = read / (spent / 1000)
            figures |= {
                f"decode_after_{count}_tokens_per_s": round(1000 / spent, 1),
                f"decode_after_{count}_reads_mb": round(read / 1e6, 1),
                f"decode_after_{count}_gb_per_s": round(rate / 1e9, 2),
                f"decode_after_{count}_share_of_memory_speed": round(rate / bandwidth, 3),
            }
            if f"generate() decode after {count}" in median:
                ratio = median[f"generate() decode after {count}"] / spent
                figures[f"decode_after_{count}_times_generate"] = round(ratio, 2)
        for turn in self.config.turns:
            figures[f"turn_{turn}_kept_share"] = round(median[f"turn {turn} kept"] / median[f"turn {turn} fresh"], 3)
            if f"generate() turn {turn}" in median:
                ratio = median[f"generate() turn {turn}"] / median[f"turn {turn} kept"]
                figures[f"turn_{turn}_times_generate"] = round(ratio, 2)
        return figures

    def memory(self) -> dict[str, float]:
        """Megabytes by part."""
        files = self.engine.manifest.files
        parts = {
            part: sum(entry.bytes for name, entry in files.items() if name.startswith(part)) / 1e6
            for part in ("vision", "embedding", "decoder")
        }
        longest = len(self.prompts[max(self.config.turns)].ids)
        token = TokenSequence.bytes_per_token(self.engine.manifest.text)
        return {
            **{f"{part}_mb": round(size, 1) for part, size in parts.items()},
            "cache_kb_per_token": round(token / 1e3, 2),
            f"cache_{longest}_tokens_mb": round(longest * token / 1e6, 1),
        }

    def _encode(self, number: int) -> float:
        self.engine.forget_images()
        image = self.prompts[MAX_TURNS].images[number]
        return _timed(lambda: self.engine.encode(image, self.watch))

    def _prefill(self, count: int) -> float:
        sequence, prompt = self.engine.new_sequence(), self._words(count)
        return _timed(lambda: self.engine.read(sequence, prompt, self.watch))

    def _decode(self, after: int) -> float:
        if after not in self.read:
            self.read[after] = self.engine.new_sequence()
            self.engine.read(self.read[after], self._words(after), self.watch)
        sequence = self.read[after]
        spent = _timed(lambda: self._say(sequence))
        sequence.truncate(after)
        return spent / SAID_TOKENS

    def _words(self, count: int) -> TokenPrompt:
        """Plain words, so that no special token stands where an image or a turn would be."""
        ids = self.rng.integers(0, 256, count)
        return TokenPrompt(ids, ids, ())

    def _contexts(self) -> list[int]:
        return [count for count in DECODE_AFTER if count + SAID_TOKENS <= self.engine.capacity]

    def _first_token(self) -> float:
        """A new query on a scene whose prefix was read: from the prompt to the first token's logits."""
        sequence, prompt = self._read_up_to(1), self.prompts[1]
        query = 24
        sequence.truncate(len(prompt.ids) - query)
        return _timed(lambda: self.engine.read(sequence, prompt, self.watch))

    def _turn(self, turn: int, *, kept: bool) -> float:
        prompt = self.prompts[turn]
        if kept:
            sequence = self._read_up_to(turn - 1) if turn > 1 else self._read_prefix()
        else:
            sequence = self.engine.new_sequence()
            self.engine.forget_images()
        if kept and turn > 1:
            # The turn's own image is new to it, all others were seen.
            self.engine.forget_images()

        def run() -> None:
            self.engine.read(sequence, prompt, self.watch)
            self._say(sequence)

        return _timed(run)

    def _say(self, sequence: TokenSequence) -> None:
        for token in range(SAID_TOKENS):
            self.engine.step(sequence, token, self.watch)

    def _read_prefix(self) -> TokenSequence:
        sequence = self._read_up_to(1)
        sequence.truncate(len(self.prompts[1].ids) - 24)
        return sequence

    def _read_up_to(self, turn: int) -> TokenSequence:
        """A sequence that has read this turn's prompt, made once."""
        if turn not in self.kept:
            self.kept[turn] = self.engine.new_sequence()
        self.engine.read(self.kept[turn], self.prompts[turn], self.watch)
        return self.kept[turn]


class _Conversation:
    """A search as it goes: a scene from above, then a zoom a turn."""

    def __init__(self, engine: Engine, rng: np.random.Generator) -> None:
        sizes = engine.manifest.sizes
        self._views = [
            _view(f"v{number}", sizes.zoom if number else sizes.overview, rng) for number in range(MAX_TURNS)
        ]

    def prompt(self, turn: int) -> Prompt:
        """What the model reads before its `turn`th turn."""
        place = OVERVIEW_TEXT.format(width=300, height=300)
        query = QUERY_TEXT.format(query="the white car next to the orange car left of the police station")
        system = SYSTEM_TEXT.replace("{max_turns}", str(MAX_TURNS))
        messages = [Message("system", (system,)), Message("user", (self._views[0], place, query))]
        for number in range(1, turn):
            call = format_call(
                "zoom_in", {"source_view_id": f"v{number - 1}", "crop_box": [120, 250, 380, 510]}, "Look closer."
            )
            messages += [
                Message("assistant", (call,)),
                Message(
                    "tool", (f'{{"view_id": "v{number}"}}', self._views[number], f"Turns left: {MAX_TURNS - number}.")
                ),
            ]
        return Prompt(tuple(tool_schema(name) for name in TOOLS), tuple(messages), query, must_answer=False)


def _view(name: str, side: int, rng: np.random.Generator) -> View:
    image = rng.integers(0, 256, (side // 16, side // 16, 3), np.uint8).repeat(16, axis=0).repeat(16, axis=1)
    extent = WorldBox(0, 0, side, side)
    return View(name, image, extent, ViewTransform.north_up(extent, image.shape[1], image.shape[0]))


def _timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1000


def _resident_by_part(folder: Path) -> dict[str, float]:
    """Megabytes by which the process grows with each graph that is loaded."""
    grown, sessions = {}, []
    for part in ("vision", "decoder"):
        before = _resident_bytes()
        sessions.append(load_graph(folder / f"{part}.onnx", ("CPU",), 1, allow_spinning=False))
        grown[f"{part}_resident_mb"] = round((_resident_bytes() - before) / 1e6, 1)
    return grown


def _resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * 4096
