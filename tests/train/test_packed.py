"""The packed forward pass is the stock model's, and a step of training is what it says."""

from __future__ import annotations

import contextlib
import pickle
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from wayfix.errors import InvalidOption
from wayfix.policy.engine.images import make_patches
from wayfix.policy.engine.positions import token_positions
from wayfix_train.nano.layout import IMAGE_SPEC, MERGE, PATCH
from wayfix_train.nano.losses import CellHeads, NumberLoss, heat
from wayfix_train.nano.model import new_model
from wayfix_train.nano.packed import Batch, encode_images, pad_batch, read_text
from wayfix_train.nano.scene_step import Plan, SceneStep, Weights
from wayfix_train.nano.sft import PhaseConfig, ShardPool, Trainer, load_weights, save_weights
from wayfix_train.nano.tokenizer import make_nano_tokenizer, number_tokens

if TYPE_CHECKING:
    from wayfix_train.data.shards import Shard

TOKENIZER = make_nano_tokenizer()
PAD = TOKENIZER.token_to_id("<|image_pad|>")
FIND = TOKENIZER.token_to_id("\nFind: ")


def _stock(model: Any, ids: np.ndarray, images: list[np.ndarray]) -> Any:
    patches = [make_patches(image, IMAGE_SPEC) for image in images]
    tokens = torch.from_numpy(ids)[None]
    with torch.no_grad():
        return model.model(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            mm_token_type_ids=(tokens == PAD).int(),
            pixel_values=torch.from_numpy(np.concatenate([p.pixels for p in patches])),
            image_grid_thw=torch.tensor([(1, p.rows, p.columns) for p in patches]),
            use_cache=False,
        ).last_hidden_state[0]


def test_shared_prefix_and_batched_images_give_what_the_stock_forward_gives(shard: Shard) -> None:
    model = new_model(TOKENIZER).eval()
    episode = max(shard.searches, key=lambda e: len(e.pictures))
    images = [shard.pictures[n].image for n in episode.pictures]
    ids = episode.ids.astype(np.int64)
    expected = _stock(model, ids, images)
    grids = [(i.shape[0] // PATCH, i.shape[1] // PATCH) for i in images]
    positions, _ = token_positions(ids, grids, PAD, 0, MERGE)
    end = int(np.flatnonzero(ids == FIND)[0])
    with torch.no_grad():
        features = [encode_images(model.model.visual, image[None]) for image in images]
        rows = torch.tensor([(0, int(i)) for i in np.flatnonzero(ids[:end] == PAD)])
        prefix = Batch(torch.from_numpy(ids[None, :end]), positions[:, None, :end], None, rows)
        prefix.images, prefix.deep = features[0].tokens[0], [deep[0] for deep in features[0].deep]
        before, past = read_text(model.model.language_model, prefix)
        rest = pad_batch(
            [ids[end:], ids[end:-5]], [positions[:, end:], positions[:, end:-5]], [None, None], end, torch.device("cpu")
        )
        places = np.flatnonzero(ids[end:] == PAD)
        rest.image_rows = torch.tensor([(b, int(i)) for b in range(2) for i in places])
        rest.images = torch.cat([f.tokens[0] for f in features[1:]] * 2)
        rest.deep = [torch.cat([f.deep[0][0] for f in features[1:]] * 2)]
        after, _ = read_text(model.model.language_model, rest, past)
    assert torch.allclose(before[0], expected[:end], atol=2e-5)
    assert torch.allclose(after[0], expected[end:], atol=2e-5)
    assert torch.allclose(after[1, :-5], expected[end:-5], atol=2e-5)


def test_further_sentences_on_a_zoom_do_not_disturb_the_episode(shard: Shard) -> None:
    step = SceneStep(new_model(TOKENIZER), CellHeads(192), TOKENIZER)
    episode = next(e for e in shard.searches if e.local)
    alone, packed = step.rows.row(shard, episode, local=False), step.rows.row(shard, episode, local=True)
    n = len(alone.ids)
    assert packed.seen is not None and len(packed.ids) > n
    assert not packed.seen[:n, n:].any()
    assert len(packed.learned) == len(alone.learned) + len(episode.local)


def test_names_are_spelt_with_other_letters_the_same_way_throughout(shard: Shard) -> None:
    step = SceneStep(new_model(TOKENIZER), CellHeads(192), TOKENIZER, np.random.default_rng(0))
    episode = next(e for e in shard.decisions if len(e.learned) == 2)
    before = TOKENIZER.decode([int(i) for i in episode.ids if i != PAD], skip_special_tokens=False)
    row = step.rows.row(shard, episode, local=False)
    after = TOKENIZER.decode([int(i) for i in row.ids if i != PAD], skip_special_tokens=False)
    old, new = (re.search(r'"landmark_name": "([^"]+)"', text)[1] for text in (before, after))  # type: ignore[index]
    assert len(old) == len(new) and old != new
    assert after.lower().count(new.lower()) >= before[before.index("Find: ") :].lower().count(old.lower())
    # Words stay words.
    assert new.split()[-1] == old.split()[-1]


def test_number_loss_is_cross_entropy_for_words_and_forgiving_for_near_numbers() -> None:
    tokens = number_tokens(TOKENIZER)
    loss = NumberLoss(tokens, TOKENIZER.get_vocab_size())
    word = TOKENIZER.token_to_id("red")
    logits = torch.randn(1, TOKENIZER.get_vocab_size())
    plain = torch.nn.functional.cross_entropy(logits, torch.tensor([word]))
    assert torch.allclose(loss(logits, torch.tensor([word]), 4.0), plain)
    sharp = torch.zeros(2, TOKENIZER.get_vocab_size())
    sharp[0, tokens[502]] = sharp[1, tokens[700]] = 10.0
    near, far = loss(sharp, torch.tensor([tokens[500]] * 2), 4.0)
    assert near < far


def test_heat_lies_where_the_box_lies() -> None:
    found = heat((0, 0, 500, 250), 4, 4).reshape(4, 4)
    assert found.sum() == pytest.approx(1)
    assert found[0, :2].sum() == pytest.approx(1)


def test_gradients_reach_every_part(shard: Shard) -> None:
    model, heads = new_model(TOKENIZER), CellHeads(192)
    step = SceneStep(model, heads, TOKENIZER)
    searches = [e for e in shard.searches if e.local][:1]
    aims = [e for e in shard.decisions if step.rows.is_aim(e)]
    total, log = step.scene_loss(shard, Plan(aims[:2], shard.decisions[:3], searches), Weights())
    more, crops = step.crops_loss(shard, searches, Weights())
    (total + more).backward()
    without = [n for n, p in model.named_parameters() if p.grad is None or not bool(torch.isfinite(p.grad).all())]
    assert not without
    assert {"long_call", "long_number", "search_number", "zoom_acc", "v0_acc"} <= set(log)
    assert {"crop_number", "crop_iou"} <= set(crops)


def test_weights_are_handed_on(tmp_path: Path) -> None:
    model, heads = new_model(TOKENIZER, seed=1), CellHeads(192)
    save_weights(tmp_path / "w.safetensors", model, heads)
    other, other_heads = new_model(TOKENIZER, seed=2), CellHeads(192)
    load_weights(tmp_path / "w.safetensors", other, other_heads)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(heads.parameters(), other_heads.parameters(), strict=True))
    with pytest.raises(InvalidOption, match="another model"):
        load_weights(tmp_path / "w.safetensors", other, CellHeads(64))


def test_a_killed_phase_goes_on_to_the_same_weights(shard: Shard, tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    shards.mkdir()
    (shards / "train-3.shard").write_bytes(pickle.dumps(shard))

    def train(folder: Path, stop: int) -> dict[str, Any]:
        config = PhaseConfig(phase="text", steps=4, decisions=2, warmup=2)
        trainer = Trainer(config, ShardPool(shards, "train"), folder, 0, None)

        def say(report: dict[str, Any]) -> None:
            if report["step"] == stop:
                raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt):
            trainer.run(say, every=1, save_every=1)
        return trainer.state.model.state_dict()

    whole = train(tmp_path / "whole", 99)
    train(tmp_path / "cut", 3)
    again = train(tmp_path / "cut", 99)
    assert all(torch.equal(whole[name], again[name]) for name in whole)
