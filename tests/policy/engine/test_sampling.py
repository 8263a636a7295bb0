"""Tokens are chosen as the settings say, among those that are allowed, and held for as likely as the model says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from wayfix.policy.engine.sampling import SamplingConfig, choose, log_probability

LOGITS = np.log(np.array([0.5, 0.25, 0.15, 0.1], np.float32))
"""Of four tokens with these probabilities."""
MANY = 4000

logits_of = st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=40).map(lambda xs: np.array(xs, np.float32))
configs = st.builds(
    SamplingConfig,
    temperature=st.sampled_from([0.0, 1e-3, 0.3, 1.0, 10.0]),
    top_p=st.sampled_from([1e-6, 0.5, 0.9, 1.0]),
)


def shares(
    config: SamplingConfig, logits: NDArray[np.float32] = LOGITS, allowed: NDArray[np.bool_] | None = None
) -> NDArray[np.float64]:
    """How often each token is chosen."""
    rng = np.random.default_rng(7)
    chosen = [choose(logits, allowed, config, rng) for _ in range(MANY)]
    return np.bincount(chosen, minlength=len(logits)) / MANY


def near(expected: list[float]) -> object:
    """Five standard deviations of a share of MANY, at its widest."""
    return pytest.approx(expected, abs=5 * 0.5 / math.sqrt(MANY))


class TestChoosing:
    @given(logits_of, configs, st.data())
    def test_only_what_is_allowed_is_chosen(
        self, logits: NDArray[np.float32], config: SamplingConfig, data: st.DataObject
    ) -> None:
        allowed = np.array(data.draw(st.lists(st.booleans(), min_size=len(logits), max_size=len(logits)).filter(any)))
        assert allowed[choose(logits, allowed, config, np.random.default_rng(0))]

    @given(logits_of)
    def test_at_temperature_zero_it_is_the_likeliest(self, logits: NDArray[np.float32]) -> None:
        config = SamplingConfig(temperature=0.0)
        token = choose(logits, None, config, np.random.default_rng(0))
        assert logits[token] == logits.max()

    def test_of_what_is_allowed_it_is_the_likeliest(self) -> None:
        allowed = np.array([False, False, True, True])
        assert choose(LOGITS, allowed, SamplingConfig(), np.random.default_rng(0)) == 2

    def test_at_temperature_one_each_comes_as_often_as_the_model_says(self) -> None:
        assert shares(SamplingConfig(temperature=1.0)) == near([0.5, 0.25, 0.15, 0.1])

    def test_among_the_allowed_shares_stay_in_proportion(self) -> None:
        allowed = np.array([True, True, False, False])
        assert shares(SamplingConfig(temperature=1.0), allowed=allowed) == near([2 / 3, 1 / 3, 0, 0])

    def test_half_the_temperature_squares_the_odds(self) -> None:
        squares = np.array([0.5, 0.25, 0.15, 0.1]) ** 2
        assert shares(SamplingConfig(temperature=0.5)) == near(list(squares / squares.sum()))

    @pytest.mark.parametrize(
        ("top_p", "expected"),
        [(0.4, [1, 0, 0, 0]), (0.6, [2 / 3, 1 / 3, 0, 0]), (0.8, [5 / 9, 2.5 / 9, 1.5 / 9, 0]), (1e-9, [1, 0, 0, 0])],
    )
    def test_top_p_keeps_the_fewest_likeliest_that_make_it_up(self, top_p: float, expected: list[float]) -> None:
        assert shares(SamplingConfig(temperature=1.0, top_p=top_p)) == near(expected)

    def test_top_p_counts_only_what_is_allowed(self) -> None:
        allowed = np.array([False, True, True, True])
        assert shares(SamplingConfig(temperature=1.0, top_p=0.4), allowed=allowed) == near([0, 1, 0, 0])

    def test_logits_as_large_as_float32_allows_overflow_nothing(self) -> None:
        logits = np.array([3e38, -3e38, 2e38], np.float32)
        assert shares(SamplingConfig(temperature=0.01, top_p=0.9), logits).tolist() == [1, 0, 0]

    def test_equal_generators_choose_equally(self) -> None:
        logits = np.random.default_rng(1).standard_normal(500).astype(np.float32)
        config = SamplingConfig(temperature=2.0)
        runs = []
        for seed in (5, 5, 6):
            rng = np.random.default_rng(seed)
            runs.append([choose(logits, None, config, rng) for _ in range(20)])
        assert runs[0] == runs[1] != runs[2]

    def test_the_logits_are_left_as_they_are(self) -> None:
        logits = LOGITS.copy()
        choose(
            logits,
            np.array([True, False, True, False]),
            SamplingConfig(temperature=1.0, top_p=0.5),
            np.random.default_rng(0),
        )
        assert logits.tolist() == LOGITS.tolist()


class TestProbability:
    @given(logits_of)
    def test_probabilities_are_the_softmax_and_sum_to_one(self, logits: NDArray[np.float32]) -> None:
        exact = np.exp(logits.astype(np.float64) - logits.max())
        exact /= exact.sum()
        ours = np.array([log_probability(logits, token) for token in range(len(logits))])
        assert ours == pytest.approx(np.log(exact), abs=1e-5)
        assert np.exp(ours).sum() == pytest.approx(1, abs=1e-5)

    def test_a_wide_vocabulary_loses_no_precision(self) -> None:
        # As wide as Qwen3-VL's: sums in float32 would be off in the fifth place.
        logits = np.zeros(151_936, np.float32)
        assert log_probability(logits, 0) == pytest.approx(-math.log(151_936), abs=1e-9)

    def test_large_logits_overflow_nothing(self) -> None:
        assert log_probability(np.array([1e30, -1e30], np.float32), 0) == 0.0


@pytest.mark.parametrize(
    "values",
    [{"temperature": -0.1}, {"temperature": 11}, {"temperature": math.nan}, {"top_p": 0}, {"top_p": 1.1}, {"seed": -1}],
)
def test_impossible_settings_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        SamplingConfig(**values)  # type: ignore[arg-type]
