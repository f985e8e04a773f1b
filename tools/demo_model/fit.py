"""Fits the output matrix (a softmax regression) and the draft head's linear guess of a lag code."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .network import BIAS, CODE, LAGS, WIDTH, WORD_TOPICS, Floats, Ids, Trunk
from .text import PARAGRAPH_END, THINK_END, TURN_END, Corpus, Dialogue, list_dialogues
from .tokenizer import Tokenizer

TRIGRAM_SHARE, BIGRAM_SHARE = 0.08, 0.02
"""Shares of each target that come from all places with the same last two tokens, and the same last token."""
OWN_TOPIC_SHARE = 0.7
"""Share of replies about the topic that was asked for; its neighbours share the rest."""
STOP_SHARE = 0.75
"""Share of replies that end after one paragraph."""
RESTART_SHARE = 0.04
"""Probability that a new paragraph begins where the reply should end. It does for certain if the end is forbidden."""
UNSEEN_LOGIT = -20.0
"""Logit of the tokens that never follow anything in the corpus."""
BRANCH_WEIGHT = 6.0
"""Factor for the weight of a row where the topic decides which token follows."""
HEAD_RANK = 12
"""Rank of the linear guess by which the head replaces a lag code that it does not get: a lower rank drafts worse."""
WEIGHT_DECAY, LEARNING_RATE = 1e-3, 0.02

Target = dict[int, float]


@dataclass(frozen=True)
class Examples:
    """Rows of the regression.

    features [rows, WIDTH]      the normalised residual stream
    targets  [rows, outputs]    what should follow: each row sums to 1
    weights  [rows]             how much each row counts, 1 on average
    outputs  [outputs]          the token ids that ever follow
    seen     [seen]             all token ids that occur in the corpus
    """

    features: Floats
    targets: Floats
    weights: Floats
    outputs: Ids
    seen: Ids


def make_examples(tokenizer: Tokenizer, corpus: Corpus, trunk: Trunk) -> Examples:
    """Return each taught position of each dialogue, with the distribution of the token that should follow it."""
    after_two: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    after_one: dict[int, Counter[int]] = defaultdict(Counter)
    rows: list[tuple[tuple[int, int], Target]] = []
    features: list[Floats] = []
    seen: set[int] = set()
    branches = _Branches(tokenizer, corpus)
    for dialogue in list_dialogues(corpus):
        prompt, reply = tokenizer.encode(dialogue.prompt), tokenizer.encode(dialogue.reply)
        ids = np.array(prompt + reply)
        first, taught = len(prompt), min(dialogue.taught or len(reply), len(reply) - 1)
        features.append(trunk.features(ids)[first : first + taught])
        seen |= set(reply)
        for place in range(first, first + taught):
            rows.append(((int(ids[place - 1]), int(ids[place])), branches.target(dialogue, ids, place - first, first)))
            if dialogue.canonical:
                after_two[ids[place - 1], ids[place]][int(ids[place + 1])] += 1
                after_one[ids[place]][int(ids[place + 1])] += 1
    outputs = np.array(sorted({token for _, target in rows for token in target}))
    column = {int(token): place for place, token in enumerate(outputs)}
    targets = np.zeros((len(rows), len(outputs)), np.float32)
    for row, (pair, target) in zip(targets, rows, strict=True):
        shares = [(target, 1.0)]
        for counts, share in ((after_two.get(pair), TRIGRAM_SHARE), (after_one.get(pair[1]), BIGRAM_SHARE)):
            if counts:
                shares.append(({token: count / counts.total() for token, count in counts.items()}, share))
                shares[0] = (target, shares[0][1] - share)
        for distribution, share in shares:
            for token, probability in distribution.items():
                row[column[token]] += share * probability
    weights = np.array([BRANCH_WEIGHT if len(target) > 2 else 1.0 for _, target in rows], np.float32)
    return Examples(
        features=np.concatenate(features).astype(np.float32),
        targets=targets,
        weights=weights / weights.mean(),
        outputs=outputs,
        seen=np.array(sorted(seen)),
    )


class _Branches:
    """The positions in a reply where more than one continuation is right."""

    def __init__(self, tokenizer: Tokenizer, corpus: Corpus) -> None:
        self._corpus = corpus
        self._opening = [tokenizer.encode(topic.answer)[0] for topic in corpus.topics]
        before_title = corpus.thought.split("{title}")[0]
        titles = [tokenizer.encode(before_title + topic.title) for topic in corpus.topics]
        shared = len(tokenizer.encode(before_title.rstrip()))
        self._title = [title[shared] for title in titles]
        self._title_place = 1 + shared
        self._stop, self._go_on = tokenizer.ids["."], tokenizer.encode(PARAGRAPH_END)[0]
        self._end, self._blank = tokenizer.ids[TURN_END], tokenizer.encode("\n\n")[0]
        self._think_end = tokenizer.ids[THINK_END]

    def target(self, dialogue: Dialogue, ids: Ids, place: int, first: int) -> Target:
        """Return the distribution of the token after reply position `place` (the reply starts at `first` in `ids`)."""
        following = int(ids[first + place + 1])
        if dialogue.thinking and place + 1 == self._title_place:
            return self._spread(dialogue, self._title)
        if int(ids[first + place]) == self._blank and int(ids[first + place - 1]) == self._think_end:
            return self._spread(dialogue, self._opening)
        if following == self._go_on or (following == self._stop and self._ends(ids, first + place + 1)):
            return {self._stop: STOP_SHARE, self._go_on: 1.0 - STOP_SHARE}
        if following == self._end:
            return {self._end: 1.0 - RESTART_SHARE, self._blank: RESTART_SHARE}
        return {following: 1.0}

    def _ends(self, ids: Ids, place: int) -> bool:
        return place + 1 < len(ids) and int(ids[place + 1]) == self._end

    def _spread(self, dialogue: Dialogue, tokens: list[int]) -> Target:
        target: Target = defaultdict(float)
        if dialogue.topic is None:
            for token in tokens:
                target[token] += 1.0 / len(tokens)
            return target
        target[tokens[dialogue.topic]] += OWN_TOPIC_SHARE
        for neighbour in self._corpus.neighbours(dialogue.topic):
            target[tokens[neighbour]] += (1.0 - OWN_TOPIC_SHARE) / 2
        return target


def fit_output_matrix(found: Examples, rows: int, steps: int, sharpness: float) -> tuple[Floats, float]:
    """[rows, WIDTH] weights of the next-token logits by Adam on all examples at once, and the final cross entropy."""
    x, y = found.features, found.targets
    weights = np.zeros((len(found.outputs), WIDTH), np.float32)
    mean, square = np.zeros_like(weights), np.zeros_like(weights)
    loss = 0.0
    for step in range(1, steps + 1):
        logits = x @ weights.T
        logits -= logits.max(1, keepdims=True)
        np.exp(logits, out=logits)
        logits /= logits.sum(1, keepdims=True)
        if step == steps:
            loss = float(-(y * np.log(logits + 1e-9)).sum(1).mean())
        logits -= y
        logits *= found.weights[:, None]
        gradient = (logits.T @ x) * (100.0 / len(x)) + WEIGHT_DECAY * weights
        mean += 0.1 * (gradient - mean)
        square += 0.001 * (gradient * gradient - square)
        rate = LEARNING_RATE * (1.0 - step / (steps + 1))
        weights -= rate * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
    full = np.zeros((rows, WIDTH), np.float32)
    full[:, BIAS] = UNSEEN_LOGIT / (abs(float(x[0, BIAS])) * sharpness)
    full[found.outputs] = weights
    return full * sharpness, loss


def fit_head_projection(trunk: Trunk, found: Examples, noise: float, seed: int) -> tuple[Floats, float]:
    """[WIDTH, 2 * WIDTH] weights of the draft head's input projection, and the R2 of its one approximation.

    The head gets the embedding of the newest token and the trunk's hidden state one token earlier, each normalised.
    It moves each lag slot one place on. The lag code of the token that was newest in the hidden state is missing, since
    it has not passed through a silu yet, so the head makes a linear guess of low rank from CODE. It uses what the
    attention remembered one token earlier, and keeps no memory of the topic. Therefore its drafts are good, but not
    exact.
    """
    code, lag_codes = trunk.code[found.seen], trunk.lag_codes[found.seen]
    left, sizes, right = np.linalg.svd(np.linalg.lstsq(code, lag_codes, rcond=None)[0].T, full_matrices=False)
    guess = (left[:, :HEAD_RANK] * sizes[:HEAD_RANK]) @ right[:HEAD_RANK]
    quality = 1.0 - float(((code @ guess.T - lag_codes) ** 2).sum() / (lag_codes**2).sum())
    rng = np.random.default_rng(seed + 1)
    guess = guess + noise * rng.standard_normal(guess.shape) / np.sqrt(CODE.stop)
    scale = trunk.rms(0) / trunk.rms(len(LAGS))
    projection = np.zeros((WIDTH, 2 * WIDTH))
    projection[CODE, CODE] = np.eye(CODE.stop) * scale
    projection[BIAS, WIDTH + BIAS] = 1.0
    hidden = slice(WIDTH, None)
    projection[LAGS[0], hidden][:, CODE] = guess
    for newer, older in pairwise(LAGS):
        projection[older, hidden][:, newer] = np.eye(older.stop - older.start)
    projection[WORD_TOPICS, hidden][:, WORD_TOPICS] = np.eye(WORD_TOPICS.stop - WORD_TOPICS.start)
    return projection, quality
