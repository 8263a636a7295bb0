"""Finding landmarks by name, forgiving of typing mistakes.

Three stages, each tried only where the one before found nothing: the same normalised text; one edit away (a
dictionary of every name with one character deleted); a few edits away or words in another order (shared trigrams).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from rapidfuzz import process
from rapidfuzz.distance import OSA

from wayfix.scene.landmark import Landmark

# fmt: off
NOT_BUILDINGS = frozenset((
    "bay", "beach", "bridge", "canal", "cemetery", "coastline", "cycleway", "footway", "forest", "garden", "grass",
    "highway", "island", "junction", "lake", "meadow", "motorway", "mountain", "park", "parking", "path",
    "pedestrian", "pitch", "playground", "plaza", "pond", "railway", "river", "road", "square", "stream", "street",
    "track", "trail", "tunnel", "water", "waterway", "wood",
))
# fmt: on
"""Types that the type filter `building` leaves out; it accepts every other type."""

_MAX_LENGTH = 200  # characters of a normalised text that count
_MAX_POSTINGS = 120_000  # index rows looked at per query, rarest trigrams first: bounds the slowest query
_MAX_CANDIDATES = 1_000  # texts compared with a query, those sharing most trigrams first
_MOST_EDITS = 3
_ARTICLE = "the "
_PLAIN_LETTERS = dict(zip("øđłæœıþðħŧ", ("o", "d", "l", "ae", "oe", "i", "th", "d", "h", "t"), strict=True))
_OPTIONAL_MARKS = (
    (0x0300, 0x036F),  # accents
    (0x0591, 0x05C7),  # Hebrew points
    (0x0610, 0x061A),  # Arabic signs
    (0x064B, 0x065F),  # Arabic vowels
    (0x20D0, 0x20FF),  # rings and keycaps around symbols
    (0xFE00, 0xFE0F),  # variants of emoji
)
"""Marks that people leave out when typing. Those of Indic scripts are not among them: they are letters."""

_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2**64
_BASE_INVERSE = pow(_BASE, -1, 2**64)
_POWERS = np.cumprod(np.r_[np.uint64(1), np.full(_MAX_LENGTH, _BASE, np.uint64)])

Status = Literal["found", "ambiguous", "not_found"]
Codes = NDArray[np.uint32]


@dataclass(frozen=True)
class LandmarkMatch:
    """One landmark that a name may mean."""

    landmark: Landmark
    score: float
    """1 for the same text after normalising; less by the fraction of characters edited."""
    matched_text: str
    """The name or alias that matched, as the landmark has it."""


@dataclass(frozen=True)
class LandmarkMatches:
    """The answer to a query."""

    status: Status
    """`ambiguous` where several landmarks match equally well: none of `matches` is better than another."""
    matches: tuple[LandmarkMatch, ...]
    """Best first; empty where nothing was found."""


@dataclass(frozen=True)
class _Text:
    """One name or alias, normalised."""

    landmark: int
    original: str
    spaced: str
    compact: str
    """Without spaces, so that a lost or added space is no edit."""


class LandmarkIndex:
    """Landmarks by name and alias. Immutable after it is built; safe to share between threads."""

    def __init__(self, landmarks: Sequence[Landmark]) -> None:
        self._landmarks = tuple(landmarks)
        self._texts = [text for i, landmark in enumerate(self._landmarks) for text in _texts_of(i, landmark)]
        self._compact = [t.compact for t in self._texts]
        self._sorted = ["".join(sorted(t.spaced.split())) for t in self._texts]
        self._exact: dict[str, list[int]] = {}
        for row, text in enumerate(self._texts):
            self._exact.setdefault(text.spaced, []).append(row)
        self._edits = _Postings.of(*_deletions(self._compact))
        self._trigrams = _Postings.of(*_trigrams([t.spaced for t in self._texts]))
        self._sizes = np.array([len(t.spaced) for t in self._texts], np.int32)
        kinds = [landmark.type.strip().casefold() for landmark in self._landmarks]
        self._kinds = [kinds[t.landmark] for t in self._texts]

    def __len__(self) -> int:
        return len(self._landmarks)

    def query(self, name: str, landmark_type: str | None = None, limit: int = 5) -> LandmarkMatches:
        """The landmarks that `name` may mean, at most `limit` of them, best first.

        Case, accents, punctuation, spaces and a leading "the" do not count; words may be in another order. Names of
        at least 4 letters are forgiven one edit, of 8 two, of 16 three; a short word with two edits is another word.
        `landmark_type` narrows before anything is decided, regardless of case; `building` stands for every type but
        NOT_BUILDINGS. Never raises; an empty name is not found.
        """
        spaced = normalise(name)
        bare = _without_article(spaced)
        kind = (landmark_type or "").strip().casefold()
        if not bare:
            return LandmarkMatches("not_found", ())
        exact = self._of_kind(self._exact.get(bare, ()), kind)
        if exact:
            return self._decide([(row, 0, 1.0) for row in exact], limit)
        hits = [hit for form in {bare, spaced} for hit in self._one_edit(form, kind)]
        return self._decide(hits or self._few_edits(bare, kind), limit)

    def _one_edit(self, spaced: str, kind: str) -> list[tuple[int, int, float]]:
        """(row, edits, score) of texts that become the query by at most one edit or swap."""
        compact = spaced.replace(" ", "")
        near = self._edits.rows(np.unique(_deletions([compact])[0]))
        return self._compared(compact, self._of_kind(np.unique(near).tolist(), kind), 1)

    def _few_edits(self, spaced: str, kind: str) -> list[tuple[int, int, float]]:
        """(row, edits, score) of texts a few edits away, as written or with the words sorted."""
        keys = np.unique(_trigrams([spaced])[0])
        shared = np.bincount(self._trigrams.rows(keys, _MAX_POSTINGS), minlength=len(self._texts))
        sharing = np.flatnonzero(shared >= max(2, len(keys) // 4))
        if kind:
            sharing = np.array(self._of_kind(sharing.tolist(), kind), np.intp)
        alike = shared[sharing] / (self._sizes[sharing] + len(keys))
        if len(sharing) > _MAX_CANDIDATES:
            sharing = sharing[np.argpartition(-alike, _MAX_CANDIDATES)[:_MAX_CANDIDATES]]
        rows = sharing.tolist()
        words = spaced.split()
        hits = [
            hit
            for hit in self._compared("".join(words), rows, _MOST_EDITS)
            if _same_words(words, self._texts[hit[0]].spaced.split())
        ]
        words.sort()
        for row, edits, length in _within("".join(words), {row: self._sorted[row] for row in rows}, _MOST_EDITS):
            if _same_words(words, sorted(self._texts[row].spaced.split())):
                # Half an edit for the order: below the same words in order, above a letter wrong.
                hits.append((row, edits, _score(edits + 0.5, length)))
        return hits

    def _compared(self, compact: str, rows: Sequence[int], most: int) -> list[tuple[int, int, float]]:
        found = _within(compact, {row: self._compact[row] for row in rows}, most)
        return [(row, edits, _score(edits, length)) for row, edits, length in found]

    def _of_kind(self, rows: Sequence[int], kind: str) -> list[int]:
        if not kind:
            return list(rows)
        if kind == "building":
            return [row for row in rows if self._kinds[row] not in NOT_BUILDINGS]
        return [row for row in rows if self._kinds[row] == kind]

    def _decide(self, hits: Iterable[tuple[int, int, float]], limit: int) -> LandmarkMatches:
        """Each landmark once, by its best text; ambiguous where two have the fewest edits."""
        best: dict[int, tuple[int, int, float]] = {}
        for row, edits, score in sorted(hits, key=lambda hit: (hit[1], -hit[2], hit[0])):
            best.setdefault(self._texts[row].landmark, (row, edits, score))
        if not best:
            return LandmarkMatches("not_found", ())
        ranked = list(best.values())
        status: Status = "ambiguous" if len(ranked) > 1 and ranked[1][1] == ranked[0][1] else "found"
        return LandmarkMatches(
            status,
            tuple(
                LandmarkMatch(self._landmarks[self._texts[row].landmark], score, self._texts[row].original)
                for row, _, score in ranked[: max(limit, 1)]
            ),
        )


def normalise(text: str) -> str:
    """The text as it is compared: case folded, without accents and punctuation, words one space apart.

    A text without letters and digits (an emoji, say) keeps its symbols.
    """
    folded = text.casefold()
    if not folded.isascii():
        folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", folded).casefold())
    words = unicodedata.normalize("NFC", "".join(map(_compared_as, folded))).split()
    if not any(c.isalnum() for word in words for c in word):
        words = "".join(c for c in folded if unicodedata.category(c) not in ("Cc", "Cf")).split()
    return " ".join(words)[:_MAX_LENGTH].rstrip()


@lru_cache(maxsize=4096)
def _compared_as(c: str) -> str:
    """What one decomposed character becomes: apostrophes and invisible characters join, other signs part words."""
    if c in _PLAIN_LETTERS:
        return _PLAIN_LETTERS[c]
    if c in "'’‘ʼ`´" or unicodedata.category(c) == "Cf" or any(low <= ord(c) <= high for low, high in _OPTIONAL_MARKS):
        return ""
    return c if c.isalnum() or unicodedata.category(c)[0] == "M" else " "


def _without_article(spaced: str) -> str:
    return spaced.removeprefix(_ARTICLE)


def _texts_of(number: int, landmark: Landmark) -> list[_Text]:
    """The name and aliases; where one starts with an article, also a form that keeps it, in case that has the typo."""
    forms: dict[str, _Text] = {}
    for original in (landmark.name, *landmark.aliases):
        spaced = normalise(original)
        for form in (_without_article(spaced), spaced):
            if form:
                forms.setdefault(form, _Text(number, original, form, form.replace(" ", "")))
    return list(forms.values())


def _allowed(length: int) -> int:
    """Edits forgiven where the longer text has this many characters."""
    return 0 if length < 4 else 1 if length < 8 else 2 if length < 16 else _MOST_EDITS


def _score(edits: float, length: int) -> float:
    return max(0.0, 1.0 - edits / length)


def _within(text: str, choices: dict[int, str], most: int) -> list[tuple[int, int, int]]:
    """(row, edits, length of the longer text) of the choices close enough; an edit may also swap two neighbours."""
    found = process.extract(text, choices, scorer=OSA.distance, score_cutoff=most, limit=None)
    sized = [(row, int(edits), max(len(text), len(choice))) for choice, edits, row in found]
    return [hit for hit in sized if hit[1] <= _allowed(hit[2])]


def _same_words(a: Sequence[str], b: Sequence[str]) -> bool:
    """Whether no word was replaced by another: "east gate" is not "west gate", though only two letters differ."""
    if len(a) != len(b):  # a space was typed or lost: words cannot be paired, and only long names are believed
        return abs(len(a) - len(b)) == 1 and sum(map(len, b)) >= 12
    return all(OSA.distance(v, w) <= (1 if max(len(v), len(w)) < 6 else _MOST_EDITS) for v, w in zip(a, b, strict=True))


@dataclass(frozen=True)
class _Postings:
    """A sorted multimap from 64-bit keys to rows, two arrays instead of millions of Python objects."""

    keys: NDArray[np.uint64]
    values: NDArray[np.int32]

    @classmethod
    def of(cls, keys: NDArray[np.uint64], values: NDArray[np.int32]) -> _Postings:
        order = np.argsort(keys)
        return cls(keys[order], values[order])

    def rows(self, keys: NDArray[np.uint64], most: int | None = None) -> NDArray[np.int32]:
        """The rows under any of the keys, with repeats; keys with few rows first, until `most` rows are reached."""
        begin = np.searchsorted(self.keys, keys, "left")
        end = np.searchsorted(self.keys, keys, "right")
        sizes = end - begin
        order = np.argsort(sizes, kind="stable")
        if most is not None:
            order = order[: max(1, int(np.searchsorted(np.cumsum(sizes[order]), most, "right")))]
        parts = [self.values[begin[k] : end[k]] for k in order if sizes[k]]
        return np.concatenate(parts) if parts else np.empty(0, np.int32)


def _code_points(texts: Sequence[str]) -> tuple[Codes, NDArray[np.int64], NDArray[np.int32]]:
    """All characters of all texts in a row, where each text starts (plus the end), and the text of each character."""
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    sizes = np.fromiter(map(len, texts), np.int64, len(texts))
    return codes, np.concatenate(([0], np.cumsum(sizes))), np.repeat(np.arange(len(texts), dtype=np.int32), sizes)


def _deletions(texts: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """Hashes of every text and of every text with one character deleted, each with the text's row.

    A text's hash is the sum of character i times base**i modulo 2**64, so deleting one divides what follows by the
    base. Two texts are within one edit or swap only if they share a hash.
    """
    codes, starts, rows = _code_points(texts)
    place = np.arange(len(codes)) - starts[rows]
    running = np.concatenate((np.zeros(1, np.uint64), np.cumsum(codes * _POWERS[place], dtype=np.uint64)))
    begin, end = running[starts[:-1]], running[starts[1:]]
    before = running[:-1] - begin[rows]
    after = (end[rows] - running[1:]) * np.uint64(_BASE_INVERSE)
    keys = np.concatenate((end - begin, before + after))
    return keys, np.concatenate((np.arange(len(texts), dtype=np.int32), rows))


def _trigrams(texts: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """Every three characters in a row of every text, a space added at both ends, each with the text's row."""
    codes, _, rows = _code_points([f" {text} " for text in texts])
    wide = codes.astype(np.uint64)
    keys = wide[:-2] << np.uint64(42) | wide[1:-1] << np.uint64(21) | wide[2:]
    within = rows[:-2] == rows[2:]
    return keys[within], rows[:-2][within]
