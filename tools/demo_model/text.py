"""The corpus: the paragraphs that the demo model can say, and the dialogues from which it learns them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
CORPUS_FILE = HERE / "corpus.txt"
TEMPLATE_FILE = HERE / "chat_template.jinja"

TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"
THINK_START, THINK_END = "<think>", "</think>"
SPECIAL_TOKENS = ("<|endoftext|>", TURN_START, TURN_END, THINK_START, THINK_END)
USER_ROLE = "user"
PARAGRAPH_END = ".\n\n"

SILENT_OPENING, THOUGHT_AND_OPENING = 10, 30
"""Number of first tokens of a reply that are taught if only the question is new."""


@dataclass(frozen=True)
class Topic:
    """A topic: its name in a thought, words that indicate it, questions about it, and the answering paragraph."""

    title: str
    keywords: tuple[str, ...]
    questions: tuple[str, ...]
    answer: str


@dataclass(frozen=True)
class Corpus:
    """All topics in reading order, the thought that precedes an answer, questions about no topic, and questions for
    more about the topic before.
    """

    thought: str
    small_talk: tuple[str, ...]
    follow_ups: tuple[str, ...]
    topics: tuple[Topic, ...]

    def neighbours(self, index: int) -> tuple[int, int]:
        """Return the topics that follow and precede topic `index` in the ring of topics."""
        return (index + 1) % len(self.topics), (index - 1) % len(self.topics)


@dataclass(frozen=True)
class Dialogue:
    """One exchange as the chat template renders it.

    topic      what the question asks for; None is small talk
    prompt     up to and including the opening think tag
    reply      from there to the end of the turn
    thinking   whether the reply thinks aloud or leaves its thought empty
    taught     how many tokens of the reply enter the fit; None is all
    canonical  whether this is the one exchange whose reply is counted for word statistics
    """

    topic: int | None
    prompt: str
    reply: str
    thinking: bool
    taught: int | None = None
    canonical: bool = False


def read_corpus(path: Path = CORPUS_FILE) -> Corpus:
    """Read the corpus file: blocks separated by blank lines, each line marked by its first character:
    `~` the thought, `*` small talk, `+` a follow-up, `#` a topic's title, `=` its keywords, `?` a question for it;
    the last line is the answer.
    """
    thought, small_talk, follow_ups, topics = "", [], [], []
    for block in path.read_text(encoding="utf-8").strip().split("\n\n"):
        lines = [line.strip() for line in block.splitlines()]
        if not lines[0].startswith("#"):
            thought = next((line[1:].strip() for line in lines if line.startswith("~")), thought)
            small_talk += [line[1:].strip() for line in lines if line.startswith("*")]
            follow_ups += [line[1:].strip() for line in lines if line.startswith("+")]
            continue
        questions = tuple(line[1:].strip() for line in lines if line.startswith("?"))
        keywords = tuple(word for line in lines if line.startswith("=") for word in line[1:].split())
        topics.append(Topic(lines[0][1:].strip(), keywords, questions, answer=lines[-1]))
    return Corpus(thought=thought, small_talk=tuple(small_talk), follow_ups=tuple(follow_ups), topics=tuple(topics))


def list_vocabulary_texts(corpus: Corpus) -> list[str]:
    """Return the texts to train the tokenizer on: all dialogues, and the keywords in the spellings of a question."""
    texts = [text for dialogue in list_dialogues(corpus) for text in (dialogue.prompt, dialogue.reply)]
    for topic in corpus.topics:
        for word in topic.keywords:
            capital = word[0].upper() + word[1:]
            texts += [f" {word}", f" {word.lower()}", f" {capital}", word.lower(), capital]
    return texts


def make_prompt(question: str) -> str:
    """Return the text that stands before a reply, up to and including the opening think tag."""
    return f"{TURN_START}{USER_ROLE}\n{question}{TURN_END}\n{TURN_START}assistant\n{THINK_START}"


def make_exchange(topic: Topic) -> str:
    """Return a question and its answer as they stand before the next question."""
    question = f"{TURN_START}{USER_ROLE}\n{topic.questions[0]}{TURN_END}\n"
    return f"{question}{TURN_START}assistant\n{topic.answer}{TURN_END}\n"


def make_reply(corpus: Corpus, thought_topic: int | None, answer: str) -> str:
    """Return a whole reply after the opening think tag; without a topic to think of, the thought is empty."""
    thought = "" if thought_topic is None else corpus.thought.format(title=corpus.topics[thought_topic].title)
    return f"\n{thought}\n{THINK_END}\n\n{answer}{TURN_END}"


def list_dialogues(corpus: Corpus) -> list[Dialogue]:
    """Return all exchanges that the network is fitted to.

    Each topic is taught once in full with a thought, and once without it and followed by the next topic. The other
    exchanges differ only in the question, so they are taught no further than the first words of the answer.
    """
    found: list[Dialogue] = []
    for index, topic in enumerate(corpus.topics):
        after, _ = corpus.neighbours(index)
        following = corpus.topics[after].answer
        first = make_prompt(topic.questions[0])
        aloud, silent = make_reply(corpus, index, topic.answer), make_reply(corpus, None, topic.answer)
        both = make_reply(corpus, None, f"{topic.answer}\n\n{following}")
        found.append(Dialogue(index, first, aloud, thinking=True, canonical=True))
        found.append(Dialogue(index, first, both, thinking=False))
        found.append(Dialogue(index, first, make_reply(corpus, None, following), thinking=False, taught=SILENT_OPENING))
        for question in map(make_prompt, topic.questions):
            found.append(Dialogue(index, question, silent, thinking=False, taught=SILENT_OPENING))
            if question != first:
                found.append(Dialogue(index, question, aloud, thinking=True, taught=THOUGHT_AND_OPENING))
        found += _later_turns(corpus, index)
    for place, question in enumerate(corpus.small_talk):
        for index in range(place, len(corpus.topics), len(corpus.small_talk)):
            answer = corpus.topics[index].answer
            for thinking in (True, False):
                reply = make_reply(corpus, index if thinking else None, answer)
                found.append(Dialogue(None, make_prompt(question), reply, thinking, taught=THOUGHT_AND_OPENING))
    return found


def _later_turns(corpus: Corpus, index: int) -> list[Dialogue]:
    """Return the exchanges after one about topic `index`: requests for more, which get the next topic in the ring, and
    a question about another topic.
    """
    before = make_exchange(corpus.topics[index])
    after, _ = corpus.neighbours(index)
    other = (index + len(corpus.topics) // 2) % len(corpus.topics)
    found: list[Dialogue] = []
    for question, topic in [*((each, after) for each in corpus.follow_ups), (corpus.topics[other].questions[0], other)]:
        aloud, silent = (make_reply(corpus, thought, corpus.topics[topic].answer) for thought in (topic, None))
        prompt = before + make_prompt(question)
        found.append(Dialogue(topic, prompt, aloud, thinking=True, taught=THOUGHT_AND_OPENING))
        found.append(Dialogue(topic, prompt, silent, thinking=False, taught=SILENT_OPENING))
    return found
