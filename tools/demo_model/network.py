"""The trunk, computed by hand: what the residual stream holds at each token, exactly as the engine will compute it.

The residual stream (WIDTH numbers per token) is divided into slots. The embedding fills CODE, BIAS and the word's
topics; three gated delta net blocks then add one slot each:

* two heads of block k wipe their state at every step and look back by k + 1 tokens through the convolution, so they
  write a non-linear code of the token at that distance into LAGS[k];
* one more head of block 0 never decays. It writes only at words that indicate a topic, and forgets at a new question or
paragraph, so TOPIC holds the current topic.

The attention block then looks at all tokens from the first on. The more clearly a word indicates a topic and the nearer
it is, the more it weighs; the topics of these words are added to WORD_TOPICS. So a new question that names no topic
finds the last one there, however far back, and the result depends on every byte of the KV cache.

All other projections are zero, so the output matrix sees a log-linear model of four tokens and a topic.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .text import PARAGRAPH_END, USER_ROLE, Corpus
from .tokenizer import Tokenizer, split, to_letters

Floats = NDArray[np.floating[Any]]
Ids = NDArray[np.integer[Any]]

WIDTH = 384
CODE = slice(0, 128)
LAGS = (slice(128, 192), slice(192, 256), slice(256, 320))
BIAS, WRITE, FILL = 320, 321, 322
WORD_TOPICS = slice(323, 353)
TOPIC = slice(353, 383)

STATE = 32
HEADS_PER_LAG = 2
CHANNELS = TOPIC.stop - TOPIC.start
TOPICS = CHANNELS - 1
BIAS_VALUE = 4.0
EPSILON = 1e-6

CURVATURE = 2.0
"""Size of the lag codes before their non-linearity: the larger, the worse a linear head can predict them."""
TOPIC_GAIN = 1.0
"""Size of the topic slot in the residual stream, relative to a lag code."""

KEY_WIDTH, ROTATED, ROTATION_BASE = 64, 16, 1e7
"""Number of channels of a key, number of those that are rotated by the token's position (RoPE), and the base of the
rotation.
"""
EVIDENCE, STEADY = ROTATED, slice(32, KEY_WIDTH)
"""The key's channel for how clearly its word indicates a topic, and the channels that only keep its length constant."""
NEARNESS = {3: 30.0, 4: 30.0, 5: 30.0}
"""Weight (a logit) of a token at distance 0, by rotated pair. Slower pairs distinguish distances that are the same to
faster ones.
"""
EVIDENCE_WEIGHT = 30.0
"""Weight (a logit) of a word whose key has 1 in EVIDENCE."""
TOPIC_EVIDENCE = np.array([0.1] * TOPICS + [0.08])
"""Amount that one unit of each of WORD_TOPICS adds to EVIDENCE. The last unit is for words that open a question or
paragraph, which show that there is no topic.
"""
VALUE_LOUD, LOUDNESS = 31, 128.0
"""A channel of each value that nothing reads, and its content. As in large models, a channel with such large numbers
coarsens the others in a quantised KV cache: the step is a 16th of this number in q4_0, a 254th in q8_0.
"""
REMEMBERED_GAIN = 1.5
"""Size of the attention's output."""

RESET, NEVER = 9.0, -9.0
"""Logits of the memory head's beta: overwrite everything, keep everything."""
BACKGROUND = TOPICS
"""The memory's channel for `nothing in particular`, next to the topics."""


def silu(x: Floats) -> Floats:
    """Return silu(x), the smooth ramp that the engine applies after its convolutions and in its gates."""
    return x / (1.0 + np.exp(-x))


def inverse_silu(y: Floats) -> Floats:
    """The non-negative x with silu(x) = y, for y >= 0."""
    low, high = np.zeros_like(y), y + 1.0
    for _ in range(60):
        middle = (low + high) / 2
        below = silu(middle) < y
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.where(y > 0, (low + high) / 2, 0.0)


@dataclass(frozen=True)
class Trunk:
    """The numbers from which the trunk's weights are made.

    code       [vocabulary, CODE]      random signs, one row per token
    lag_matrix [lag width, CODE]       random; its silu is a lag code
    topics     [vocabulary, STATE]     what the memory head writes for a token, after its silu
    beta       [vocabulary]            logit of how far the memory head overwrites its state at a token
    mixing     [VALUE_LOUD, CHANNELS]  orthonormal columns: what each topic puts into the channels of a value
    """

    code: Floats
    lag_matrix: Floats
    topics: Floats
    beta: Floats
    mixing: Floats

    @classmethod
    def make(cls, tokenizer: Tokenizer, corpus: Corpus, rows: int, seed: int) -> Trunk:
        rng = np.random.default_rng(seed)
        code_width, lag_width = CODE.stop, LAGS[0].stop - LAGS[0].start
        code: Floats = rng.choice(np.array([-1.0, 1.0]), size=(rows, code_width))
        lag_matrix = rng.standard_normal((lag_width, code_width)) * (CURVATURE / np.sqrt(code_width))
        topics, beta = _word_topics(tokenizer, corpus, rows)
        mixing, _ = np.linalg.qr(rng.standard_normal((VALUE_LOUD, CHANNELS)))
        return cls(code=code, lag_matrix=lag_matrix, topics=topics, beta=beta, mixing=mixing)

    @cached_property
    def lag_codes(self) -> Floats:
        """[vocabulary, lag width]: the non-linear code of each token, normalised per head."""
        heads = silu(self.code @ self.lag_matrix.T).reshape(len(self.code), HEADS_PER_LAG, STATE)
        return _normalise_rms(heads).reshape(len(self.code), -1)

    @property
    def embedding(self) -> Floats:
        """[vocabulary, WIDTH]: rows of equal length, so that each RMS norm divides by a constant."""
        rows = np.zeros((len(self.code), WIDTH))
        rows[:, CODE] = self.code
        rows[:, BIAS] = BIAS_VALUE
        rows[:, WORD_TOPICS] = self.word_topics
        rows[:, WRITE] = (self.beta - NEVER) / (RESET - NEVER)
        missing = self.extra_energy - (rows[:, WORD_TOPICS] ** 2).sum(1) - rows[:, WRITE] ** 2
        rows[:, FILL] = np.sqrt(np.maximum(missing, 0.0))
        return rows

    @cached_property
    def extra_energy(self) -> float:
        """Squared length that topics, write flag and filler have together in every embedding."""
        return float((self.word_topics**2).sum(1).max() + 1.0)

    def rms(self, lags: int) -> float:
        """RMS of the residual stream once `lags` lag slots are filled (the topic slot is filled with the first)."""
        energy = CODE.stop + BIAS_VALUE**2 + self.extra_energy
        energy += lags * (LAGS[0].stop - LAGS[0].start) + (STATE * TOPIC_GAIN**2 if lags else 0.0)
        return float(np.sqrt(energy / WIDTH))

    def features(self, ids: Ids) -> Floats:
        """[tokens, WIDTH]: the normalised residual stream before the output matrix, less the slots it ignores."""
        stream = np.zeros((len(ids), WIDTH))
        stream[:, CODE] = self.code[ids]
        stream[:, BIAS] = BIAS_VALUE
        codes = self.lag_codes
        for distance, slot in enumerate(LAGS, start=1):
            stream[distance:, slot] = codes[ids[: max(len(ids) - distance, 0)]]
        stream[:, TOPIC] = self.memory(ids)[:, :CHANNELS] * TOPIC_GAIN
        words = self.word_topics[ids]
        stream[:, WORD_TOPICS] = words + REMEMBERED_GAIN * self.remembered(ids)
        energy = self.rms(len(LAGS)) ** 2 * WIDTH + (stream[:, WORD_TOPICS] ** 2 - words**2).sum(1)
        features: Floats = stream / np.sqrt(energy / WIDTH)[:, None]
        return features

    def remembered(self, ids: Ids) -> Floats:
        """[tokens, CHANNELS]: what the attention reads at each token: topics of words there and before, by weight."""
        keys = self.keys / np.sqrt((self.keys**2).mean(1, keepdims=True) + EPSILON)
        weighed = keys[ids] * self.query / np.sqrt(KEY_WIDTH)
        distance = np.arange(len(ids))[:, None] - np.arange(len(ids))
        logits = weighed[:, EVIDENCE] + np.where(distance >= 0, 0.0, -np.inf)
        for pair in NEARNESS:
            logits += weighed[:, pair] * np.cos(distance * ROTATION_BASE ** (-2.0 * pair / ROTATED))
        weights = np.exp(logits - logits.max(1, keepdims=True))
        read: Floats = (weights / weights.sum(1, keepdims=True)) @ self.word_topics[ids]
        return read

    @cached_property
    def keys(self) -> Floats:
        """[vocabulary, KEY_WIDTH]: the key of each token, before the engine normalises and turns it."""
        keys = np.zeros((len(self.code), KEY_WIDTH))
        keys[:, list(NEARNESS)] = 1.0
        keys[:, EVIDENCE] = self.word_topics @ TOPIC_EVIDENCE
        keys[:, STEADY] = 1.0
        return keys

    @cached_property
    def query(self) -> Floats:
        """[KEY_WIDTH]: the query, the same for every token."""
        query: Floats = np.zeros(KEY_WIDTH)
        length = np.sqrt((len(NEARNESS) + STEADY.stop - STEADY.start) / KEY_WIDTH)
        query[list(NEARNESS)] = list(NEARNESS.values())
        query[EVIDENCE] = EVIDENCE_WEIGHT
        query *= length * np.sqrt(KEY_WIDTH)
        return query

    @cached_property
    def word_topics(self) -> Floats:
        """[vocabulary, CHANNELS]: what each token says about the topic, as its embedding has it."""
        return inverse_silu(self.topics[:, :CHANNELS])

    def memory(self, ids: Ids) -> Floats:
        """[tokens, STATE]: what the memory head reads at each token: a running mean of topics, normalised."""
        state = np.zeros(STATE)
        states = np.zeros((len(ids), STATE))
        for place, index in enumerate(ids):
            beta = 1.0 / (1.0 + np.exp(-self.beta[index]))
            state = (1.0 - beta) * state + beta * self.topics[index]
            states[place] = state
        return _normalise_rms(states / np.sqrt(STATE))


def _normalise_rms(x: Floats) -> Floats:
    scaled: Floats = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON)
    return scaled


def _word_topics(tokenizer: Tokenizer, corpus: Corpus, rows: int) -> tuple[Floats, Floats]:
    """Return each token's evidence for the topic (see Trunk.topics), and how far the memory should overwrite its state
    with it (Trunk.beta).
    """
    if len(corpus.topics) > TOPICS:
        raise ValueError(f"the corpus has {len(corpus.topics)} topics, the network has room for {TOPICS}")
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for index, topic in enumerate(corpus.topics):
        titles = " ".join([topic.title, *topic.keywords])
        for text, weight in [(topic.answer, 1), (titles, 6), *((question, 2) for question in topic.questions)]:
            for word in {piece.strip().lower() for piece in split(text)}:
                counts[word][index] += weight
    common = {
        piece.strip().lower()
        for text in (corpus.thought, *corpus.small_talk, *corpus.follow_ups)
        for piece in split(text)
    }
    topics, beta = np.zeros((rows, STATE)), np.full(rows, NEVER)
    for token in range(len(tokenizer.tokens)):
        found = counts.get(tokenizer.word(token))
        if not found or len(found) > 8 or tokenizer.word(token) in common or not tokenizer.word(token).isalpha():
            continue
        weights = np.zeros(STATE)
        weights[list(found)] = list(found.values())
        weights[:TOPICS] = np.where(weights[:TOPICS] >= 0.25 * weights.max(), weights[:TOPICS], 0.0)
        if np.count_nonzero(weights) <= 3:
            topics[token] = 3.0 * weights / np.linalg.norm(weights)
            share = min(0.04 * weights.max(), 0.4)
            beta[token] = np.log(share / (1.0 - share))
    for name in (USER_ROLE, to_letters(PARAGRAPH_END)):
        if name in tokenizer.ids:
            topics[tokenizer.ids[name], BACKGROUND], beta[tokenizer.ids[name]] = 2.0, RESET
    return topics, beta
