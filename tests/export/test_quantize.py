"""Quantized weights are as near as their bits allow, and packed as the operators that read them expect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from wayfix_export import quantize
from wayfix_export.graph import MICROSOFT, GraphWriter
from wayfix_export.quantize import BLOCK, blocked_int4, channels_int8, matmul_nbits

Weight = NDArray[np.float32]
Session = Callable[[Path], Any]

EPSILON = 1e-4
"""Of a step, or of a block's largest magnitude: more than float32 itself rounds."""

magnitudes = st.floats(-4, 4, width=32, allow_subnormal=False)
scales = st.sampled_from([1e-6, 1e-3, 1.0, 100.0])


def weights(widths: st.SearchStrategy[int]) -> st.SearchStrategy[Weight]:
    """(out, in), of any size of values, with rows and blocks of zeros now and then."""
    shapes = st.tuples(st.integers(1, 5), widths)
    filled = shapes.flatmap(lambda shape: arrays(np.float32, shape, elements=magnitudes))
    return st.builds(lambda weight, scale: (weight * scale).astype(np.float32), filled, scales)


any_weight = weights(st.integers(1, 3 * BLOCK))
whole_blocks = weights(st.integers(1, 3).map(lambda count: count * BLOCK))


def normal(out: int, width: int, seed: int = 0) -> Weight:
    return np.random.default_rng(seed).standard_normal((out, width), np.float32)


def in_blocks(weight: Weight) -> Weight:
    return np.pad(weight, ((0, 0), (0, -weight.shape[1] % BLOCK))).reshape(len(weight), -1, BLOCK)


def nbits_values(packed: NDArray[np.uint8], bits: int) -> NDArray[np.int16]:
    """Signed values (out, blocks, BLOCK) of MatMulNBits' operand."""
    if bits == 4:
        packed = np.stack([packed & 0xF, packed >> 4], axis=3).reshape(*packed.shape[:2], BLOCK)
    return packed.astype(np.int16) - (1 << (bits - 1))


def nbits_weight(weight: Weight, bits: int) -> Weight:
    packed, scales = matmul_nbits(weight, bits)
    whole = nbits_values(packed, bits) * scales.reshape(*packed.shape[:2], 1)
    return whole.reshape(len(weight), -1)[:, : weight.shape[1]]


both = pytest.mark.parametrize("bits", [8, 4])


class TestMatMulNBits:
    @both
    @given(weight=any_weight)
    def test_every_value_is_within_half_a_step_or_a_step_at_the_short_end(self, bits: int, weight: Weight) -> None:
        packed, scales = matmul_nbits(weight, bits)
        steps = np.abs(scales).reshape(*packed.shape[:2], 1)
        blocks = in_blocks(weight)
        values = nbits_values(packed, bits) * scales.reshape(steps.shape)
        error, most = np.abs(values - blocks), np.abs(blocks).max(axis=2, keepdims=True)
        # The range has one step more on the side of the largest magnitude; what is as large on the other is cut off.
        cut = nbits_values(packed, bits) == (1 << (bits - 1)) - 1
        # A scale under the smallest normal number may vanish, and the weights with it.
        smallest = np.finfo(np.float32).tiny
        assert np.all(error <= np.where(cut, 1.0, 0.5) * steps + EPSILON * most + smallest)

    @both
    @given(weight=any_weight)
    def test_the_largest_magnitude_of_a_block_is_kept(self, bits: int, weight: Weight) -> None:
        blocks, read = in_blocks(weight), in_blocks(nbits_weight(weight, bits))
        at = np.abs(blocks).argmax(axis=2, keepdims=True)
        largest = np.take_along_axis(blocks, at, axis=2)
        assert np.allclose(np.take_along_axis(read, at, axis=2), largest, rtol=EPSILON, atol=1e-37)

    @both
    def test_zeros_stay_zeros(self, bits: int) -> None:
        packed, scales = matmul_nbits(np.zeros((3, 70), np.float32), bits)
        assert np.all(nbits_values(packed, bits) == 0)
        assert np.isfinite(scales).all()

    @both
    @pytest.mark.parametrize("width", [1, 31, 32, 33, 95])
    def test_what_fills_up_the_last_block_is_zero(self, bits: int, width: int) -> None:
        packed, scales = matmul_nbits(normal(4, width), bits)
        blocks = -(-width // BLOCK)
        assert packed.shape == (4, blocks, BLOCK * bits // 8) and packed.dtype == np.uint8
        assert scales.shape == (4 * blocks,) and scales.dtype == np.float32
        assert np.all(nbits_values(packed, bits).reshape(4, -1)[:, width:] == 0)

    @both
    @settings(max_examples=25)
    @given(out=st.integers(1, 40), width=st.integers(1, 4 * BLOCK), rows=st.integers(1, 20), seed=st.integers(0, 99))
    @example(out=7, width=33, rows=1, seed=0)
    def test_onnxruntime_multiplies_by_these_values(
        self, session: Session, tmp_path_factory: Any, bits: int, out: int, width: int, rows: int, seed: int
    ) -> None:
        weight, x = normal(out, width, seed), normal(rows, width, seed + 1)
        graph = GraphWriter(tmp_path_factory.mktemp("nbits") / "one.onnx", 18)
        values, scales = matmul_nbits(weight, bits)
        graph.input("x", np.float32, ["rows", width])
        # Accuracy level 1 is float32 throughout: what is left is how weights are packed.
        graph.node(
            "MatMulNBits", "x", graph.weight("w", values), graph.weight("s", scales), domain=MICROSOFT,
            outputs=["y"], N=out, K=width, bits=bits, block_size=BLOCK, accuracy_level=1,
        )  # fmt: skip
        graph.output("y", np.float32, ["rows", out])
        graph.save()
        product = session(graph.path).run(None, {"x": x})[0]
        wanted = x @ nbits_weight(weight, bits).T
        assert np.abs(product - wanted).max() <= 1e-4 * max(np.abs(wanted).max(), 1)


class TestBlockedInt4:
    @given(whole_blocks)
    def test_every_value_is_within_half_a_step(self, weight: Weight) -> None:
        values, scales = blocked_int4(weight)
        steps = scales.T[:, :, None]
        error = np.abs(in_blocks(values.astype(np.float32).T) * steps - in_blocks(weight))
        assert np.all(error <= steps * (0.5 + EPSILON))

    @given(whole_blocks)
    def test_scales_are_positive_in_float16_too_as_tensorrt_wants(self, weight: Weight) -> None:
        scales = blocked_int4(weight)[1].astype(np.float16)
        assert np.all(scales > 0) and np.isfinite(scales).all()

    @given(whole_blocks)
    def test_values_are_symmetric(self, weight: Weight) -> None:
        values = blocked_int4(weight)[0].astype(np.int8)
        assert values.min() >= -7 and values.max() <= 7

    def test_the_result_is_turned_to_in_by_out(self) -> None:
        values, scales = blocked_int4(normal(5, 96))
        assert values.shape == (96, 5) and values.dtype == np.dtype(ml_dtypes.int4)
        assert scales.shape == (3, 5) and scales.dtype == np.float32

    @pytest.mark.parametrize("width", [1, 31, 33, 100])
    def test_an_input_that_is_no_whole_number_of_blocks_is_refused(self, width: int) -> None:
        with pytest.raises(ValueError, match=f"{width} cannot be cut into blocks of 32"):
            blocked_int4(np.ones((2, width), np.float32))

    @settings(max_examples=20)
    @given(out=st.integers(1, 40), blocks=st.integers(1, 4), seed=st.integers(0, 99))
    @example(out=7, blocks=1, seed=0)
    def test_a_dequantize_linear_gives_back_these_values(
        self, session: Session, tmp_path_factory: Any, out: int, blocks: int, seed: int
    ) -> None:
        weight, x = normal(out, blocks * BLOCK, seed), normal(3, blocks * BLOCK, seed + 1)
        graph = GraphWriter(tmp_path_factory.mktemp("blocked") / "one.onnx", 21)
        values, scales = blocked_int4(weight)
        graph.input("x", np.float32, ["rows", blocks * BLOCK])
        w, s = graph.weight("w", values), graph.weight("s", scales)
        graph.node("DequantizeLinear", w, s, axis=0, block_size=BLOCK, outputs=["whole"])
        graph.node("MatMul", "x", "whole", outputs=["y"])
        graph.output("y", np.float32, ["rows", out])
        # Given out, so that onnxruntime does not put a kernel with rounded activations in the place of both nodes.
        graph.output("whole", np.float32, [blocks * BLOCK, out])
        graph.save()
        product, whole = session(graph.path).run(None, {"x": x})
        assert np.array_equal(whole, values.astype(np.float32) * scales.repeat(BLOCK, axis=0))
        assert np.abs(whole - weight.T).max() <= 0.51 * scales.max()
        assert np.abs(product - x @ whole).max() <= 1e-4 * max(np.abs(product).max(), 1)


class TestChannelsInt8:
    @given(any_weight)
    def test_every_value_is_within_half_a_step(self, weight: Weight) -> None:
        values, scales = channels_int8(weight)
        assert values.shape == weight.T.shape and values.dtype == np.int8
        error = np.abs(values.T * scales[:, None] - weight)
        assert np.all(error <= scales[:, None] * (0.5 + EPSILON))

    @given(any_weight)
    @example(np.zeros((3, 4), np.float32))
    def test_scales_are_positive_in_float16_too_as_tensorrt_wants(self, weight: Weight) -> None:
        scales = channels_int8(weight)[1].astype(np.float16)
        assert np.all(scales > 0) and np.isfinite(scales).all()

    @given(any_weight)
    def test_values_are_symmetric(self, weight: Weight) -> None:
        values = channels_int8(weight)[0].astype(np.int16)
        assert np.abs(values).max() <= 127

    @given(any_weight)
    def test_channels_do_not_mix(self, weight: Weight) -> None:
        together, scales = channels_int8(weight)
        for row in range(len(weight)):
            alone, scale = channels_int8(weight[row : row + 1])
            assert np.array_equal(alone[:, 0], together[:, row]) and scale[0] == scales[row]


@pytest.mark.parametrize(
    "make", [blocked_int4, channels_int8, lambda w: matmul_nbits(w, 8), lambda w: matmul_nbits(w, 4)]
)
def test_the_slices_in_which_a_large_weight_is_quantized_do_not_show(
    make: Callable[[Weight], tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = normal(10, 64)
    whole = make(weight)
    monkeypatch.setattr(quantize, "_ROWS", 3)
    sliced = make(weight)
    assert all(np.array_equal(a, b) for a, b in zip(whole, sliced, strict=True))


def test_more_bits_are_nearer() -> None:
    weight = normal(64, 256)
    errors = [np.linalg.norm(nbits_weight(weight, bits) - weight) / np.linalg.norm(weight) for bits in (4, 8)]
    assert errors[1] < errors[0] / 8 < 0.02
