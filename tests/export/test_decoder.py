"""The decoder's graphs say what the checkpoint says, however a prompt is cut into runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from wayfix.errors import UnreadableCheckpoint
from wayfix.policy.engine.chat import TokenPrompt
from wayfix.policy.engine.images import Patches
from wayfix_export import checks
from wayfix_export import runner as runner_module
from wayfix_export.checkpoint import Checkpoint
from wayfix_export.checks import relative_l2
from wayfix_export.decoder import write_decoder, write_embedding
from wayfix_export.layers import PRECISIONS, Flavour, Precision
from wayfix_export.runner import GraphRunner

Pictured = tuple[TokenPrompt, list[Patches]]
Runners = Callable[..., GraphRunner]

KINDS = [(flavour, precision) for flavour, precisions in PRECISIONS.items() for precision in precisions]
NOTICED = [kind for kind in KINDS if kind[1] != "int4"]
"""At which a wrong graph shows in the logits themselves."""

every_kind = pytest.mark.parametrize(("flavour", "precision"), KINDS)
flavours = pytest.mark.parametrize("flavour", ["cpu", "trt"])


def read(runner: GraphRunner, pictured: Pictured, **how: Any) -> NDArray[np.float32]:
    """Logits after every token."""
    prompt, patches = pictured
    return runner.read(prompt, patches, np.arange(len(prompt.ids)), **how)["logits"]


class TestParity:
    def test_the_prompt_holds_what_positions_can_differ_by(self, three_images: Pictured) -> None:
        prompt, patches = three_images
        assert len({(image.rows, image.columns) for image in patches}) == 3
        assert all(image.rows != image.columns for image in patches)
        assert len(prompt.ids) > sum(image.tokens for image in patches) + 20

    @every_kind
    def test_logits_are_the_checkpoints(
        self, flavour: Flavour, precision: Precision, runner: Runners, three_images: Pictured, expected: Any
    ) -> None:
        logits = read(runner(flavour, precision), three_images)
        limit = checks.DECODER[precision]
        assert logits.shape == expected.shape and logits.dtype == np.float32
        assert relative_l2(logits, expected) <= limit.rel_l2
        assert (logits.argmax(axis=1) == expected.argmax(axis=1)).mean() >= limit.top1

    @pytest.mark.parametrize(("flavour", "precision"), NOTICED)
    def test_without_deepstack_they_are_far_from_it(
        self,
        flavour: Flavour,
        precision: Precision,
        runner: Runners,
        three_images: Pictured,
        expected: Any,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        running = runner(flavour, precision)
        encode = running.encode
        for lost in (slice(None), slice(1, 2)):

            def without(patches: Patches, lost: slice = lost) -> dict[str, NDArray[np.float32]]:
                made = encode(patches)
                made["deepstack"][lost] = 0
                return made

            monkeypatch.setattr(running, "encode", without)
            assert relative_l2(read(running, three_images), expected) > 3 * checks.DECODER[precision].rel_l2

    @pytest.mark.parametrize(("flavour", "precision"), NOTICED)
    def test_with_images_read_as_a_line_of_text_they_are_far_from_it(
        self,
        flavour: Flavour,
        precision: Precision,
        runner: Runners,
        three_images: Pictured,
        expected: Any,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(
            runner_module, "token_positions", lambda ids, *_: (np.tile(np.arange(len(ids)), (3, 1)), len(ids))
        )
        assert relative_l2(read(runner(flavour, precision), three_images), expected) > (
            1.5 * checks.DECODER[precision].rel_l2
        )

    def test_a_trt_graph_without_its_mask_is_far_from_it(
        self, runner: Runners, three_images: Pictured, expected: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(runner_module, "MASKED", 0.0)
        logits = read(runner("trt", "fp32"), three_images, chunk=1000)
        assert relative_l2(logits, expected) > checks.DECODER["int8"].rel_l2

    def test_a_text_alone_is_read(self, runner: Runners, reference: Any, three_images: Pictured) -> None:
        prompt, _ = three_images
        ids = prompt.ids[: prompt.images[0].start - 1]
        text = TokenPrompt(ids, ids, ())
        wanted = reference.logits(ids.tolist(), [], np.arange(len(ids)))
        for flavour in PRECISIONS:
            assert relative_l2(read(runner(flavour, "fp32"), (text, [])), wanted) <= checks.DECODER["fp32"].rel_l2

    def test_an_output_that_is_not_tied_is_used(
        self,
        with_config: Any,
        tmp_path: Path,
        checkpoint: Checkpoint,
        graphs: Callable[..., Path],
        runner: Runners,
        session: Callable[[Path], Any],
        three_images: Pictured,
    ) -> None:
        folder = with_config(lambda config: config.update(tie_word_embeddings=False))
        embedding = checkpoint.weight(checkpoint.output_name)
        stored = load_file(folder / "model.safetensors")
        save_file({**stored, "lm_head.weight": embedding[::-1].copy()}, folder / "model.safetensors")
        write_decoder(Checkpoint(folder), tmp_path / "decoder.onnx", "cpu", "fp32")
        own = GraphRunner(graphs("cpu", "fp32"), checkpoint, threads=1)
        own.decoder = session(tmp_path / "decoder.onnx")
        tied = runner("cpu", "fp32")
        assert np.allclose(read(own, three_images)[:, ::-1], read(tied, three_images), atol=1e-4)


class TestRuns:
    @every_kind
    @pytest.mark.parametrize("chunk", [1, 37])
    def test_reading_in_chunks_is_reading_at_once(
        self, flavour: Flavour, precision: Precision, chunk: int, runner: Runners, three_images: Pictured
    ) -> None:
        running = runner(flavour, precision)
        whole = read(running, three_images, chunk=10_000)
        assert relative_l2(read(running, three_images, chunk=chunk), whole) <= checks.KEPT_CACHE[precision]

    @flavours
    def test_logit_positions_choose_the_rows(
        self, flavour: Flavour, runner: Runners, three_images: Pictured, reference: Any, expected: Any
    ) -> None:
        prompt, patches = three_images
        rows = np.array([0, 3, 40, 41, len(prompt.ids) - 1])
        some = runner(flavour, "fp32").read(prompt, patches, rows, chunk=64)["logits"]
        assert some.shape == (5, expected.shape[1])
        assert relative_l2(some, expected[rows]) <= checks.DECODER["fp32"].rel_l2

    def test_they_may_come_in_any_order_and_be_none(self, runner: Runners, checkpoint: Checkpoint) -> None:
        decoder = runner("trt", "fp32").decoder
        feed = feed_of(checkpoint, 6)
        whole = decoder.run(["logits"], feed)[0][0]
        turned = decoder.run(["logits"], {**feed, "logit_positions": np.array([5, 0, 5])})[0][0]
        assert np.allclose(turned, whole[[5, 0, 5]], atol=1e-5)
        nothing = decoder.run(["logits"], {**feed, "logit_positions": np.array([], np.int64)})[0]
        assert nothing.shape == (1, 0, whole.shape[1])

    def test_the_cpu_flavour_keeps_within_a_larger_buffer(self, runner: Runners, checkpoint: Checkpoint) -> None:
        """What lies in the buffer behind the tokens read is of no account."""
        text, decoder = checkpoint.shape.text_config, runner("cpu", "fp32").decoder
        logits = []
        for capacity, behind in ((6, 0.0), (50, 7.0)):
            feed = feed_of(checkpoint, 6)
            feed = {name: value for name, value in feed.items() if name != "attention_bias"}
            shape = (1, text.num_key_value_heads, capacity, text.head_dim)
            past = {name: np.full(shape, behind, np.float32) for name in feed if name.startswith("past.")}
            table = {name: np.resize(feed[name], (capacity, text.head_dim // 2)) for name in ("cos", "sin")}
            lengths = {"kept": np.array([5], np.int32), "total": np.array(6, np.int32)}
            logits.append(decoder.run(["logits"], {**feed, **past, **table, **lengths})[0])
        assert np.allclose(*logits, atol=1e-5)


def feed_of(checkpoint: Checkpoint, new: int) -> dict[str, NDArray[Any]]:
    """Random inputs of a float32 decoder for TensorRT that has read nothing yet."""
    text, rng = checkpoint.shape.text_config, np.random.default_rng(0)
    taps = len(checkpoint.shape.vision_config.deepstack_visual_indexes)
    angles = rng.uniform(0, 6, (new, text.head_dim // 2)).astype(np.float32)
    past = (1, text.num_key_value_heads, 0, text.head_dim)
    return {
        "inputs_embeds": rng.standard_normal((1, new, text.hidden_size), np.float32),
        "deepstack": np.zeros((taps, 1, new, text.hidden_size), np.float32),
        "logit_positions": np.arange(new),
        "cos": np.cos(angles),
        "sin": np.sin(angles),
        "attention_bias": np.triu(np.full((new, new), -30000, np.float32), 1)[None, None],
        **{
            f"past.{layer}.{part}": np.zeros(past, np.float32)
            for layer in range(text.num_hidden_layers)
            for part in ("key", "value")
        },
    }


class TestInterface:
    """What the module's table says of inputs and outputs."""

    def signature(self, values: Any) -> dict[str, tuple[str, tuple[Any, ...]]]:
        return {
            value.name: (
                onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type),
                tuple(dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim),
            )
            for value in values
        }

    def past(self, layers: int, kind: str, dims: tuple[Any, ...], name: str = "past") -> dict[str, Any]:
        return {f"{name}.{layer}.{part}": (kind, dims) for layer in range(layers) for part in ("key", "value")}

    @pytest.mark.parametrize("precision", PRECISIONS["cpu"])
    def test_cpu(self, precision: Precision, graphs: Callable[..., Path]) -> None:
        graph = onnx.load(graphs("cpu", precision) / "decoder.onnx", load_external_data=False).graph
        buffers = (4, "FLOAT", (1, 2, "capacity", 32))
        assert self.signature(graph.input) == {
            "inputs_embeds": ("FLOAT", (1, "new", 64)),
            "deepstack": ("FLOAT", (2, 1, "new", 64)),
            "logit_positions": ("INT64", ("logits",)),
            "cos": ("FLOAT", ("capacity", 16)),
            "sin": ("FLOAT", ("capacity", 16)),
            "kept": ("INT32", (1,)),
            "total": ("INT32", ()),
            **self.past(*buffers),
        }
        assert self.signature(graph.output) == {
            "logits": ("FLOAT", (1, "logits", 2048)),
            **self.past(*buffers, "present"),
        }

    @pytest.mark.parametrize("precision", PRECISIONS["trt"])
    def test_trt(self, precision: Precision, graphs: Callable[..., Path]) -> None:
        graph = onnx.load(graphs("trt", precision) / "decoder.onnx", load_external_data=False).graph
        kind = "FLOAT" if precision == "fp32" else "FLOAT16"
        assert self.signature(graph.input) == {
            "inputs_embeds": (kind, (1, "new", 64)),
            "deepstack": (kind, (2, 1, "new", 64)),
            "logit_positions": ("INT64", ("logits",)),
            "cos": ("FLOAT", ("new", 16)),
            "sin": ("FLOAT", ("new", 16)),
            "attention_bias": (kind, (1, 1, "new", "all")),
            **self.past(4, kind, (1, 2, "past", 32)),
        }
        assert self.signature(graph.output) == {
            "logits": ("FLOAT", (1, "logits", 2048)),
            **self.past(4, kind, (1, 2, "all", 32), "present"),
        }

    @pytest.mark.parametrize("precision", PRECISIONS["trt"])
    def test_the_trt_flavour_is_made_of_standard_operators(
        self, precision: Precision, graphs: Callable[..., Path]
    ) -> None:
        model = onnx.load(graphs("trt", precision) / "decoder.onnx", load_external_data=False)
        assert {node.domain for node in model.graph.node} == {""}
        assert model.opset_import[0].version == {"int8": 19, "int4": 21}.get(precision, 18)

    def test_weights_of_fewer_bits_are_smaller_files(self, graphs: Callable[..., Path]) -> None:
        for flavour, order in (("cpu", ("fp32", "int8", "int4")), ("trt", ("fp32", "fp16", "int8", "int4"))):
            bytes_of = [(graphs(flavour, name) / "decoder.onnx.data").stat().st_size for name in order]
            assert bytes_of == sorted(bytes_of, reverse=True) and bytes_of[-1] < bytes_of[0] / 3

    @flavours
    def test_a_graph_whose_weights_are_missing_is_not_begun_in_vain(
        self, flavour: Flavour, copied: Path, tmp_path: Path
    ) -> None:
        """The error of the checkpoint comes through, and no graph is left that seems whole."""
        stored = load_file(copied / "model.safetensors")
        del stored["model.language_model.layers.2.mlp.up_proj.weight"]
        save_file(stored, copied / "model.safetensors")
        with pytest.raises(UnreadableCheckpoint, match=r"layers\.2\.mlp\.up_proj"):
            write_decoder(Checkpoint(copied), tmp_path / "decoder.onnx", flavour, "fp32")
        assert not (tmp_path / "decoder.onnx").exists()


class TestEmbedding:
    @pytest.mark.parametrize("precision", ["fp32", "fp16"])
    def test_rows_of_the_table_are_looked_up(
        self, precision: Precision, checkpoint: Checkpoint, tmp_path: Path, session: Callable[[Path], Any]
    ) -> None:
        write_embedding(checkpoint, tmp_path / "embedding.onnx", precision)
        table = checkpoint.weight("model.language_model.embed_tokens.weight")
        ids = np.array([0, 2047, 5, 5, 1000])
        rows = session(tmp_path / "embedding.onnx").run(None, {"input_ids": ids[None]})[0]
        kept = table.astype(np.float16) if precision == "fp16" else table
        assert rows.dtype == np.float32
        assert np.array_equal(rows[0], kept[ids].astype(np.float32))

    def test_float16_takes_half_the_room(self, checkpoint: Checkpoint, tmp_path: Path) -> None:
        for precision in ("fp32", "fp16"):
            write_embedding(checkpoint, tmp_path / f"{precision}.onnx", precision)
        sizes = [(tmp_path / f"{precision}.onnx.data").stat().st_size for precision in ("fp32", "fp16")]
        assert sizes[0] == 2 * sizes[1] == 2048 * 64 * 4
