"""engine.json: what an engine folder holds, where it came from, and what it was proved to say."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from wayfix.errors import EngineCorrupt, EngineMismatch, EngineNotFound, EngineTooNew
from wayfix.policy.engine.images import ImageSpec

FORMAT = 1
MANIFEST = "engine.json"
TOKENIZER = "tokenizer.json"
TEMPLATE = "chat_template.jinja"

Target = Literal["cpu", "cuda", "jetson-orin", "jetson-thor"]
Precision = Literal["fp32", "fp16", "int8", "int4"]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FileEntry(_Entry):
    """A file of the engine."""

    bytes: int
    sha256: str


class Source(_Entry):
    """The checkpoint."""

    name: str
    sha256: str
    """Over its config, tokenizer and weights."""
    weights_licence: str | None
    """As the checkpoint's own README says; null where it says nothing."""


class TextModel(_Entry):
    """What the runtime must know of the language model."""

    layers: int = Field(gt=0)
    hidden: int = Field(gt=0)
    heads: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    vocabulary: int = Field(gt=0)
    """Width of the logits, which may be more than the tokenizer has tokens."""
    rope_theta: float
    mrope_section: tuple[int, int, int]
    max_tokens: int = Field(gt=0)

    @model_validator(mode="after")
    def _check(self) -> TextModel:
        if sum(self.mrope_section) * 2 != self.head_dim or self.heads % self.kv_heads:
            raise ValueError("heads and rotary sections do not fit one another")
        return self


class VisionModel(_Entry):
    """What the runtime must know of the vision encoder."""

    head_dim: int = Field(gt=0)
    rope_theta: float
    table_side: int = Field(gt=0)
    taps: int = Field(ge=0)
    """Layers of the language model that take DeepStack features."""


class Tokens(_Entry):
    """Ids of special tokens."""

    image: int = Field(ge=0)
    end: int = Field(ge=0)
    """Ends an assistant's turn."""


class Sizes(_Entry):
    """Long sides in pixels of the images the model was trained on."""

    overview: int = Field(default=1024, gt=0)
    zoom: int = Field(default=768, gt=0)
    oblique: int = Field(default=512, gt=0)


class Precisions(_Entry):
    """By part."""

    vision: Precision
    embedding: Precision
    decoder: Precision


class Logistic(_Entry):
    """1 / (1 + exp(-(intercept + slope * x)))."""

    intercept: float
    slope: float


class ConfidenceModel(_Entry):
    """How sure tokens become the probability of a right answer; x is the mean log-probability of an answer's tokens."""

    box: Logistic
    not_found: Logistic
    suite: str
    """What it was fitted on."""
    answers: int = Field(gt=0)


class Hardware(_Entry):
    """Where built engines run: nothing else may load them."""

    architecture: str
    """As the platform module's machine(): x86_64 or aarch64."""
    compute_capability: str | None = None
    tensorrt: str | None = None


class EngineManifest(_Entry):
    """The content of engine.json."""

    kind: Literal["wayfix-engine"] = "wayfix-engine"
    format: int = FORMAT
    target: Target
    flavour: Literal["cpu", "trt"]
    precision: Precisions
    source: Source
    text: TextModel
    vision: VisionModel
    tokens: Tokens
    image: ImageSpec
    sizes: Sizes = Sizes()
    profiles: dict[str, dict[str, tuple[int, int, int]]] = Field(default_factory=dict)
    """For TensorRT: smallest, usual and largest value of each free dimension, by graph."""
    parity: dict[str, Any] = Field(default_factory=dict)
    """What the export measured against the checkpoint."""
    versions: dict[str, str] = Field(default_factory=dict)
    hardware: Hardware | None = None
    """Null where the graphs run anywhere."""
    confidence: ConfidenceModel | None = None
    """Null where it was never fitted: confidence is then the tokens' own."""
    created: str
    files: dict[str, FileEntry]


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def read_manifest(
    folder: Path, *, verify: bool = True, progress: Callable[[str], None] | None = None
) -> EngineManifest:
    """Read engine.json and compare every file with it; `verify` False compares sizes only.

    Raises EngineNotFound, EngineTooNew, EngineCorrupt or EngineMismatch.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise EngineNotFound(f"{folder} holds no {MANIFEST}; make an engine with: wayfix export CHECKPOINT --out DIR")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EngineCorrupt(f"{path} cannot be read: {error}; export the checkpoint again") from error
    if not isinstance(content, dict) or content.get("kind") != "wayfix-engine":
        raise EngineCorrupt(f"{path} is not the manifest of an engine")
    if isinstance(content.get("format"), int) and content["format"] > FORMAT:
        raise EngineTooNew(
            f"{folder} is an engine of format {content['format']}, this Wayfix reads up to {FORMAT}; update Wayfix"
        )
    try:
        manifest = EngineManifest.model_validate(content)
    except ValidationError as error:
        where = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:4])
        raise EngineCorrupt(f"{path} is damaged: {where}; export the checkpoint again") from error
    _check_files(folder, manifest, verify, progress)
    return manifest


def _check_files(folder: Path, manifest: EngineManifest, verify: bool, progress: Callable[[str], None] | None) -> None:
    unlisted = [name for name in (TOKENIZER, TEMPLATE) if name not in manifest.files]
    if unlisted:
        raise EngineCorrupt(f"{folder / MANIFEST} lists no {', '.join(unlisted)}; export the checkpoint again")
    for name, entry in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise EngineCorrupt(f"{folder} lacks {name}; export the checkpoint again, or copy the folder whole")
        if progress:
            progress(name)
        same = path.stat().st_size == entry.bytes and (not verify or sha256_of(path) == entry.sha256)
        if same:
            continue
        if name in (TOKENIZER, TEMPLATE):
            raise EngineMismatch(
                f"{path} is not the one that this engine was exported with: another checkpoint's words would be "
                "read wrongly; export the checkpoint again"
            )
        raise EngineCorrupt(f"{path} is not the file that was written; export the checkpoint again, or copy it anew")
