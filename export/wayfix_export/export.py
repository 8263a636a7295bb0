"""One verb: a checkpoint becomes an engine folder, or nothing is written."""

from __future__ import annotations

import contextlib
import datetime
import errno
import importlib.metadata
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from tokenizers import Tokenizer

import wayfix
from wayfix.errors import (
    InvalidOption,
    ParityFailed,
    StorageFailed,
    StorageFull,
    UnreadableCheckpoint,
    UnsupportedModel,
)
from wayfix.policy.engine.chat import Chat
from wayfix.policy.engine.images import ImageSpec
from wayfix.policy.engine.manifest import (
    MANIFEST,
    TEMPLATE,
    TOKENIZER,
    EngineManifest,
    FileEntry,
    Precisions,
    Sizes,
    Source,
    Target,
    TextModel,
    Tokens,
    VisionModel,
    sha256_of,
)
from wayfix.policy.engine.memory import available_bytes
from wayfix.views.view import ImageSizes
from wayfix_export.calibrate import observe_ranges
from wayfix_export.checkpoint import Checkpoint
from wayfix_export.checks import Check
from wayfix_export.decoder import write_decoder, write_embedding
from wayfix_export.episodes import Episode, recorded_in_a_city
from wayfix_export.layers import PRECISIONS, Flavour
from wayfix_export.profiles import profiles_of
from wayfix_export.tensorrt import build_engine, load_tensorrt
from wayfix_export.vision import write_vision

FLAVOUR: dict[Target, Flavour] = {"cpu": "cpu", "cuda": "trt", "jetson-orin": "trt", "jetson-thor": "trt"}
DEFAULT_PRECISION: dict[Target, Precisions] = {
    "cpu": Precisions(vision="fp32", embedding="fp16", decoder="int8"),
    "cuda": Precisions(vision="fp16", embedding="fp16", decoder="fp16"),
    "jetson-orin": Precisions(vision="fp16", embedding="fp16", decoder="int4"),
    "jetson-thor": Precisions(vision="fp16", embedding="fp16", decoder="int4"),
}
_PARTS = ("vision", "embedding", "decoder")
Progress = Callable[[str], None]
ParityMode = Literal["auto", "whole", "layers"]


@dataclass(frozen=True)
class ExportOptions:
    """What to make."""

    target: Target = "cpu"
    precision: Precisions | None = None
    """None for what suits the target."""
    sizes: ImageSizes | None = None
    """Long sides of the images that the model was trained on; None for the checkpoint's own, or the usual ones."""
    episodes: int = 3
    """Recorded episodes to calibrate and prove on."""
    parity: ParityMode = "auto"
    build_check: bool = False
    """Whether to also parse and build the graphs with the TensorRT that is here."""
    overwrite: bool = False


@dataclass(frozen=True)
class Exported:
    """What was made."""

    folder: Path
    manifest: EngineManifest
    checks: tuple[Check, ...]


def parse_precision(text: str | None, target: Target) -> Precisions:
    """`int8` for the decoder, or parts such as `decoder=int4,vision=fp16`; `fp32` alone is for all of them.

    What is not named is as usual for the target. Raises InvalidOption.
    """
    usual = DEFAULT_PRECISION[target]
    if not text:
        return usual
    chosen: dict[str, str] = usual.model_dump()
    for item in text.split(","):
        part, _, value = item.strip().rpartition("=")
        part = part or "decoder"
        allowed = ("fp32", "fp16") if part == "embedding" else PRECISIONS[FLAVOUR[target]]
        if part == "vision":
            allowed = tuple(name for name in allowed if name != "int4")
        if part not in _PARTS or value not in allowed:
            raise InvalidOption(
                f"precision {item.strip()!r}: give PART=PRECISION with a part of {', '.join(_PARTS)}; for {target} "
                f"the {part if part in _PARTS else 'decoder'} takes {', '.join(allowed)}"
            )
        chosen[part] = value
    if text.strip() == "fp32":
        # Asked for in one word it means the whole engine.
        chosen = dict.fromkeys(_PARTS, "fp32")
    return Precisions.model_validate(chosen)


def export_checkpoint(
    folder: Path, out: Path, options: ExportOptions | None = None, progress: Progress = lambda _: None
) -> Exported:
    """Export a checkpoint, compare the engine with it, and only then put it at `out`.

    Raises an ExportError, InvalidOption, StorageFull or StorageFailed; `out` is then as it was.
    """
    options = options or ExportOptions()
    # 1. Look at everything before anything is written.
    out = out.absolute()
    checkpoint = Checkpoint(folder)
    _check_out(out, options.overwrite)
    if options.build_check:
        _check_can_build(options.target)
    draft = _Draft(checkpoint, options)
    work = out.with_name(f".{out.name}.part")
    shutil.rmtree(work, ignore_errors=True)
    try:
        work.mkdir(parents=True)
        _check_space(work, checkpoint)
        # 2. Graphs, on recorded episodes where ranges are needed.
        progress("recording episodes")
        episodes = recorded_in_a_city(options.episodes, draft.sizes)
        manifest = draft.write(work, episodes, progress)
        # 3. The proof.
        checks = _prove(draft, work, episodes, progress)
        failed = [check for check in checks if not check.passed]
        if failed:
            raise ParityFailed(
                "the engine does not say what its checkpoint says, and nothing was written: "
                + "; ".join(f"{check.name} {check.value:.3g}, allowed {check.limit:g}" for check in failed)
            )
        if options.build_check:
            _check_builds(work, manifest, progress)
        # 4. Into place.
        manifest = manifest.model_copy(update={"parity": _as_json(checks)})
        _write_manifest(work, manifest)
        _publish(work, out)
    except OSError as error:
        kind = StorageFull if error.errno == errno.ENOSPC else StorageFailed
        raise kind(f"{out} could not be written: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Exported(out, manifest, tuple(checks))


def write_unproven(folder: Path, out: Path, options: ExportOptions) -> EngineManifest:
    """Write an engine without comparing it, which needs no torch: for tests, and for a look at the graphs."""
    out.mkdir(parents=True)
    return _Draft(Checkpoint(folder), options).write(out, (), lambda _: None)


class _Draft:
    """An engine in the making."""

    def __init__(self, checkpoint: Checkpoint, options: ExportOptions) -> None:
        self.checkpoint, self.options = checkpoint, options
        self.flavour = FLAVOUR[options.target]
        self.precision = options.precision or DEFAULT_PRECISION[options.target]
        self.spec = _image_spec(checkpoint)
        self.template = _chat_template(checkpoint)
        self.sizes = options.sizes or _trained_sizes(checkpoint)
        self.tokenizer = _tokenizer(checkpoint)
        self.chat = Chat(self.template, self.tokenizer, checkpoint.shape.image_token_id, self.spec)

    def write(self, work: Path, episodes: Sequence[Episode], progress: Progress) -> EngineManifest:
        """Write all files, the manifest among them, still without parity."""
        ranges = None
        if self.flavour == "trt" and "int8" in (self.precision.vision, self.precision.decoder):
            ranges = observe_ranges(self.checkpoint, self.chat, self.spec, episodes, progress)
        progress("writing the vision encoder")
        write_vision(self.checkpoint, work / "vision.onnx", self.flavour, self.precision.vision, ranges=ranges)
        progress("writing the embedding")
        write_embedding(self.checkpoint, work / "embedding.onnx", self.precision.embedding)
        progress("writing the decoder")
        write_decoder(self.checkpoint, work / "decoder.onnx", self.flavour, self.precision.decoder, ranges=ranges)
        shutil.copyfile(self.checkpoint.folder / TOKENIZER, work / TOKENIZER)
        (work / TEMPLATE).write_text(self.template, encoding="utf-8")
        manifest = self._manifest(work)
        _write_manifest(work, manifest)
        return manifest

    def _manifest(self, work: Path) -> EngineManifest:
        shape = self.checkpoint.shape
        text, vision = shape.text_config, shape.vision_config
        return EngineManifest(
            target=self.options.target,
            flavour=self.flavour,
            precision=self.precision,
            source=Source(
                name=self.checkpoint.folder.resolve().name,
                sha256=self.checkpoint.source_hash(),
                weights_licence=_licence(self.checkpoint.folder),
            ),
            text=TextModel(
                layers=text.num_hidden_layers,
                hidden=text.hidden_size,
                heads=text.num_attention_heads,
                kv_heads=text.num_key_value_heads,
                head_dim=text.head_dim,
                vocabulary=text.vocab_size,
                rope_theta=text.rope_theta,
                mrope_section=text.mrope_section,
                max_tokens=text.max_position_embeddings,
            ),
            vision=VisionModel(
                head_dim=vision.head_dim,
                rope_theta=vision.rope_theta,
                table_side=int(vision.num_position_embeddings**0.5),
                taps=len(vision.deepstack_visual_indexes),
            ),
            tokens=Tokens(image=shape.image_token_id, end=_end_token(self.tokenizer)),
            image=self.spec,
            sizes=Sizes(overview=self.sizes.overview, zoom=self.sizes.zoom, oblique=self.sizes.oblique),
            profiles=profiles_of(shape, self.spec, self.sizes) if self.flavour == "trt" else {},
            versions=_versions(),
            created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            files={
                path.name: FileEntry(bytes=path.stat().st_size, sha256=sha256_of(path))
                for path in sorted(work.iterdir())
                if path.name != MANIFEST
            },
        )


def _prove(draft: _Draft, work: Path, episodes: Sequence[Episode], progress: Progress) -> list[Check]:
    # Only the proof needs torch and transformers, which take seconds to import.
    checkpoint, mode = draft.checkpoint, draft.options.parity
    if mode == "layers" or (mode == "auto" and not _fits_whole(checkpoint)):
        from wayfix_export.layer_parity import layer_checks

        parts = (checkpoint, work, draft.chat, draft.spec, draft.precision, draft.flavour)
        return layer_checks(*parts, episodes[0], progress)
    from wayfix_export.parity import Parity, engine_checks
    from wayfix_export.reference import Reference

    progress("loading the checkpoint to compare with")
    reference = Reference(checkpoint.folder)
    checks = Parity(checkpoint, reference, work, draft.chat, draft.spec, draft.precision).run(episodes, progress)
    if draft.flavour == "cpu":
        progress("the engine itself")
        checks += engine_checks(work, reference, episodes)
    return checks


def _fits_whole(checkpoint: Checkpoint) -> bool:
    """Whether checkpoint, engine and what they compute have room in memory at once, all in float32."""
    available = available_bytes()
    return available is None or 3.5 * checkpoint.weight_count() * 4 < available


def _check_can_build(target: Target) -> None:
    if FLAVOUR[target] != "trt":
        raise InvalidOption("--build-check is for the targets that TensorRT serves, not for cpu")
    load_tensorrt()


def _check_builds(work: Path, manifest: EngineManifest, progress: Progress) -> None:
    for part in _PARTS:
        progress(f"building the {part} with TensorRT")
        build_engine(work / f"{part}.onnx", manifest.profiles[part])


def _as_json(checks: Sequence[Check]) -> dict[str, Any]:
    return {
        check.name: {
            "value": check.value, "at_least" if check.at_least else "at_most": check.limit, "what": check.note,
        }
        for check in checks
    }  # fmt: skip


def _check_out(out: Path, overwrite: bool) -> None:
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / MANIFEST).is_file())):
        raise InvalidOption(f"{out} exists and is no engine; choose another --out")
    if out.exists() and (out / MANIFEST).is_file() and not overwrite:
        raise InvalidOption(f"{out} holds an engine already; choose another --out, or add --overwrite")


def _check_space(work: Path, checkpoint: Checkpoint) -> None:
    free, needed = shutil.disk_usage(work).free, int(checkpoint.weight_bytes() * 1.3)
    if free < needed:
        raise StorageFull(f"an export may need {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free at {work.parent}")


def _publish(work: Path, out: Path) -> None:
    """Rename `work` to `out`. An engine that is there goes when the new one is in its place, never before."""
    old = out.with_name(f".{out.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    try:
        if out.exists():
            out.rename(old)
        work.rename(out)
    except BaseException:
        if old.exists() and not out.exists():
            old.rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _write_manifest(work: Path, manifest: EngineManifest) -> None:
    (work / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")


def _chat_template(checkpoint: Checkpoint) -> str:
    """From chat_template.jinja, chat_template.json or tokenizer_config.json: checkpoints of various ages differ."""
    path = checkpoint.folder / TEMPLATE
    if path.is_file():
        return path.read_text(encoding="utf-8")
    for name in ("chat_template.json", "tokenizer_config.json"):
        if (checkpoint.folder / name).is_file():
            template = checkpoint.json(name).get("chat_template")
            if isinstance(template, str):
                return template
    raise UnreadableCheckpoint(f"{checkpoint.folder} has no chat template; is it an Instruct checkpoint?")


def _image_spec(checkpoint: Checkpoint) -> ImageSpec:
    try:
        return ImageSpec.from_preprocessor_config(checkpoint.json("preprocessor_config.json"))
    except ValueError as error:
        raise UnsupportedModel(f"{checkpoint.folder / 'preprocessor_config.json'}: {error}") from error


def _tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    path = checkpoint.folder / TOKENIZER
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises a plain Exception
        raise UnreadableCheckpoint(f"{path} is no tokenizer: {error}") from error


def _end_token(tokenizer: Tokenizer) -> int:
    end = tokenizer.token_to_id("<|im_end|>")
    if end is None:
        raise UnreadableCheckpoint("the tokenizer has no <|im_end|>; is it that of a Qwen3-VL?")
    return end


def _trained_sizes(checkpoint: Checkpoint) -> ImageSizes:
    """Wayfix's own training writes the image sizes into config.json."""
    sizes = checkpoint.config.get("wayfix_image_sizes")
    if sizes is None:
        return ImageSizes()
    try:
        return ImageSizes(**Sizes.model_validate(sizes).model_dump())
    except ValidationError as error:
        raise UnsupportedModel(f"the config of {checkpoint.folder} has a wayfix_image_sizes of {sizes!r}") from error


def _licence(folder: Path) -> str | None:
    """The licence that the checkpoint's model card names."""
    with contextlib.suppress(OSError):
        card = (folder / "README.md").read_text(encoding="utf-8", errors="replace")
        found = re.search(r"^license:\s*(\S+)\s*$", card, re.MULTILINE)
        return found[1] if found else None
    return None


def _versions() -> dict[str, str]:
    names = ("onnx", "onnxruntime", "numpy", "tokenizers", "torch", "transformers")
    versions = {"wayfix": wayfix.__version__}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
